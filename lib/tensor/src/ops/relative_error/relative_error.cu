// elements: f32
// Relative error of samples of n elements: e = ‖p - t‖/√D, D = ‖t‖² + ε.

#include "total.cuh"

// partials[b, c] = Σ (p - t)² and Σ t² over the c-th of `chunks` pieces of sample b, `chunk` elements long. One block
// per piece.
KERNEL(relative_error_partials, 256)(
    const float* __restrict__ p, const float* __restrict__ t, float* __restrict__ partials,
    long long n, int chunk, int chunks) {
  SHARED(float, scratch, [WARP]);
  long long first = (long long)(blockIdx.x % chunks) * chunk;
  int count = (int)min((long long)chunk, n - first);
  p += blockIdx.x / chunks * n + first;
  t += blockIdx.x / chunks * n + first;
  float error = 0.0f, size = 0.0f;
  if (n % 4 == 0) {
    for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
      Vector<float, 4> ps = load_vector<4>(p + i), ts = load_vector<4>(t + i);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float d = ps.at[j] - ts.at[j];
        error += d * d;
        size += ts.at[j] * ts.at[j];
      }
    }
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      float d = p[i] - t[i];
      error += d * d;
      size += t[i] * t[i];
    }
  }
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
  double error = 0.0, size = 0.0;
  for (int i = threadIdx.x; i < chunks; i += blockDim.x) {
    error += partials[2 * i];
    size += partials[2 * i + 1];
  }
  error = block_total(error, scratch);
  size = block_total(size, scratch);
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
  double sum = 0.0;
  for (int i = threadIdx.x; i < samples; i += blockDim.x) {
    sum += terms[2 * i];
  }
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    *out = (float)(sum / samples);
  }
}

// dp (+)= dy·(p - t)/(D·e·samples). Blocks as for the partial sums.
KERNEL(relative_error_backward, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ terms,
    const float* __restrict__ dy, float* __restrict__ dp, int add, int samples, long long n, int chunk,
    int chunks) {
  int sample = blockIdx.x / chunks;
  long long first = (long long)(blockIdx.x % chunks) * chunk;
  int count = (int)min((long long)chunk, n - first);
  long long start = sample * n + first;
  float e = terms[2 * sample], d = terms[2 * sample + 1];
  float factor = e > 0.0f ? *dy / (e * d * samples) : 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    put(dp + start + i, factor * (p[start + i] - t[start + i]), add);
  }
}
