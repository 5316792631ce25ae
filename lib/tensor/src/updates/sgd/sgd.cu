// elements: f32
// SGD with momentum for all parameters at once.

#include "decision.cuh"
#include "table.cuh"

// The constants of a step.
struct Step {
  float scale, step, momentum, decay;
};

DEVICE void sgd_element(Step s, float g, float& p, float& b) {
  g = fmaf(s.decay, p, s.scale * g);
  b = fmaf(s.momentum, b, g);
  p = fmaf(s.step, b, p);
}

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
  Step s = {(float)decision->scale, step * factor, momentum, __uint_as_float((unsigned)piece.entry[4])};
  int vectors = piece.count / 4 * 4;
#pragma unroll 2
  for (int i = threadIdx.x * 4; i < vectors; i += blockDim.x * 4) {
    Vector<float, 4> gs = load_vector<4>(g + i), ps = load_vector<4>(p + i);
    Vector<float, 4> bs = load_vector<4>(b + i);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      sgd_element(s, gs.at[j], ps.at[j], bs.at[j]);
    }
    store_vector(p + i, ps);
    store_vector(b + i, bs);
  }
  int i = vectors + threadIdx.x;
  if (i < piece.count) {
    sgd_element(s, g[i], p[i], b[i]);
  }
}
