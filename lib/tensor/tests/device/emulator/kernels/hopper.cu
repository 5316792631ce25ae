// dtypes: bf16 f16
// Each primitive of hopper.cuh, for ../hopper.rs.
#include "element.cuh"
#include "hopper.cuh"
#include "warp.cuh"

constexpr int BOX = 64 * LINE;

// The first multiple of 1024.
DEVICE unsigned char* first_box(unsigned char* shared) {
    return shared + (-shared_offset(shared) & (BOX_ALIGNMENT - 1));
}

DEVICE void begin_barriers(Barrier* barriers, int count, unsigned arrivals) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; i++) {
            init_barrier(barriers + i, arrivals);
        }
        publish_barriers();
    }
    __syncthreads();
}

// Copies the box of `lines` lines at the coordinates and writes out how it lies in shared memory.
KERNEL(hopper_copy)(TENSOR_MAP map, element* out, int x, int y, int z, int w, int lines) {
    DYNAMIC_SHARED(shared);
    SHARED(Barrier, barrier, );
    element* box = reinterpret_cast<element*>(first_box(shared));
    begin_barriers(&barrier, 1, 1);
    if (threadIdx.x == 0) {
        arrive_and_expect(&barrier, lines * LINE);
        copy_box(box, map, x, y, z, w, &barrier);
    }
    wait(&barrier, 0);
    for (int i = static_cast<int>(threadIdx.x); i < lines * LINE / ELEMENT_BYTES; i += static_cast<int>(blockDim.x)) {
        out[i] = box[i];
    }
}

// The descriptor of an operand `bytes` after the first multiple of 1024: its halves, and the shared offset.
KERNEL(hopper_describe)(int* out, int bytes, int next) {
    DYNAMIC_SHARED(shared);
    const unsigned char* operand = first_box(shared) + bytes;
    const unsigned long long descriptor = describe_operand(operand, static_cast<unsigned>(next));
    out[0] = static_cast<int>(descriptor);
    out[1] = static_cast<int>(descriptor >> 32);
    out[2] = static_cast<int>(shared_offset(operand));
}

template <int ROWS, bool LINES>
DEVICE void copy_operand(unsigned char* to, const TensorMap& map, int k, Barrier* barrier) {
    if constexpr (LINES) {
        copy_box(to, map, k, 0, 0, 0, barrier);
    } else {
        for (int i = 0; i < ROWS / 64; i++) {
            copy_box(to + i * BOX, map, 64 * i, k, 0, 0, barrier);
        }
    }
}

template <int N, bool LHS, bool RHS, bool ZERO = false>
DEVICE void multiply_tile(float (&sum)[N / 2], const unsigned char* lhs, const unsigned char* rhs) {
    for (int step = 0; step < 4; step++) {
        const unsigned long long a = describe_operand(lhs + step * (LHS ? 32 : 16 * LINE), LHS ? 16 : BOX);
        const unsigned long long b = describe_operand(rhs + step * (RHS ? 32 : 16 * LINE), RHS ? 16 : BOX);
        if (ZERO && step == 0) {
            multiply_64<N, LHS, RHS, true>(sum, a, b, element());
        } else {
            multiply_64<N, LHS, RHS>(sum, a, b, element());
        }
    }
}

// The place of a sum of this thread in a matrix 64 x N.
template <int N>
DEVICE int place_of(int i) {
    const int lane = lane_id(), warp = warp_id() % 4;
    return (16 * warp + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

// out (64 x N) += lhs (64 x 64) rhs (64 x N), by a warpgroup; with REGISTERS, the left operand passes through them; with ZERO,
// out is overwritten.
template <int N, bool LHS, bool RHS, bool REGISTERS, bool ZERO>
DEVICE void multiply_once(const TensorMap& lhs, const TensorMap& rhs, float* out, unsigned char* shared) {
    SHARED(Barrier, barrier, );
    unsigned char* boxes = first_box(shared);
    begin_barriers(&barrier, 1, 1);
    if (threadIdx.x == 0) {
        arrive_and_expect(&barrier, BOX + N * LINE);
        copy_operand<64, LHS>(boxes, lhs, 0, &barrier);
        copy_operand<N, RHS>(boxes + BOX, rhs, 0, &barrier);
    }
    float sum[N / 2];
    for (int i = 0; i < N / 2; i++) {
        sum[i] = out[place_of<N>(i)];
    }
    wait(&barrier, 0);
    if constexpr (REGISTERS) {
        const int row = warp_id() % 4 * 16 + lane_id() / 4, column = lane_id() % 4 * 2;
        for (int step = 0; step < 4; step++) {
            unsigned a[4];
            for (int i = 0; i < 4; i++) {
                const int line = row + i % 2 * 8, at = step * 32 + i / 2 * 16 + column * 2;
                a[i] = *reinterpret_cast<const unsigned*>(boxes + line * LINE + (at ^ line % 8 * 16));
            }
            fence_products();
            const unsigned char* tile = boxes + BOX + step * (RHS ? 32 : 16 * LINE);
            multiply_64<N, RHS>(sum, a, describe_operand(tile, RHS ? 16 : BOX), element());
            commit_products();
            wait_products<0>();
        }
    } else {
        fence_products();
        multiply_tile<N, LHS, RHS, ZERO>(sum, boxes, boxes + BOX);
        commit_products();
        wait_products<0>();
    }
    for (int i = 0; i < N / 2; i++) {
        out[place_of<N>(i)] = sum[i];
    }
}

#define MULTIPLY_ONCE(name, N, LHS, RHS, REGISTERS, ZERO)                                \
    KERNEL(name)(TENSOR_MAP lhs, TENSOR_MAP rhs, float* out) {                           \
        DYNAMIC_SHARED(shared);                                                          \
        multiply_once<N, LHS, RHS, REGISTERS, ZERO>(lhs, rhs, out, shared);              \
    }
MULTIPLY_ONCE(hopper_multiply_nn, 256, true, false, false, false)
MULTIPLY_ONCE(hopper_multiply_nt, 256, true, true, false, false)
MULTIPLY_ONCE(hopper_multiply_tn, 256, false, false, false, false)
MULTIPLY_ONCE(hopper_multiply_tt, 256, false, true, false, false)
MULTIPLY_ONCE(hopper_multiply_128_nn, 128, true, false, false, false)
MULTIPLY_ONCE(hopper_multiply_64_nt, 64, true, true, false, false)
MULTIPLY_ONCE(hopper_multiply_zero_nt, 128, true, true, false, true)
MULTIPLY_ONCE(hopper_multiply_registers_128_nn, 128, true, false, true, false)
MULTIPLY_ONCE(hopper_multiply_registers_64_nt, 64, true, true, true, false)

// The same for 64 k of each of `tiles` tiles, through two slots: the second warpgroup multiplies what the first copies.
KERNEL(hopper_ring, 2 * WARPGROUP)(TENSOR_MAP lhs, TENSOR_MAP rhs, float* out, int tiles) {
    DYNAMIC_SHARED(shared);
    SHARED(Barrier, full, [2]);
    SHARED(Barrier, empty, [2]);
    unsigned char* boxes = first_box(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            init_barrier(full + i, 1);
            init_barrier(empty + i, 4);
        }
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        lower_registers<24>();
        for (int t = 0; t < tiles && threadIdx.x == 0; t++) {
            wait(empty + t % 2, t / 2 % 2 ^ 1);
            arrive_and_expect(full + t % 2, 5 * BOX);
            copy_operand<64, true>(boxes + t % 2 * 5 * BOX, lhs, 64 * t, full + t % 2);
            copy_operand<256, false>(boxes + t % 2 * 5 * BOX + BOX, rhs, 64 * t, full + t % 2);
        }
        return;
    }
    raise_registers<240>();
    float sum[128] = {};
    for (int t = 0; t < tiles; t++) {
        const unsigned char* tile = boxes + t % 2 * 5 * BOX;
        wait(full + t % 2, t / 2 % 2);
        fence_products();
        multiply_tile<256, true, false>(sum, tile, tile + BOX);
        commit_products();
        wait_products<1>();
        if (t > 0 && lane_id() == 0) {
            arrive(empty + (t - 1) % 2);
        }
    }
    wait_products<0>();
    for (int i = 0; i < 128; i++) {
        out[place_of<256>(i)] = sum[i];
    }
}

// Copies 64 lines at a time through two slots: the first of three warps copies to shared memory, the others from there.
KERNEL(hopper_stream)(TENSOR_MAP map, element* out, int boxes) {
    DYNAMIC_SHARED(shared);
    SHARED(Barrier, full, [2]);
    SHARED(Barrier, empty, [2]);
    unsigned char* slots = first_box(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            init_barrier(full + i, 1);
            init_barrier(empty + i, 2);
        }
        publish_barriers();
    }
    __syncthreads();
    for (int t = 0; t < boxes; t++) {
        const int slot = t % 2, parity = t / 2 % 2;
        if (threadIdx.x == 0) {
            wait(empty + slot, parity ^ 1);
            arrive_and_expect(full + slot, BOX);
            copy_box(slots + slot * BOX, map, 0, 64 * t, 0, 0, full + slot);
        } else if (threadIdx.x >= WARP) {
            wait(full + slot, parity);
            for (int i = static_cast<int>(threadIdx.x) - WARP; i < BOX / 2; i += 2 * WARP) {
                out[t * (BOX / 2) + i] = reinterpret_cast<const element*>(slots + slot * BOX)[i];
            }
            __syncwarp();
            if (lane_id() == 0) {
                arrive(empty + slot);
            }
        }
    }
}

// Two warps take turns by numbered barriers: each adds its number to the digits so far.
KERNEL(hopper_turns)(int* out, int turns) {
    SHARED(int, digits, );
    const int warp = warp_id(), lane = lane_id();
    if (threadIdx.x == 0) {
        digits = 0;
    }
    __syncthreads();
    if (warp == 1) {
        arrive_threads(1, 64);
    }
    for (int turn = 0; turn < turns; turn++) {
        sync_threads(1 + warp, 64);
        if (lane == 0) {
            digits = digits * 10 + warp + 1;
        }
        __syncwarp();
        arrive_threads(2 - warp, 64);
    }
    __syncthreads();
    out[threadIdx.x] = digits;
}
