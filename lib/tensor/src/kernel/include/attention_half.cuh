// Attention in 16-bit dtypes: tiles in shared memory, their products on tensor cores, and what the three kernels share
// (Dao 2023, "FlashAttention-2"; formulas in mod.rs of the op).
//
// A block keeps a tile of queries (of keys and values in the key gradient) in shared memory and iterates over tiles of
// the others; a warp computes 16 or 32 rows of each product. The fragments of one product are the operand of the next,
// so scores never leave registers. In shared memory heads are zero-padded to a size D for which there are kernels:
// WARPS warps with 16 M rows each of the tile that the block keeps, and N rows per tile that it iterates over. The
// sizes are chosen so that no kernel spills registers.
#pragma once

#include "async.cuh"
#include "attention.cuh"
#include "mma.cuh"

// Position of a chunk of a row in a tile: rows of D elements are chunks of 16 bytes, permuted within lines of 128 bytes
// so that eight rows of a matrix lie in different banks.
template <int D>
DEVICE int tile_at(int row, int chunk) {
    constexpr int CHUNKS = D / 8;
    constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
    constexpr int MASK = CHUNKS < 8 ? CHUNKS - 1 : 7;
    return (row * CHUNKS + (chunk ^ (row / ROWS_PER_LINE & MASK))) * 8;
}

// Starts to copy rows of an operand, from position `start`; positions from `end` and columns from `dim` are filled with
// zeros. With OFTEN, adjacent rows have code of their own, without the order of positions.
template <int D, int ROWS, int WARPS, bool OFTEN, class Order>
DEVICE void load_tile(element* tile, const Call& c, const Rows<const element>& rows,
                      const Order& order, int start, int end) {
    constexpr int CHUNKS = D / 8;
    constexpr int STEP = WARPS * WARP / CHUNKS;
    static_assert(ROWS % STEP == 0, "all threads copy equally often");
    const int first = static_cast<int>(threadIdx.x) / CHUNKS;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int columns = c.dim - chunk * 8;
    if (OFTEN && c.aligned && start + ROWS <= min(adjacent(order, rows), end)) {
        const element* from = row_at(rows, start + first) + chunk * 8;
        const int bytes = columns > 0 ? 16 : 0;
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            // The address of a chunk that is not read may be invalid.
            copy_async_16(tile + tile_at<D>(first + i, chunk), from, bytes);
            from += static_cast<long long>(STEP) * rows.stride;
        }
        return;
    }
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

// Where a lane reads the matrices of a tile: its row and chunk among the first 16 rows and columns. A step of 16
// columns is then an exclusive or, a step of 16 rows an addition.
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

// Fragments of the 16 M rows of a warp as the left operand, kept if there are enough registers.
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

// o += P B: P (16 M rows, N columns) in registers, B the N rows of a tile and C of its D columns, from `column`, a
// multiple of C.
template <int D, int M, int N, int C = D>
DEVICE void multiply_scores(float (&o)[M][C / 8][4], const unsigned (&p)[M][N / 16][4],
                            const element* tile, int column = 0) {
    const int lane_at = tile_at<D>(lane_id() % 16, lane_id() / 16);
#pragma unroll
    for (int k = 0; k < N / 16; ++k) {
#pragma unroll
        for (int n = 0; n < C / 16; ++n) {
            unsigned r[4];
            ldmatrix_x4_transposed(r, step<D>(tile, lane_at ^ column, k * 16, n * 16));
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

// Masks the keys that queries do not see: rows are queries from `query`, columns are keys from `key`.
template <int M, int N>
DEVICE void mask_keys(float (&s)[M][N][4], const Call& c, const Keys& keys, int query, int key) {
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

// Dropout of row `i` of 8 of a query, for keys from `key`, a multiple of 8. Adjacent lanes have the same four keys:
// each looks up those of every other n.
template <class Drop, int N>
DEVICE void drop_row(const Drop& drop, float (&s)[N][4], int i, const Place& place, int query,
                     int key) {
    const int odd = lane_id() % 2;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const unsigned own = drop.keeps(place.sample, place.head, query,
                                        key + (n + odd) * 8 + lane_id() % 4 * 2);
        const unsigned other = __shfl_xor_sync(ALL_LANES, own, 1);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const unsigned kept = (k == odd ? own : other) >> 2 * odd;
            float &low = s[n + k][2 * i], &high = s[n + k][2 * i + 1];
            low = kept & 1 ? low * drop.scale : 0.0f;
            high = kept & 2 ? high * drop.scale : 0.0f;
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

// Writes (or adds) row `half` of 8 of 16 accumulated rows times `factor`, or zeros if `hidden`: columns up to `dim`.
template <int N>
DEVICE void write_row(element* row, const float (&x)[N][4], int half, float factor, bool hidden,
                      int dim, int add) {
    // Two loops: in one, all products would be computed before the first is written, and not fit in registers.
    if (dim % 2 == 0 && !add) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int column = n * 8 + lane_id() % 4 * 2;
            const float low = hidden ? 0.0f : x[n][2 * half] * factor;
            const float high = hidden ? 0.0f : x[n][2 * half + 1] * factor;
            if (column < dim) {
                *reinterpret_cast<unsigned*>(row + column) = pack<element>(low, high);
            }
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const float low = hidden ? 0.0f : x[n][2 * half] * factor;
        const float high = hidden ? 0.0f : x[n][2 * half + 1] * factor;
        put_pair(row, n * 8 + lane_id() % 4 * 2, dim, low, high, add);
    }
}

// The same, at the position of the operand's row in its gradient, if that is needed.
template <int N>
DEVICE void write_gradient(const Target& target, const Rows<element>& rows, int row,
                           const float (&x)[N][4], int half, float factor, bool hidden, int dim) {
    const bool first = row < rows.split;
    const int add = first ? target.add : target.add_second;
    if ((first ? target.first : target.second) != nullptr && !(hidden && add)) {
        write_row(row_at(rows, row), x, half, factor, hidden, dim, add);
    }
}
