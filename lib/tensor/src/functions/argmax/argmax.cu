// dtypes: f32 bf16 f16
// The largest logit of each row (functions/argmax/mod.rs). A block handles a row and reads it once.

#include "choice.cuh"

// index [rows], log_p [rows]: the largest of the first `columns` elements of each row of x [rows, width], except for
// element `hidden`.
KERNEL(argmax_rows, 512)
(const element* __restrict__ x, int* __restrict__ index, float* __restrict__ log_p, int width,
 int columns, int hidden) {
  SHARED(float, scratch, [32]);
  SHARED(unsigned long long, ranks, [32]);
  const element* row = x + (long long)blockIdx.x * width;
  LogSum sums{minus_infinity(), 0.0f};
  unsigned long long best = 0;
  for_row(row, columns, [&](auto n, auto m, int i) {
    constexpr int N = n.value, M = m.value;
    Vector<element, N> logits[M];
    load_groups(logits, row + i);
#pragma unroll
    for (int j = 0; j < M * N; j++) {
      int at = i + j / N * (int)blockDim.x * N + j % N;
      float logit = to_float(logits[j / N].at[j % N]);
      unsigned long long rank = rank_of(logit, at);
      if (at != hidden) {
        best = rank > best ? rank : best;
        sums.add(logit);
      }
    }
  });
  best = block_best(best, ranks);
  write_choice(best, sums, row, index + blockIdx.x, log_p + blockIdx.x, scratch);
}
