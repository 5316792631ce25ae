// dtypes: f32
// AdamW with averages in 8 bits for all parameters at once (updates/adamw8bit/mod.rs): a warp handles a block of elements
// that share a largest magnitude.

#include "decision.cuh"
#include "table.cuh"
#include "warp.cuh"

// Elements of a block, and of each thread.
constexpr int BLOCK = 256;
constexpr int EACH = BLOCK / WARP;

// The code of the number that is closest to x: how many limits are below it.
DEVICE int code_of(const float* limits, float x) {
  int code = 0;
#pragma unroll
  for (int step = 128; step > 0; step /= 2) {
    code += x > limits[code + step - 1] ? step : 0;
  }
  return code;
}

// Entries: gradient, parameter, codes of m and v, largest magnitudes of the blocks of m and v; the numbers are weight decay
// and learning rate factor. tables [4, 256]: numbers and limits with signs, then without.
KERNEL(adamw8bit_step, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    const StepControl* __restrict__ decision, const float* __restrict__ tables, float learning_rate,
    float b1, float c1, float b2, float c2, float epsilon) {
  if (decision->applied == 0.0) {
    return;
  }
  SHARED(float, codes, [1024]);
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
    codes[i] = tables[i];
  }
  __syncthreads();
  const float *signed_values = codes, *signed_limits = codes + 256;
  const float *values = codes + 512, *limits = codes + 768;
  Piece piece = piece_of_block<6>(pieces, table);
  const float* g = tensor_of<const float>(piece, 0);
  float* p = tensor_of<float>(piece, 1);
  unsigned char* m = tensor_of<unsigned char>(piece, 2);
  unsigned char* v = tensor_of<unsigned char>(piece, 3);
  float* largest_m = reinterpret_cast<float*>(piece.entry[4]) + piece.first / BLOCK;
  float* largest_v = reinterpret_cast<float*>(piece.entry[5]) + piece.first / BLOCK;
  float weight_decay = __uint_as_float((unsigned)piece.entry[7]);
  float factor = __uint_as_float((unsigned)(piece.entry[7] >> 32));
  float scale = (float)decision->scale, step = -(float)decision->rate * factor;
  float decay = learning_rate * factor * weight_decay, root = (float)decision->root;
  const int warps = blockDim.x / WARP;
  for (int block = threadIdx.x / WARP; block * BLOCK < piece.count; block += warps) {
    const float old_m = largest_m[block], old_v = largest_v[block];
    float ms[EACH], vs[EACH], top_m = 0.0f, top_v = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int i = block * BLOCK + j * WARP + lane_id();
      ms[j] = 0.0f;
      vs[j] = 0.0f;
      if (i < piece.count) {
        const float slope = scale * g[i];
        ms[j] = fmaf(b1, signed_values[m[i]] * old_m, c1 * slope);
        vs[j] = fmaf(b2, values[v[i]] * old_v, c2 * slope * slope);
        const float denominator = fmaf(sqrtf(vs[j]), root, epsilon);
        // The parameter is rounded once.
        const float old = p[i], change = step * (ms[j] / denominator);
        p[i] = old + fmaf(-decay, old + change, change);
      }
      top_m = fmaxf(top_m, fmaxf(ms[j], -ms[j]));
      top_v = fmaxf(top_v, vs[j]);
    }
    top_m = warp_max(top_m);
    top_v = warp_max(top_v);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int i = block * BLOCK + j * WARP + lane_id();
      if (i < piece.count) {
        int code = code_of(signed_limits, top_m > 0.0f ? ms[j] / top_m : 0.0f);
        // A code of m keeps the sign of m.
        code -= ms[j] < 0.0f && signed_values[code] >= 0.0f ? 1 : 0;
        m[i] = (unsigned char)code;
        v[i] = (unsigned char)code_of(limits, top_v > 0.0f ? vs[j] / top_v : 0.0f);
      }
    }
    // All lanes have read the old magnitudes.
    __syncwarp();
    if (lane_id() == 0) {
      largest_m[block] = top_m;
      largest_v[block] = top_v;
    }
  }
}
