// dtypes: f32
// Weighted mean squared error. A sample has n elements; the last axis has C channels.

#include "divide.cuh"
#include "total.cuh"

// partials[b, c] = Σ over the c-th of `chunks` pieces of sample b of v ∘ (p - t)², `chunk` elements long. One block per
// piece.
KERNEL(squared_error_partials, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ v,
    float* __restrict__ partials, long long n, DIVISOR_PARAMETERS(channels), int chunk, int chunks) {
  SHARED(float, scratch, [WARP]);
  Chunk part = chunk_of_block(n, chunk, chunks);
  // Of the chunk's first element; channels and a chunk together are less than 2^31.
  int first_channel = (int)(part.first % channels);
  float sum = 0.0f;
  for_units(part.count, n % 4 == 0, [&](auto width, int i) {
    constexpr int N = width.value;
    Vector<float, N> ps = load_vector<N>(p + part.start + i), ts = load_vector<N>(t + part.start + i);
    int channel = remainder(first_channel + i, DIVISOR(channels));
#pragma unroll
    for (int j = 0; j < N; j++) {
      float d = ps.at[j] - ts.at[j];
      sum += v[channel] * d * d;
      channel = channel + 1 == channels ? 0 : channel + 1;
    }
  });
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

// L = Σ_b w_b/n·Σ_c partials[b, c]. One block.
KERNEL(squared_error_total, 256)(
    const float* __restrict__ partials, const float* __restrict__ w, float* __restrict__ out,
    long long n, int samples, int chunks) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double sum = block_total_of(
      samples * chunks, scratch, [&](int i) { return (double)w[i / chunks] * partials[i]; });
  if (threadIdx.x == 0) {
    *out = (float)(sum / n);
  }
}

// dx (+)= sign·2·dy·w_b·v ∘ (p - t)/n. Blocks as for the partial sums.
KERNEL(squared_error_backward, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ w,
    const float* __restrict__ v, const float* __restrict__ dy, float* __restrict__ dx, int add,
    float sign, long long n, DIVISOR_PARAMETERS(channels), int chunk, int chunks) {
  Chunk part = chunk_of_block(n, chunk, chunks);
  int first_channel = (int)(part.first % channels);
  float scale = sign * 2.0f * *dy * w[part.sample] / (float)n;
  for_units(part.count, n % 4 == 0, [&](auto width, int i) {
    constexpr int N = width.value;
    long long at = part.start + i;
    Vector<float, N> ps = load_vector<N>(p + at), ts = load_vector<N>(t + at);
    float d[N];
    int channel = remainder(first_channel + i, DIVISOR(channels));
#pragma unroll
    for (int j = 0; j < N; j++) {
      d[j] = scale * v[channel] * (ps.at[j] - ts.at[j]);
      channel = channel + 1 == channels ? 0 : channel + 1;
    }
    put_vector<N>(dx + at, d, add);
  });
}
