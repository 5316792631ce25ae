// dtypes: f32
// Relative error of samples of n elements: e = ‖p - t‖/√D, D = ‖t‖² + ε.

#include "total.cuh"

// partials[b, c] = Σ (p - t)² and Σ t² over the c-th of `chunks` pieces of sample b, `chunk` elements long. One block
// per piece.
KERNEL(relative_error_partials, 256)(
    const float* __restrict__ p, const float* __restrict__ t, float* __restrict__ partials,
    long long n, int chunk, int chunks) {
  SHARED(float, scratch, [WARP]);
  Chunk part = chunk_of_block(n, chunk, chunks);
  p += part.start;
  t += part.start;
  float error = 0.0f, size = 0.0f;
  for_units(part.count, n % 4 == 0, [&](auto width, int i) {
    constexpr int N = width.value;
    Vector<float, N> ps = load_vector<N>(p + i), ts = load_vector<N>(t + i);
#pragma unroll
    for (int j = 0; j < N; j++) {
      float d = ps.at[j] - ts.at[j];
      error += d * d;
      size += ts.at[j] * ts.at[j];
    }
  });
  error = block_sum(error, scratch);
  size = block_sum(size, scratch);
  if (threadIdx.x == 0) {
    partials[2 * blockIdx.x] = error;
    partials[2 * blockIdx.x + 1] = size;
  }
}

// terms[b] = e and D. One block per sample.
KERNEL(relative_error_terms, 256)(
    const float* __restrict__ partials, float* __restrict__ terms, int chunks, float epsilon) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  partials += 2ll * blockIdx.x * chunks;
  double error = block_total_of(chunks, scratch, [&](int i) { return partials[2 * i]; });
  double size = block_total_of(chunks, scratch, [&](int i) { return partials[2 * i + 1]; });
  if (threadIdx.x == 0) {
    double d = size + epsilon;
    terms[2 * blockIdx.x] = sqrtf((float)(error / d));
    terms[2 * blockIdx.x + 1] = (float)d;
  }
}

// L = the mean of e. One block.
KERNEL(relative_error_mean, 256)(
    const float* __restrict__ terms, float* __restrict__ out, int samples) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double sum = block_total_of(samples, scratch, [&](int i) { return terms[2 * i]; });
  if (threadIdx.x == 0) {
    *out = (float)(sum / samples);
  }
}

// dp (+)= dy·(p - t)/(D·e·samples). Blocks as for the partial sums.
KERNEL(relative_error_backward, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ terms,
    const float* __restrict__ dy, float* __restrict__ dp, int add, int samples, long long n, int chunk,
    int chunks) {
  Chunk part = chunk_of_block(n, chunk, chunks);
  float e = terms[2 * part.sample], d = terms[2 * part.sample + 1];
  float factor = e > 0.0f ? *dy / (e * d * samples) : 0.0f;
  for (int i = threadIdx.x; i < part.count; i += blockDim.x) {
    long long at = part.start + i;
    put(dp + at, factor * (p[at] - t[at]), add);
  }
}
