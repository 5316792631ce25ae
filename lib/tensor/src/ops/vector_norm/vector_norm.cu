// dtypes: f32
// Norms of rows, one block per row.

#include "element.cuh"
#include "warp.cuh"

// The codes of VectorNorm::kind.
enum Norm { SQUARED, ROOT, LOG };

// y [rows] = Σ x², √(Σ x² + floor) or ½ ln(Σ x² + floor); x [rows, width].
KERNEL(vector_norm_forward, 256)(
    const float* __restrict__ x, float* __restrict__ y, int width, float floor, int kind) {
  SHARED(float, scratch, [WARP]);
  x += (long long)blockIdx.x * width;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    sum += x[i] * x[i];
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    switch (kind) {
      case SQUARED: y[blockIdx.x] = sum; break;
      case ROOT: y[blockIdx.x] = sqrtf(sum + floor); break;
      default: y[blockIdx.x] = 0.5f * logf(sum + floor);
    }
  }
}

// dx (+)= 2·dy·x, dy·x/y or dy·x·exp(-2y).
KERNEL(vector_norm_backward, 256)(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ dy,
    float* __restrict__ dx, int width, int kind, int add) {
  const float norm = y[blockIdx.x];
  float factor = dy[blockIdx.x];
  switch (kind) {
    case SQUARED: factor *= 2.0f; break;
    case ROOT: factor /= norm; break;
    default: factor *= expf(-2.0f * norm);
  }
  long long start = (long long)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    put(dx + start + i, factor * x[start + i], add);
  }
}
