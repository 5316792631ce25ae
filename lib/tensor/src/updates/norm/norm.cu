// dtypes: f32
// Sum of squares over many tensors, in double: the square of an f32 is exact there and cannot overflow.

#include "table.cuh"
#include "total.cuh"

// sums[block] = Σ x² of its piece. Entries: tensor.
KERNEL(norm_squares, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    double* __restrict__ sums) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  Piece piece = piece_of_block<1>(pieces, table);
  const float* x = tensor_of<const float>(piece, 0);
  double sum = 0.0;
  for_piece<4>(piece, [&](auto n, int i) {
    Vector<float, n.value> xs = load_vector<n.value>(x + i);
#pragma unroll
    for (int j = 0; j < n.value; j++) {
      sum += (double)xs.at[j] * xs.at[j];
    }
  });
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// out = Σ sums. One block.
KERNEL(norm_total, 256)(const double* __restrict__ sums, double* __restrict__ out, int n) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double sum = block_total_of(n, scratch, [&](int i) { return sums[i]; });
  if (threadIdx.x == 0) {
    *out = sum;
  }
}
