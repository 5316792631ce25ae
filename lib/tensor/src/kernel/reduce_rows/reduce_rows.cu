// dtypes: f32 bf16 f16
// Sums over the rows of partial results, in a fixed order: the last step of a gradient that is summed over many rows.

#include "rows.cuh"

// first[g, n] (+)= Σ_r partials[g, r, 0, n], second[g, n] (+)= Σ_r partials[g, r, vectors - 1, n].
//
// partials [groups, rows, vectors, width]; the vector of group g begins at element g·stride + at of its destination,
// which may be null. A block sums 32 columns of one vector of one group: each warp takes every warps-th row, then the
// sums of the warps are added in order. Blocks: groups × vectors × ⌈width/32⌉.
KERNEL(reduce_rows_sum, 1024)(
    const float* __restrict__ partials, int rows, int vectors, int width, long long stride,
    element* first, long long first_at, int first_add,
    element* second, long long second_at, int second_add) {
  SHARED(float, sums, [WARP][WARP]);
  int tiles = (width + WARP - 1) / WARP;
  int tile = blockIdx.x % tiles;
  int vector = blockIdx.x / tiles % vectors;
  int group = blockIdx.x / tiles / vectors;
  int warps = blockDim.x / WARP;
  int column = tile * WARP + lane_id();
  long long row_stride = (long long)vectors * width;

  float sum = 0.0f;
  if (column < width) {
    const float* from = partials + group * rows * row_stride + (long long)vector * width + column;
#pragma unroll 4
    for (int row = warp_id(); row < rows; row += warps) {
      sum += from[row * row_stride];
    }
  }
  sums[warp_id()][lane_id()] = sum;
  __syncthreads();

  element* to = vector == 0 ? first : second;
  if (warp_id() > 0 || column >= width || to == nullptr) {
    return;
  }
  for (int warp = 1; warp < warps; warp++) {
    sum += sums[warp][lane_id()];
  }
  long long at = vector == 0 ? first_at : second_at;
  put(to + group * stride + at + column, sum, vector == 0 ? first_add : second_add);
}

// to[n] (+)= Σ_r partials[r, n] in order, for few long rows: split-k parts. A thread sums four columns, which need no
// other thread, so that it has the loads of several rows in flight. The width is a multiple of 4.
KERNEL(reduce_rows_long, 128)(
    const float* __restrict__ partials, int rows, int width, element* __restrict__ to, int add) {
  int column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (column >= width) {
    return;
  }
  float sum[4] = {};
#pragma unroll 8
  for (int row = 0; row < rows; row++) {
    Vector<float, 4> part = load_vector<4>(partials + (long long)row * width + column);
#pragma unroll
    for (int v = 0; v < 4; v++) {
      sum[v] += part.at[v];
    }
  }
  put_vector(to + column, sum, add);
}
