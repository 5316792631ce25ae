// dtypes: f32 bf16 f16
// The backward pass through a layer's activation, and sums over rows for its bias.

#include "activation.cuh"
#include "rows.cuh"

constexpr int WARPS = 8;

// dz = dy times a factor, and its sums over the rows from `first` to `last`: of the values written or, without dz, of the
// unrounded ones. A lane has V adjacent columns of each WARPS-th row.
template <int V>
DEVICE void sum_part(const element* dy, const element* factor, element* dz, float* partials,
                     int activation, int first, int last, int n) {
    SHARED(float, sums, [WARPS][WARP * V]);
    const int tiles = (n + WARP * V - 1) / (WARP * V);
    const int column = (blockIdx.x % tiles * WARP + lane_id()) * V;
    float sum[V] = {};
    if (column < n) {
#pragma unroll 4
        for (int row = first + warp_id(); row < last; row += WARPS) {
            const long long at = static_cast<long long>(row) * n + column;
            Vector<element, V> x = load_vector<V>(dy + at);
            float d[V];
#pragma unroll
            for (int e = 0; e < V; e++) {
                d[e] = to_float(x.at[e]);
            }
            if (factor) {
                const Vector<element, V> by = load_vector<V>(factor + at);
#pragma unroll
                for (int e = 0; e < V; e++) {
                    const float z = to_float(by.at[e]);
                    d[e] *= activation == IDENTITY ? z : activate(activation, bounded(z)).derivative;
                }
            }
            if (dz) {
#pragma unroll
                for (int e = 0; e < V; e++) {
                    x.at[e] = from_float<element>(d[e]);
                    d[e] = to_float(x.at[e]);
                }
                store_vector(dz + at, x);
            }
#pragma unroll
            for (int e = 0; e < V; e++) {
                sum[e] += d[e];
            }
        }
    }
    if (!partials) {
        return;
    }
#pragma unroll
    for (int e = 0; e < V; e++) {
        sums[warp_id()][lane_id() * V + e] = sum[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < WARP * V; i += WARPS * WARP) {
        const int at = blockIdx.x % tiles * WARP * V + i;
        if (at < n) {
            float total = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++) {
                total += sums[warp][i];
            }
            partials[static_cast<long long>(blockIdx.x / tiles) * n + at] = total;
        }
    }
}

// dz = dy f'(factor), or dy times the factor itself for the identity, all [rows, n]; the factor may be null (1), and dz
// too (not written). If `partials` [blocks of rows, n] is given, it receives sums of dz over `height` rows each. `whole`
// means that n is a multiple of WIDTH. Blocks: blocks of rows x blocks of 32 columns or, if whole, 32 WIDTH columns.
KERNEL(linear_multiply, WARPS * WARP, 4)(const element* __restrict__ dy,
                                      const element* __restrict__ factor, element* __restrict__ dz,
                                      float* __restrict__ partials, int activation, int rows, int n,
                                      int height, int whole) {
    const int across = WARP * (whole ? WIDTH : 1);
    const int first = static_cast<int>(blockIdx.x) / ((n + across - 1) / across) * height;
    const int last = min(first + height, rows);
    with_width(whole, [&](auto v) {
        sum_part<v.value>(dy, factor, dz, partials, activation, first, last, n);
    });
}
