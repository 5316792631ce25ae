// elements: f32
//
// The gradient of queries in f32; parameters as in attention_query_gradient.cu.

#include "attention_f32.cuh"

template <int D, class Drop>
DEVICE void query_gradient(const Call& c, const Drop& drop, const float* dout, const float* lse,
                           const float* delta, const Target& dq) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* q_tile = scores + TILE * SCORES;
    float* dout_tile = q_tile + TILE * PITCH<D>;
    float* k_tile = dout_tile + TILE * PITCH<D>;
    float* v_tile = k_tile + TILE * PITCH<D>;

    const int tiles = (c.queries + TILE - 1) / TILE;
    const Place place = place_of(tiles, c.heads);
    const int first = (c.causal ? tiles - 1 - place.tile : place.tile) * TILE;
    const Keys keys = keys_of(c, place.sample);
    const int end = visible(c, keys, min(first + TILE, c.queries) - 1);
    const auto k_rows = key_rows(c, place.sample, place.head / c.group);
    const auto v_rows = value_rows(c, place.sample, place.head / c.group);
    load_tile<D>(q_tile, c, query_rows(c, place.sample, place.head), AsTheyLie{}, first, c.queries);
    load_tile<D>(dout_tile, c, output_rows(c, dout, place.sample, place.head), AsTheyLie{}, first,
                 c.queries);

    const float to_base_2 = c.scale * LOG2_E;
    const long long row = (static_cast<long long>(place.sample) * c.heads + place.head) * c.queries;
    float gradient[4][D / 16];
    clear(gradient);
    for (int start = 0; start < end; start += TILE) {
        load_tile<D>(k_tile, c, k_rows, keys, start, end);
        load_tile<D>(v_tile, c, v_rows, keys, start, end);
        commit_async();
        wait_async<0>();
        __syncthreads();
        float s[4][4], ds[4][4];
        multiply_rows<D>(s, q_tile, k_tile);
        multiply_rows<D>(ds, dout_tile, v_tile);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int query = first + thread_row() + i;
            const int limit = visible(c, keys, query) - start - thread_column();
            const float log_sum = lse[row + min(query, c.queries - 1)];
            const float dot = delta[row + min(query, c.queries - 1)];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (Drop::DROPS) {
                    ds[i][j] *= drop.factor(place.sample, place.head, query,
                                            start + thread_column() + j * 16);
                }
                const float p = power_of_two(fmaf(s[i][j], to_base_2, -log_sum));
                s[i][j] = j * 16 < limit ? p * (ds[i][j] - dot) : 0.0f;
            }
        }
        store_scores(scores, s);
        multiply_scores<D>(gradient, scores, k_tile);
        __syncthreads();
    }
    wait_async<0>();
    const auto rows = rows_of(dq.first, dq.second, place.sample, c.queries, c.query_split,
                              c.q_stride, c.q_start + place.head * c.dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int query = first + thread_row() + i;
        if (query < c.queries) {
            write_gradient<D>(dq, rows, query, gradient[i], c.scale, false, c.dim);
        }
    }
}

#define QUERY_GRADIENT(D)                                                                          \
    KERNEL(attention_f32_query_gradient_##D, THREADS, 1)                                           \
    (CALL_PARAMETERS, const float* __restrict__ dout, const float* __restrict__ lse,               \
     const float* __restrict__ delta, float* dq, float* dq_second, int add, int add_second) {      \
        query_gradient<D>(CALL, KeepAll{}, dout, lse, delta,                                       \
                          Target{dq, dq_second, add, add_second});                                 \
    }

#define QUERY_GRADIENT_DROPOUT(D)                                                                  \
    KERNEL(attention_f32_query_gradient_dropout_##D, THREADS, 1)                                   \
    (CALL_PARAMETERS, const float* __restrict__ dout, const float* __restrict__ lse,               \
     const float* __restrict__ delta, float* dq, float* dq_second, int add, int add_second,        \
     DROPOUT_PARAMETERS) {                                                                         \
        query_gradient<D>(CALL, DROPOUT, dout, lse, delta,                                         \
                          Target{dq, dq_second, add, add_second});                                 \
    }

QUERY_GRADIENT(16)
QUERY_GRADIENT(32)
QUERY_GRADIENT(64)
QUERY_GRADIENT(128)

QUERY_GRADIENT_DROPOUT(16)
QUERY_GRADIENT_DROPOUT(32)
QUERY_GRADIENT_DROPOUT(64)
QUERY_GRADIENT_DROPOUT(128)
