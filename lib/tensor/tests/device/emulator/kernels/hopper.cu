// elements: bf16 f16
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

template <bool LHS, bool RHS>
DEVICE void multiply_64(float (&sum)[128], const unsigned char* lhs, const unsigned char* rhs) {
    for (int step = 0; step < 4; step++) {
        const unsigned long long a = describe_operand(lhs + step * (LHS ? 32 : 16 * LINE), LHS ? 16 : BOX);
        const unsigned long long b = describe_operand(rhs + step * (RHS ? 32 : 16 * LINE), RHS ? 16 : BOX);
        multiply_64x256x16<0, LHS, RHS>(sum, a, b, element());
    }
}

// The place of a sum of this thread in a matrix 64 x 256.
DEVICE int place_of(int i) {
    const int lane = lane_id(), warp = warp_id() % 4;
    return (16 * warp + lane / 4 + i / 2 % 2 * 8) * 256 + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

// out (64 x 256) += lhs (64 x 64) rhs (64 x 256), by a warpgroup.
template <bool LHS, bool RHS>
DEVICE void multiply_once(const TensorMap& lhs, const TensorMap& rhs, float* out, unsigned char* shared) {
    SHARED(Barrier, barrier, );
    unsigned char* boxes = first_box(shared);
    begin_barriers(&barrier, 1, 1);
    if (threadIdx.x == 0) {
        arrive_and_expect(&barrier, 5 * BOX);
        copy_operand<64, LHS>(boxes, lhs, 0, &barrier);
        copy_operand<256, RHS>(boxes + BOX, rhs, 0, &barrier);
    }
    float sum[128];
    for (int i = 0; i < 128; i++) {
        sum[i] = out[place_of(i)];
    }
    wait(&barrier, 0);
    fence_products();
    multiply_64<LHS, RHS>(sum, boxes, boxes + BOX);
    commit_products();
    wait_products<0>();
    for (int i = 0; i < 128; i++) {
        out[place_of(i)] = sum[i];
    }
}

#define MULTIPLY_ONCE(name, LHS, RHS)                                                    \
    KERNEL(name)(TENSOR_MAP lhs, TENSOR_MAP rhs, float* out) {                           \
        DYNAMIC_SHARED(shared);                                                          \
        multiply_once<LHS, RHS>(lhs, rhs, out, shared);                                  \
    }
MULTIPLY_ONCE(hopper_multiply_nn, true, false)
MULTIPLY_ONCE(hopper_multiply_nt, true, true)
MULTIPLY_ONCE(hopper_multiply_tn, false, false)
MULTIPLY_ONCE(hopper_multiply_tt, false, true)

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
        multiply_64<true, false>(sum, tile, tile + BOX);
        commit_products();
        wait_products<1>();
        if (t > 0 && lane_id() == 0) {
            arrive(empty + (t - 1) % 2);
        }
    }
    wait_products<0>();
    for (int i = 0; i < 128; i++) {
        out[place_of(i)] = sum[i];
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
