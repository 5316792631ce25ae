// dtypes: f32 bf16 f16
//
// Row-wise parts of attention, for each head: RMS normalization of queries and keys, forward and backward, and the
// products O . dO of the backward pass. Formulas in mod.rs.
//
// A row of a head has at most 256 elements: a group of `lanes` lanes (a power of two) of one warp holds it, each lane a
// chunk of 8 elements.

#include "element.cuh"
#include "warp.cuh"

constexpr int CHUNK = 8;
constexpr int LARGEST = CHUNK * WARP;
constexpr int WARPS = 8;

struct Chunk {
    float at[CHUNK];
};

// A chunk of a row of `dim` elements, zero-padded past its end. `aligned`: the address and the length of the row are
// multiples of 16 bytes.
DEVICE Chunk load_chunk(const element* row, int start, int dim, int aligned) {
    Chunk x;
#pragma unroll
    for (int i = 0; i < CHUNK; i += WIDTH) {
        if (aligned && start + i < dim) {
            const auto values = load_vector<WIDTH>(row + start + i);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                x.at[i + j] = to_float(values.at[j]);
            }
        } else {
#pragma unroll
            for (int j = i; j < i + WIDTH; ++j) {
                x.at[j] = start + j < dim ? to_float(row[start + j]) : 0.0f;
            }
        }
    }
    return x;
}

DEVICE void put_chunk(element* row, int start, int dim, const Chunk& x, int add, int aligned) {
#pragma unroll
    for (int i = 0; i < CHUNK; i += WIDTH) {
        if (aligned && start + i < dim) {
            Vector<element, WIDTH> values;
            if (add) {
                values = load_vector<WIDTH>(row + start + i);
            }
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                put(&values.at[j], x.at[i + j], add);
            }
            store_vector(row + start + i, values);
        } else {
#pragma unroll
            for (int j = i; j < i + WIDTH; ++j) {
                if (start + j < dim) {
                    put(row + start + j, x.at[j], add);
                }
            }
        }
    }
}

DEVICE float dot(const Chunk& a, const Chunk& b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
        sum = fmaf(a.at[i], b.at[i], sum);
    }
    return sum;
}

DEVICE float inverse_root_mean_square(const Chunk& x, int dim, float epsilon, int lanes) {
    return 1.0f / sqrtf(group_sum(dot(x, x), lanes) / static_cast<float>(dim) + epsilon);
}

// The row and head of an item that a group of lanes handles; the first ones if there is none.
struct Item {
    bool valid;
    long long row;
    int head;
};

DEVICE Item item_at(long long index, long long count, int heads) {
    const bool valid = index < count;
    return {valid, valid ? index / heads : 0, valid ? static_cast<int>(index % heads) : 0};
}

// The first item of this warp, of those that all warps handle at once.
DEVICE long long first_item(int groups) {
    return (static_cast<long long>(blockIdx.x) * WARPS + warp_id()) * groups;
}

// y [rows, heads * dim] = x / rms(x) * w in each head; x begins at `start`, rows `stride` apart.
KERNEL(attention_rows_normalize, 256)
(const element* __restrict__ x, const element* __restrict__ w, element* __restrict__ y, long long count,
 int heads, int dim, int lanes, int stride, int start, float epsilon, int aligned) {
    const int groups = WARP / lanes;
    const int at = lane_id() % lanes * CHUNK;
    const Chunk weight = load_chunk(w, at, dim, aligned);
    const auto [valid, row, head] = item_at(first_item(groups) + lane_id() / lanes, count, heads);
    const Chunk values = load_chunk(x + row * stride + start + head * dim, at, dim, aligned);
    const float r = inverse_root_mean_square(values, dim, epsilon, lanes);
    Chunk out;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
        out.at[i] = values.at[i] * r * weight.at[i];
    }
    if (valid) {
        put_chunk(y + (row * heads + head) * dim, at, dim, out, 0, aligned);
    }
}

// dx (+)= r (g - n mean(g n)) with g = w dn and n = r x, laid out like x, unless null; the sums over rows of dn n of
// each block go to partial [blocks, dim]. dn is laid out like y above.
KERNEL(attention_rows_normalize_backward, 256)
(const element* __restrict__ x, const element* __restrict__ w, const element* __restrict__ dn,
 element* dx, float* __restrict__ partial, long long count, int heads, int dim, int lanes, int stride,
 int start, float epsilon, int aligned, int add) {
    SHARED(float, sums, [WARPS][LARGEST]);
    const int groups = WARP / lanes;
    const int at = lane_id() % lanes * CHUNK;
    const Chunk weight = load_chunk(w, at, dim, aligned);
    Chunk dw;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
        dw.at[i] = 0.0f;
    }
    const int step = static_cast<int>(gridDim.x) * WARPS * groups, step_rows = step / heads;
    const int rows = static_cast<int>(count / heads);
    const long long first = first_item(groups), own = first + lane_id() / lanes;
    int next = static_cast<int>(own / heads), next_head = static_cast<int>(own % heads);
    for (int turns = static_cast<int>((count - first + step - 1) / step); turns > 0; --turns) {
        // Lanes past the end read the first row.
        const bool valid = next < rows;
        const long long row = valid ? next : 0;
        const int head = valid ? next_head : 0;
        next += step_rows;
        next_head += step - step_rows * heads;
        if (next_head >= heads) {
            next_head -= heads;
            ++next;
        }
        const long long from = row * stride + start + head * dim;
        const Chunk values = load_chunk(x + from, at, dim, aligned);
        Chunk g = load_chunk(dn + (row * heads + head) * dim, at, dim, aligned);
        const float r = inverse_root_mean_square(values, dim, epsilon, lanes);
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            dw.at[i] += valid ? g.at[i] * r * values.at[i] : 0.0f;
            g.at[i] *= weight.at[i];
        }
        const float mean = group_sum(dot(g, values), lanes) * r / static_cast<float>(dim);
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            g.at[i] = r * (g.at[i] - values.at[i] * r * mean);
        }
        if (valid && dx != nullptr) {
            put_chunk(dx + from, at, dim, g, add, aligned);
        }
    }
    // Over the groups of a warp, then over warps.
    for (int distance = lanes; distance < WARP; distance *= 2) {
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            dw.at[i] += __shfl_xor_sync(ALL_LANES, dw.at[i], distance);
        }
    }
    if (lane_id() < lanes) {
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            sums[warp_id()][at + i] = dw.at[i];
        }
    }
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x);
    if (column < dim) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) {
            sum += sums[i][column];
        }
        partial[static_cast<long long>(blockIdx.x) * dim + column] = sum;
    }
}

// delta [B, heads, queries] = O . dO, both [B, queries, heads * dim].
KERNEL(attention_rows_delta, 256)
(const element* __restrict__ out, const element* __restrict__ dout, float* __restrict__ delta,
 long long count, int queries, int heads, int dim, int lanes, int aligned) {
    const int groups = WARP / lanes;
    const int at = lane_id() % lanes * CHUNK;
    const auto [valid, row, head] = item_at(first_item(groups) + lane_id() / lanes, count, heads);
    const long long from = (row * heads + head) * dim;
    const float sum = group_sum(dot(load_chunk(out + from, at, dim, aligned),
                                    load_chunk(dout + from, at, dim, aligned)),
                                lanes);
    if (valid && lane_id() % lanes == 0) {
        delta[(row / queries * heads + head) * queries + row % queries] = sum;
    }
}
