// elements: f32 bf16 f16
// Softmax over rows.

#include "rows.cuh"

// Where a maximum starts: no number is below it, and exp(-∞ - LOWEST) is 0, not NaN.
constexpr float LOWEST = -3.402823466e38f;

// y = exp(x - max x)/Σ exp(x - max x) of one row, of which a team's threads hold their share.
template <bool BLOCK, int V, int COUNT>
DEVICE void softmax_row(
    const element* x, element* y, int rows, int width, float* scratch) {
  int row = blockIdx.x * teams<BLOCK>() + team_id<BLOCK>();
  if (row >= rows) {
    return;
  }
  Vector<element, V> given[COUNT];
  load_row<BLOCK, V, COUNT>(given, x + (long long)row * width, width);
  float top = LOWEST;
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      if (column_of<BLOCK, V>(j) < width) {
        top = fmaxf(top, to_float(given[j].at[v]));
      }
    }
  }
  top = team_max<BLOCK>(top, scratch);
  float e[COUNT][V];
  float total = 0.0f;
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      bool inside = column_of<BLOCK, V>(j) < width;
      e[j][v] = inside ? expf(to_float(given[j].at[v]) - top) : 0.0f;
      total += e[j][v];
    }
  }
  float inverse = 1.0f / team_sum<BLOCK>(total, scratch);
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    int column = column_of<BLOCK, V>(j);
    if (column < width) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        e[j][v] *= inverse;
      }
      put_vector<V>(y + (long long)row * width + column, e[j], 0);
    }
  }
}

// A row of any width by a block: once over it for the maximum and the sum relative to it, once to write.
template <int V>
DEVICE void softmax_row_wide(const element* x, element* y, int width, float* scratch) {
  x += (long long)blockIdx.x * width;
  y += (long long)blockIdx.x * width;
  int step = blockDim.x * V;
  float top = LOWEST, total = 0.0f;
  for (int column = threadIdx.x * V; column < width; column += step) {
    Vector<element, V> part = load_vector<V>(x + column);
    float highest = top;
#pragma unroll
    for (int v = 0; v < V; v++) {
      highest = fmaxf(highest, to_float(part.at[v]));
    }
    total *= expf(top - highest);
    top = highest;
#pragma unroll
    for (int v = 0; v < V; v++) {
      total += expf(to_float(part.at[v]) - top);
    }
  }
  float highest = block_max(top, scratch);
  total = block_sum(total * expf(top - highest), scratch);
  float inverse = 1.0f / total;
  for (int column = threadIdx.x * V; column < width; column += step) {
    Vector<element, V> part = load_vector<V>(x + column);
    float e[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      e[v] = expf(to_float(part.at[v]) - highest) * inverse;
    }
    put_vector<V>(y + column, e, 0);
  }
}

// dx (+)= y ∘ (dy - Σ dy ∘ y).
template <bool BLOCK, int V, int COUNT>
DEVICE void softmax_gradient(
    const element* y, const element* dy, element* dx, int add, int rows, int width, float* scratch) {
  int row = blockIdx.x * teams<BLOCK>() + team_id<BLOCK>();
  if (row >= rows) {
    return;
  }
  Vector<element, V> ys[COUNT], ds[COUNT];
  load_row<BLOCK, V, COUNT>(ys, y + (long long)row * width, width);
  load_row<BLOCK, V, COUNT>(ds, dy + (long long)row * width, width);
  float dot = 0.0f;
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      dot += to_float(ys[j].at[v]) * to_float(ds[j].at[v]);
    }
  }
  dot = team_sum<BLOCK>(dot, scratch);
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    int column = column_of<BLOCK, V>(j);
    if (column < width) {
      float d[V];
#pragma unroll
      for (int v = 0; v < V; v++) {
        d[v] = to_float(ys[j].at[v]) * (to_float(ds[j].at[v]) - dot);
      }
      put_vector<V>(dx + (long long)row * width + column, d, add);
    }
  }
}

// The same for rows of any width.
template <int V>
DEVICE void softmax_gradient_wide(
    const element* y, const element* dy, element* dx, int add, int width, float* scratch) {
  y += (long long)blockIdx.x * width;
  dy += (long long)blockIdx.x * width;
  dx += (long long)blockIdx.x * width;
  int step = blockDim.x * V;
  float dot = 0.0f;
  for (int column = threadIdx.x * V; column < width; column += step) {
    Vector<element, V> ys = load_vector<V>(y + column), ds = load_vector<V>(dy + column);
#pragma unroll
    for (int v = 0; v < V; v++) {
      dot += to_float(ys.at[v]) * to_float(ds.at[v]);
    }
  }
  dot = block_sum(dot, scratch);
  for (int column = threadIdx.x * V; column < width; column += step) {
    Vector<element, V> ys = load_vector<V>(y + column), ds = load_vector<V>(dy + column);
    float d[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      d[v] = to_float(ys.at[v]) * (to_float(ds.at[v]) - dot);
    }
    put_vector<V>(dx + column, d, add);
  }
}

// Rows of up to 512 columns, a warp each; blocks: one for every warps-th row.
KERNEL(softmax_forward_warp, 256)(
    const element* __restrict__ x, element* __restrict__ y, int rows, int width) {
  if (width % WIDTH == 0) {
    softmax_row<false, WIDTH, COLUMNS / WIDTH>(x, y, rows, width, nullptr);
  } else {
    softmax_row<false, 1, COLUMNS>(x, y, rows, width, nullptr);
  }
}

// Rows of up to COLUMNS columns a thread, a block each.
KERNEL(softmax_forward_block, 512)(
    const element* __restrict__ x, element* __restrict__ y, int rows, int width) {
  SHARED(float, scratch, [WARP]);
  if (width % WIDTH == 0) {
    softmax_row<true, WIDTH, COLUMNS / WIDTH>(x, y, rows, width, scratch);
  } else {
    softmax_row<true, 1, COLUMNS>(x, y, rows, width, scratch);
  }
}

// Rows of any width, a block each.
KERNEL(softmax_forward_wide, 512)(
    const element* __restrict__ x, element* __restrict__ y, int rows, int width) {
  SHARED(float, scratch, [WARP]);
  if (width % WIDTH == 0) {
    softmax_row_wide<WIDTH>(x, y, width, scratch);
  } else {
    softmax_row_wide<1>(x, y, width, scratch);
  }
}

// As forward.
KERNEL(softmax_backward_warp, 256)(
    const element* __restrict__ y, const element* __restrict__ dy, element* __restrict__ dx, int add,
    int rows, int width) {
  if (width % WIDTH == 0) {
    softmax_gradient<false, WIDTH, COLUMNS / WIDTH>(y, dy, dx, add, rows, width, nullptr);
  } else {
    softmax_gradient<false, 1, COLUMNS>(y, dy, dx, add, rows, width, nullptr);
  }
}

KERNEL(softmax_backward_block, 512)(
    const element* __restrict__ y, const element* __restrict__ dy, element* __restrict__ dx, int add,
    int rows, int width) {
  SHARED(float, scratch, [WARP]);
  if (width % WIDTH == 0) {
    softmax_gradient<true, WIDTH, COLUMNS / WIDTH>(y, dy, dx, add, rows, width, scratch);
  } else {
    softmax_gradient<true, 1, COLUMNS>(y, dy, dx, add, rows, width, scratch);
  }
}

KERNEL(softmax_backward_wide, 512)(
    const element* __restrict__ y, const element* __restrict__ dy, element* __restrict__ dx, int add,
    int rows, int width) {
  SHARED(float, scratch, [WARP]);
  if (width % WIDTH == 0) {
    softmax_gradient_wide<WIDTH>(y, dy, dx, add, width, scratch);
  } else {
    softmax_gradient_wide<1>(y, dy, dx, add, width, scratch);
  }
}
