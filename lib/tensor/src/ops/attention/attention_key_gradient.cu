// dtypes: bf16 f16
//
// The gradients of keys and values in 16-bit dtypes; parameters as in attention_query_gradient.cu. Scores are
// computed transposed, one key per row: their fragments are then the left operand of both gradients.

#include "attention_half.cuh"

// Masks keys, which are rows, for the queries that do not see them. Relative to a lane's first row and column,
// `last` is the last visible row in that column; each further column sees one row more.
template <int M, int N>
DEVICE void mask_keys(float (&s)[M][N][4], int last) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (m * 16 + i / 2 * 8 - n * 8 - i % 2 > last) {
                    s[m][n][i] = -infinity();
                }
            }
        }
    }
}

// A block computes C of the D columns of both gradients, which are as many as fit in registers.
template <int D, int C, int M, int WARPS, int QUERIES, class Drop>
DEVICE void key_gradient(const Call& c, const Drop& drop, const element* dout, const float* lse,
                         const float* delta, const Target& dk, const Target& dv) {
    constexpr int KEYS = WARPS * M * 16;
    constexpr bool KEPT = M * D <= 32;
    DYNAMIC_SHARED(memory);
    element* k_tile = reinterpret_cast<element*>(memory);
    element* v_tile = k_tile + KEYS * D;
    element* stages = v_tile + KEYS * D;
    float* statistics = reinterpret_cast<float*>(stages + 4 * QUERIES * D);

    constexpr int PARTS = D / C;
    const int column = static_cast<int>(blockIdx.x) % PARTS * C;
    const Place place = place_of((c.keys + KEYS - 1) / KEYS, c.heads / c.group, PARTS);
    const int first = place.tile * KEYS;
    const Keys keys = keys_of(c, place.sample);
    const auto k_rows = key_rows(c, place.sample, place.head);
    const auto v_rows = value_rows(c, place.sample, place.head);
    // The first query that sees a key of this tile, rounded down to a whole tile; none if no key is visible.
    const int from = c.causal ? max(0, first + c.queries - c.keys) / QUERIES * QUERIES : 0;
    const int tiles = first < keys.seen ? max(0, c.queries - from + QUERIES - 1) / QUERIES : 0;
    const int steps = tiles * c.group;

    const auto load_queries = [&](int stage, int head, int start) {
        element* q_tile = stages + stage * 2 * QUERIES * D;
        load_tile<D, QUERIES, WARPS, (D < 128)>(q_tile, c, query_rows(c, place.sample, head), InOrder{}, start,
                              c.queries);
        load_tile<D, QUERIES, WARPS, (D < 128)>(q_tile + QUERIES * D, c, output_rows(c, dout, place.sample, head),
                              InOrder{}, start, c.queries);
        // Past the last query everything is zero and adds nothing.
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < 2 * QUERIES) {
            const int query = start + thread % QUERIES;
            const bool valid = query < c.queries;
            const long long row = statistics_of(c, place.sample, head);
            copy_async_4(statistics + stage * 2 * QUERIES + thread,
                         (thread < QUERIES ? lse : delta) + row + (valid ? query : 0), valid);
        }
    };
    load_tile<D, KEYS, WARPS, false>(k_tile, c, k_rows, keys, first, keys.seen);
    load_tile<D, KEYS, WARPS, false>(v_tile, c, v_rows, keys, first, keys.seen);
    if (steps > 0) {
        load_queries(0, place.head * c.group, from);
    }
    commit_async();

    const int lane = lane_id();
    const float to_base_2 = c.scale * LOG2_E;
    const int warp_row = warp_id() * M * 16;
    Left<D, M, KEPT> k{k_tile + warp_row * D, {}};
    Left<D, M, KEPT> v{v_tile + warp_row * D, {}};
    if (KEPT) {
        wait_async<0>();
        __syncthreads();
        keep(k);
        keep(v);
    }
    float k_gradient[M][C / 8][4], v_gradient[M][C / 8][4];
    clear(k_gradient);
    clear(v_gradient);
    int head = place.head * c.group;
    int next = from;
    for (int step = 0; step < steps; ++step) {
        wait_async<0>();
        __syncthreads();
        const int start = next, current = head;
        next += QUERIES;
        if (next >= c.queries) {
            next = from;
            ++head;
        }
        if (step + 1 < steps) {
            load_queries((step + 1) % 2, head, next);
            commit_async();
        }
        const element* q_tile = stages + step % 2 * 2 * QUERIES * D;
        const element* dout_tile = q_tile + QUERIES * D;
        const float* row_statistics = statistics + step % 2 * 2 * QUERIES + lane % 4 * 2;
        // Computed here rather than where it is used, to save registers.
        const int last = start + lane % 4 * 2 + c.keys - c.queries - first - warp_row - lane / 4;
        const bool hides = c.causal && first + KEYS > start + 1 + c.keys - c.queries;
        float p[M][QUERIES / 8][4], ds[M][QUERIES / 8][4];
        clear(p);
        clear(ds);
        multiply_rows<D, M, QUERIES>(p, k, q_tile);
        if (hides) {
            mask_keys(p, last);
        }
        multiply_rows<D, M, QUERIES>(ds, v, dout_tile);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; ++n) {
            const auto log_sum = load_vector<2>(row_statistics + n * 8);
            const auto dot = load_vector<2>(row_statistics + QUERIES + n * 8);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                // Four lanes have the same four keys: each looks up those of one of its four numbers.
                unsigned kept = 0;
                const int own = lane / 4 % 4;
                if constexpr (Drop::DROPS) {
                    kept = drop.keeps(place.sample, current, start + n * 8 + lane % 4 * 2 + own % 2,
                                      first + warp_row + m * 16 + own / 2 * 8 + lane / 4);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& score = p[m][n][i];
                    score = power_of_two(fmaf(score, to_base_2, -log_sum.at[i % 2]));
                    if constexpr (Drop::DROPS) {
                        const unsigned four =
                            __shfl_sync(ALL_LANES, kept, lane % 4 + lane / 16 * 16 + i * 4);
                        const float factor = four >> own & 1 ? drop.scale : 0.0f;
                        ds[m][n][i] = score * fmaf(ds[m][n][i], factor, -dot.at[i % 2]);
                        score *= factor;
                    } else {
                        ds[m][n][i] = score * (ds[m][n][i] - dot.at[i % 2]);
                    }
                }
            }
        }
        unsigned packed[M][QUERIES / 16][4];
        pack_scores(packed, p);
        multiply_scores<D, M, QUERIES, C>(v_gradient, packed, dout_tile, column);
        pack_scores(packed, ds);
        multiply_scores<D, M, QUERIES, C>(k_gradient, packed, q_tile, column);
    }
    wait_async<0>();
    auto dk_rows = key_rows(c, dk, place), dv_rows = value_rows(c, dv, place);
    dk_rows.first += column, dk_rows.second += column;
    dv_rows.first += column, dv_rows.second += column;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int key = first + warp_row + m * 16 + i * 8 + lane / 4;
            if (key < c.keys) {
                const int row = key_row(keys, key);
                const bool hidden = key >= keys.seen;
                write_gradient(dk, dk_rows, row, k_gradient[m], i, c.scale, hidden, c.dim - column);
                write_gradient(dv, dv_rows, row, v_gradient[m], i, 1.0f, hidden, c.dim - column);
            }
        }
    }
}

#define KEY_GRADIENT(SUFFIX, DROP, D, C, M, WARPS, N)                                              \
    KERNEL(attention_key_gradient##SUFFIX, 32 * WARPS, 1)                                          \
    (CALL_PARAMETERS, GIVEN_PARAMETERS, KEY_TARGET_PARAMETERS, DROPOUT_PARAMETERS) {               \
        key_gradient<D, C, M, WARPS, N>(CALL, DROP, dout, lse, delta, KEY_TARGET, VALUE_TARGET);   \
    }

KEY_GRADIENT(_16, NO_DROPOUT, 16, 16, 1, 4, 64)
KEY_GRADIENT(_32, NO_DROPOUT, 32, 32, 1, 4, 64)
// With two fragments per warp, each fragment of the other operand is read half as often; queries at once: as many as
// fit in registers; sums are in the same order.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
KEY_GRADIENT(_64, NO_DROPOUT, 64, 64, 2, 4, 16)
#else
KEY_GRADIENT(_64, NO_DROPOUT, 64, 64, 2, 4, 32)
#endif
#if !(defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890))
KEY_GRADIENT(_128, NO_DROPOUT, 128, 128, 1, 8, 64)
#endif
KEY_GRADIENT(_256, NO_DROPOUT, 256, 128, 1, 4, 16)

KEY_GRADIENT(_dropout_16, DROPOUT, 16, 16, 1, 4, 64)
KEY_GRADIENT(_dropout_32, DROPOUT, 32, 32, 1, 4, 64)
KEY_GRADIENT(_dropout_64, DROPOUT, 64, 64, 1, 8, 32)
KEY_GRADIENT(_dropout_128, DROPOUT, 128, 128, 1, 8, 16)
KEY_GRADIENT(_dropout_256, DROPOUT, 256, 64, 1, 4, 16)

// For GPUs with 99 KB of shared memory, which therefore need no _128.
KEY_GRADIENT(_small_128, NO_DROPOUT, 128, 128, 1, 8, 32)
