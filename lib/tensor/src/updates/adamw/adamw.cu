// dtypes: f32
// AdamW, or Adam with the decay in the gradient, for all parameters at once.

#include "decision.cuh"
#include "table.cuh"

// Entries: gradient, parameter, m, v; the numbers are weight decay and learning rate factor.
KERNEL(adamw_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, float learning_rate, float b1, float c1, float b2, float c2,
    float epsilon, int coupled) {
  if (decision->applied == 0.0) {
    return;
  }
  Piece piece = piece_of_block<4>(pieces, table);
  const float* g = tensor_of<const float>(piece, 0);
  float* p = tensor_of<float>(piece, 1);
  float* m = tensor_of<float>(piece, 2);
  float* v = tensor_of<float>(piece, 3);
  float decay = __uint_as_float((unsigned)piece.entry[5]);
  float factor = __uint_as_float((unsigned)(piece.entry[5] >> 32));
  float scale = (float)decision->scale, step = -(float)decision->rate * factor;
  float keep = coupled ? 1.0f : fmaf(-learning_rate * factor, decay, 1.0f), root = (float)decision->root;
  for_piece<2>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<float, N> gs = load_vector<N>(g + i), ps = load_vector<N>(p + i);
    Vector<float, N> ms = load_vector<N>(m + i), vs = load_vector<N>(v + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      float g = gs.at[j] * scale;
      g = coupled ? fmaf(decay, ps.at[j], g) : g;
      ms.at[j] = fmaf(b1, ms.at[j], c1 * g);
      vs.at[j] = fmaf(b2, vs.at[j], c2 * g * g);
      float denominator = fmaf(sqrtf(vs.at[j]), root, epsilon);
      ps.at[j] = fmaf(step, ms.at[j] / denominator, keep * ps.at[j]);
    }
    store_vector(p + i, ps);
    store_vector(m + i, ms);
    store_vector(v + i, vs);
  });
}
