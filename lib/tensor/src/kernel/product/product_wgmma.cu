// elements: bf16 f16
// Products of 16-bit matrices by warpgroups of Hopper (sm_90a), sums in f32; epilogues as in include/product_kernel.cuh.
//
// As many blocks as there are multiprocessors compute one 128 x 256 part after another. A thread of the first warpgroup
// copies tiles of 64 along k, of which STAGES are in flight or in use; the two others sum 64 rows each. While they write
// their results, the tiles of the next part are copied.
//
// Warp specialization, register reallocation and persistent blocks follow CUTLASS 3 (NVIDIA, "Efficient GEMM in CUDA").

#include "hopper.cuh"
#include "product_kernel.cuh"

struct Part {
    static constexpr int BM = 128, BN = 256;
};
constexpr int STAGES = 4, THREADS = 3 * WARPGROUP;
// Elements of a line, and lines of a box that is not along k.
constexpr int TILE = LINE / 2;
constexpr int LHS_BYTES = Part::BM * LINE, BYTES = LHS_BYTES + Part::BN * LINE, BOX = TILE * LINE;
// The sums of a warp are written through shared memory, 32 columns at a time; with this stride there are no bank conflicts.
constexpr int SLAB = 32, PITCH = SLAB + 8, SLAB_BYTES = 16 * PITCH * 4, CONSUMER_WARPS = 8;

struct Slots {
    Barrier full[STAGES], empty[STAGES];
};

// The slot of a tile, and how often all slots have been used before, modulo 2.
struct Turn {
    int slot = 0;
    unsigned parity = 0;

    DEVICE void next() {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// Starts to copy ROWS rows of an operand, from `row` on, and 64 k of each: one box along k, or boxes of 64 rows.
template <int ROWS, bool ALONG_K>
DEVICE void copy_operand(unsigned char* to, const TensorMap& map, int row, int k, int term, int batch, Barrier* full) {
    if constexpr (ALONG_K) {
        copy_box(to, map, k, row, term, batch, full);
    } else {
#pragma unroll
        for (int i = 0; i < ROWS / TILE; i++) {
            copy_box(to + i * BOX, map, row + i * TILE, k, term, batch, full);
        }
    }
}

// Copies all tiles of the parts of this block.
template <bool LHS_LINES, bool RHS_LINES>
DEVICE void produce(const Product& p, const TensorMap& lhs, const TensorMap& rhs, unsigned char* tiles, Slots& slots) {
    Turn turn;
    const int numbers = places<Part>(p);
#pragma unroll 1
    for (int number = blockIdx.x; number < numbers; number += gridDim.x) {
        const Place at = place<Part>(p, number);
        const Range range = range_of<TILE>(p, at);
        // A matrix that all products share, or all terms, is stored once.
        const int lhs_batch = p.lhs_batch ? at.batch : 0, rhs_batch = p.rhs_batch ? at.batch : 0;
        int k = range.k, term = range.term;
#pragma unroll 1
        for (int t = range.begin; t < range.end; t++) {
            unsigned char* to = tiles + turn.slot * BYTES;
            Barrier* full = &slots.full[turn.slot];
            wait(&slots.empty[turn.slot], turn.parity ^ 1);
            arrive_and_expect(full, BYTES);
            copy_operand<Part::BM, LHS_LINES>(to, lhs, at.row, k, p.lhs_term ? term : 0, lhs_batch, full);
            copy_operand<Part::BN, RHS_LINES>(to + LHS_BYTES, rhs, at.column, k, p.rhs_term ? term : 0, rhs_batch, full);
            turn.next();
            k += TILE;
            if (k >= p.k) {
                k = 0;
                term++;
            }
        }
    }
}

// Adds the product of a tile: 64 rows of the left operand, from `lhs` on, and all columns.
template <bool LHS_LINES, bool RHS_LINES>
DEVICE void multiply_tile(float (&sum)[128], const unsigned char* lhs, const unsigned char* rhs) {
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        // 16 k are 32 bytes of a line, or 16 lines.
        const unsigned long long a = describe_operand(lhs + step * (LHS_LINES ? 32 : 16 * LINE), LHS_LINES ? 16 : BOX);
        const unsigned long long b = describe_operand(rhs + step * (RHS_LINES ? 32 : 16 * LINE), RHS_LINES ? 16 : BOX);
        multiply_64<Part::BN, LHS_LINES, RHS_LINES>(sum, a, b, element());
    }
    commit_products();
}

// Passes the sums of a warp, 16 x 256, to the epilogue.
DEVICE void write_sums(const Product& p, const Place& at, const float (&sum)[128], float* slab) {
    constexpr int VECTORS = SLAB / WIDTH, ROWS = WARP / VECTORS, TURNS = 16 / ROWS;
    const int lane = lane_id(), column = lane % VECTORS * WIDTH;
#pragma unroll 1
    for (int part = 0; part < Part::BN / SLAB; part++) {
        const int first = at.column + part * SLAB + column;
        Vector<element, WIDTH> addend[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            addend[turn] = read_addend(p, at, at.row + lane / VECTORS + turn * ROWS, first);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < Part::BN / SLAB; i++) {
            if (i == part) {
#pragma unroll
                for (int j = 0; j < SLAB / 8; j++) {
                    const float* four = sum + 4 * (i * SLAB / 8 + j);
                    float* to = slab + lane / 4 * PITCH + 8 * j + lane % 4 * 2;
                    store_vector(to, Vector<float, 2>{{four[0], four[1]}});
                    store_vector(to + 8 * PITCH, Vector<float, 2>{{four[2], four[3]}});
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = lane / VECTORS + turn * ROWS;
            write_result(p, at, at.row + row, first, load_sums<WIDTH>(slab + row * PITCH + column), addend[turn]);
        }
    }
}

// Sums and writes all parts of this block: 64 rows of each, from `64 group` on.
template <bool LHS_LINES, bool RHS_LINES>
DEVICE void consume(const Product& p, const unsigned char* tiles, Slots& slots, float* slabs, int group) {
    Turn turn;
    const int warp = warp_id() % (WARPGROUP / WARP), numbers = places<Part>(p);
#pragma unroll 1
    for (int number = blockIdx.x; number < numbers; number += gridDim.x) {
        Place at = place<Part>(p, number);
        const Range range = range_of<TILE>(p, at);
        float sum[128] = {};
        int last = -1;
#pragma unroll 1
        for (int t = range.begin; t < range.end; t++) {
            const unsigned char* tile = tiles + turn.slot * BYTES;
            wait(&slots.full[turn.slot], turn.parity);
            fence_products();
            multiply_tile<LHS_LINES, RHS_LINES>(sum, tile + group * BOX, tile + LHS_BYTES);
            // Those of the tile before are done.
            wait_products<1>();
            if (last >= 0 && lane_id() == 0) {
                arrive(&slots.empty[last]);
            }
            last = turn.slot;
            turn.next();
        }
        wait_products<0>();
        if (last >= 0 && lane_id() == 0) {
            arrive(&slots.empty[last]);
        }
        at.row += group * 64 + warp * 16;
        write_sums(p, at, sum, slabs + (group * WARPGROUP / WARP + warp) * 16 * PITCH);
    }
}

template <bool LHS_LINES, bool RHS_LINES>
DEVICE void make_parts(const Product& p, const TensorMap& lhs, const TensorMap& rhs, unsigned char* shared) {
    SHARED(Slots, slots, );
    unsigned char* tiles = shared + (-shared_offset(shared) & (BOX_ALIGNMENT - 1));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            init_barrier(&slots.full[i], 1);
            init_barrier(&slots.empty[i], CONSUMER_WARPS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        lower_registers<24>();
        if (threadIdx.x == 0) {
            produce<LHS_LINES, RHS_LINES>(p, lhs, rhs, tiles, slots);
        }
    } else {
        raise_registers<240>();
        float* slabs = reinterpret_cast<float*>(tiles + STAGES * BYTES);
        consume<LHS_LINES, RHS_LINES>(p, tiles, slots, slabs, threadIdx.x / WARPGROUP - 1);
    }
}

// Bytes of shared memory, as kernel/product knows them.
static_assert(BOX_ALIGNMENT + STAGES * BYTES + CONSUMER_WARPS * SLAB_BYTES == 218112, "see plan.rs");

#define PRODUCT_BY_WARPGROUPS(name, LHS_LINES, RHS_LINES)                                       \
    KERNEL(name, THREADS, 1)(TENSOR_MAP lhs_map, TENSOR_MAP rhs_map, PRODUCT_PARAMETERS) {      \
        DYNAMIC_SHARED(shared);                                                                 \
        const Product p = PRODUCT_ARGUMENTS;                                                    \
        make_parts<LHS_LINES, RHS_LINES>(p, lhs_map, rhs_map, shared);                          \
    }

PRODUCT_BY_WARPGROUPS(product_wgmma_nn, true, false)
PRODUCT_BY_WARPGROUPS(product_wgmma_nt, true, true)
PRODUCT_BY_WARPGROUPS(product_wgmma_tn, false, false)
