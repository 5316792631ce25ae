// dtypes: f32
// Weighted sum of scalars, eight at a time; pointers beyond `count` are null.

#include "element.cuh"

// out (+)= Σ weight_i·x_i. One thread.
KERNEL(weighted_sum_forward)(
    const float* x0, float w0, const float* x1, float w1, const float* x2, float w2,
    const float* x3, float w3, const float* x4, float w4, const float* x5, float w5,
    const float* x6, float w6, const float* x7, float w7, float* out, int add) {
  const float* x[8] = {x0, x1, x2, x3, x4, x5, x6, x7};
  float w[8] = {w0, w1, w2, w3, w4, w5, w6, w7};
  double sum = add ? *out : 0.0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (x[i] != nullptr) {
      sum += (double)w[i] * *x[i];
    }
  }
  *out = (float)sum;
}

// dx (+)= weight·dy. One thread.
KERNEL(weighted_sum_backward)(const float* dy, float weight, float* dx, int add) {
  put(dx, weight * *dy, add);
}
