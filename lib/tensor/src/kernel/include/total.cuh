// Sums in double that combine the partial sums of many blocks, always in the same order.

#pragma once

#include "rows.cuh"

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

// Σ f(i) for i < n over the block, in every thread.
template <class F>
DEVICE double block_total_of(int n, double* scratch, F f) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    sum += f(i);
  }
  return block_total(sum, scratch);
}

// What a block handles of samples of n elements, each divided into `chunks` chunks of `chunk` elements: `count`
// elements of `sample`, from the first-th on, which lie at `start` of the tensor.
struct Chunk {
  long long sample, first, start;
  int count;
};

DEVICE Chunk chunk_of_block(long long n, int chunk, int chunks) {
  long long sample = blockIdx.x / chunks, first = (long long)(blockIdx.x % chunks) * chunk;
  return {sample, first, sample * n + first, (int)min((long long)chunk, n - first)};
}
