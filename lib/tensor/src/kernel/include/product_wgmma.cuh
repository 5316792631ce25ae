// Products of 16-bit matrices with warpgroup MMA (wgmma, Hopper sm_90a), accumulated in f32; epilogues as in
// product_kernel.cuh.
//
// As many blocks as there are multiprocessors compute one part of the product after another. A thread of the first
// warpgroup copies tiles of 64 along k, of which STAGES are in flight or in use; the two others sum.
// cooperative  128 x 256 parts, 64 rows for each warpgroup. While they write their results, the tiles of the next part
// are
//                copied, but nothing is multiplied.
// ping-pong    128 x 128 parts, which the warpgroups take in turns: one multiplies while the other writes its results.
// This suits short sums and expensive epilogues. More bytes are copied for each multiply-add, 4/3 of those of
//                cooperative ones; on an H200, long sums take 1.05 times as long.
//
// Warp specialization, register reallocation, persistent blocks and both schedules follow CUTLASS 3 (NVIDIA, "Efficient
// GEMM in CUDA").

#pragma once

#include "hopper.cuh"
#include "product_fragment.cuh"

struct Cooperative {
    static constexpr int BM = 128, BN = 256, STAGES = 4, GROUP = GROUP_ROWS;
    static constexpr bool IN_TURNS = false;
};
struct PingPong {
    static constexpr int BM = 128, BN = 128, STAGES = 6, GROUP = 4;
    static constexpr bool IN_TURNS = true;
};

constexpr int THREADS = 3 * WARPGROUP, CONSUMER_WARPS = 8, WARPS = WARPGROUP / WARP;
// Elements of a line, and bytes of 64 lines: a box that is not along k, or 64 rows of one that is.
constexpr int TILE = LINE / 2, BOX = TILE * LINE;

template <class Part>
struct Stage {
    static constexpr int LHS_BYTES = Part::BM * LINE, BYTES = LHS_BYTES + Part::BN * LINE;
};

template <class Part>
struct Slots {
    Barrier full[Part::STAGES], empty[Part::STAGES];
    // Whose turn it is to multiply.
    Barrier order[2];
};

// The slot of a tile, and how often all slots have been used before, modulo 2.
template <class Part>
struct Turn {
    int slot = 0;
    unsigned parity = 0;

    DEVICE void next() {
        if (++slot == Part::STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }

    // Passes over the tiles of another warpgroup.
    DEVICE void skip(int tiles) {
        const unsigned to = slot + tiles;
        parity ^= to / Part::STAGES & 1;
        slot = to % Part::STAGES;
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
template <class Part, bool LHS_LINES, bool RHS_LINES>
DEVICE void produce(const Product& p, const TensorMap& lhs, const TensorMap& rhs, unsigned char* tiles,
                    Slots<Part>& slots) {
    using S = Stage<Part>;
    Turn<Part> turn;
    const int numbers = places<Part>(p);
#pragma unroll 1
    for (int number = blockIdx.x; number < numbers; number += gridDim.x) {
        const Place at = place<Part, Part::GROUP>(p, number);
        const Range range = range_of<TILE>(p, at);
        // A matrix that all products share, or all terms, is stored once.
        const int lhs_batch = p.lhs_batch ? at.batch : 0, rhs_batch = p.rhs_batch ? at.batch : 0;
        int k = range.k, term = range.term;
#pragma unroll 1
        for (int t = range.begin; t < range.end; t++) {
            unsigned char* to = tiles + turn.slot * S::BYTES;
            Barrier* full = &slots.full[turn.slot];
            wait(&slots.empty[turn.slot], turn.parity ^ 1);
            arrive_and_expect(full, S::BYTES);
            copy_operand<Part::BM, LHS_LINES>(to, lhs, at.row, k, p.lhs_term ? term : 0, lhs_batch, full);
            copy_operand<Part::BN, RHS_LINES>(to + S::LHS_BYTES, rhs, at.column, k, p.rhs_term ? term : 0, rhs_batch,
                                              full);
            turn.next();
            k += TILE;
            if (k >= p.k) {
                k = 0;
                term++;
            }
        }
    }
}

// Adds the product of a tile: of 64 rows of the left operand, from `lhs` on, and all columns, or of 128 rows.
template <class Part, bool LHS_LINES, bool RHS_LINES>
DEVICE void multiply_tile(float (&sum)[SUMS], const unsigned char* lhs, const unsigned char* rhs) {
    const auto describe_lhs = [&](int half, int step) {
        return describe_operand(lhs + half * BOX + step * (LHS_LINES ? 32 : 16 * LINE), LHS_LINES ? 16 : BOX);
    };
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        // 16 k are 32 bytes of a line, or 16 lines.
        const unsigned long long b = describe_operand(rhs + step * (RHS_LINES ? 32 : 16 * LINE), RHS_LINES ? 16 : BOX);
        if constexpr (Part::IN_TURNS) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                auto& sums = reinterpret_cast<float(&)[SUMS / 2]>(sum[half * SUMS / 2]);
                multiply_64<128, LHS_LINES, RHS_LINES>(sums, describe_lhs(half, step), b, element());
            }
        } else {
            multiply_64<256, LHS_LINES, RHS_LINES>(sum, describe_lhs(0, step), b, element());
        }
    }
    commit_products();
}

// Sums and writes all parts of this block: 64 rows of each, from `64 group` on, or every other part.
template <class Part, bool LHS_LINES, bool RHS_LINES>
DEVICE void consume(const Product& p, const unsigned char* tiles, Slots<Part>& slots, float* slabs, int group) {
    using S = Stage<Part>;
    Turn<Part> turn;
    const int warp = warp_id() % WARPS, numbers = places<Part>(p);
    float* slab = slabs + (group * WARPS + warp) * (SLAB_BYTES / 4);
    const bool is_first = lane_id() == 0;
    int parts = 0;
#pragma unroll 1
    for (int number = blockIdx.x; number < numbers; number += gridDim.x, parts++) {
        Place at = place<Part, Part::GROUP>(p, number);
        const Range range = range_of<TILE>(p, at);
        if constexpr (Part::IN_TURNS) {
            if (parts % 2 != group) {
                turn.skip(range.end - range.begin);
                continue;
            }
            // Until the other has waited for all tiles of the part before: parities distinguish two uses of a slot, not
            // three.
            wait(&slots.order[group], (parts / 2 + group + 1) % 2);
        }
        float sum[SUMS] = {};
        int last = -1;
#pragma unroll 1
        for (int t = range.begin; t < range.end; t++) {
            const unsigned char* tile = tiles + turn.slot * S::BYTES;
            wait(&slots.full[turn.slot], turn.parity);
            fence_products();
            multiply_tile<Part, LHS_LINES, RHS_LINES>(sum, tile + (Part::IN_TURNS ? 0 : group * BOX),
                                                      tile + S::LHS_BYTES);
            // Those of the tile before are done.
            wait_products<1>();
            if (last >= 0 && is_first) {
                arrive(&slots.empty[last]);
            }
            last = turn.slot;
            turn.next();
        }
        if (Part::IN_TURNS && is_first) {
            arrive(&slots.order[1 - group]);
        }
        wait_products<0>();
        if (last >= 0 && is_first) {
            arrive(&slots.empty[last]);
        }
        at.row += (Part::IN_TURNS ? 0 : group * 64) + warp * 16;
        // Products with an activation are x W, those with a derivative dy W: linear layers.
        write_fragments<Fragments<Part::BN, 64>, LHS_LINES && RHS_LINES, LHS_LINES && !RHS_LINES>(p, at, sum, slab);
    }
}

template <class Part, bool LHS_LINES, bool RHS_LINES>
DEVICE void make_parts(const Product& p, const TensorMap& lhs, const TensorMap& rhs, unsigned char* shared) {
    constexpr int BYTES = Part::STAGES * Stage<Part>::BYTES;
    // As kernel/product knows it.
    static_assert(BOX_ALIGNMENT + BYTES + CONSUMER_WARPS * SLAB_BYTES == 218112, "see plan.rs");
    SHARED(Slots<Part>, slots, );
    unsigned char* tiles = shared + (-shared_offset(shared) & (BOX_ALIGNMENT - 1));
    if (threadIdx.x == 0) {
        for (int i = 0; i < Part::STAGES; i++) {
            init_barrier(&slots.full[i], 1);
            init_barrier(&slots.empty[i], Part::IN_TURNS ? WARPS : CONSUMER_WARPS);
        }
        for (int i = 0; i < 2; i++) {
            init_barrier(&slots.order[i], WARPS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        lower_registers<24>();
        if (threadIdx.x == 0) {
            produce<Part, LHS_LINES, RHS_LINES>(p, lhs, rhs, tiles, slots);
        }
    } else {
        raise_registers<240>();
        float* slabs = reinterpret_cast<float*>(tiles + BYTES);
        consume<Part, LHS_LINES, RHS_LINES>(p, tiles, slots, slabs, threadIdx.x / WARPGROUP - 1);
    }
}

#define PRODUCT_BY_WARPGROUPS(name, Part, LHS_LINES, RHS_LINES)                                 \
    KERNEL(name, THREADS, 1)(TENSOR_MAP lhs_map, TENSOR_MAP rhs_map, PRODUCT_PARAMETERS) {      \
        DYNAMIC_SHARED(shared);                                                                 \
        const Product p = PRODUCT_ARGUMENTS;                                                    \
        make_parts<Part, LHS_LINES, RHS_LINES>(p, lhs_map, rhs_map, shared);                    \
    }
