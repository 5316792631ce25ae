// elements: f32 bf16 f16
// Residual connection. A thread has 16 bytes of a row if they divide it, otherwise one element.

#include "rows.cuh"

// out (+)= x + s ∘ y; x, y, out [rows, width], s [width]. A null x counts as 0, a null s as 1.
template <int V>
DEVICE void residual(
    const element* x, const element* y, const element* s, element* out, int rows, int width, int add) {
  int id = blockIdx.x * blockDim.x + threadIdx.x;
  int row = id / (width / V), column = id % (width / V) * V;
  if (row >= rows) {
    return;
  }
  long long at = (long long)row * width + column;
  Vector<element, V> ys = load_vector<V>(y + at), xs = ys, ss = ys;
  if (x != nullptr) {
    xs = load_vector<V>(x + at);
  }
  if (s != nullptr) {
    ss = load_vector<V>(s + column);
  }
  float sum[V];
#pragma unroll
  for (int v = 0; v < V; v++) {
    float factor = s != nullptr ? to_float(ss.at[v]) : 1.0f;
    sum[v] = fmaf(factor, to_float(ys.at[v]), x != nullptr ? to_float(xs.at[v]) : 0.0f);
  }
  put_vector<V>(out + at, sum, add);
}

KERNEL(residual_add, 256)(
    const element* __restrict__ x, const element* __restrict__ y, const element* __restrict__ s,
    element* __restrict__ out, int rows, int width, int add) {
  if (width % WIDTH == 0) {
    residual<WIDTH>(x, y, s, out, rows, width, add);
  } else {
    residual<1>(x, y, s, out, rows, width, add);
  }
}
