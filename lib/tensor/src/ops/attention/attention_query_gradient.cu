// dtypes: bf16 f16
//
// The gradient of queries in 16-bit dtypes. `lse` comes from the forward pass, `delta` is O . dO, both
// [B, heads, queries]. The gradients of queries and of keys have separate kernels: nothing is summed across blocks, so
// results are bit-identical on every run.

#include "attention_half.cuh"

template <int D, int M, int WARPS, int KEYS, class Drop>
DEVICE void query_gradient(const Call& c, const Drop& drop, const element* dout, const float* lse,
                           const float* delta, const Target& dq) {
    constexpr int QUERIES = WARPS * M * 16;
    constexpr bool KEPT = M * D <= 64;
    DYNAMIC_SHARED(memory);
    element* q_tile = reinterpret_cast<element*>(memory);
    element* dout_tile = q_tile + QUERIES * D;
    element* stages = dout_tile + QUERIES * D;

    const auto [place, first, keys, end, q_rows, k_rows, v_rows, row] = query_tile<QUERIES>(c);
    const int seen_by_all = visible(c, keys, first);
    load_tile<D, QUERIES, WARPS, false>(q_tile, c, q_rows, InOrder{}, first, c.queries);
    load_tile<D, QUERIES, WARPS, false>(dout_tile, c, output_rows(c, dout, place.sample, place.head), InOrder{},
                          first, c.queries);
    load_tile<D, KEYS, WARPS, false>(stages, c, k_rows, keys, 0, end);
    load_tile<D, KEYS, WARPS, false>(stages + KEYS * D, c, v_rows, keys, 0, end);
    commit_async();

    const int lane = lane_id();
    const float to_base_2 = c.scale * LOG2_E;
    const int warp_row = warp_id() * M * 16;
    Left<D, M, KEPT> q{q_tile + warp_row * D, {}};
    Left<D, M, KEPT> d{dout_tile + warp_row * D, {}};
    float log_sum[M][2], dot[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int query = min(first + warp_row + m * 16 + i * 8 + lane / 4, c.queries - 1);
            log_sum[m][i] = lse[row + query];
            dot[m][i] = delta[row + query];
        }
    }
    if (KEPT) {
        wait_async<0>();
        __syncthreads();
        keep(q);
        keep(d);
    }
    float gradient[M][D / 8][4];
    clear(gradient);
    for (int start = 0; start < end; start += KEYS) {
        wait_async<0>();
        __syncthreads();
        const int stage = start / KEYS % 2;
        const element* k_tile = stages + stage * 2 * KEYS * D;
        const element* v_tile = k_tile + KEYS * D;
        if (start + KEYS < end) {
            element* next = stages + (1 - stage) * 2 * KEYS * D;
            load_tile<D, KEYS, WARPS, true>(next, c, k_rows, keys, start + KEYS, end);
            load_tile<D, KEYS, WARPS, true>(next + KEYS * D, c, v_rows, keys, start + KEYS, end);
            commit_async();
        }
        float s[M][KEYS / 8][4], ds[M][KEYS / 8][4];
        clear(s);
        clear(ds);
        multiply_rows<D, M, KEYS>(s, q, k_tile);
        multiply_rows<D, M, KEYS>(ds, d, v_tile);
        if (start + KEYS > seen_by_all) {
            mask_keys(s, c, keys, first + warp_row, start);
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if constexpr (Drop::DROPS) {
                    drop_row(drop, ds[m], i, place, first + warp_row + m * 16 + i * 8 + lane / 4, start);
                }
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                    for (int j = 2 * i; j < 2 * i + 2; ++j) {
                        const float p =
                            power_of_two(fmaf(s[m][n][j], to_base_2, -log_sum[m][i]));
                        s[m][n][j] = p * (ds[m][n][j] - dot[m][i]);
                    }
                }
            }
        }
        unsigned packed[M][KEYS / 16][4];
        pack_scores(packed, s);
        multiply_scores<D, M, KEYS>(gradient, packed, k_tile);
    }
    wait_async<0>();
    const auto rows = query_rows(c, dq, place);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int query = first + warp_row + m * 16 + i * 8 + lane / 4;
            if (query < c.queries) {
                write_gradient(dq, rows, query, gradient[m], i, c.scale, false, c.dim);
            }
        }
    }
}

#define QUERY_GRADIENT(SUFFIX, DROP, D, M, WARPS, N)                                               \
    KERNEL(attention_query_gradient##SUFFIX, 32 * WARPS, 1)                                        \
    (CALL_PARAMETERS, GIVEN_PARAMETERS, QUERY_TARGET_PARAMETERS, DROPOUT_PARAMETERS) {             \
        query_gradient<D, M, WARPS, N>(CALL, DROP, dout, lse, delta, QUERY_TARGET);                \
    }

QUERY_GRADIENT(_16, NO_DROPOUT, 16, 1, 4, 64)
QUERY_GRADIENT(_32, NO_DROPOUT, 32, 1, 4, 64)
QUERY_GRADIENT(_64, NO_DROPOUT, 64, 2, 4, 32)
QUERY_GRADIENT(_128, NO_DROPOUT, 128, 1, 8, 64)
QUERY_GRADIENT(_256, NO_DROPOUT, 256, 1, 4, 16)

QUERY_GRADIENT(_dropout_16, DROPOUT, 16, 1, 4, 64)
QUERY_GRADIENT(_dropout_32, DROPOUT, 32, 1, 4, 64)
QUERY_GRADIENT(_dropout_64, DROPOUT, 64, 1, 4, 32)
QUERY_GRADIENT(_dropout_128, DROPOUT, 128, 1, 8, 32)
QUERY_GRADIENT(_dropout_256, DROPOUT, 256, 1, 4, 16)

// For GPUs with 99 KB of shared memory.
QUERY_GRADIENT(_small_128, NO_DROPOUT, 128, 1, 8, 32)
