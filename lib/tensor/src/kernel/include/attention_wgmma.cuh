// Attention by warpgroups of Hopper (sm_90a): what its forward pass and its gradients share.
//
// Operands are tensors [B, rows, heads, D] of one sequence, with D = 64 or 128, of which TMA copies tiles: a tile of R
// rows consists of D / 64 boxes of R lines. A thread of the first warpgroup copies; each of the others computes 64
// rows.
#pragma once

#include "attention_scores.cuh"
#include "hopper.cuh"

// Of each operand, `*_head` is the number of its first head in the tensor. lengths: visible keys of each sample, or
// null.
#define CALL_PARAMETERS                                                                            \
    const int *__restrict__ lengths, int batch, int queries, int keys, int heads, int group,       \
        int q_head, int k_head, int v_head, int causal, float scale, float to_base_2
#define CALL                                                                                       \
    Call {                                                                                         \
        lengths, batch, queries, keys, heads, group, q_head, k_head, v_head, causal, scale,        \
            to_base_2                                                                              \
    }

struct Call {
    const int* lengths;
    int batch, queries, keys;
    int heads, group;  // query heads; query heads per key/value head
    int q_head, k_head, v_head;
    int causal;
    float scale;      // 1/sqrt(D)
    float to_base_2;  // scale log2(e)
};

// Warpgroups that compute, and the rows of a block.
constexpr int GROUPS = 2, ROWS = 64 * GROUPS, THREADS = (1 + GROUPS) * WARPGROUP;
constexpr int WARPS = GROUPS * WARPGROUP / WARP;
// Registers of a thread: 128 * (24 + 2 * 240) of 65536.
constexpr int COPY_REGISTERS = 24, COMPUTE_REGISTERS = 240;

// The visible keys of a sample, which come first, and those that a query sees.
DEVICE int seen_keys(const Call& c, int sample) {
    return c.lengths ? max(0, min(c.lengths[sample], c.keys)) : c.keys;
}

DEVICE int visible(const Call& c, int seen, int query) {
    return c.causal ? max(0, min(seen, query + 1 + c.keys - c.queries)) : seen;
}

// The slots of tiles: tile number n uses slot n % STAGES.
template <int STAGES>
struct Ring {
    Barrier full[STAGES], empty[STAGES];

    DEVICE void init(unsigned arrivals) {
        for (int i = 0; i < STAGES; i++) {
            init_barrier(&full[i], arrivals);
            init_barrier(&empty[i], WARPS);
        }
    }
    DEVICE void wait_empty(int number) {
        wait(&empty[number % STAGES], (number / STAGES & 1) ^ 1);
    }
    DEVICE void wait_full(int number) {
        wait(&full[number % STAGES], number / STAGES & 1);
    }
    // By all lanes of a warp.
    DEVICE void release(int number) {
        if (lane_id() == 0) {
            arrive(&empty[number % STAGES]);
        }
    }
};

DEVICE unsigned char* first_box(unsigned char* shared) {
    return shared + (-shared_offset(shared) & (BOX_ALIGNMENT - 1));
}

template <int COUNT, int D>
constexpr int TILE_BYTES = COUNT * D * 2;

// The first of the two rows of a thread, among those of its block.
DEVICE int row_of_thread(int thread) {
    return (thread - WARPGROUP) / WARP * 16 + thread % WARP / 4;
}

// Starts to copy COUNT rows of a head, from `row` on.
template <int COUNT, int D>
DEVICE void copy_tile(unsigned char* to, const TensorMap& map, int row, int head, int sample, Barrier* full) {
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        copy_box(to + i * COUNT * LINE, map, 64 * i, head, row, sample, full);
    }
}

// s = a b^T: 64 rows of a tile of ROWS, which begin at `a`, by N rows of a tile of N.
template <int D, int N>
DEVICE void multiply_rows(float (&s)[N / 2], const unsigned char* a, const unsigned char* b) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const unsigned long long lhs = describe_operand(a + i / 4 * ROWS * LINE + i % 4 * 32, 16);
        const unsigned long long rhs = describe_operand(b + i / 4 * N * LINE + i % 4 * 32, 16);
        if (i == 0) {
            multiply_64<N, true, true, true>(s, lhs, rhs, element());
        } else {
            multiply_64<N, true, true>(s, lhs, rhs, element());
        }
    }
}

// o += p b: 64 x N scores by a tile of N rows.
template <int D, int N>
DEVICE void multiply_scores(float (&o)[D / 2], const unsigned (&p)[N / 16][4], const unsigned char* b) {
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        multiply_64<D, false>(o, p[i], describe_operand(b + i * 16 * LINE, N * LINE), element());
    }
}

// Scores as the left operands of products.
template <int N>
DEVICE void pack_scores(unsigned (&p)[N / 16][4], const float (&s)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            p[i][j] = pack<element>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
        }
    }
}

// threadIdx.x, read again, so that no register has it during a loop.
DEVICE int thread_again() {
#ifdef EMULATOR
    return static_cast<int>(threadIdx.x);
#else
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#endif
}

// Drops the scores of row `h` of two: those of `query` and the keys from `key` on. Two lanes have every other pair of
// the same four keys; each looks up those of every other n.
template <class Drop, int N>
DEVICE void drop_row(const Drop& drop, float (&s)[N], int h, int sample, int head, int query, int key) {
    const int odd = lane_id() % 2;
#pragma unroll
    for (int n = 0; n < N / 4; n += 2) {
        const unsigned own = drop.keeps(sample, head, query, key + (n + odd) * 8 + lane_id() % 4 * 2);
        const unsigned other = __shfl_xor_sync(ALL_LANES, own, 1);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const unsigned kept = (k == odd ? own : other) >> 2 * odd;
            float &low = s[4 * (n + k) + 2 * h], &high = s[4 * (n + k) + 2 * h + 1];
            low = kept & 1 ? low * drop.scale : 0.0f;
            high = kept & 2 ? high * drop.scale : 0.0f;
        }
    }
}

// Among four lanes, lane t gets what lane i has in x[t], in x[i].
DEVICE void transpose_quad(float (&x)[4], int t) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const int other = 3 - step;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // The pair x[low], x[low + step].
            const int low = i * other;
            const float given = t & step ? x[low] : x[low + step];
            const float taken = __shfl_xor_sync(ALL_LANES, given, step);
            if (t & step) {
                x[low] = taken;
            } else {
                x[low + step] = taken;
            }
        }
    }
}

// Writes the rows of this warpgroup's sums, times `factor`, to rows `stride` elements apart, of which the block has
// those from
// `first` on, if they are below `rows`. With `add`, adds to what is there.
template <int D>
DEVICE void write_rows(element* to, long long stride, int first, int rows, const float (&o)[D / 2],
                       const float (&factor)[2], int add) {
    const int thread = thread_again(), t = thread % 4, row = first + row_of_thread(thread);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int part = 0; part < D / 32; part++) {
            float x[2][4];
#pragma unroll
            for (int e = 0; e < 2; e++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    x[e][j] = o[4 * (4 * part + j) + 2 * h + e] * factor[h];
                }
                transpose_quad(x[e], t);
            }
            element* at = to + (row + 8 * h) * stride + 32 * part + 8 * t;
            if (row + 8 * h < rows) {
                Vector<element, 8> values{};
                if (add) {
                    values = load_vector<8>(at);
                }
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const float value = x[e % 2][e / 2];
                    values.at[e] = from_float<element>(add ? value + to_float(values.at[e]) : value);
                }
                store_vector(at, values);
            }
        }
    }
}

// ---- gradients

// Two tiles of the block's own rows, and slots for two tiles of N rows of the other sequence.
template <int D, int N>
struct Tiles {
    static constexpr int STAGES = 2, OWN = TILE_BYTES<ROWS, D>, OTHER = TILE_BYTES<N, D>;
    static constexpr int BYTES = BOX_ALIGNMENT + 2 * OWN + 2 * STAGES * OTHER;
    unsigned char* start;

    DEVICE unsigned char* own(int which) const {
        return start + which * OWN;
    }
    DEVICE unsigned char* other(int which, int number) const {
        return start + 2 * OWN + (2 * (number % STAGES) + which) * OTHER;
    }
};

// Additional parameters of the gradient kernels, after the common ones.
#define GIVEN_PARAMETERS const float *__restrict__ lse, const float *__restrict__ delta
