// elements: f32 bf16 f16
// SwiGLU: y = silu(a) ∘ b, with x [rows, 2h] the concatenation of a and b (swiglu/mod.rs). A thread computes 16 bytes
// of y if h allows it, otherwise one element; forward reads 2 and writes 1 element per output, backward 3 and 2.

#include "rows.cuh"

template <int N>
DEVICE void forward(const element* __restrict__ x, element* __restrict__ y, int rows, int h) {
  int unit = blockIdx.x * blockDim.x + threadIdx.x;
  int row = unit / (h / N);
  if (row >= rows) {
    return;
  }
  int column = unit % (h / N) * N;
  const element* from = x + (long long)row * 2 * h + column;
  Vector<element, N> a = load_vector<N>(from);
  Vector<element, N> b = load_vector<N>(from + h);
  float out[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    float gate = to_float(a.at[i]);
    out[i] = gate / (1.0f + expf(-gate)) * to_float(b.at[i]);
  }
  put_vector<N>(y + (long long)row * h + column, out, 0);
}

template <int N>
DEVICE void backward(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int rows, int h, int add) {
  int unit = blockIdx.x * blockDim.x + threadIdx.x;
  int row = unit / (h / N);
  if (row >= rows) {
    return;
  }
  int column = unit % (h / N) * N;
  long long at = (long long)row * 2 * h + column;
  Vector<element, N> a = load_vector<N>(x + at);
  Vector<element, N> b = load_vector<N>(x + at + h);
  Vector<element, N> d = load_vector<N>(dy + (long long)row * h + column);
  float da[N], db[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    float gate = to_float(a.at[i]), gradient = to_float(d.at[i]);
    float s = 1.0f / (1.0f + expf(-gate));
    da[i] = gradient * to_float(b.at[i]) * s * (1.0f + gate * (1.0f - s));
    db[i] = gradient * gate * s;
  }
  put_vector<N>(dx + at, da, add);
  put_vector<N>(dx + at + h, db, add);
}

// x [rows, 2h], y [rows, h].
KERNEL(swiglu_forward)
(const element* __restrict__ x, element* __restrict__ y, int rows, int h) {
  if (h % WIDTH == 0) {
    forward<WIDTH>(x, y, rows, h);
  } else {
    forward<1>(x, y, rows, h);
  }
}

// dx [rows, 2h] (+)= the gradient, given dy [rows, h].
KERNEL(swiglu_backward)
(const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx, int rows,
 int h, int add) {
  if (h % WIDTH == 0) {
    backward<WIDTH>(x, dy, dx, rows, h, add);
  } else {
    backward<1>(x, dy, dx, rows, h, add);
  }
}
