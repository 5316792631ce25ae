// elements: f32
//
// The output of attention in f32; `lse` as in attention_forward.cu.

#include "attention_f32.cuh"

template <int D, class Drop>
DEVICE void forward(const Call& c, const Drop& drop, float* out, float* lse) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* q_tile = scores + TILE * SCORES;
    float* k_tile = q_tile + TILE * PITCH<D>;
    float* v_tile = k_tile + TILE * PITCH<D>;

    const int tiles = (c.queries + TILE - 1) / TILE;
    const Place place = place_of(tiles, c.heads);
    // With a causal mask, the longest tiles first.
    const int first = (c.causal ? tiles - 1 - place.tile : place.tile) * TILE;
    const Keys keys = keys_of(c, place.sample);
    const int end = visible(c, keys, min(first + TILE, c.queries) - 1);
    const auto k_rows = key_rows(c, place.sample, place.head / c.group);
    const auto v_rows = value_rows(c, place.sample, place.head / c.group);
    load_tile<D>(q_tile, c, query_rows(c, place.sample, place.head), AsTheyLie{}, first, c.queries);
    load_tile<D>(k_tile, c, k_rows, keys, 0, end);
    commit_async();

    const float to_base_2 = c.scale * LOG2_E;
    float o[4][D / 16], top[4], sum[4];
    clear(o);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        top[i] = -infinity();
        sum[i] = 0.0f;
    }
    for (int start = 0; start < end; start += TILE) {
        wait_async<0>();
        __syncthreads();
        load_tile<D>(v_tile, c, v_rows, keys, start, end);
        commit_async();
        float s[4][4];
        multiply_rows<D>(s, q_tile, k_tile);
        wait_async<0>();
        __syncthreads();
        if (start + TILE < end) {
            load_tile<D>(k_tile, c, k_rows, keys, start + TILE, end);
            commit_async();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int limit =
                visible(c, keys, first + thread_row() + i) - start - thread_column();
            float largest = top[i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
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
            for (int j = 0; j < 4; ++j) {
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
        multiply_scores<D>(o, scores, v_tile);
    }
    wait_async<0>();
    const auto out_rows = output_rows(c, out, place.sample, place.head);
    lse += (static_cast<long long>(place.sample) * c.heads + place.head) * c.queries;
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
                lse[query] = nothing ? infinity() : fmaf(top[i], to_base_2, log2f(total));
            }
        }
    }
}

#define FORWARD(D)                                                                                 \
    KERNEL(attention_f32_forward_##D, THREADS, 1)                                                  \
    (CALL_PARAMETERS, float* __restrict__ out, float* __restrict__ lse) {                          \
        forward<D>(CALL, KeepAll{}, out, lse);                                                                \
    }

#define FORWARD_DROPOUT(D)                                                                         \
    KERNEL(attention_f32_forward_dropout_##D, THREADS, 1)                                          \
    (CALL_PARAMETERS, float* __restrict__ out, float* __restrict__ lse, DROPOUT_PARAMETERS) {      \
        forward<D>(CALL, DROPOUT, out, lse);                                                       \
    }

FORWARD(16)
FORWARD(32)
FORWARD(64)
FORWARD(128)

FORWARD_DROPOUT(16)
FORWARD_DROPOUT(32)
FORWARD_DROPOUT(64)
FORWARD_DROPOUT(128)
