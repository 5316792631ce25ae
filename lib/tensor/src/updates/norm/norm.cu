// elements: f32
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
  int vectors = piece.count / 4 * 4;
  double sum = 0.0;
#pragma unroll 4
  for (int i = threadIdx.x * 4; i < vectors; i += blockDim.x * 4) {
    Vector<float, 4> xs = load_vector<4>(x + i);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      sum += (double)xs.at[j] * xs.at[j];
    }
  }
  int i = vectors + threadIdx.x;
  if (i < piece.count) {
    sum += (double)x[i] * x[i];
  }
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// out = Σ sums. One block.
KERNEL(norm_total, 256)(const double* __restrict__ sums, double* __restrict__ out, int n) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double sum = 0.0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    sum += sums[i];
  }
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    *out = sum;
  }
}
