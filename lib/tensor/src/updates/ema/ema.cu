// dtypes: f32
// Moving averages of all parameters at once.

#include "decision.cuh"
#include "table.cuh"

// average = decay·average + (1 - decay)·parameter. Entries: parameter, average.
KERNEL(ema_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision) {
  if (decision->applied == 0.0) {
    return;
  }
  float decay = (float)decision->decay, rest = (float)(1.0 - decision->decay);
  Piece piece = piece_of_block<2>(pieces, table);
  const float* p = tensor_of<const float>(piece, 0);
  float* a = tensor_of<float>(piece, 1);
  for_piece<4>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<float, N> ps = load_vector<N>(p + i), as = load_vector<N>(a + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      as.at[j] = fmaf(decay, as.at[j], rest * ps.at[j]);
    }
    store_vector(a + i, as);
  });
}
