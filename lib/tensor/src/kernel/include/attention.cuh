// Where queries, keys and values of an attention call lie, and which keys are visible: shared by the kernels for 16-bit
// dtypes and for f32.
//
// An operand is one tensor, or two joined sequences. Key positions are ordered with the visible keys first, so that in
// every sample keys 0..seen are attended to and the others are not, and padding costs nothing. Queries are in memory
// order.
#pragma once

#include "attention_scores.cuh"

// Common parameters of every kernel. Strides and offsets are in elements; `second` is null unless sequences are joined;
// the first `split` rows of a sample are in the first tensor. Each field is a kernel parameter: CALL_PARAMETERS.
struct Call {
    const element *q, *q_second, *k, *k_second, *v, *v_second;
    const int* lengths;  // visible keys of each sample (and sequence), or null
    int queries, query_split, keys, key_split;
    int heads, group, dim;  // query heads; query heads per key/value head; head size
    int q_stride, q_start, k_stride, k_start, v_stride, v_start;
    int causal;
    int aligned;  // rows of all operands are 16-byte aligned
    float scale;  // 1/sqrt(dim)
};

#define CALL_PARAMETERS                                                                            \
    const element *__restrict__ q, const element *__restrict__ q_second,                           \
        const element *__restrict__ k, const element *__restrict__ k_second,                       \
        const element *__restrict__ v, const element *__restrict__ v_second,                       \
        const int *__restrict__ lengths, int queries, int query_split, int keys, int key_split,    \
        int heads, int group, int dim, int q_stride, int q_start, int k_stride, int k_start,       \
        int v_stride, int v_start, int causal, int aligned, float scale

#define CALL                                                                                       \
    Call {                                                                                         \
        q, q_second, k, k_second, v, v_second, lengths, queries, query_split, keys, key_split,     \
            heads, group, dim, q_stride, q_start, k_stride, k_start, v_stride, v_start, causal,    \
            aligned, scale                                                                         \
    }

// Rows of a sample and head: row r is at (r < split ? first : second) + r * stride.
template <class T>
struct Rows {
    T *first, *second;
    int split, stride;
};

template <class T>
DEVICE T* row_at(const Rows<T>& rows, int r) {
    return (r < rows.split ? rows.first : rows.second) + static_cast<long long>(r) * rows.stride;
}

// The rows of a sample from column `column`; `total` rows per sample, `split` of them in `first`.
template <class T>
DEVICE Rows<T> rows_of(T* first, T* second, int sample, int total, int split, int stride,
                       int column) {
    const long long row = static_cast<long long>(sample) * split;
    const long long second_row = static_cast<long long>(sample) * (total - split) - split;
    return {first + row * stride + column, second + second_row * stride + column, split, stride};
}

DEVICE Rows<const element> query_rows(const Call& c, int sample, int head) {
    return rows_of(c.q, c.q_second, sample, c.queries, c.query_split, c.q_stride,
                   c.q_start + head * c.dim);
}

DEVICE Rows<const element> key_rows(const Call& c, int sample, int head) {
    return rows_of(c.k, c.k_second, sample, c.keys, c.key_split, c.k_stride,
                   c.k_start + head * c.dim);
}

DEVICE Rows<const element> value_rows(const Call& c, int sample, int head) {
    return rows_of(c.v, c.v_second, sample, c.keys, c.key_split, c.v_stride,
                   c.v_start + head * c.dim);
}

// Rows of [B, queries, heads * dim]: outputs and their gradients.
template <class T>
DEVICE Rows<T> output_rows(const Call& c, T* x, int sample, int head) {
    return rows_of(x, x, sample, c.queries, c.queries, c.heads * c.dim, head * c.dim);
}

// The order of a sample's keys.
struct Keys {
    int seen;        // visible keys of both sequences
    int first_seen;  // visible keys of the first
    int split;       // rows of the first sequence
};

DEVICE Keys keys_of(const Call& c, int sample) {
    const int second = c.keys - c.key_split;
    if (c.lengths == nullptr) {
        return {c.keys, c.key_split, c.key_split};
    }
    const int* lengths = c.lengths + sample * (second > 0 ? 2 : 1);
    const int first_seen = max(0, min(lengths[0], c.key_split));
    const int second_seen = second > 0 ? max(0, min(lengths[1], second)) : 0;
    return {first_seen + second_seen, first_seen, c.key_split};
}

// The row of the key at a position: first the visible keys of the first sequence, then of the second, then the others.
DEVICE int key_row(const Keys& keys, int position) {
    if (position < keys.first_seen) {
        return position;
    }
    if (position < keys.seen) {
        return position - keys.first_seen + keys.split;
    }
    const int hidden = position - keys.seen + keys.first_seen;
    return hidden < keys.split ? hidden : position;
}

// Queries stay in memory order.
struct InOrder {};

DEVICE int key_row(InOrder, int position) {
    return position;
}

// Positions before this one are those of adjacent rows of the first sequence.
template <class T>
DEVICE int adjacent(const Keys& keys, const Rows<T>&) {
    return keys.first_seen;
}

template <class T>
DEVICE int adjacent(InOrder, const Rows<T>& rows) {
    return rows.split;
}

// How many keys a query sees.
DEVICE int visible(const Call& c, const Keys& keys, int query) {
    return c.causal ? max(0, min(keys.seen, query + 1 + c.keys - c.queries)) : keys.seen;
}

// Where the gradient of an operand goes: laid out like the operand; null if it is not needed.
struct Target {
    element *first, *second;
    int add, add_second;
};

// Writes two adjacent columns of a row, if they exist.
DEVICE void put_pair(element* row, int column, int dim, float low, float high, int add) {
    if (column < dim) {
        put(row + column, low, add);
    }
    if (column + 1 < dim) {
        put(row + column + 1, high, add);
    }
}

// The tile of rows, the head and the sample of a block.
struct Place {
    int tile, head, sample;
};

// With `parts`, that many blocks in turn have the same.
DEVICE Place place_of(int tiles, int heads, int parts = 1) {
    const int block = static_cast<int>(blockIdx.x) / parts;
    return {block % tiles, block / tiles % heads, block / tiles / heads};
}

// Where the statistics of a head's queries begin: f32 [B, heads, queries].
DEVICE long long statistics_of(const Call& c, int sample, int head) {
    return (static_cast<long long>(sample) * c.heads + head) * c.queries;
}

// A block's tile of ROWS queries from `first`: the keys that they see are the positions up to `end`.
struct QueryTile {
    Place place;
    int first;
    Keys keys;
    int end;
    Rows<const element> q_rows, k_rows, v_rows;
    long long statistics;
};

// With a causal mask, the longest tiles come first.
template <int ROWS>
DEVICE QueryTile query_tile(const Call& c) {
    const int tiles = (c.queries + ROWS - 1) / ROWS;
    const Place at = place_of(tiles, c.heads);
    const int first = (c.causal ? tiles - 1 - at.tile : at.tile) * ROWS;
    const Keys keys = keys_of(c, at.sample);
    return {at,
            first,
            keys,
            visible(c, keys, min(first + ROWS, c.queries) - 1),
            query_rows(c, at.sample, at.head),
            key_rows(c, at.sample, at.head / c.group),
            value_rows(c, at.sample, at.head / c.group),
            statistics_of(c, at.sample, at.head)};
}

// Rows of the gradients of queries, keys and values.
DEVICE Rows<element> query_rows(const Call& c, const Target& dq, const Place& at) {
    return rows_of(dq.first, dq.second, at.sample, c.queries, c.query_split, c.q_stride,
                   c.q_start + at.head * c.dim);
}

DEVICE Rows<element> key_rows(const Call& c, const Target& dk, const Place& at) {
    return rows_of(dk.first, dk.second, at.sample, c.keys, c.key_split, c.k_stride,
                   c.k_start + at.head * c.dim);
}

DEVICE Rows<element> value_rows(const Call& c, const Target& dv, const Place& at) {
    return rows_of(dv.first, dv.second, at.sample, c.keys, c.key_split, c.v_stride,
                   c.v_start + at.head * c.dim);
}

// Parameters of the gradient kernels, after the common ones.
#define GIVEN_PARAMETERS                                                                           \
    const element *__restrict__ dout, const float *__restrict__ lse,                               \
        const float *__restrict__ delta
#define QUERY_TARGET_PARAMETERS element *dq, element *dq_second, int add, int add_second
#define QUERY_TARGET Target{dq, dq_second, add, add_second}
#define KEY_TARGET_PARAMETERS                                                                      \
    element *dk, element *dk_second, element *dv, element *dv_second, int k_add, int k_add_second, \
        int v_add, int v_add_second
#define KEY_TARGET Target{dk, dk_second, k_add, k_add_second}
#define VALUE_TARGET Target{dv, dv_second, v_add, v_add_second}
