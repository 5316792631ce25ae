// dtypes: f32 bf16 f16
// SwiGLU: y = silu(a) ∘ b, with x [rows, 2h] the concatenation of a and b (swiglu/mod.rs). A thread computes 16 bytes
// of y if h allows it, otherwise one element; forward reads 2 and writes 1 element per output, backward 3 and 2.

#include "rows.cuh"

// x [rows, 2h], y [rows, h].
KERNEL(swiglu_forward)
(const element* __restrict__ x, element* __restrict__ y, int rows, int h) {
  with_unit(rows, h, [&](auto n, int row, int column) {
    constexpr int N = n.value;
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
  });
}

// dx [rows, 2h] (+)= the gradient, given dy [rows, h].
KERNEL(swiglu_backward)
(const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx, int rows,
 int h, int add) {
  with_unit(rows, h, [&](auto n, int row, int column) {
    constexpr int N = n.value;
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
  });
}
