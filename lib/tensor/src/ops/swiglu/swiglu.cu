// dtypes: f32 bf16 f16
// SwiGLU: y = silu(a) ∘ b, n elements (swiglu/mod.rs). A thread computes 16 bytes of y; forward reads 2 and writes 1
// element per output, backward reads 3 and writes 2.

#include "activation.cuh"
#include "flat.cuh"

KERNEL(swiglu_forward, 256)(
    const element* __restrict__ a, const element* __restrict__ b, element* __restrict__ y, long long n) {
  map_flat(y, n, 0, [](float a, float b) { return silu(a).value * b; }, a, b);
}

// Replaces dy with da; db (+)= its gradient, unless it is null because nobody needs it.
KERNEL(swiglu_backward, 256)(
    const element* __restrict__ a, const element* __restrict__ b, element* dy, element* db, int add,
    long long n) {
  auto of_a = [](float a, float b, float dy) { return dy * b * silu(a).derivative; };
  auto of_b = [](float a, float dy) { return dy * silu(a).value; };
  long long i = flat_index();
  if (i + WIDTH <= n) {
    Vector<element, WIDTH> gate = load_vector<WIDTH>(a + i), up = load_vector<WIDTH>(b + i);
    Vector<element, WIDTH> gradient = load_vector<WIDTH>(dy + i);
    float out[WIDTH];
    map_vector(out, of_a, gate, up, gradient);
    put_vector<WIDTH>(dy + i, out, 0);
    if (db) {
      map_vector(out, of_b, gate, gradient);
      put_vector<WIDTH>(db + i, out, add);
    }
  } else {
    for (; i < n; i++) {
      float gate = to_float(a[i]), gradient = to_float(dy[i]);
      put(dy + i, of_a(gate, to_float(b[i]), gradient), 0);
      if (db) {
        put(db + i, of_b(gate, gradient), add);
      }
    }
  }
}
