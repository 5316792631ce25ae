// dtypes: bf16 f16
//
// The output of attention in 16-bit dtypes, without materializing the scores. `lse` is the base-2 logarithm of the
// sum of exponentials of each row of scores: [B, heads, queries].

#include "attention_half.cuh"

template <int D, int M, int WARPS, int KEYS, class Drop>
DEVICE void forward(const Call& c, const Drop& drop, element* out, float* lse) {
    constexpr int QUERIES = WARPS * M * 16;
    constexpr bool KEPT = M * D <= 128;
    DYNAMIC_SHARED(memory);
    element* q_tile = reinterpret_cast<element*>(memory);
    element* k_tile = q_tile + QUERIES * D;
    element* v_tile = k_tile + KEYS * D;

    const auto [place, first, keys, end, q_rows, k_rows, v_rows, row] = query_tile<QUERIES>(c);
    const int seen_by_all = visible(c, keys, first);
    load_tile<D, QUERIES, WARPS, false>(q_tile, c, q_rows, InOrder{}, first, c.queries);
    load_tile<D, KEYS, WARPS, false>(k_tile, c, k_rows, keys, 0, end);
    commit_async();

    const int warp_row = warp_id() * M * 16;
    Left<D, M, KEPT> q{q_tile + warp_row * D, {}};
    if (KEPT) {
        wait_async<0>();
        __syncthreads();
        keep(q);
    }
    const int lane = lane_id();
    const float to_base_2 = c.scale * LOG2_E;
    float o[M][D / 8][4], top[M][2], sum[M][2];
    clear(o);
#pragma unroll
    for (int m = 0; m < M; ++m) {
        top[m][0] = top[m][1] = -infinity();
        sum[m][0] = sum[m][1] = 0.0f;
    }
    for (int start = 0; start < end; start += KEYS) {
        wait_async<0>();
        __syncthreads();
        load_tile<D, KEYS, WARPS, true>(v_tile, c, v_rows, keys, start, end);
        commit_async();
        float s[M][KEYS / 8][4];
        clear(s);
        multiply_rows<D, M, KEYS>(s, q, k_tile);
        wait_async<0>();
        __syncthreads();
        if (start + KEYS < end) {
            load_tile<D, KEYS, WARPS, true>(k_tile, c, k_rows, keys, start + KEYS, end);
            commit_async();
        }
        if (start + KEYS > seen_by_all) {
            mask_keys(s, c, keys, first + warp_row, start);
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float largest = top[m][i];
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) {
                    largest = fmaxf(largest, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
                }
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
                // If no key is visible yet, any finite number will do.
                const float base = largest == -infinity() ? 0.0f : largest * to_base_2;
                const float correction = power_of_two(top[m][i] * to_base_2 - base);
                top[m][i] = largest;
                float part = 0.0f;
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) {
                    s[m][n][2 * i] = power_of_two(fmaf(s[m][n][2 * i], to_base_2, -base));
                    s[m][n][2 * i + 1] = power_of_two(fmaf(s[m][n][2 * i + 1], to_base_2, -base));
                    part += s[m][n][2 * i] + s[m][n][2 * i + 1];
                }
                sum[m][i] = fmaf(sum[m][i], correction, part);
                if constexpr (Drop::DROPS) {
                    drop_row(drop, s[m], i, place, first + warp_row + m * 16 + i * 8 + lane / 4, start);
                }
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    o[m][n][2 * i] *= correction;
                    o[m][n][2 * i + 1] *= correction;
                }
            }
        }
        unsigned p[M][KEYS / 16][4];
        pack_scores(p, s);
        multiply_scores<D, M, KEYS>(o, p, v_tile);
    }
    wait_async<0>();
    const auto out_rows = output_rows(c, out, place.sample, place.head);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float total = sum[m][i];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            const bool nothing = total == 0.0f;
            const int query = first + warp_row + m * 16 + i * 8 + lane / 4;
            if (query < c.queries) {
                write_row(row_at(out_rows, query), o[m], i, 1.0f / total, nothing, c.dim, 0);
                if (lane % 4 == 0) {
                    lse[row + query] =
                        nothing ? infinity() : fmaf(top[m][i], to_base_2, log2f(total));
                }
            }
        }
    }
}

#define FORWARD(SUFFIX, DROP, D, M, WARPS, N)                                                      \
    KERNEL(attention_forward##SUFFIX, 32 * WARPS, 1)                                               \
    (CALL_PARAMETERS, element* __restrict__ out, float* __restrict__ lse, DROPOUT_PARAMETERS) {    \
        forward<D, M, WARPS, N>(CALL, DROP, out, lse);                                             \
    }

FORWARD(_16, NO_DROPOUT, 16, 1, 4, 64)
FORWARD(_32, NO_DROPOUT, 32, 1, 4, 64)
FORWARD(_64, NO_DROPOUT, 64, 2, 4, 64)
FORWARD(_128, NO_DROPOUT, 128, 1, 8, 64)
FORWARD(_256, NO_DROPOUT, 256, 1, 8, 32)

FORWARD(_dropout_16, DROPOUT, 16, 1, 4, 64)
FORWARD(_dropout_32, DROPOUT, 32, 1, 4, 64)
FORWARD(_dropout_64, DROPOUT, 64, 1, 4, 64)
FORWARD(_dropout_128, DROPOUT, 128, 1, 8, 32)
FORWARD(_dropout_256, DROPOUT, 256, 1, 8, 16)
