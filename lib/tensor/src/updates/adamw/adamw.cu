// elements: f32
// AdamW for all parameters at once.

#include "decision.cuh"
#include "table.cuh"

// The constants of a step.
struct Step {
  float scale, step, keep, b1, c1, b2, c2, root, epsilon;
};

DEVICE void adamw_element(Step s, float g, float& p, float& m, float& v) {
  g *= s.scale;
  m = fmaf(s.b1, m, s.c1 * g);
  v = fmaf(s.b2, v, s.c2 * g * g);
  p = fmaf(s.step, m / fmaf(sqrtf(v), s.root, s.epsilon), s.keep * p);
}

// Entries: gradient, parameter, m, v; the numbers are weight decay and learning rate factor.
KERNEL(adamw_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, float learning_rate, float b1, float c1, float b2, float c2,
    float epsilon) {
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
  Step s = {(float)decision->scale, -(float)decision->rate * factor,
            fmaf(-learning_rate * factor, decay, 1.0f), b1, c1, b2, c2, (float)decision->root, epsilon};
  int vectors = piece.count / 4 * 4;
#pragma unroll 2
  for (int i = threadIdx.x * 4; i < vectors; i += blockDim.x * 4) {
    Vector<float, 4> gs = load_vector<4>(g + i), ps = load_vector<4>(p + i);
    Vector<float, 4> ms = load_vector<4>(m + i), vs = load_vector<4>(v + i);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      adamw_element(s, gs.at[j], ps.at[j], ms.at[j], vs.at[j]);
    }
    store_vector(p + i, ps);
    store_vector(m + i, ms);
    store_vector(v + i, vs);
  }
  int i = vectors + threadIdx.x;
  if (i < piece.count) {
    adamw_element(s, g[i], p[i], m[i], v[i]);
  }
}
