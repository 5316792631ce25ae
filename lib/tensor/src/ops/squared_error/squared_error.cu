// elements: f32
// Weighted mean squared error. A sample has n elements; the last axis has C channels.

#include "rows.cuh"
#include "total.cuh"

// partials[b, c] = Σ over the c-th of `chunks` pieces of sample b of v ∘ (p - t)², `chunk` elements long. One block per
// piece.
KERNEL(squared_error_partials, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ v,
    float* __restrict__ partials, long long n, int channels, int chunk, int chunks) {
  SHARED(float, scratch, [WARP]);
  long long sample = blockIdx.x / chunks, first = (long long)(blockIdx.x % chunks) * chunk;
  int count = (int)min((long long)chunk, n - first);
  p += sample * n + first;
  t += sample * n + first;
  float sum = 0.0f;
  if (n % 4 == 0) {
    for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
      Vector<float, 4> ps = load_vector<4>(p + i), ts = load_vector<4>(t + i);
      int channel = (int)((first + i) % channels);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float d = ps.at[j] - ts.at[j];
        sum += v[channel] * d * d;
        channel = channel + 1 == channels ? 0 : channel + 1;
      }
    }
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      float d = p[i] - t[i];
      sum += v[(first + i) % channels] * d * d;
    }
  }
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
  double sum = 0.0;
  for (int i = threadIdx.x; i < samples * chunks; i += blockDim.x) {
    sum += (double)w[i / chunks] * partials[i];
  }
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    *out = (float)(sum / n);
  }
}

// dx (+)= sign·2·dy·w_b·v ∘ (p - t)/n. Blocks as for the partial sums.
KERNEL(squared_error_backward, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ w,
    const float* __restrict__ v, const float* __restrict__ dy, float* __restrict__ dx, int add,
    float sign, long long n, int channels, int chunk, int chunks) {
  long long sample = blockIdx.x / chunks, first = (long long)(blockIdx.x % chunks) * chunk;
  int count = (int)min((long long)chunk, n - first);
  long long start = sample * n + first;
  float scale = sign * 2.0f * *dy * w[sample] / (float)n;
  if (n % 4 == 0) {
    for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
      Vector<float, 4> ps = load_vector<4>(p + start + i), ts = load_vector<4>(t + start + i);
      float d[4];
      int channel = (int)((first + i) % channels);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        d[j] = scale * v[channel] * (ps.at[j] - ts.at[j]);
        channel = channel + 1 == channels ? 0 : channel + 1;
      }
      put_vector<4>(dx + start + i, d, add);
    }
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      float d = scale * v[(first + i) % channels] * (p[start + i] - t[start + i]);
      put(dx + start + i, d, add);
    }
  }
}
