// elements: bf16 f16
//
// Attention without the matrix of scores, in 16-bit elements on tensor cores (Dao 2023,
// "FlashAttention-2"; formulas in mod.rs).
//
// Every kernel works on tiles: a block keeps a tile of queries (of keys and values in the gradient of
// keys) in shared memory and passes over tiles of the others; a warp computes 16 or 32 rows of each
// product. The fragments of one product are the operand of the next, so scores never leave registers.
// Nothing is summed across blocks: the gradients of queries and of keys have a kernel each, and results
// have the same bits every time. Heads are padded with zeros in shared memory. `lse` is the base-2
// logarithm of the sum of exponentials of a row of scores, `delta` its O . dO: [B, heads, queries].

#include "attention.cuh"
#include "mma.cuh"

// ---- tiles in shared memory: rows of D elements as chunks of 16 bytes, permuted within lines of 128
// bytes so that eight rows of a matrix lie in different banks

template <int D>
DEVICE int tile_at(int row, int chunk) {
    constexpr int CHUNKS = D / 8;
    constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
    constexpr int MASK = CHUNKS < 8 ? CHUNKS - 1 : 7;
    return (row * CHUNKS + (chunk ^ (row / ROWS_PER_LINE & MASK))) * 8;
}

// Starts to copy rows of an operand, those at positions from `start` on; from position `end` on, and
// from column `dim` on, there are zeros.
template <int D, int ROWS, int WARPS, class Order>
DEVICE void load_tile(element* tile, const Call& c, const Rows<const element>& rows,
                      const Order& order, int start, int end) {
    constexpr int CHUNKS = D / 8;
    constexpr int STEP = WARPS * WARP / CHUNKS;
    static_assert(ROWS % STEP == 0, "all threads copy as often");
    const int first = static_cast<int>(threadIdx.x) / CHUNKS;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int columns = c.dim - chunk * 8;
    if (c.aligned) {
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            const int at = start + first + i;
            const bool valid = at < end && columns > 0;
            const element* from = valid ? row_at(rows, key_row(order, at)) + chunk * 8 : c.q;
            copy_async_16(tile + tile_at<D>(first + i, chunk), from, valid ? 16 : 0);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < ROWS; i += STEP) {
        const int at = start + first + i;
        const int valid = at < end ? columns : 0;
        const element* from = valid > 0 ? row_at(rows, key_row(order, at)) + chunk * 8 : c.q;
        element* to = tile + tile_at<D>(first + i, chunk);
#pragma unroll 1
        for (int j = 0; j < 8; ++j) {
            to[j] = j < valid ? from[j] : from_float<element>(0.0f);
        }
    }
}

// Where a lane reads matrices of a tile: its row and chunk among the first 16 rows and columns. Steps of
// 16 columns are then one exclusive or, steps of 16 rows an addition.
template <int D>
DEVICE const element* step(const element* tile, int lane_at, int row, int column) {
    return tile + ((lane_at ^ column) + row * D);
}

// 16 rows and 16 columns of a tile as the left operand.
template <int D>
DEVICE void left_operand(unsigned (&a)[4], const element* tile, int column) {
    const int lane_at = tile_at<D>(lane_id() % 16, lane_id() / 16);
    ldmatrix_x4(a, step<D>(tile, lane_at, 0, column));
}

// Fragments of the 16 M rows of a warp as the left operand, for as long as there are registers.
template <int D, int M, bool KEPT>
struct Left {
    const element* tile;  // at the warp's first row
    unsigned kept[KEPT ? D / 16 : 1][M][4];
};

template <int D, int M, bool KEPT>
DEVICE void keep(Left<D, M, KEPT>& left) {
#pragma unroll
    for (int k = 0; k < (KEPT ? D / 16 : 0); ++k) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            left_operand<D>(left.kept[k][m], left.tile + m * 16 * D, k * 16);
        }
    }
}

// s += A B^T over D columns, B the N rows of a tile.
template <int D, int M, int N, bool KEPT>
DEVICE void multiply_rows(float (&s)[M][N / 8][4], const Left<D, M, KEPT>& left,
                          const element* tile) {
    const int lane = lane_id();
    const int lane_at = tile_at<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        unsigned a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            if (KEPT) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    a[m][i] = left.kept[KEPT ? k : 0][m][i];
                }
            } else {
                left_operand<D>(a[m], left.tile + m * 16 * D, k * 16);
            }
        }
#pragma unroll
        for (int n = 0; n < N / 16; ++n) {
            unsigned r[4];
            ldmatrix_x4(r, step<D>(tile, lane_at, n * 16, k * 16));
            const unsigned low[2] = {r[0], r[1]};
            const unsigned high[2] = {r[2], r[3]};
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma_16x8x16(s[m][2 * n], a[m], low, element{});
                mma_16x8x16(s[m][2 * n + 1], a[m], high, element{});
            }
        }
    }
}

// Scores as the left operand of a product.
template <int M, int N>
DEVICE void pack_scores(unsigned (&p)[M][N / 2][4], const float (&s)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            p[m][n / 2][n % 2 * 2] = pack<element>(s[m][n][0], s[m][n][1]);
            p[m][n / 2][n % 2 * 2 + 1] = pack<element>(s[m][n][2], s[m][n][3]);
        }
    }
}

// o += P B: P (16 M rows, N columns) in registers, B the N rows of a tile, D columns.
template <int D, int M, int N>
DEVICE void multiply_scores(float (&o)[M][D / 8][4], const unsigned (&p)[M][N / 16][4],
                            const element* tile) {
    const int lane_at = tile_at<D>(lane_id() % 16, lane_id() / 16);
#pragma unroll
    for (int k = 0; k < N / 16; ++k) {
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            unsigned r[4];
            ldmatrix_x4_transposed(r, step<D>(tile, lane_at, k * 16, n * 16));
            const unsigned low[2] = {r[0], r[1]};
            const unsigned high[2] = {r[2], r[3]};
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma_16x8x16(o[m][2 * n], p[m][k], low, element{});
                mma_16x8x16(o[m][2 * n + 1], p[m][k], high, element{});
            }
        }
    }
}

// Hides the keys that queries do not see: rows are queries from `query` on, columns keys from `key` on.
template <int M, int N>
DEVICE void hide(float (&s)[M][N][4], const Call& c, const Keys& keys, int query, int key) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = query + m * 16 + i * 8 + lane_id() / 4;
            const int limit = visible(c, keys, row) - key - lane_id() % 4 * 2;
#pragma unroll
            for (int n = 0; n < N; ++n) {
                s[m][n][2 * i] = n * 8 < limit ? s[m][n][2 * i] : -infinity();
                s[m][n][2 * i + 1] = n * 8 + 1 < limit ? s[m][n][2 * i + 1] : -infinity();
            }
        }
    }
}

template <int M, int N>
DEVICE void clear(float (&x)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[m][n][i] = 0.0f;
            }
        }
    }
}

// Writes (or adds) row `half` of 8 of 16 accumulated rows, times `factor`; zeros when `hidden`.
template <int N>
DEVICE void write_row(element* row, const float (&x)[N][4], int half, float factor, bool hidden,
                      int dim, int add) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const int column = n * 8 + lane_id() % 4 * 2;
        const float low = hidden ? 0.0f : x[n][2 * half] * factor;
        const float high = hidden ? 0.0f : x[n][2 * half + 1] * factor;
        if (dim % 2 == 0 && !add) {
            if (column < dim) {
                *reinterpret_cast<unsigned*>(row + column) = pack<element>(low, high);
            }
        } else {
            put_pair(row, column, dim, low, high, add);
        }
    }
}

// The same where the operand's row has its gradient, if that is wanted.
template <int N>
DEVICE void write_gradient(const Target& target, const Rows<element>& rows, int row,
                           const float (&x)[N][4], int half, float factor, bool hidden, int dim) {
    const bool first = row < rows.split;
    const int add = first ? target.add : target.add_second;
    if ((first ? target.first : target.second) != nullptr && !(hidden && add)) {
        write_row(row_at(rows, row), x, half, factor, hidden, dim, add);
    }
}

// ---- the output

template <int D, int M, int WARPS, int KEYS>
DEVICE void forward(const Call& c, element* out, float* lse) {
    constexpr int QUERIES = WARPS * M * 16;
    constexpr bool KEPT = M * D <= 128;
    DYNAMIC_SHARED(memory);
    element* q_tile = reinterpret_cast<element*>(memory);
    element* k_tile = q_tile + QUERIES * D;
    element* v_tile = k_tile + KEYS * D;

    const int tiles = (c.queries + QUERIES - 1) / QUERIES;
    const Place place = place_of(tiles, c.heads);
    // Behind a causal mask the longest first.
    const int first = (c.causal ? tiles - 1 - place.tile : place.tile) * QUERIES;
    const Keys keys = keys_of(c, place.sample);
    const int end = visible(c, keys, min(first + QUERIES, c.queries) - 1);
    const int seen_by_all = visible(c, keys, first);
    const auto k_rows = key_rows(c, place.sample, place.head / c.group);
    const auto v_rows = value_rows(c, place.sample, place.head / c.group);
    load_tile<D, QUERIES, WARPS>(q_tile, c, query_rows(c, place.sample, place.head), AsTheyLie{}, first,
                          c.queries);
    load_tile<D, KEYS, WARPS>(k_tile, c, k_rows, keys, 0, end);
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
        load_tile<D, KEYS, WARPS>(v_tile, c, v_rows, keys, start, end);
        commit_async();
        float s[M][KEYS / 8][4];
        clear(s);
        multiply_rows<D, M, KEYS>(s, q, k_tile);
        wait_async<0>();
        __syncthreads();
        if (start + KEYS < end) {
            load_tile<D, KEYS, WARPS>(k_tile, c, k_rows, keys, start + KEYS, end);
            commit_async();
        }
        if (start + KEYS > seen_by_all) {
            hide(s, c, keys, first + warp_row, start);
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
                // Where nothing is seen yet any finite number does.
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
    lse += (static_cast<long long>(place.sample) * c.heads + place.head) * c.queries;
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
                    lse[query] =
                        nothing ? infinity() : fmaf(top[m][i], to_base_2, log2f(total));
                }
            }
        }
    }
}

// ---- the gradient of queries

template <int D, int M, int WARPS, int KEYS>
DEVICE void query_gradient(const Call& c, const element* dout, const float* lse, const float* delta,
                           const Target& dq) {
    constexpr int QUERIES = WARPS * M * 16;
    constexpr bool KEPT = M * D <= 64;
    DYNAMIC_SHARED(memory);
    element* q_tile = reinterpret_cast<element*>(memory);
    element* dout_tile = q_tile + QUERIES * D;
    element* stages = dout_tile + QUERIES * D;

    const int tiles = (c.queries + QUERIES - 1) / QUERIES;
    const Place place = place_of(tiles, c.heads);
    const int first = (c.causal ? tiles - 1 - place.tile : place.tile) * QUERIES;
    const Keys keys = keys_of(c, place.sample);
    const int end = visible(c, keys, min(first + QUERIES, c.queries) - 1);
    const int seen_by_all = visible(c, keys, first);
    const auto k_rows = key_rows(c, place.sample, place.head / c.group);
    const auto v_rows = value_rows(c, place.sample, place.head / c.group);
    load_tile<D, QUERIES, WARPS>(q_tile, c, query_rows(c, place.sample, place.head), AsTheyLie{}, first,
                          c.queries);
    load_tile<D, QUERIES, WARPS>(dout_tile, c, output_rows(c, dout, place.sample, place.head), AsTheyLie{},
                          first, c.queries);
    load_tile<D, KEYS, WARPS>(stages, c, k_rows, keys, 0, end);
    load_tile<D, KEYS, WARPS>(stages + KEYS * D, c, v_rows, keys, 0, end);
    commit_async();

    const int lane = lane_id();
    const float to_base_2 = c.scale * LOG2_E;
    const int warp_row = warp_id() * M * 16;
    Left<D, M, KEPT> q{q_tile + warp_row * D, {}};
    Left<D, M, KEPT> d{dout_tile + warp_row * D, {}};
    const long long row = (static_cast<long long>(place.sample) * c.heads + place.head) * c.queries;
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
            load_tile<D, KEYS, WARPS>(next, c, k_rows, keys, start + KEYS, end);
            load_tile<D, KEYS, WARPS>(next + KEYS * D, c, v_rows, keys, start + KEYS, end);
            commit_async();
        }
        float s[M][KEYS / 8][4], ds[M][KEYS / 8][4];
        clear(s);
        clear(ds);
        multiply_rows<D, M, KEYS>(s, q, k_tile);
        multiply_rows<D, M, KEYS>(ds, d, v_tile);
        if (start + KEYS > seen_by_all) {
            hide(s, c, keys, first + warp_row, start);
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
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
    const auto rows = rows_of(dq.first, dq.second, place.sample, c.queries, c.query_split,
                              c.q_stride, c.q_start + place.head * c.dim);
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

// ---- the gradients of keys and values: scores are computed transposed, a key a row

template <int D, int M, int WARPS, int QUERIES>
DEVICE void key_gradient(const Call& c, const element* dout, const float* lse, const float* delta,
                         const Target& dk, const Target& dv) {
    constexpr int KEYS = WARPS * M * 16;
    constexpr bool KEPT = M * D <= 32;
    DYNAMIC_SHARED(memory);
    element* k_tile = reinterpret_cast<element*>(memory);
    element* v_tile = k_tile + KEYS * D;
    element* stages = v_tile + KEYS * D;
    float* statistics = reinterpret_cast<float*>(stages + 4 * QUERIES * D);

    const Place place = place_of((c.keys + KEYS - 1) / KEYS, c.heads / c.group);
    const int first = place.tile * KEYS;
    const Keys keys = keys_of(c, place.sample);
    const auto k_rows = key_rows(c, place.sample, place.head);
    const auto v_rows = value_rows(c, place.sample, place.head);
    // The first query that sees a key of this tile, down to a whole tile; none where no key is seen.
    const int from = c.causal ? max(0, first + c.queries - c.keys) / QUERIES * QUERIES : 0;
    const int tiles = first < keys.seen ? max(0, c.queries - from + QUERIES - 1) / QUERIES : 0;
    const int steps = tiles * c.group;

    const auto load_queries = [&](int stage, int head, int start) {
        element* q_tile = stages + stage * 2 * QUERIES * D;
        load_tile<D, QUERIES, WARPS>(q_tile, c, query_rows(c, place.sample, head), AsTheyLie{}, start,
                              c.queries);
        load_tile<D, QUERIES, WARPS>(q_tile + QUERIES * D, c, output_rows(c, dout, place.sample, head),
                              AsTheyLie{}, start, c.queries);
        // Beyond the last query all is zero, and adds nothing.
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < 2 * QUERIES) {
            const int query = start + thread % QUERIES;
            const bool valid = query < c.queries;
            const long long row =
                (static_cast<long long>(place.sample) * c.heads + head) * c.queries;
            copy_async_4(statistics + stage * 2 * QUERIES + thread,
                         (thread < QUERIES ? lse : delta) + row + (valid ? query : 0), valid);
        }
    };
    load_tile<D, KEYS, WARPS>(k_tile, c, k_rows, keys, first, keys.seen);
    load_tile<D, KEYS, WARPS>(v_tile, c, v_rows, keys, first, keys.seen);
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
    float k_gradient[M][D / 8][4], v_gradient[M][D / 8][4];
    clear(k_gradient);
    clear(v_gradient);
    int head = place.head * c.group;
    int next = from;
    for (int step = 0; step < steps; ++step) {
        wait_async<0>();
        __syncthreads();
        const int start = next;
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
        const bool hides = c.causal && first + KEYS > start + 1 + c.keys - c.queries;
        float p[M][QUERIES / 8][4], ds[M][QUERIES / 8][4];
        clear(p);
        clear(ds);
        multiply_rows<D, M, QUERIES>(p, k, q_tile);
        multiply_rows<D, M, QUERIES>(ds, v, dout_tile);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; ++n) {
            const auto log_sum = load_vector<2>(row_statistics + n * 8);
            const auto dot = load_vector<2>(row_statistics + QUERIES + n * 8);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                const int key = first + warp_row + m * 16 + lane / 4;
                const int query = start + n * 8 + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& score = p[m][n][i];
                    score = power_of_two(fmaf(score, to_base_2, -log_sum.at[i % 2]));
                    if (hides && key + i / 2 * 8 > query + i % 2 + c.keys - c.queries) {
                        score = 0.0f;
                    }
                    ds[m][n][i] = score * (ds[m][n][i] - dot.at[i % 2]);
                }
            }
        }
        unsigned packed[M][QUERIES / 16][4];
        pack_scores(packed, p);
        multiply_scores<D, M, QUERIES>(v_gradient, packed, dout_tile);
        pack_scores(packed, ds);
        multiply_scores<D, M, QUERIES>(k_gradient, packed, q_tile);
    }
    wait_async<0>();
    const auto dk_rows = rows_of(dk.first, dk.second, place.sample, c.keys, c.key_split,
                                 c.k_stride, c.k_start + place.head * c.dim);
    const auto dv_rows = rows_of(dv.first, dv.second, place.sample, c.keys, c.key_split,
                                 c.v_stride, c.v_start + place.head * c.dim);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int key = first + warp_row + m * 16 + i * 8 + lane / 4;
            if (key < c.keys) {
                const int row = key_row(keys, key);
                const bool hidden = key >= keys.seen;
                write_gradient(dk, dk_rows, row, k_gradient[m], i, c.scale, hidden, c.dim);
                write_gradient(dv, dv_rows, row, v_gradient[m], i, 1.0f, hidden, c.dim);
            }
        }
    }
}

// ---- kernels for every padded size of a head D: WARPS warps with 16 M rows each of the tile a block
// keeps, N rows of those it passes over. Registers decide: no kernel spills.

#define FORWARD(D, M, WARPS, N)                                                                    \
    KERNEL(attention_forward_##D, 32 * WARPS, 1)                                                   \
    (CALL_PARAMETERS, element* __restrict__ out, float* __restrict__ lse) {                        \
        forward<D, M, WARPS, N>(CALL, out, lse);                                                   \
    }

FORWARD(16, 1, 4, 64)
FORWARD(32, 1, 4, 64)
FORWARD(64, 2, 4, 64)
FORWARD(128, 1, 8, 64)

#define QUERY_GRADIENT(D, M, WARPS, N)                                                             \
    KERNEL(attention_query_gradient_##D, 32 * WARPS, 1)                                            \
    (CALL_PARAMETERS, const element* __restrict__ dout, const float* __restrict__ lse,             \
     const float* __restrict__ delta, element* dq, element* dq_second, int add, int add_second) {  \
        query_gradient<D, M, WARPS, N>(CALL, dout, lse, delta,                                     \
                                       Target{dq, dq_second, add, add_second});                    \
    }

QUERY_GRADIENT(16, 1, 4, 64)
QUERY_GRADIENT(32, 1, 4, 64)
QUERY_GRADIENT(64, 2, 4, 32)
QUERY_GRADIENT(128, 1, 8, 64)

#define KEY_GRADIENT(D, M, WARPS, N)                                                               \
    KERNEL(attention_key_gradient_##D, 32 * WARPS, 1)                                              \
    (CALL_PARAMETERS, const element* __restrict__ dout, const float* __restrict__ lse,             \
     const float* __restrict__ delta, element* dk, element* dk_second, element* dv,                \
     element* dv_second, int k_add, int k_add_second, int v_add, int v_add_second) {               \
        key_gradient<D, M, WARPS, N>(CALL, dout, lse, delta,                                       \
                                     Target{dk, dk_second, k_add, k_add_second},                   \
                                     Target{dv, dv_second, v_add, v_add_second});                  \
    }

KEY_GRADIENT(16, 1, 4, 64)
KEY_GRADIENT(32, 1, 4, 64)
KEY_GRADIENT(64, 1, 8, 64)
KEY_GRADIENT(128, 1, 8, 64)
