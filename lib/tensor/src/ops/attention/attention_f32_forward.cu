// dtypes: f32
//
// The output of attention in f32; `lse` as in attention_forward.cu.

#include "attention_f32.cuh"

template <int D, int R, int N, class Drop>
DEVICE void forward(const Call& c, const Drop& drop, float* out, float* lse) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* q_tile = scores + R * SCORES<N>;
    float* k_tile = q_tile + R * PITCH<D>;
    float* v_tile = k_tile + N * PITCH<D>;

    const auto [place, first, keys, end, q_rows, k_rows, v_rows, row] = query_tile<R>(c);
    load_tile<D, R, R>(q_tile, c, q_rows, InOrder{}, first, c.queries);
    load_tile<D, R, N>(k_tile, c, k_rows, keys, 0, end);
    commit_async();

    const float to_base_2 = c.scale * LOG2_E;
    float o[4][D / 16], top[4], sum[4];
    clear(o);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        top[i] = -infinity();
        sum[i] = 0.0f;
    }
    for (int start = 0; start < end; start += N) {
        wait_async<0>();
        __syncthreads();
        load_tile<D, R, N>(v_tile, c, v_rows, keys, start, end);
        commit_async();
        float s[4][N / 16];
        multiply_rows<D, N / 16>(s, q_tile, k_tile);
        wait_async<0>();
        __syncthreads();
        if (start + N < end) {
            load_tile<D, R, N>(k_tile, c, k_rows, keys, start + N, end);
            commit_async();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int limit =
                visible(c, keys, first + thread_row() + i) - start - thread_column();
            float largest = top[i];
#pragma unroll
            for (int j = 0; j < N / 16; ++j) {
                s[i][j] = j * 16 < limit ? s[i][j] : -infinity();
                largest = fmaxf(largest, s[i][j]);
            }
#pragma unroll
            for (int distance = 8; distance > 0; distance /= 2) {
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
            }
            // If no key is visible yet, any finite number will do.
            const float base = largest == -infinity() ? 0.0f : largest * to_base_2;
            const float correction = power_of_two(top[i] * to_base_2 - base);
            top[i] = largest;
            sum[i] *= correction;
#pragma unroll
            for (int j = 0; j < N / 16; ++j) {
                s[i][j] = power_of_two(fmaf(s[i][j], to_base_2, -base));
                sum[i] += s[i][j];
                if constexpr (Drop::DROPS) {
                    s[i][j] *= drop.factor(place.sample, place.head, first + thread_row() + i,
                                           start + thread_column() + j * 16);
                }
            }
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                o[i][n] *= correction;
            }
        }
        store_scores(scores, s);
        multiply_scores<D, N>(o, scores, v_tile);
    }
    wait_async<0>();
    const auto out_rows = output_rows(c, out, place.sample, place.head);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float total = sum[i];
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2) {
            total += __shfl_xor_sync(ALL_LANES, total, distance);
        }
        const bool nothing = total == 0.0f;
        const int query = first + thread_row() + i;
        if (query < c.queries) {
            write_row<D>(row_at(out_rows, query), o[i], 1.0f / total, nothing, c.dim, 0);
            if (thread_column() == 0) {
                lse[row + query] = nothing ? infinity() : fmaf(top[i], to_base_2, log2f(total));
            }
        }
    }
}

#define FORWARD(SUFFIX, DROP, D, R, N)                                                             \
    KERNEL(attention_f32_forward##SUFFIX, THREADS<R>, 1)                                      \
    (CALL_PARAMETERS, element* __restrict__ out, float* __restrict__ lse, DROPOUT_PARAMETERS) {    \
        forward<D, R, N>(CALL, DROP, out, lse);                                                          \
    }

FORWARD(_16, NO_DROPOUT, 16, 64, 64)
FORWARD(_32, NO_DROPOUT, 32, 64, 64)
FORWARD(_64, NO_DROPOUT, 64, 64, 64)
FORWARD(_128, NO_DROPOUT, 128, 64, 64)
FORWARD(_256, NO_DROPOUT, 256, 32, 16)

FORWARD(_dropout_16, DROPOUT, 16, 64, 64)
FORWARD(_dropout_32, DROPOUT, 32, 64, 64)
FORWARD(_dropout_64, DROPOUT, 64, 64, 64)
FORWARD(_dropout_128, DROPOUT, 128, 64, 64)
FORWARD(_dropout_256, DROPOUT, 256, 32, 16)

// For GPUs with 99 KB of shared memory.
FORWARD(_small_128, NO_DROPOUT, 128, 64, 16)
FORWARD(_small_dropout_128, DROPOUT, 128, 64, 16)
