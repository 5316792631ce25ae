// Elementwise kernels: a thread handles the 16 bytes of elements from flat_index(); elements after the last whole
// vector are handled one by one.

#pragma once

#include "rows.cuh"

// The first element of this thread's vector.
DEVICE long long flat_index() {
  return ((long long)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
}

// out (+)= f(x), n elements.
template <class F>
DEVICE void map_flat(const element* x, element* out, long long n, int add, F f) {
  long long i = flat_index();
  if (i + WIDTH <= n) {
    Vector<element, WIDTH> xs = load_vector<WIDTH>(x + i);
    float y[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; v++) {
      y[v] = f(to_float(xs.at[v]));
    }
    put_vector<WIDTH>(out + i, y, add);
  } else {
    for (; i < n; i++) {
      put(out + i, f(to_float(x[i])), add);
    }
  }
}

// out (+)= f(a, b), n elements.
template <class F>
DEVICE void map_flat(const element* a, const element* b, element* out, long long n, int add, F f) {
  long long i = flat_index();
  if (i + WIDTH <= n) {
    Vector<element, WIDTH> as = load_vector<WIDTH>(a + i), bs = load_vector<WIDTH>(b + i);
    float y[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; v++) {
      y[v] = f(to_float(as.at[v]), to_float(bs.at[v]));
    }
    put_vector<WIDTH>(out + i, y, add);
  } else {
    for (; i < n; i++) {
      put(out + i, f(to_float(a[i]), to_float(b[i])), add);
    }
  }
}
