// The kernels of kernel/product: batches, sums of products, splits of the sum, and what is done to a
// result before it is written. kernel/product/launch.rs knows the sizes given here.
#pragma once

#include "activation.cuh"
#include "product.cuh"

// For each of `batch` products: C = f(alpha Σ_terms op(A) op(B) + bias) + addend, slope = f'(...).
// Split s of `splits` makes the sum over its part of the terms and of k.
//
// lhs is op(A) [m, k] or, transposed, stored [k, m]; rhs is op(B) [k, n], or [n, k]; rows are *_stride
// elements apart, products *_batch, terms *_term. Of `aligned`, bit 0 says that every line of lhs
// begins at a multiple of 16 bytes, bit 1 the same of rhs, bit 2 that every line of what is written
// begins at a multiple of 4 elements. If `sums` is
// given, alpha times the sum goes there in f32, [splits, batch, m, n], and nothing else is done.
// bias [n], addend and slope (where out has its elements) may be null; out and addend may be the same.
#define PRODUCT_PARAMETERS                                                                       \
    const element *lhs, const element *rhs, element *out, float *sums, const element *bias,      \
        const element *addend, element *slope, int m, int n, int k, int terms, int batch,        \
        int splits, int lhs_stride, int rhs_stride, int out_stride, long long lhs_batch,         \
        long long rhs_batch, long long out_batch, long long lhs_term, long long rhs_term,        \
        float alpha, int activation, int aligned

#define PRODUCT_ARGUMENTS                                                                        \
    {                                                                                            \
        lhs, rhs, out, sums, bias, addend, slope, m, n, k, terms, batch, splits, lhs_stride,     \
            rhs_stride, out_stride, lhs_batch, rhs_batch, out_batch, lhs_term, rhs_term, alpha,  \
            activation, aligned                                                                  \
    }

struct Product {
    const element *lhs, *rhs;
    element* out;
    float* sums;
    const element *bias, *addend;
    element* slope;
    int m, n, k, terms, batch, splits, lhs_stride, rhs_stride, out_stride;
    long long lhs_batch, rhs_batch, out_batch, lhs_term, rhs_term;
    float alpha;
    int activation, aligned;
};

// Rows of blocks that share what they read of B in the second-level cache.
constexpr int GROUP = 8;

// Which part of which product a block makes.
struct Place {
    int row, column, split, batch;
};

// Blocks are numbered by batch, split, group of rows, column, row in its group.
template <class S>
DEVICE Place place(const Product& p) {
    const int rows = (p.m + S::BM - 1) / S::BM, columns = (p.n + S::BN - 1) / S::BN;
    const int block = blockIdx.x % (rows * columns), others = blockIdx.x / (rows * columns);
    const int first = block / (GROUP * columns) * GROUP, in_group = block % (GROUP * columns);
    const int height = min(rows - first, GROUP);
    return {(first + in_group % height) * S::BM, in_group / height * S::BN, others % p.splits,
            others / p.splits};
}

// N neighbours from `from`, or from anywhere the first `count`.
template <class T>
DEVICE Vector<T, 4> read_four(const T* from, int count, bool whole) {
    if (whole) {
        return load_vector<4>(from);
    }
    Vector<T, 4> four;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        four.at[e] = e < count ? from[e] : from_float<T>(0.0f);
    }
    return four;
}

template <class T>
DEVICE void write_four(T* to, Vector<T, 4> four, int count, bool whole) {
    if (whole) {
        store_vector(to, four);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (e < count) {
            to[e] = four.at[e];
        }
    }
}

// Finishes and writes 4 neighbours of a row of the sum: those that exist.
DEVICE void write_result(const Product& p, const Place& at, int row, int column,
                         Vector<float, 4> z) {
    const int count = p.n - column;
    if (row >= p.m || count <= 0) {
        return;
    }
    const bool whole = (p.aligned & 4) && count >= 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        z.at[e] *= p.alpha;
    }
    if (p.sums) {
        const long long matrix = static_cast<long long>(at.split) * p.batch + at.batch;
        write_four(p.sums + (matrix * p.m + row) * p.n + column, z, count, whole);
        return;
    }
    const long long offset =
        at.batch * p.out_batch + static_cast<long long>(row) * p.out_stride + column;
    if (p.bias) {
        const auto bias = read_four(p.bias + column, count, whole);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            z.at[e] += to_float(bias.at[e]);
        }
    }
    Vector<element, 4> result;
    if (p.activation != IDENTITY) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const Activated y = activate(p.activation, z.at[e]);
            z.at[e] = y.value;
            result.at[e] = from_float<element>(y.derivative);
        }
        if (p.slope) {
            write_four(p.slope + offset, result, count, whole);
        }
    }
    if (p.addend) {
        const auto addend = read_four(p.addend + offset, count, whole);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            z.at[e] += to_float(addend.at[e]);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        result.at[e] = from_float<element>(z.at[e]);
    }
    write_four(p.out + offset, result, count, whole);
}

// One operand's tile at `k`; `matrix` is the first element that the block needs of the operand.
template <class T, int THREADS, bool ALONG_K, bool ODD>
DEVICE void load_operand(unsigned char* to, const element* matrix, long long stride, int k,
                         int span_left, int k_left, bool is_aligned) {
    const element* from = matrix + (ALONG_K ? k : k * stride);
    const int lines = ALONG_K ? span_left : k_left, length = ALONG_K ? k_left : span_left;
    if (!ODD || is_aligned) {
        load_tile<T, THREADS>(to, from, stride, lines, length);
    } else {
        load_odd_tile<T, THREADS>(to, from, stride, lines, length);
    }
}

// A block's part of a product. Lines that do not begin at multiples of 16 bytes need ODD.
template <class S, class Warp, bool ODD>
DEVICE void make_product(const Product& p, unsigned char* shared) {
    const Place at = place<S>(p);
    const element* lhs = p.lhs + at.batch * p.lhs_batch +
                         (S::LHS_TRANSPOSED ? at.row : at.row * static_cast<long long>(p.lhs_stride));
    const element* rhs = p.rhs + at.batch * p.rhs_batch +
                         (S::RHS_TRANSPOSED ? at.column * static_cast<long long>(p.rhs_stride)
                                            : at.column);
    const int tiles = (p.k + DEPTH - 1) / DEPTH;
    const long long all = static_cast<long long>(tiles) * p.terms;
    const int begin = static_cast<int>(all * at.split / p.splits);
    const int end = static_cast<int>(all * (at.split + 1) / p.splits);
    const int term = begin / max(tiles, 1);
    lhs += term * p.lhs_term;
    rhs += term * p.rhs_term;
    int k = (begin - term * tiles) * DEPTH;

    Warp warp{};
    sum_tiles<S>(warp, shared, end - begin, [&](unsigned char* to) {
        load_operand<typename S::Lhs, S::THREADS, !S::LHS_TRANSPOSED, ODD>(
            to, lhs, p.lhs_stride, k, p.m - at.row, p.k - k, p.aligned & 1);
        load_operand<typename S::Rhs, S::THREADS, S::RHS_TRANSPOSED, ODD>(
            to + S::Lhs::BYTES, rhs, p.rhs_stride, k, p.n - at.column, p.k - k, p.aligned & 2);
        k += DEPTH;
        if (k >= p.k) {
            k = 0;
            lhs += p.lhs_term;
            rhs += p.rhs_term;
        }
    });
    write_sums<S>(warp, shared, [&](int row, int column, Vector<float, 4> values) {
        write_result(p, at, at.row + row, at.column + column, values);
    });
}
