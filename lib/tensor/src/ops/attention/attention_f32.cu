// elements: f32
//
// Attention without the matrix of scores, in f32 by multiply-adds: the same passes over tiles as for 16-bit
// elements (attention.cu), with every product 64 rows by 64 columns.
//
// Of a product a thread computes four rows; the 16 threads that share rows are half a warp, so what they
// tell each other through shared memory needs no barrier of the block.

#include "async.cuh"
#include "attention.cuh"

constexpr int THREADS = 256;
constexpr int TILE = 64;         // rows of every tile
constexpr int SCORES = TILE + 4; // distance of rows of scores

// Distance of rows of a tile: eight rows are read at once, from different banks.
template <int D>
constexpr int PITCH = D + 4;

DEVICE int thread_row() {
    return static_cast<int>(threadIdx.x) / 16 * 4;
}

DEVICE int thread_column() {
    return static_cast<int>(threadIdx.x) % 16;
}

// Starts to copy rows of an operand, those at positions from `start` on; from position `end` on, and
// from column `dim` on, there are zeros.
template <int D, class Order>
DEVICE void load_tile(float* tile, const Call& c, const Rows<const float>& rows, const Order& order,
                      int start, int end) {
    constexpr int CHUNKS = D / 4;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS * 4;
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / CHUNKS; row < TILE; row += THREADS / CHUNKS) {
        const int at = start + row;
        const int columns = at < end ? c.dim - chunk : 0;
        const float* from = columns > 0 ? row_at(rows, key_row(order, at)) + chunk : c.q;
        float* to = tile + row * PITCH<D> + chunk;
        if (c.aligned) {
            copy_async_16(to, from, columns > 0 ? 16 : 0);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                copy_async_4(to + i, i < columns ? from + i : c.q, i < columns);
            }
        }
    }
}

// s = A B^T: rows thread_row() + i of A, rows thread_column() + 16 j of B.
template <int D>
DEVICE void multiply_rows(float (&s)[4][4], const float* a_tile, const float* b_tile) {
    const float* a = a_tile + thread_row() * PITCH<D>;
    const float* b = b_tile + thread_column() * PITCH<D>;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        s[i / 4][i % 4] = 0.0f;
    }
#pragma unroll 2
    for (int k = 0; k < D; k += 4) {
        Vector<float, 4> x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = load_vector<4>(a + i * PITCH<D> + k);
            y[i] = load_vector<4>(b + i * 16 * PITCH<D> + k);
        }
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            float& sum = s[i / 16][i / 4 % 4];
            sum = fmaf(x[i / 16].at[i % 4], y[i / 4 % 4].at[i % 4], sum);
        }
    }
}

// Columns of a thread in a product of D columns: neighbouring ones, repeated over the width.
template <int D>
constexpr int NEIGHBOURS = D / 16 < 4 ? D / 16 : 4;

template <int D>
DEVICE int column_of(int i) {
    constexpr int N = NEIGHBOURS<D>;
    return i / N * 16 * N + thread_column() * N + i % N;
}

// o += P B: rows thread_row() + i of the scores, all rows of B.
template <int D>
DEVICE void multiply_scores(float (&o)[4][D / 16], const float* scores, const float* tile) {
    constexpr int N = NEIGHBOURS<D>;
    const float* p = scores + thread_row() * SCORES;
    const float* b = tile + thread_column() * N;
#pragma unroll 1
    for (int k = 0; k < TILE; k += 4) {
        Vector<float, 4> x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = load_vector<4>(p + i * SCORES + k);
        }
#pragma unroll
        for (int row = 0; row < 4; ++row) {
#pragma unroll
            for (int n = 0; n < D / 16; n += N) {
                const auto y = load_vector<N>(b + (k + row) * PITCH<D> + n * 16);
#pragma unroll
                for (int i = 0; i < 4 * N; ++i) {
                    float& sum = o[i / N][n + i % N];
                    sum = fmaf(x[i / N].at[row], y.at[i % N], sum);
                }
            }
        }
    }
}

// A thread's scores to where its half warp reads them.
DEVICE void store_scores(float* scores, const float (&s)[4][4]) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        scores[(thread_row() + i / 4) * SCORES + thread_column() + i % 4 * 16] = s[i / 4][i % 4];
    }
    __syncwarp();
}

template <int N>
DEVICE void clear(float (&x)[4][N]) {
#pragma unroll
    for (int i = 0; i < 4 * N; ++i) {
        x[i / N][i % N] = 0.0f;
    }
}

// Writes (or adds) one accumulated row times `factor`; zeros when `hidden`.
template <int D>
DEVICE void write_row(float* row, const float (&x)[D / 16], float factor, bool hidden, int dim,
                      int add) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const int column = column_of<D>(i);
        if (column < dim) {
            put(row + column, hidden ? 0.0f : x[i] * factor, add);
        }
    }
}

template <int D>
DEVICE void write_gradient(const Target& target, const Rows<float>& rows, int row,
                           const float (&x)[D / 16], float factor, bool hidden, int dim) {
    const bool first = row < rows.split;
    const int add = first ? target.add : target.add_second;
    if ((first ? target.first : target.second) != nullptr && !(hidden && add)) {
        write_row<D>(row_at(rows, row), x, factor, hidden, dim, add);
    }
}

// ---- the output

template <int D>
DEVICE void forward(const Call& c, float* out, float* lse) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* q_tile = scores + TILE * SCORES;
    float* k_tile = q_tile + TILE * PITCH<D>;
    float* v_tile = k_tile + TILE * PITCH<D>;

    const int tiles = (c.queries + TILE - 1) / TILE;
    const Place place = place_of(tiles, c.heads);
    // Behind a causal mask the longest first.
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
            // Where nothing is seen yet any finite number does.
            const float base = largest == -infinity() ? 0.0f : largest * to_base_2;
            const float correction = power_of_two(top[i] * to_base_2 - base);
            top[i] = largest;
            sum[i] *= correction;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                s[i][j] = power_of_two(fmaf(s[i][j], to_base_2, -base));
                sum[i] += s[i][j];
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

// ---- the gradient of queries

template <int D>
DEVICE void query_gradient(const Call& c, const float* dout, const float* lse, const float* delta,
                           const Target& dq) {
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

// ---- the gradients of keys and values: scores are computed transposed, a key a row

template <int D>
DEVICE void key_gradient(const Call& c, const float* dout, const float* lse, const float* delta,
                         const Target& dk, const Target& dv) {
    DYNAMIC_SHARED(memory);
    float* scores = reinterpret_cast<float*>(memory);
    float* k_tile = scores + TILE * SCORES;
    float* v_tile = k_tile + TILE * PITCH<D>;
    float* q_tile = v_tile + TILE * PITCH<D>;
    float* dout_tile = q_tile + TILE * PITCH<D>;

    const Place place = place_of((c.keys + TILE - 1) / TILE, c.heads / c.group);
    const int first = place.tile * TILE;
    const Keys keys = keys_of(c, place.sample);
    load_tile<D>(k_tile, c, key_rows(c, place.sample, place.head), keys, first, keys.seen);
    load_tile<D>(v_tile, c, value_rows(c, place.sample, place.head), keys, first, keys.seen);
    // The first query that sees a key of this tile, down to a whole tile; none where no key is seen.
    const int from = c.causal ? max(0, first + c.queries - c.keys) / TILE * TILE : 0;
    const int tiles = first < keys.seen ? max(0, c.queries - from + TILE - 1) / TILE : 0;

    const float to_base_2 = c.scale * LOG2_E;
    float k_gradient[4][D / 16], v_gradient[4][D / 16];
    clear(k_gradient);
    clear(v_gradient);
    for (int step = 0; step < tiles * c.group; ++step) {
        const int head = place.head * c.group + step / tiles;
        const int start = from + step % tiles * TILE;
        load_tile<D>(q_tile, c, query_rows(c, place.sample, head), AsTheyLie{}, start, c.queries);
        load_tile<D>(dout_tile, c, output_rows(c, dout, place.sample, head), AsTheyLie{}, start,
                     c.queries);
        commit_async();
        wait_async<0>();
        __syncthreads();
        float p[4][4], ds[4][4];
        multiply_rows<D>(p, k_tile, q_tile);
        multiply_rows<D>(ds, v_tile, dout_tile);
        const long long row = (static_cast<long long>(place.sample) * c.heads + head) * c.queries;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int query = start + thread_column() + j * 16;
            const float log_sum = lse[row + min(query, c.queries - 1)];
            const float dot = delta[row + min(query, c.queries - 1)];
            // Keys after this one are hidden; beyond the last query there is nothing.
            const int last = c.causal ? query + c.keys - c.queries : c.keys;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool seen = query < c.queries && first + thread_row() + i <= last;
                const float power = power_of_two(fmaf(p[i][j], to_base_2, -log_sum));
                p[i][j] = seen ? power : 0.0f;
                ds[i][j] = p[i][j] * (ds[i][j] - dot);
            }
        }
        store_scores(scores, p);
        multiply_scores<D>(v_gradient, scores, dout_tile);
        store_scores(scores, ds);
        multiply_scores<D>(k_gradient, scores, q_tile);
        __syncthreads();
    }
    wait_async<0>();
    const auto dk_rows = rows_of(dk.first, dk.second, place.sample, c.keys, c.key_split,
                                 c.k_stride, c.k_start + place.head * c.dim);
    const auto dv_rows = rows_of(dv.first, dv.second, place.sample, c.keys, c.key_split,
                                 c.v_stride, c.v_start + place.head * c.dim);
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

// ---- kernels for every padded size of a head D

#define KERNELS(D)                                                                                 \
    KERNEL(attention_f32_forward_##D, 256)                                                         \
    (CALL_PARAMETERS, float* __restrict__ out, float* __restrict__ lse) {                          \
        forward<D>(CALL, out, lse);                                                                \
    }                                                                                              \
    KERNEL(attention_f32_query_gradient_##D, 256)                                                  \
    (CALL_PARAMETERS, const float* __restrict__ dout, const float* __restrict__ lse,               \
     const float* __restrict__ delta, float* dq, float* dq_second, int add, int add_second) {      \
        query_gradient<D>(CALL, dout, lse, delta, Target{dq, dq_second, add, add_second});         \
    }                                                                                              \
    KERNEL(attention_f32_key_gradient_##D, 256)                                                    \
    (CALL_PARAMETERS, const float* __restrict__ dout, const float* __restrict__ lse,               \
     const float* __restrict__ delta, float* dk, float* dk_second, float* dv, float* dv_second,    \
     int k_add, int k_add_second, int v_add, int v_add_second) {                                   \
        key_gradient<D>(CALL, dout, lse, delta, Target{dk, dk_second, k_add, k_add_second},        \
                        Target{dv, dv_second, v_add, v_add_second});                               \
    }

KERNELS(16)
KERNELS(32)
KERNELS(64)
KERNELS(128)
