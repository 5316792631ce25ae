// elements: f32
// Squared error relative to the target, of groups of n elements.

#include "total.cuh"

// partials[g, c] = Σ (p - t)² and Σ t² over the c-th of `chunks` pieces of group g, chunk elements long.
// A block each.
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

// terms[g] = q (or its root) and D = ‖t‖² + ε. A block for each group.
KERNEL(relative_error_terms, 256)(
    const float* __restrict__ partials, float* __restrict__ terms, int chunks, float epsilon,
    int root) {
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
    float q = (float)(error / d);
    terms[2 * blockIdx.x] = root ? sqrtf(q) : q;
    terms[2 * blockIdx.x + 1] = (float)d;
  }
}

// L = the mean of the terms. One block.
KERNEL(relative_error_mean, 256)(
    const float* __restrict__ terms, float* __restrict__ out, int groups) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double sum = 0.0;
  for (int i = threadIdx.x; i < groups; i += blockDim.x) {
    sum += terms[2 * i];
  }
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    *out = (float)(sum / groups);
  }
}

// dx (+)= on_error·(p - t) + on_target·t for the prediction, or for the target. Blocks as for the partial
// sums.
KERNEL(relative_error_backward, 256)(
    const float* __restrict__ p, const float* __restrict__ t, const float* __restrict__ terms,
    const float* __restrict__ dy, float* __restrict__ dx, int add, int target, int root,
    int groups, long long n, int chunk, int chunks) {
  int group = blockIdx.x / chunks;
  long long first = (long long)(blockIdx.x % chunks) * chunk;
  int count = (int)min((long long)chunk, n - first);
  long long start = group * n + first;
  float value = terms[2 * group], d = terms[2 * group + 1];
  float q = root ? value * value : value;
  // d√q = dq/(2√q); the derivative at a perfect prediction is taken as zero.
  float outer = !root ? 1.0f : value > 0.0f ? 0.5f / value : 0.0f;
  float factor = 2.0f * *dy * outer / (d * groups);
  float on_error = target ? -factor : factor, on_target = target ? -factor * q : 0.0f;
  if (n % 4 == 0) {
    for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
      Vector<float, 4> ps = load_vector<4>(p + start + i), ts = load_vector<4>(t + start + i);
      Vector<float, 4> sum = {};
      if (add) {
        sum = load_vector<4>(dx + start + i);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        sum.at[j] += fmaf(on_error, ps.at[j] - ts.at[j], on_target * ts.at[j]);
      }
      store_vector(dx + start + i, sum);
    }
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      float x = fmaf(on_error, p[start + i] - t[start + i], on_target * t[start + i]);
      put(dx + start + i, x, add);
    }
  }
}
