// dtypes: f32 bf16 f16
// The largest elements of each row, in order (functions/top_k/mod.rs). A block handles a row: each thread knows the
// largest of its elements that is not among the results yet, and looks for the next one after it was taken.

#include "choice.cuh"

// The largest rank below `limit` of this thread's elements of a row; 0 if there is none.
DEVICE unsigned long long best_below(const element* row, int width, unsigned long long limit) {
  unsigned long long best = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    unsigned long long rank = rank_of(to_float(row[i]), i);
    best = rank < limit && rank > best ? rank : best;
  }
  return best;
}

// values [rows, k], index [rows, k]: the k largest elements of each row of x [rows, width], k ≤ width.
KERNEL(top_k_rows, 512)
(const element* __restrict__ x, element* __restrict__ values, int* __restrict__ index, int width, int k) {
  SHARED(unsigned long long, ranks, [32]);
  const element* row = x + (long long)blockIdx.x * width;
  unsigned long long own = best_below(row, width, ~0ull);
#pragma unroll 1
  for (int i = 0; i < k; i++) {
    unsigned long long best = block_best(own, ranks);
    if (own == best) {
      int at = index_of(best);
      long long to = (long long)blockIdx.x * k + i;
      values[to] = row[at];
      index[to] = at;
      own = best_below(row, width, best);
    }
  }
}
