// dtypes: f32
//
// The gradient of queries in f32; parameters as in attention_query_gradient.cu.

#include "attention_f32.cuh"

template <int D, int R, int N, class Drop>
DEVICE void query_gradient(const Call& c, const Drop& drop, const float* dout, const float* lse,
                           const float* delta, const Target& dq) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* q_tile = scores + R * SCORES<N>;
    float* dout_tile = q_tile + R * PITCH<D>;
    float* k_tile = dout_tile + R * PITCH<D>;
    float* v_tile = k_tile + N * PITCH<D>;

    const auto [place, first, keys, end, q_rows, k_rows, v_rows, row] = query_tile<R>(c);
    load_tile<D, R, R>(q_tile, c, q_rows, InOrder{}, first, c.queries);
    load_tile<D, R, R>(dout_tile, c, output_rows(c, dout, place.sample, place.head), InOrder{}, first,
                 c.queries);

    const float to_base_2 = c.scale * LOG2_E;
    float gradient[4][D / 16];
    clear(gradient);
    for (int start = 0; start < end; start += N) {
        load_tile<D, R, N>(k_tile, c, k_rows, keys, start, end);
        load_tile<D, R, N>(v_tile, c, v_rows, keys, start, end);
        commit_async();
        wait_async<0>();
        __syncthreads();
        float s[4][N / 16], ds[4][N / 16];
        multiply_rows<D, N / 16>(s, q_tile, k_tile);
        multiply_rows<D, N / 16>(ds, dout_tile, v_tile);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int query = first + thread_row() + i;
            const int limit = visible(c, keys, query) - start - thread_column();
            const float log_sum = lse[row + min(query, c.queries - 1)];
            const float dot = delta[row + min(query, c.queries - 1)];
#pragma unroll
            for (int j = 0; j < N / 16; ++j) {
                if constexpr (Drop::DROPS) {
                    ds[i][j] *= drop.factor(place.sample, place.head, query,
                                            start + thread_column() + j * 16);
                }
                const float p = power_of_two(fmaf(s[i][j], to_base_2, -log_sum));
                s[i][j] = j * 16 < limit ? p * (ds[i][j] - dot) : 0.0f;
            }
        }
        store_scores(scores, s);
        multiply_scores<D, N>(gradient, scores, k_tile);
        __syncthreads();
    }
    wait_async<0>();
    const auto rows = query_rows(c, dq, place);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int query = first + thread_row() + i;
        if (query < c.queries) {
            write_gradient<D>(dq, rows, query, gradient[i], c.scale, false, c.dim);
        }
    }
}

#define QUERY_GRADIENT(SUFFIX, DROP, D, R, N)                                                        \
    KERNEL(attention_f32_query_gradient##SUFFIX, THREADS<R>, 1)                                      \
    (CALL_PARAMETERS, GIVEN_PARAMETERS, QUERY_TARGET_PARAMETERS, DROPOUT_PARAMETERS) {             \
        query_gradient<D, R, N>(CALL, DROP, dout, lse, delta, QUERY_TARGET);                             \
    }

QUERY_GRADIENT(_16, NO_DROPOUT, 16, 64, 64)
QUERY_GRADIENT(_32, NO_DROPOUT, 32, 64, 64)
QUERY_GRADIENT(_64, NO_DROPOUT, 64, 64, 64)
QUERY_GRADIENT(_128, NO_DROPOUT, 128, 64, 64)
QUERY_GRADIENT(_256, NO_DROPOUT, 256, 16, 16)

QUERY_GRADIENT(_dropout_16, DROPOUT, 16, 64, 64)
QUERY_GRADIENT(_dropout_32, DROPOUT, 32, 64, 64)
QUERY_GRADIENT(_dropout_64, DROPOUT, 64, 64, 64)
QUERY_GRADIENT(_dropout_128, DROPOUT, 128, 64, 64)
QUERY_GRADIENT(_dropout_256, DROPOUT, 256, 16, 16)

// For GPUs with 99 KB of shared memory.
QUERY_GRADIENT(_small_128, NO_DROPOUT, 128, 64, 16)
QUERY_GRADIENT(_small_dropout_128, DROPOUT, 128, 64, 16)
