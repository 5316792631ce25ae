// dtypes: f32 bf16 f16
// Residual connection. A thread has 16 bytes of a row if they divide it, otherwise one element.

#include "rows.cuh"

// out (+)= x + (offset + w) ∘ y; x, y, out [rows, width]. The w of the first group of rows begins at `start` of w, those
// of the next group `stride` elements further. A null x counts as 0.
KERNEL(residual_add, 256)(
    const element* __restrict__ x, const element* __restrict__ y, const element* __restrict__ w,
    element* __restrict__ out, int rows, int width, int add, int start, int stride, int group_rows, float offset) {
  with_unit(rows, width, [&](auto n, int row, int column) {
    constexpr int N = n.value;
    long long at = (long long)row * width + column;
    const element* own = w + start + (long long)(row / group_rows) * stride;
    Vector<element, N> ys = load_vector<N>(y + at), ws = load_vector<N>(own + column), xs = ys;
    if (x != nullptr) {
      xs = load_vector<N>(x + at);
    }
    float sum[N];
#pragma unroll
    for (int v = 0; v < N; v++) {
      sum[v] = fmaf(offset + to_float(ws.at[v]), to_float(ys.at[v]), x != nullptr ? to_float(xs.at[v]) : 0.0f);
    }
    put_vector<N>(out + at, sum, add);
  });
}
