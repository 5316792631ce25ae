// dtypes: f32
// SGD with momentum for all parameters at once.

#include "decision.cuh"
#include "table.cuh"

// Entries: gradient, parameter, momentum; the numbers are weight decay and learning rate factor.
KERNEL(sgd_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, float step, float momentum) {
  if (decision->applied == 0.0) {
    return;
  }
  Piece piece = piece_of_block<3>(pieces, table);
  const float* g = tensor_of<const float>(piece, 0);
  float* p = tensor_of<float>(piece, 1);
  float* b = tensor_of<float>(piece, 2);
  float factor = __uint_as_float((unsigned)(piece.entry[4] >> 32));
  float decay = __uint_as_float((unsigned)piece.entry[4]);
  float scale = (float)decision->scale, rate = step * factor;
  for_piece<2>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<float, N> gs = load_vector<N>(g + i), ps = load_vector<N>(p + i), bs = load_vector<N>(b + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      bs.at[j] = fmaf(momentum, bs.at[j], fmaf(decay, ps.at[j], scale * gs.at[j]));
      ps.at[j] = fmaf(rate, bs.at[j], ps.at[j]);
    }
    store_vector(p + i, ps);
    store_vector(b + i, bs);
  });
}
