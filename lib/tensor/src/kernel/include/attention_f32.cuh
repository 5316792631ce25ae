// Attention in f32 with multiply-adds: the same passes over tiles as for 16-bit dtypes (attention_half.cuh). A block keeps a
// tile of R rows and iterates over tiles of N rows: 64 both, or fewer where shared memory is small.
//
// A thread computes four rows of a product; the 16 threads that share rows are half a warp, so they exchange data
// through shared memory without a block barrier.
#pragma once

#include "async.cuh"
#include "attention.cuh"

// Threads of a block with a tile of R rows.
template <int R>
constexpr int THREADS = 4 * R;

// Row stride of the scores.
template <int N>
constexpr int SCORES = N + 4;

// Row stride of a tile: eight rows are read at once, from different banks.
template <int D>
constexpr int PITCH = D + 4;

DEVICE int thread_row() {
    return static_cast<int>(threadIdx.x) / 16 * 4;
}

DEVICE int thread_column() {
    return static_cast<int>(threadIdx.x) % 16;
}

// Starts to copy N rows of an operand, from position `start`; positions from `end` and columns from `dim` are filled with
// zeros.
template <int D, int R, int N, class Order>
DEVICE void load_tile(float* tile, const Call& c, const Rows<const float>& rows, const Order& order,
                      int start, int end) {
    constexpr int CHUNKS = D / 4;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS * 4;
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / CHUNKS; row < N; row += THREADS<R> / CHUNKS) {
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
template <int D, int J>
DEVICE void multiply_rows(float (&s)[4][J], const float* a_tile, const float* b_tile) {
    const float* a = a_tile + thread_row() * PITCH<D>;
    const float* b = b_tile + thread_column() * PITCH<D>;
#pragma unroll
    for (int i = 0; i < 4 * J; ++i) {
        s[i / J][i % J] = 0.0f;
    }
#pragma unroll 2
    for (int k = 0; k < D; k += 4) {
        Vector<float, 4> x[4], y[J];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = load_vector<4>(a + i * PITCH<D> + k);
        }
#pragma unroll
        for (int j = 0; j < J; ++j) {
            y[j] = load_vector<4>(b + j * 16 * PITCH<D> + k);
        }
#pragma unroll
        for (int i = 0; i < 16 * J; ++i) {
            float& sum = s[i / (4 * J)][i / 4 % J];
            sum = fmaf(x[i / (4 * J)].at[i % 4], y[i / 4 % J].at[i % 4], sum);
        }
    }
}

// Columns of a thread in a product of D columns: adjacent ones, repeated over the width.
template <int D>
constexpr int NEIGHBOURS = D / 16 < 4 ? D / 16 : 4;

template <int D>
DEVICE int column_of(int i) {
    constexpr int N = NEIGHBOURS<D>;
    return i / N * 16 * N + thread_column() * N + i % N;
}

// o += P B: rows thread_row() + i of the scores, all M rows of B.
template <int D, int M>
DEVICE void multiply_scores(float (&o)[4][D / 16], const float* scores, const float* tile) {
    constexpr int N = NEIGHBOURS<D>;
    const float* p = scores + thread_row() * SCORES<M>;
    const float* b = tile + thread_column() * N;
#pragma unroll 1
    for (int k = 0; k < M; k += 4) {
        Vector<float, 4> x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = load_vector<4>(p + i * SCORES<M> + k);
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

// Writes a thread's scores where its half warp reads them.
template <int J>
DEVICE void store_scores(float* scores, const float (&s)[4][J]) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4 * J; ++i) {
        scores[(thread_row() + i / J) * SCORES<16 * J> + thread_column() + i % J * 16] =
            s[i / J][i % J];
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

// Writes (or adds) one accumulated row times `factor`, or zeros if `hidden`.
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
