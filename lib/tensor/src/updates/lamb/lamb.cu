// dtypes: f32
// LAMB for all parameters at once: the averages with the squares of both norms, then the step.

#include "decision.cuh"
#include "table.cuh"
#include "total.cuh"

// The direction of an element with averages m and v, before the trust ratio.
DEVICE float direction(float m, float v, float p, float correction, float root, float epsilon, float decay) {
  return fmaf(decay, p, correction * m / fmaf(sqrtf(v), root, epsilon));
}

// sums [blocks, 2]: Σ θ² and Σ u² of each piece. Entries: gradient, parameter, m, v; the numbers are weight decay and
// learning rate factor.
KERNEL(lamb_averages, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, double* __restrict__ sums, float b1, float c1, float b2, float c2,
    float epsilon) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  if (decision->applied == 0.0) {
    return;
  }
  Piece piece = piece_of_block<4>(pieces, table);
  const float* g = tensor_of<const float>(piece, 0);
  const float* p = tensor_of<const float>(piece, 1);
  float* m = tensor_of<float>(piece, 2);
  float* v = tensor_of<float>(piece, 3);
  float decay = __uint_as_float((unsigned)piece.entry[5]);
  float scale = (float)decision->scale, root = (float)decision->root, correction = (float)decision->correction;
  double values = 0.0, directions = 0.0;
  for_piece<1>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<float, N> gs = load_vector<N>(g + i), ps = load_vector<N>(p + i);
    Vector<float, N> ms = load_vector<N>(m + i), vs = load_vector<N>(v + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      float g = scale * gs.at[j];
      ms.at[j] = fmaf(b1, ms.at[j], c1 * g);
      vs.at[j] = fmaf(b2, vs.at[j], c2 * g * g);
      float u = direction(ms.at[j], vs.at[j], ps.at[j], correction, root, epsilon, decay);
      values += (double)ps.at[j] * ps.at[j];
      directions += (double)u * u;
    }
    store_vector(m + i, ms);
    store_vector(v + i, vs);
  });
  values = block_total(values, scratch);
  directions = block_total(directions, scratch);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = values;
    sums[2 * blockIdx.x + 1] = directions;
  }
}

// Entries as above, after lamb_averages. The pieces of a tensor are adjacent blocks.
KERNEL(lamb_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, const double* __restrict__ sums, float learning_rate, float epsilon) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  if (decision->applied == 0.0) {
    return;
  }
  Piece piece = piece_of_block<4>(pieces, table);
  int blocks = (int)((piece.entry[4] + PIECE - 1) / PIECE);
  const double* own = sums + 2 * (blockIdx.x - piece.first / PIECE);
  double values = block_total_of(blocks, scratch, [&](int i) { return own[2 * i]; });
  double directions = block_total_of(blocks, scratch, [&](int i) { return own[2 * i + 1]; });
  double ratio = values > 0.0 && directions > 0.0 ? sqrt(values) / sqrt(directions) : 1.0;
  float* p = tensor_of<float>(piece, 1);
  const float* m = tensor_of<const float>(piece, 2);
  const float* v = tensor_of<const float>(piece, 3);
  float decay = __uint_as_float((unsigned)piece.entry[5]);
  float factor = __uint_as_float((unsigned)(piece.entry[5] >> 32));
  float root = (float)decision->root, correction = (float)decision->correction;
  float step = -(float)(ratio * learning_rate * factor);
  for_piece<2>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<float, N> ps = load_vector<N>(p + i), ms = load_vector<N>(m + i), vs = load_vector<N>(v + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      float u = direction(ms.at[j], vs.at[j], ps.at[j], correction, root, epsilon, decay);
      ps.at[j] = fmaf(step, u, ps.at[j]);
    }
    store_vector(p + i, ps);
  });
}
