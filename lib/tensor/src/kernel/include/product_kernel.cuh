// The kernels of kernel/product: batches, sums of products, splits of the sum, and the epilogue. kernel/product repeats
// the sizes given here.
#pragma once

#include "activation.cuh"
#include "product.cuh"

// For each of `batch` products: z = Σ_terms op(A) op(B) + bias, C = f(z) + addend or, for a gradient, C = z f'(addend).
// Split s of `splits` computes the sum over its part of the terms and of k.
//
// lhs is op(A) [m, k] or, transposed, stored [k, m]; rhs is op(B) [k, n], or stored [n, k]. The strides in elements are
// *_stride between rows, *_batch between products and *_term between terms. Bits of `aligned`: 0 means that every line
// of lhs is 16-byte aligned, 1 the same for rhs, 2 that every output line is, 3 that C is a gradient. If `sums` is
// given, the sum goes there in f32, [splits, batch, m, n], without the epilogue. bias [n], addend and z (laid out like
// out) may be null; out and addend may be the same.
#define PRODUCT_PARAMETERS                                                                       \
    const element *lhs, const element *rhs, element *out, float *sums, const element *bias,      \
        const element *addend, element *z, int m, int n, int k, int terms, int batch,        \
        int splits, int lhs_stride, int rhs_stride, int out_stride, long long lhs_batch,         \
        long long rhs_batch, long long out_batch, long long lhs_term, long long rhs_term,        \
        int activation, int aligned

#define PRODUCT_ARGUMENTS                                                                        \
    {                                                                                            \
        lhs, rhs, out, sums, bias, addend, z, m, n, k, terms, batch, splits, lhs_stride,     \
            rhs_stride, out_stride, lhs_batch, rhs_batch, out_batch, lhs_term, rhs_term,         \
            activation, aligned                                                                  \
    }

struct Product {
    const element *lhs, *rhs;
    element* out;
    float* sums;
    const element *bias, *addend;
    element* z;
    int m, n, k, terms, batch, splits, lhs_stride, rhs_stride, out_stride;
    long long lhs_batch, rhs_batch, out_batch, lhs_term, rhs_term;
    int activation, aligned;
};

// Rows of blocks that share what they read of B in the L2 cache.
constexpr int GROUP_ROWS = 8;

// The part of the product that a block computes at a time.
struct Place {
    int row, column, split, batch;
};

// The number of these parts.
template <class S>
DEVICE int places(const Product& p) {
    return (p.m + S::BM - 1) / S::BM * ((p.n + S::BN - 1) / S::BN) * p.splits * p.batch;
}

// They are numbered by batch, split, group of rows, column, row in its group. Divides as rarely as possible: a division
// takes more than 100 cycles, and persistent blocks come here between two parts.
template <class S, int GROUP = GROUP_ROWS>
DEVICE Place place(const Product& p, unsigned number) {
    const unsigned rows = (p.m + S::BM - 1) / S::BM, columns = (p.n + S::BN - 1) / S::BN;
    unsigned block = number, split = 0, batch = 0;
    if (p.splits > 1 || p.batch > 1) {
        const unsigned others = number / (rows * columns);
        block = number - others * (rows * columns);
        batch = p.splits > 1 ? others / p.splits : others;
        split = others - batch * p.splits;
    }
    const unsigned group = block / (GROUP * columns), in_group = block - group * (GROUP * columns);
    const unsigned height = min(rows - group * GROUP, static_cast<unsigned>(GROUP));
    // Usually by a constant.
    const unsigned column = height == GROUP ? in_group / GROUP : in_group / height;
    const unsigned row = group * GROUP + in_group - column * height;
    return {static_cast<int>(row) * S::BM, static_cast<int>(column) * S::BN, static_cast<int>(split),
            static_cast<int>(batch)};
}

// Reads WIDTH adjacent elements at once if `whole`, otherwise only the first `count`; the others are zero.
DEVICE Vector<element, WIDTH> read_adjacent(const element* from, int count, bool whole) {
    if (whole) {
        return load_vector<WIDTH>(from);
    }
    Vector<element, WIDTH> values;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        values.at[e] = e < count ? from[e] : from_float<element>(0.0f);
    }
    return values;
}

// Writes WIDTH adjacent elements, 16 bytes at once, if `whole`, otherwise only the first `count`.
template <class T>
DEVICE void write_adjacent(T* to, const Sums<WIDTH>& values, int count, bool whole) {
    constexpr int N = 16 / sizeof(T);
    if (whole) {
#pragma unroll
        for (int i = 0; i < WIDTH; i += N) {
            Vector<T, N> part;
#pragma unroll
            for (int e = 0; e < N; e++) {
                part.at[e] = from_float<T>(values.at[i + e]);
            }
            store_vector(to + i, part);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        if (e < count) {
            put(to + e, values.at[e], 0);
        }
    }
}

// Whether WIDTH elements from `column` on can be moved at once, in a row whose first `count` are in range.
DEVICE bool is_whole(const Product& p, int count) {
    return (p.aligned & 4) && count >= WIDTH;
}

DEVICE long long offset_of(const Product& p, const Place& at, int row, int column) {
    return at.batch * p.out_batch + static_cast<long long>(row) * p.out_stride + column;
}

// What the epilogue adds to WIDTH adjacent elements of a row; zero out of range or without an addend.
DEVICE Vector<element, WIDTH> read_addend(const Product& p, const Place& at, int row, int column) {
    const int count = p.n - column;
    if (!p.addend || row >= p.m || count <= 0) {
        return {};
    }
    return read_adjacent(p.addend + offset_of(p, at, row, column), count, is_whole(p, count));
}

// Applies the epilogue to WIDTH adjacent sums of a row and writes those that are in range.
DEVICE void write_result(const Product& p, const Place& at, int row, int column, Sums<WIDTH> z,
                         const Vector<element, WIDTH>& addend) {
    const int count = p.n - column;
    if (row >= p.m || count <= 0) {
        return;
    }
    const bool whole = is_whole(p, count);
    if (p.sums) {
        const long long matrix = static_cast<long long>(at.split) * p.batch + at.batch;
        write_adjacent(p.sums + (matrix * p.m + row) * p.n + column, z, count, whole);
        return;
    }
    const long long offset = offset_of(p, at, row, column);
    if (p.bias) {
        const auto bias = read_adjacent(p.bias + column, count, whole);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            z.at[e] += to_float(bias.at[e]);
        }
    }
    const bool is_gradient = p.aligned & 8;
    if (p.activation != IDENTITY) {
        if (p.z) {
            write_adjacent(p.z + offset, z, count, whole);
        }
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            const float argument = is_gradient ? bounded(to_float(addend.at[e])) : z.at[e];
            const Activated f = activate(p.activation, argument);
            z.at[e] = is_gradient ? z.at[e] * f.derivative : f.value;
        }
    }
    if (p.addend && !is_gradient) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            z.at[e] += to_float(addend.at[e]);
        }
    }
    write_adjacent(p.out + offset, z, count, whole);
}

// The k-tiles that a block sums, numbered over all terms: `begin` to `end`; the first starts at `k` of `term`.
struct Range {
    int begin, end, term, k;
};

template <int TILE>
DEVICE Range range_of(const Product& p, const Place& at) {
    const int tiles = (p.k + TILE - 1) / TILE;
    if (p.splits == 1) {
        return {0, tiles * p.terms, 0, 0};
    }
    const long long all = static_cast<long long>(tiles) * p.terms;
    const int begin = static_cast<int>(all * at.split / p.splits);
    const int term = begin / max(tiles, 1);
    return {begin, static_cast<int>(all * (at.split + 1) / p.splits), term, (begin - term * tiles) * TILE};
}

// One operand's tile at `k`; `matrix` points to the first element of the operand that the block needs or, if aligned,
// that this thread needs.
template <class T, int THREADS, bool ALONG_K, bool UNALIGNED>
DEVICE void load_operand(unsigned char* to, const element* matrix, long long stride, int k,
                         int span_left, int k_left, bool is_aligned) {
    const element* from = matrix + (ALONG_K ? k : k * stride);
    const int lines = ALONG_K ? span_left : k_left, length = ALONG_K ? k_left : span_left;
    if (!UNALIGNED || is_aligned) {
        load_tile<T, THREADS>(to, from, stride, lines, length);
    } else {
        load_unaligned_tile<T, THREADS>(to, from, stride, lines, length);
    }
}

// A block's part of a product. Lines that are not 16-byte aligned require UNALIGNED.
template <class S, class Warp, bool UNALIGNED>
DEVICE void make_product(const Product& p, unsigned char* shared) {
    const Place at = place<S>(p, blockIdx.x);
    using Lhs = typename S::Lhs;
    using Rhs = typename S::Rhs;
    const bool lhs_aligned = !UNALIGNED || (p.aligned & 1), rhs_aligned = !UNALIGNED || (p.aligned & 2);
    const element* lhs = p.lhs + at.batch * p.lhs_batch +
                         at.row * (S::LHS_TRANSPOSED ? 1ll : p.lhs_stride) +
                         (lhs_aligned ? thread_offset<Lhs, S::THREADS>(p.lhs_stride) : 0);
    const element* rhs = p.rhs + at.batch * p.rhs_batch +
                         at.column * (S::RHS_TRANSPOSED ? p.rhs_stride : 1ll) +
                         (rhs_aligned ? thread_offset<Rhs, S::THREADS>(p.rhs_stride) : 0);
    const Range range = range_of<DEPTH>(p, at);
    lhs += range.term * p.lhs_term;
    rhs += range.term * p.rhs_term;
    int k = range.k;

    Warp warp{};
    sum_tiles<S>(warp, shared, range.end - range.begin, [&](unsigned char* to) {
        load_operand<Lhs, S::THREADS, !S::LHS_TRANSPOSED, UNALIGNED>(
            to, lhs, p.lhs_stride, k, p.m - at.row, p.k - k, lhs_aligned);
        load_operand<Rhs, S::THREADS, S::RHS_TRANSPOSED, UNALIGNED>(
            to + S::Lhs::BYTES, rhs, p.rhs_stride, k, p.n - at.column, p.k - k, rhs_aligned);
        k += DEPTH;
        if (k >= p.k) {
            k = 0;
            lhs += p.lhs_term;
            rhs += p.rhs_term;
        }
    });
    using Addend = Vector<element, WIDTH>;
    write_sums<S, WIDTH>(
        warp, shared, [&](int row, int column) { return read_addend(p, at, at.row + row, at.column + column); },
        [&](int row, int column, const Sums<WIDTH>& sums, const Addend& addend) {
            write_result(p, at, at.row + row, at.column + column, sums, addend);
        });
}

template <bool LHS, bool RHS>
using Small = Shape<64, 64, 32, 32, 4, LHS, RHS>;

// A kernel whose blocks compute `Tile` with `Warp`, for operands that are transposed or not. The last letters of its
// name say how A and B are stored: n like op(), t transposed.
#define PRODUCT(name, Warp, Tile, LHS, RHS, threads, blocks, unaligned)                          \
    KERNEL(name, threads, blocks)(PRODUCT_PARAMETERS) {                                          \
        DYNAMIC_SHARED(shared);                                                                  \
        const Product p = PRODUCT_ARGUMENTS;                                                     \
        using S = Tile<LHS, RHS>;                                                                \
        make_product<S, Warp<S>, unaligned>(p, shared);                                          \
    }
