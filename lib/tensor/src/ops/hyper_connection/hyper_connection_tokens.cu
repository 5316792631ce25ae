// dtypes: f32
// Hyper-connections (hyper_connection/mod.rs): what is computed for each token from S·(S + 3) features, by one thread,
// and the gradients of the parameters.

#include "rows.cuh"

// Sinkhorn-Knopp iterations, and what a sum counts at least.
constexpr int ITERATIONS = 20;
constexpr float LEAST = 1e-12f;
// Threads of a block: the factors of their iterations fill 40 KB.
constexpr int THREADS = 64;
constexpr int MOST_STREAMS = 4;

// Parameters: alpha [S, S + 1], beta [S], and the scales of a, of P and of β.
struct Mixing {
  const float* alpha;
  const float* beta;
  const float* scales[3];
  int manifold;
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float magnitude(float x) { return fmaxf(x, -x); }

// out [S + 2, width]: the transpose of (1 + γ) ∘ (A, b), with γ, b [width] and A [width, S + 1].
KERNEL(hyper_connection_tokens_fold, 256)
(const float* __restrict__ gamma, const float* __restrict__ a, const float* __restrict__ b,
 float* __restrict__ out, int streams, int width) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= width) {
    return;
  }
  const float factor = 1.0f + gamma[column];
  for (int j = 0; j <= streams; j++) {
    out[(long long)j * width + column] = factor * a[(long long)column * (streams + 1) + j];
  }
  out[(long long)(streams + 1) * width + column] = factor * b[column];
}

// The iteration as P_st = e_st·u_s·v_t, where e is exp(logits - maximum of the column): a half-step divides v by the
// sums of the columns, the other u by those of the rows. `keep` receives the number of a half-step and its factors,
// negative where the sum was less than LEAST.
template <int S, class F>
DEVICE void sinkhorn(float (&e)[S][S], float (&u)[S], float (&v)[S], F keep) {
#pragma unroll
  for (int t = 0; t < S; t++) {
    float most = e[0][t];
#pragma unroll
    for (int s = 1; s < S; s++) {
      most = fmaxf(most, e[s][t]);
    }
#pragma unroll
    for (int s = 0; s < S; s++) {
      e[s][t] = expf(e[s][t] - most);
    }
    u[t] = 1.0f;
    v[t] = 1.0f;
  }
#pragma unroll 1
  for (int half = 0; half < 2 * ITERATIONS; half += 2) {
    float sign[S];
#pragma unroll
    for (int t = 0; t < S; t++) {
      float sum = 0.0f;
#pragma unroll
      for (int s = 0; s < S; s++) {
        sum += e[s][t] * u[s];
      }
      sum *= v[t];
      v[t] /= fmaxf(sum, LEAST);
      sign[t] = sum < LEAST ? -1.0f : 1.0f;
    }
    keep(half, v, sign);
#pragma unroll
    for (int s = 0; s < S; s++) {
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < S; t++) {
        sum += e[s][t] * v[t];
      }
      sum *= u[s];
      u[s] /= fmaxf(sum, LEAST);
      sign[s] = sum < LEAST ? -1.0f : 1.0f;
    }
    keep(half + 1, u, sign);
  }
}

// The logits of P.
template <int S>
DEVICE void load_logits(float (&logits)[S][S], const float* features, Mixing m) {
  const float scale = *m.scales[1];
#pragma unroll
  for (int s = 0; s < S; s++) {
#pragma unroll
    for (int t = 0; t < S; t++) {
      logits[s][t] = fmaf(scale, features[s * (S + 3) + t + 1], m.alpha[s * (S + 1) + t + 1]);
    }
  }
}

// The coefficients [S·(S + 2)] of a token.
template <int S>
DEVICE void mix(const float* features, Mixing m, float* out) {
  const float p = *m.scales[0], q = *m.scales[2];
#pragma unroll
  for (int s = 0; s < S; s++) {
    const float z = features[s * (S + 3)], y = features[s * (S + 3) + S + 1];
    const float alpha = m.alpha[s * (S + 1)], beta = m.beta[s];
    out[s] = m.manifold ? sigmoid(fmaf(p, z, alpha)) : fmaf(p, tanhf(z), alpha);
    out[S * (S + 1) + s] = m.manifold ? 2.0f * sigmoid(fmaf(q, y, beta)) : fmaf(q, tanhf(y), beta);
  }
  if (m.manifold) {
    float e[S][S], u[S], v[S];
    load_logits<S>(e, features, m);
    sinkhorn<S>(e, u, v, [](int, const float (&)[S], const float (&)[S]) {});
#pragma unroll
    for (int i = 0; i < S * S; i++) {
      out[S + i] = e[i / S][i % S] * u[i / S] * v[i % S];
    }
  } else {
#pragma unroll
    for (int i = 0; i < S * S; i++) {
      const int s = i / S, t = i % S;
      out[S + i] = fmaf(p, tanhf(features[s * (S + 3) + t + 1]), m.alpha[s * (S + 1) + t + 1]);
    }
  }
}

#define WITH_STREAMS(streams, call) \
  if (streams == 1) {               \
    call(1);                        \
  } else if (streams == 2) {        \
    call(2);                        \
  } else if (streams == 3) {        \
    call(3);                        \
  } else {                          \
    call(4);                        \
  }

// features [tokens, S, S + 3], out [tokens, S·(S + 2)].
KERNEL(hyper_connection_tokens_mix, 64)
(const float* __restrict__ features, const float* __restrict__ alpha, const float* __restrict__ beta,
 const float* __restrict__ p, const float* __restrict__ r, const float* __restrict__ q, int manifold,
 float* __restrict__ out, int tokens, int streams) {
  const long long token = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (token >= tokens) {
    return;
  }
  const Mixing m = {alpha, beta, {p, r, q}, manifold};
#define MIX(S) mix<S>(features + token * S * (S + 3), m, out + token * S * (S + 2))
  WITH_STREAMS(streams, MIX)
}

// The gradient of the logits of P, given that of P. With g the gradient of the logarithm of a matrix, a division of a
// line by its sum subtracts y·Σg, where y is the line after it. `history` holds the factors of each half-step.
template <int S>
DEVICE void sinkhorn_backward(float (&logits)[S][S], const float* d, float (&g)[S][S], float* history) {
  float u[S], v[S];
  const auto place = [&](int half, int i) -> float& { return history[(half * S + i) * THREADS + threadIdx.x]; };
  sinkhorn<S>(logits, u, v, [&](int half, const float (&factors)[S], const float (&sign)[S]) {
#pragma unroll
    for (int i = 0; i < S; i++) {
      place(half, i) = sign[i] * factors[i];
    }
  });
#pragma unroll
  for (int i = 0; i < S * S; i++) {
    g[i / S][i % S] = logits[i / S][i % S] * u[i / S] * v[i % S] * d[i];
  }
#pragma unroll 1
  for (int half = 2 * ITERATIONS - 2; half >= 0; half -= 2) {
    // The factors after both half-steps; then those of the rows are of the iteration before.
#pragma unroll
    for (int s = 0; s < S; s++) {
      const float factor = place(half + 1, s);
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < S; t++) {
        sum += g[s][t];
      }
      sum = factor > 0.0f ? sum * factor : 0.0f;
#pragma unroll
      for (int t = 0; t < S; t++) {
        g[s][t] -= logits[s][t] * magnitude(place(half, t)) * sum;
      }
    }
#pragma unroll
    for (int s = 0; s < S; s++) {
      u[s] = half > 0 ? magnitude(place(half - 1, s)) : 1.0f;
    }
#pragma unroll
    for (int t = 0; t < S; t++) {
      const float factor = place(half, t);
      float sum = 0.0f;
#pragma unroll
      for (int s = 0; s < S; s++) {
        sum += g[s][t];
      }
      sum = factor > 0.0f ? sum * factor : 0.0f;
#pragma unroll
      for (int s = 0; s < S; s++) {
        g[s][t] -= logits[s][t] * u[s] * sum;
      }
    }
  }
}

// The gradients of a token's features (mixing.rs), and of alpha, beta and the scales [S·(S + 2) + 3].
template <int S>
DEVICE void mix_backward(const float* features, Mixing m, const float* d, float* out,
                         float (&sums)[S * (S + 2) + 3], int width, float* history) {
  float g[S][S] = {};
  if (m.manifold) {
    float logits[S][S];
    load_logits<S>(logits, features, m);
    sinkhorn_backward<S>(logits, d + S, g, history);
  }
#pragma unroll
  for (int s = 0; s < S; s++) {
    const float c = features[s * (S + 3) + S + 2];
    float own = 0.0f;
#pragma unroll
    for (int j = 0; j < S + 2; j++) {
      const int which = j == 0 ? 0 : j <= S ? 1 : 2;
      const int term = j <= S ? s * (S + 1) + j : S * (S + 1) + s;
      const float scale = *m.scales[which], z = features[s * (S + 3) + j];
      const float given = d[j == 0 ? s : j <= S ? S + s * S + j - 1 : S * (S + 1) + s];
      // σ(x)·σ(-x) is accurate where 1 - σ(x) and 1 - tanh² would cancel.
      float gradient = given, value = z, slope = 1.0f;
      if (!m.manifold) {
        value = tanhf(z);
        slope = 4.0f * sigmoid(2.0f * z) * sigmoid(-2.0f * z);
      } else if (which == 1) {
        gradient = g[s][j - 1];
      } else {
        const float x = fmaf(scale, z, which == 0 ? m.alpha[term] : m.beta[s]);
        gradient = (which == 0 ? 1.0f : 2.0f) * given * sigmoid(x) * sigmoid(-x);
      }
      sums[term] = gradient;
      sums[S * (S + 2) + which] += gradient * value;
      const float dz = scale * gradient * slope;
      out[s * (S + 3) + j] = c * dz;
      own = fmaf(dz, z, own);
    }
    out[s * (S + 3) + S + 2] = own * c * c / width;
  }
}

template <int S>
DEVICE void tokens_backward(const float* features, Mixing m, const float* dy, float* gradients, float* partials,
                            int tokens, int width, float* history, float (&warps)[2][32]) {
  constexpr int COUNT = S * (S + 2) + 3;
  const long long token = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  float sums[COUNT] = {};
  if (token < tokens) {
    mix_backward<S>(features + token * S * (S + 3), m, dy + token * S * (S + 2), gradients + token * S * (S + 3), sums,
                    width, history);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float sum = warp_sum(sums[i]);
    if (lane_id() == 0) {
      warps[warp_id()][i] = sum;
    }
  }
  __syncthreads();
  if ((int)threadIdx.x < COUNT) {
    partials[(long long)blockIdx.x * COUNT + threadIdx.x] = warps[0][threadIdx.x] + warps[1][threadIdx.x];
  }
}

// gradients [tokens, S, S + 3] of the features, given dy [tokens, S·(S + 2)] of the coefficients; partials
// [blocks, S·(S + 2) + 3] of the gradients of alpha, beta and the scales. Blocks have 64 threads.
KERNEL(hyper_connection_tokens_backward, 64)
(const float* __restrict__ features, const float* __restrict__ alpha, const float* __restrict__ beta,
 const float* __restrict__ p, const float* __restrict__ r, const float* __restrict__ q, int manifold,
 const float* __restrict__ dy, float* __restrict__ gradients, float* __restrict__ partials, int tokens,
 int streams, int width) {
  SHARED(float, history, [2 * ITERATIONS * MOST_STREAMS * THREADS]);
  SHARED(float, warps, [2][32]);
  const Mixing m = {alpha, beta, {p, r, q}, manifold};
#define BACKWARD(S) tokens_backward<S>(features, m, dy, gradients, partials, tokens, width, history, warps)
  WITH_STREAMS(streams, BACKWARD)
}

// to (+)= value, unless null.
DEVICE void put_optional(float* to, long long at, float value, int add) {
  if (to != nullptr) {
    put(to + at, value, add);
  }
}

// From the gradient `sums` [S + 2, width] of the folded weights: dγ (+)= Σ_j sums_j ∘ (A, b)_j, d(A, b) (+)= (1 + γ) ∘ sums.
// Each may be null.
KERNEL(hyper_connection_tokens_weights, 256)
(const float* __restrict__ sums, const float* __restrict__ gamma, const float* __restrict__ a,
 const float* __restrict__ b, float* dgamma, int add_gamma, float* da, int add_a, float* db, int add_b,
 int streams, int width) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= width) {
    return;
  }
  const float factor = 1.0f + gamma[column], of_b = sums[(long long)(streams + 1) * width + column];
  float total = of_b * b[column];
  for (int j = 0; j <= streams; j++) {
    const long long at = (long long)column * (streams + 1) + j;
    const float sum = sums[(long long)j * width + column];
    total = fmaf(sum, a[at], total);
    put_optional(da, at, factor * sum, add_a);
  }
  put_optional(db, column, factor * of_b, add_b);
  put_optional(dgamma, column, total, add_gamma);
}

// Adds `sums` [S·(S + 2) + 3] to the gradients of alpha, beta and the scales, each of which may be null. Without r, the
// second scale is the first.
KERNEL(hyper_connection_tokens_scales, 64)
(const float* __restrict__ sums, float* dalpha, int add_alpha, float* dbeta, int add_beta, float* dp, int add_p,
 float* dr, int add_r, float* dq, int add_q, int manifold, int streams) {
  const int i = threadIdx.x, alphas = streams * (streams + 1), scales = alphas + streams;
  if (i < alphas) {
    put_optional(dalpha, i, sums[i], add_alpha);
  } else if (i < scales) {
    put_optional(dbeta, i - alphas, sums[i], add_beta);
  } else if (i == scales) {
    put_optional(dp, 0, manifold ? sums[i] : sums[i] + sums[i + 1], add_p);
  } else if (i == scales + 1 && manifold) {
    put_optional(dr, 0, sums[i], add_r);
  } else if (i == scales + 2) {
    put_optional(dq, 0, sums[i], add_q);
  }
}
