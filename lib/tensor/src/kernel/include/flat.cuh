// Elementwise kernels: a thread handles the 16 bytes of elements from flat_index(); elements after the last whole
// vector are handled one by one.

#pragma once

#include "rows.cuh"

// The first element of this thread's vector.
DEVICE long long flat_index() {
  return ((long long)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
}

// y = f(x, ..) for each element of a vector.
template <class F, class... X>
DEVICE void map_vector(float (&y)[WIDTH], F f, const X&... x) {
#pragma unroll
  for (int v = 0; v < WIDTH; v++) {
    y[v] = f(to_float(x.at[v])...);
  }
}

// out (+)= f(x, ..), n elements.
template <class F, class... X>
DEVICE void map_flat(element* out, long long n, int add, F f, const X*... x) {
  long long i = flat_index();
  if (i + WIDTH <= n) {
    float y[WIDTH];
    map_vector(y, f, load_vector<WIDTH>(x + i)...);
    put_vector<WIDTH>(out + i, y, add);
  } else {
    for (; i < n; i++) {
      put(out + i, f(to_float(x[i])...), add);
    }
  }
}
