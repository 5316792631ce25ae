// dtypes: f32
//
// The gradients of keys and values in f32; parameters as in attention_query_gradient.cu. Scores are computed
// transposed, one key per row.

#include "attention_f32.cuh"

template <int D, int R, int N, class Drop>
DEVICE void key_gradient(const Call& c, const Drop& drop, const float* dout, const float* lse,
                         const float* delta, const Target& dk, const Target& dv) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* k_tile = scores + R * SCORES<N>;
    float* v_tile = k_tile + R * PITCH<D>;
    float* q_tile = v_tile + R * PITCH<D>;
    float* dout_tile = q_tile + N * PITCH<D>;

    const Place place = place_of((c.keys + R - 1) / R, c.heads / c.group);
    const int first = place.tile * R;
    const Keys keys = keys_of(c, place.sample);
    load_tile<D, R, R>(k_tile, c, key_rows(c, place.sample, place.head), keys, first, keys.seen);
    load_tile<D, R, R>(v_tile, c, value_rows(c, place.sample, place.head), keys, first, keys.seen);
    // The first query that sees a key of this tile, rounded down to a whole tile; none if no key is visible.
    const int from = c.causal ? max(0, first + c.queries - c.keys) / N * N : 0;
    const int tiles = first < keys.seen ? max(0, c.queries - from + N - 1) / N : 0;

    const float to_base_2 = c.scale * LOG2_E;
    float k_gradient[4][D / 16], v_gradient[4][D / 16];
    clear(k_gradient);
    clear(v_gradient);
    for (int step = 0; step < tiles * c.group; ++step) {
        const int head = place.head * c.group + step / tiles;
        const int start = from + step % tiles * N;
        load_tile<D, R, N>(q_tile, c, query_rows(c, place.sample, head), InOrder{}, start, c.queries);
        load_tile<D, R, N>(dout_tile, c, output_rows(c, dout, place.sample, head), InOrder{}, start,
                     c.queries);
        commit_async();
        wait_async<0>();
        __syncthreads();
        float p[4][N / 16], ds[4][N / 16];
        multiply_rows<D, N / 16>(p, k_tile, q_tile);
        multiply_rows<D, N / 16>(ds, v_tile, dout_tile);
        const long long row = statistics_of(c, place.sample, head);
#pragma unroll
        for (int j = 0; j < N / 16; ++j) {
            const int query = start + thread_column() + j * 16;
            const float log_sum = lse[row + min(query, c.queries - 1)];
            const float dot = delta[row + min(query, c.queries - 1)];
            // Keys after this one are masked; past the last query there is nothing.
            const int last = c.causal ? query + c.keys - c.queries : c.keys;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool seen = query < c.queries && first + thread_row() + i <= last;
                const float power = power_of_two(fmaf(p[i][j], to_base_2, -log_sum));
                p[i][j] = seen ? power : 0.0f;
                if constexpr (Drop::DROPS) {
                    const float factor =
                        drop.factor(place.sample, head, query, first + thread_row() + i);
                    ds[i][j] = p[i][j] * fmaf(ds[i][j], factor, -dot);
                    p[i][j] *= factor;
                } else {
                    ds[i][j] = p[i][j] * (ds[i][j] - dot);
                }
            }
        }
        store_scores(scores, p);
        multiply_scores<D, N>(v_gradient, scores, dout_tile);
        store_scores(scores, ds);
        multiply_scores<D, N>(k_gradient, scores, q_tile);
        __syncthreads();
    }
    wait_async<0>();
    const auto dk_rows = key_rows(c, dk, place), dv_rows = value_rows(c, dv, place);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int key = first + thread_row() + i;
        if (key < c.keys) {
            const int row = key_row(keys, key);
            const bool hidden = key >= keys.seen;
            write_gradient<D>(dk, dk_rows, row, k_gradient[i], c.scale, hidden, c.dim);
            write_gradient<D>(dv, dv_rows, row, v_gradient[i], 1.0f, hidden, c.dim);
        }
    }
}

#define KEY_GRADIENT(SUFFIX, DROP, D, R, N)                                                        \
    KERNEL(attention_f32_key_gradient##SUFFIX, THREADS<R>, 1)                                      \
    (CALL_PARAMETERS, GIVEN_PARAMETERS, KEY_TARGET_PARAMETERS, DROPOUT_PARAMETERS) {               \
        key_gradient<D, R, N>(CALL, DROP, dout, lse, delta, KEY_TARGET, VALUE_TARGET);                   \
    }

KEY_GRADIENT(_16, NO_DROPOUT, 16, 64, 64)
KEY_GRADIENT(_32, NO_DROPOUT, 32, 64, 64)
KEY_GRADIENT(_64, NO_DROPOUT, 64, 64, 64)
KEY_GRADIENT(_128, NO_DROPOUT, 128, 64, 64)
KEY_GRADIENT(_256, NO_DROPOUT, 256, 16, 16)

KEY_GRADIENT(_dropout_16, DROPOUT, 16, 64, 64)
KEY_GRADIENT(_dropout_32, DROPOUT, 32, 64, 64)
KEY_GRADIENT(_dropout_64, DROPOUT, 64, 64, 64)
KEY_GRADIENT(_dropout_128, DROPOUT, 128, 64, 64)
KEY_GRADIENT(_dropout_256, DROPOUT, 256, 16, 16)

// For GPUs with 99 KB of shared memory.
KEY_GRADIENT(_small_128, NO_DROPOUT, 128, 64, 16)
KEY_GRADIENT(_small_dropout_128, DROPOUT, 128, 64, 16)
