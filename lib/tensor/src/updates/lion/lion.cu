// dtypes: f32
// Lion for all parameters at once.

#include "decision.cuh"
#include "table.cuh"

// Entries: gradient, parameter, m; the numbers are weight decay and learning rate factor.
KERNEL(lion_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, float learning_rate, float b1, float c1, float b2, float c2) {
  if (decision->applied == 0.0) {
    return;
  }
  Piece piece = piece_of_block<3>(pieces, table);
  const float* g = tensor_of<const float>(piece, 0);
  float* p = tensor_of<float>(piece, 1);
  float* m = tensor_of<float>(piece, 2);
  float decay = __uint_as_float((unsigned)piece.entry[4]);
  float factor = __uint_as_float((unsigned)(piece.entry[4] >> 32));
  float scale = (float)decision->scale, rate = learning_rate * factor, keep = fmaf(-rate, decay, 1.0f);
  for_piece<2>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<float, N> gs = load_vector<N>(g + i), ps = load_vector<N>(p + i), ms = load_vector<N>(m + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      float g = scale * gs.at[j], u = fmaf(b1, ms.at[j], c1 * g);
      float sign = u < 0.0f ? -1.0f : u > 0.0f ? 1.0f : 0.0f;
      ps.at[j] = fmaf(-rate, sign, keep * ps.at[j]);
      ms.at[j] = fmaf(b2, ms.at[j], c2 * g);
    }
    store_vector(p + i, ps);
    store_vector(m + i, ms);
  });
}
