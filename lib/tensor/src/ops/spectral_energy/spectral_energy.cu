// elements: f32
// Relative difference of spectral energy, by Parseval's theorem. x [samples, tokens, channels].

#include "total.cuh"

// Of 32 channels of a sample: ends [samples, 2, channels] = X_0 and X_{T/2} (zero where T is odd), and
// energies[block] = Σ over the channels of (T·Σ x² + X_0² + X_{T/2}²)/2. Warps take tokens in turn, and
// the first adds up their sums in order. Blocks: samples × ⌈channels/32⌉.
KERNEL(spectral_energy_partials, 256)(
    const float* __restrict__ x, float* __restrict__ ends, float* __restrict__ energies, int tokens,
    int channels) {
  SHARED(float, sums, [3][8][WARP]);
  SHARED(double, scratch, [WARP]);
  int tiles = (channels + WARP - 1) / WARP;
  long long sample = blockIdx.x / tiles;
  int channel = blockIdx.x % tiles * WARP + lane_id();
  int warps = blockDim.x / WARP;
  float squares = 0.0f, zero = 0.0f, half = 0.0f;
  if (channel < channels) {
    const float* from = x + sample * tokens * channels + channel;
#pragma unroll 4
    for (int t = warp_id(); t < tokens; t += warps) {
      float value = from[(long long)t * channels];
      squares = fmaf(value, value, squares);
      zero += value;
      half += t % 2 == 0 ? value : -value;
    }
  }
  sums[0][warp_id()][lane_id()] = squares;
  sums[1][warp_id()][lane_id()] = zero;
  sums[2][warp_id()][lane_id()] = half;
  __syncthreads();
  if (warp_id() > 0) {
    return;
  }
  double total[3] = {};
  for (int warp = 0; warp < warps; warp++) {
    for (int i = 0; i < 3; i++) {
      total[i] += sums[i][warp][lane_id()];
    }
  }
  if (tokens % 2 == 1) {
    total[2] = 0.0;
  }
  if (channel < channels) {
    ends[(sample * 2) * channels + channel] = (float)total[1];
    ends[(sample * 2 + 1) * channels + channel] = (float)total[2];
  }
  scratch[lane_id()] = (tokens * total[0] + total[1] * total[1] + total[2] * total[2]) / 2.0;
  __syncwarp();
  if (lane_id() == 0) {
    double energy = 0.0;
    for (int lane = 0; lane < WARP; lane++) {
      energy += scratch[lane];
    }
    energies[blockIdx.x] = (float)energy;
  }
}

// energy [samples, 2] = the means E(p) and E(t) of `terms` terms each, L = the mean over samples of
// |E(p) - E(t)|/(E(t) + epsilon). A sample has `tiles` partial energies. One block.
KERNEL(spectral_energy_total, 256)(
    const float* __restrict__ p, const float* __restrict__ t, float* __restrict__ energy,
    float* __restrict__ out, int samples, int tiles, float terms, float epsilon) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double sum = 0.0;
  for (int sample = threadIdx.x; sample < samples; sample += blockDim.x) {
    double ep = 0.0, et = 0.0;
    for (int i = sample * tiles; i < (sample + 1) * tiles; i++) {
      ep += p[i];
      et += t[i];
    }
    ep /= terms;
    et /= terms;
    energy[2 * sample] = (float)ep;
    energy[2 * sample + 1] = (float)et;
    sum += (ep > et ? ep - et : et - ep) / (et + epsilon);
  }
  sum = block_total(sum, scratch);
  if (threadIdx.x == 0) {
    *out = (float)(sum / samples);
  }
}

// dx (+)= factor·(T·x_t + X_0 + (-1)^t·X_{T/2}) for the prediction, or for the target. Blocks: samples ×
// chunks of `chunk` elements.
KERNEL(spectral_energy_backward, 256)(
    const float* __restrict__ x, const float* __restrict__ ends, const float* __restrict__ energy,
    const float* __restrict__ dy, float* __restrict__ dx, int add, int target, int tokens,
    int channels, int chunk, int chunks, float terms, float epsilon) {
  long long sample = blockIdx.x / chunks;
  long long n = (long long)tokens * channels, first = (long long)(blockIdx.x % chunks) * chunk;
  long long last = min(first + chunk, n);
  float ep = energy[2 * sample], et = energy[2 * sample + 1];
  float sign = ep > et ? 1.0f : -1.0f, d = et + epsilon;
  // For the target: -sign/d - |ep - et|/d², without the cancellation.
  float outer = target ? -sign * (ep + epsilon) / (d * d) : sign / d;
  float factor = *dy * outer / terms;
  x += sample * n;
  dx += sample * n;
  ends += sample * 2 * channels;
  for (int i = (int)first + threadIdx.x; i < last; i += blockDim.x) {
    int token = i / channels, channel = i - token * channels;
    float zero = ends[channel], half = ends[channels + channel];
    float value = fmaf((float)tokens, x[i], zero) + (token % 2 == 0 ? half : -half);
    put(dx + i, factor * value, add);
  }
}
