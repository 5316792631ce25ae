// Sums in double that combine the partial sums of many blocks, always in the same order.

#pragma once

#include "warp.cuh"

// Maximum threads of a block that sums.
constexpr int TOTAL_THREADS = 256;

// Σ over the block, in every thread; `scratch` is TOTAL_THREADS shared doubles and can be reused at once. The number of
// threads is a power of two; all threads must call.
DEVICE double block_total(double x, double* scratch) {
  __syncthreads();
  scratch[threadIdx.x] = x;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if ((int)threadIdx.x < half) {
      scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    __syncthreads();
  }
  double total = scratch[0];
  __syncthreads();
  return total;
}
