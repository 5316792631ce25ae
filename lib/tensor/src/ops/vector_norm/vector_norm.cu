// elements: f32
// Norms of rows, one block per row.

#include "element.cuh"
#include "warp.cuh"

// y [rows] = Σ x² or, if not squared, √(Σ x² + floor); x [rows, width].
KERNEL(vector_norm_forward, 256)(
    const float* __restrict__ x, float* __restrict__ y, int width, float floor, int squared) {
  SHARED(float, scratch, [WARP]);
  x += (long long)blockIdx.x * width;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    sum += x[i] * x[i];
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    y[blockIdx.x] = squared ? sum : sqrtf(sum + floor);
  }
}

// dx (+)= dy·x/y or, if squared, 2·dy·x.
KERNEL(vector_norm_backward, 256)(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ dy,
    float* __restrict__ dx, int width, int squared, int add) {
  float factor = squared ? 2.0f * dy[blockIdx.x] : dy[blockIdx.x] / y[blockIdx.x];
  long long start = (long long)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    put(dx + start + i, factor * x[start + i], add);
  }
}
