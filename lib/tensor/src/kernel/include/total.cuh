// Sums in double, where partial sums of many blocks meet: always in the same order.

#pragma once

#include "warp.cuh"

// Most threads of a block that sums.
constexpr int TOTAL_THREADS = 256;

// Σ over the block, in every thread; `scratch` of TOTAL_THREADS shared doubles can be used again at
// once. A power of two of threads, all of which call.
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
