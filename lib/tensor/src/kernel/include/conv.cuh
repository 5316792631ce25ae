// Convolution as matrix products of gathered operands (ops/conv/mod.rs, gather.cuh). A source defines NAME, the
// prefix of its kernels, VOLUME if grids have three axes, which takes more registers, and TF32 if tensor cores multiply f32
// operands rounded to tf32.
//
// Forward, out = seen·wᵀ: a row is an output cell, a column of `seen` a tap and a channel. The gradient of x, dx =
// readers·w: a column of `readers` is a tap and a filter. The gradient of w, dw = dyᵀ·seen, is split over cells into
// partial sums that kernel/reduce_rows adds up. Each kernel has three variants: small and medium tiles, and small
// tiles for channel counts that are not a multiple of 16 bytes (`unaligned`).

#pragma once

#include "gather.cuh"
#include "product.cuh"

template <bool LHS, bool RHS>
using Small = Shape<64, 64, 32, 32, 4, LHS, RHS>;
#if ELEMENT_BYTES == 4 && !defined(TF32)
template <bool LHS, bool RHS>
using Medium = Shape<64, 128, 64, 32, 4, LHS, RHS>;
template <class S>
using Warp = FloatWarp<S>;
constexpr int MEDIUM_BLOCKS = 3;
#else
template <bool LHS, bool RHS>
using Medium = Shape<128, 128, 64, 64, 4, LHS, RHS>;
template <class S>
using Warp = MmaWarp<S>;
constexpr int MEDIUM_BLOCKS = 2;
#endif

// The block's part of lhs·rhs over [begin, end) of the inner axis; calls write(row, column, values) for 4 adjacent
// elements at a time, even if they are out of range.
template <class S, bool UNALIGNED, class Lhs, class Rhs, class Write>
DEVICE void multiply(const Lhs& lhs, const Rhs& rhs, int row, int column, int begin, int end,
                     Write write) {
    DYNAMIC_SHARED(shared);
    auto left = gatherer<Gatherer<Lhs, typename S::Lhs, S::THREADS, S::LHS_TRANSPOSED, UNALIGNED>>(
        lhs, row);
    auto right = gatherer<Gatherer<Rhs, typename S::Rhs, S::THREADS, !S::RHS_TRANSPOSED, UNALIGNED>>(
        rhs, column);
    int inner = begin;
    Warp<S> warp{};
    sum_tiles<S>(warp, shared, (end - begin + DEPTH - 1) / DEPTH, [&](unsigned char* to) {
        gather(left, to, inner);
        gather(right, to + S::Lhs::BYTES, inner);
        inner += DEPTH;
    });
    const auto nothing = [](int, int) { return 0; };
    write_sums<S, 4>(warp, shared, nothing, [&](int i, int j, const Sums<4>& values, int) {
        write(row + i, column + j, values);
    });
}

// First row and column of this block's part of a result: blocks are numbered row by row.
template <class S>
DEVICE int first_row(int columns) {
    return blockIdx.x / ((columns + S::BN - 1) / S::BN) * S::BM;
}

template <class S>
DEVICE int first_column(int columns) {
    return blockIdx.x % ((columns + S::BN - 1) / S::BN) * S::BN;
}

// Writes, or adds to, the first `count` of 4 adjacent elements; `whole`: all 4 exist, at an aligned address.
template <class T>
DEVICE void put_four(T* to, const Sums<4>& values, int count, bool whole, int add) {
    if (whole) {
        Vector<T, 4> four;
        if (add) {
            four = load_vector<4>(to);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            put(&four.at[e], values.at[e], add);
        }
        store_vector(to, four);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (e < count) {
            put(to + e, values.at[e], add);
        }
    }
}

// Writes adjacent elements of a row of `out` [rows, columns] that are in range.
template <class T>
DEVICE void write_row(T* out, int rows, int columns, int row, int column, Sums<4> values,
                       int add) {
    if (row >= rows || column >= columns) {
        return;
    }
    put_four(out + static_cast<long long>(row) * columns + column, values, columns - column,
             columns % 4 == 0, add);
}

// Adds the bias, unless null, of adjacent columns that are in range.
DEVICE void add_bias(Sums<4>& values, const element* bias, int column, int columns) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        values.at[e] += bias && column + e < columns ? to_float(bias[column + e]) : 0.0f;
    }
}

template <class S, bool UNALIGNED>
DEVICE void forward(const element* x, const element* w, const element* bias, element* out,
                    const Geometry& g, int add) {
    const int inner = taps(g) * g.channels.by;
    const int cells = g.batch * planes(g).to.by * g.rows.to.by * g.columns.to.by;
    const Seen seen{x, g, cells, inner};
    const Matrix filters{w, g.filters.by, inner, 0, {}};
    const int row = first_row<S>(g.filters.by), column = first_column<S>(g.filters.by);
    multiply<S, UNALIGNED>(seen, filters, row, column, 0, inner, [&](int i, int j, auto values) {
        add_bias(values, bias, j, g.filters.by);
        write_row(out, cells, g.filters.by, i, j, values, add);
    });
}

template <class S, bool UNALIGNED>
DEVICE void input(const element* dy, const element* w, const element* bias, element* dx,
                  const Geometry& g, int add) {
    const int inner = taps(g) * g.filters.by;
    const int cells = g.batch * planes(g).from.by * g.rows.from.by * g.columns.from.by;
    const Readers readers{dy, g, cells, inner};
    const Matrix filters{w, inner, g.channels.by, taps(g), g.filters};
    const int row = first_row<S>(g.channels.by), column = first_column<S>(g.channels.by);
    multiply<S, UNALIGNED>(readers, filters, row, column, 0, inner, [&](int i, int j, auto values) {
        add_bias(values, bias, j, g.channels.by);
        write_row(dx, cells, g.channels.by, i, j, values, add);
    });
}

template <class S, bool UNALIGNED>
DEVICE void filter(const element* x, const element* dy, float* partials, const Geometry& g,
                   int chunk_cells) {
    const int width = taps(g) * g.channels.by;
    const int begin = blockIdx.y * chunk_cells;
    const int end = min(begin + chunk_cells, g.batch * planes(g).to.by * g.rows.to.by * g.columns.to.by);
    const Matrix gradient{dy, end, g.filters.by, 0, {}};
    const Seen seen{x, g, end, width};
    float* out = partials + static_cast<long long>(blockIdx.y) * g.filters.by * width;
    const int row = first_row<S>(width), column = first_column<S>(width);
    multiply<S, UNALIGNED>(gradient, seen, row, column, begin, end, [&](int i, int j, auto values) {
        write_row(out, g.filters.by, width, i, j, values, 0);
    });
}

// out [cells, filters] (+)= what each cell reads of x, times w, plus `bias` unless null.
#define FORWARD(name, Tile, threads, blocks, unaligned)                                          \
    KERNEL(name, threads, blocks)(const element* __restrict__ x, const element* __restrict__ w,  \
                                  const element* __restrict__ bias, element* __restrict__ out,   \
                                  GEOMETRY_PARAMETERS, int add) {                                           \
        using S = Tile<false, true>;                                                             \
        forward<S, unaligned>(x, w, bias, out, GEOMETRY, add);                         \
    }

// dx [input cells, channels] (+)= the gradient, given dy, plus `bias` unless null.
#define INPUT(name, Tile, threads, blocks, unaligned)                                            \
    KERNEL(name, threads, blocks)(const element* __restrict__ dy, const element* __restrict__ w, \
                                  const element* __restrict__ bias, element* __restrict__ dx,    \
                                  GEOMETRY_PARAMETERS, int add) {                                           \
        using S = Tile<false, false>;                                                            \
        input<S, unaligned>(dy, w, bias, dx, GEOMETRY, add);                           \
    }

// partials [chunks, filters, taps, channels]: the gradient of w over each chunk of output cells.
#define FILTER(name, Tile, threads, blocks, unaligned)                                           \
    KERNEL(name, threads, blocks)(const element* __restrict__ x, const element* __restrict__ dy, \
                                  float* __restrict__ partials, GEOMETRY_PARAMETERS, int chunk_cells) {     \
        using S = Tile<true, false>;                                                             \
        filter<S, unaligned>(x, dy, partials, GEOMETRY, chunk_cells);                  \
    }

FORWARD(NAME(forward_small), Small, 128, 4, false)
FORWARD(NAME(forward_medium), Medium, 128, MEDIUM_BLOCKS, false)
FORWARD(NAME(forward_unaligned), Small, 128, 4, true)
INPUT(NAME(input_small), Small, 128, 4, false)
INPUT(NAME(input_medium), Medium, 128, MEDIUM_BLOCKS, false)
INPUT(NAME(input_unaligned), Small, 128, 4, true)
FILTER(NAME(filter_small), Small, 128, 4, false)
#ifndef TF32
// Of tf32 it would run out of registers.
FILTER(NAME(filter_medium), Medium, 128, MEDIUM_BLOCKS, false)
#endif
FILTER(NAME(filter_unaligned), Small, 128, 4, true)
