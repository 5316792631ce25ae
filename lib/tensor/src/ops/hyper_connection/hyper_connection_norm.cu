// dtypes: f32 bf16 f16
// Hyper-connections (hyper_connection/mod.rs): the normalized input of a branch, y = (1 + γ) ∘ n + β with n = (u - μ)·r and
// u = Σ_s a_s·x_s. A warp handles a token and computes u anew in each of its passes: its streams stay in the L1 cache.
//
// The γ and β of the first group of tokens begin at `scale` and `shift` of m, those of the next group `stride` elements
// further. stats [tokens, 2]: μ and r.

#include "streams.cuh"

// Calls f(column, u, x) for the V columns of u and of each stream that this lane handles at a time.
template <int S, int V, class F>
DEVICE void for_inputs(const element* x, const float (&a)[S], int width, F f) {
  for (int column = lane_id() * V; column < width; column += WARP * V) {
    float u[V] = {}, xs[S][V];
#pragma unroll
    for (int s = 0; s < S; s++) {
      load_floats<V>(xs[s], x + (long long)s * width + column);
#pragma unroll
      for (int v = 0; v < V; v++) {
        u[v] = fmaf(a[s], xs[s][v], u[v]);
      }
    }
    f(column, u, xs);
  }
}

template <int S, int V>
DEVICE void hyper_norm(const element* x, const float* coefficients, const element* scale, const element* shift,
                       float epsilon, float* stats, element* out, int width) {
  float a[S];
#pragma unroll
  for (int s = 0; s < S; s++) {
    a[s] = coefficients[s];
  }
  float sum = 0.0f;
  for_inputs<S, V>(x, a, width, [&](int, const float (&u)[V], const float (&)[S][V]) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      sum += u[v];
    }
  });
  const float mean = warp_sum(sum) / width;
  float squares = 0.0f;
  for_inputs<S, V>(x, a, width, [&](int, const float (&u)[V], const float (&)[S][V]) {
#pragma unroll
    for (int v = 0; v < V; v++) {
      squares = fmaf(u[v] - mean, u[v] - mean, squares);
    }
  });
  const float rstd = 1.0f / sqrtf(warp_sum(squares) / width + epsilon);
  if (lane_id() == 0) {
    stats[0] = mean;
    stats[1] = rstd;
  }
  for_inputs<S, V>(x, a, width, [&](int column, const float (&u)[V], const float (&)[S][V]) {
    float gamma[V], beta[V], y[V];
    load_floats<V>(gamma, scale + column);
    load_floats<V>(beta, shift + column);
#pragma unroll
    for (int v = 0; v < V; v++) {
      y[v] = fmaf((u[v] - mean) * rstd, 1.0f + gamma[v], beta[v]);
    }
    put_vector<V>(out + column, y, 0);
  });
}

KERNEL(hyper_connection_norm, 256, 1)
(const element* __restrict__ x, const float* __restrict__ coefficients, const element* __restrict__ m,
 long long scale, long long shift, long long stride, int group_tokens, float epsilon, float* __restrict__ stats,
 element* __restrict__ out, int tokens, int streams, int width) {
  const int token = blockIdx.x * (blockDim.x / WARP) + warp_id();
  if (token >= tokens) {
    return;
  }
  const element* own = m + token / group_tokens * stride;
  with_streams(streams, [&](auto count) {
    constexpr int S = count.value;
    with_width(width % WIDTH == 0, [&](auto n) {
      hyper_norm<S, n.value>(x + (long long)token * S * width, coefficients + (long long)token * S * (S + 2),
                             own + scale, own + shift, epsilon, stats + 2 * token, out + (long long)token * width,
                             width);
    });
  });
}

// Given dy [tokens, width], with g = (1 + γ) ∘ dy: du = r·(g - mean(g) - n·mean(g ∘ n)), dx_s (+)= a_s·du,
// da_s (+)= x_s·du, and in `partials` [blocks, 2, width] the sums of dy ∘ n and of dy over the tokens of this block. Each
// may be null. Without a token (-1), a warp only takes part in the sums.
template <int S, int V>
DEVICE void hyper_norm_backward(const element* x, const float* coefficients, const element* gamma,
                                const float* stats, const element* dy, element* dx, int add_x,
                                float* dcoefficients, int add_coefficients, float* partials, int token, int width,
                                float (&sums)[2][BLOCK_TOKENS][BLOCK_COLUMNS]) {
  const long long first = (long long)token * S * (S + 2), of_x = (long long)token * S * width;
  const long long of_y = (long long)token * width;
  float a[S] = {}, da[S] = {}, mean = 0.0f, rstd = 0.0f, mean_g = 0.0f, mean_gn = 0.0f;
  if (token >= 0) {
#pragma unroll
    for (int s = 0; s < S; s++) {
      a[s] = coefficients[first + s];
    }
    mean = stats[2 * token];
    rstd = stats[2 * token + 1];
    for_inputs<S, V>(x + of_x, a, width, [&](int column, const float (&u)[V], const float (&)[S][V]) {
      float w[V], d[V];
      load_floats<V>(w, gamma + column);
      load_floats<V>(d, dy + of_y + column);
#pragma unroll
      for (int v = 0; v < V; v++) {
        const float g = (1.0f + w[v]) * d[v];
        mean_g += g;
        mean_gn = fmaf(g, (u[v] - mean) * rstd, mean_gn);
      }
    });
    mean_g = warp_sum(mean_g) / width;
    mean_gn = warp_sum(mean_gn) / width;
  }
  for (int start = 0; start < width; start += WARP * V) {
    const int column = start + lane_id() * V;
    float of_gamma[V] = {}, of_beta[V] = {};
    if (token >= 0 && column < width) {
      float u[V] = {}, xs[S][V], w[V];
#pragma unroll
      for (int s = 0; s < S; s++) {
        load_floats<V>(xs[s], x + of_x + (long long)s * width + column);
#pragma unroll
        for (int v = 0; v < V; v++) {
          u[v] = fmaf(a[s], xs[s][v], u[v]);
        }
      }
      load_floats<V>(w, gamma + column);
      load_floats<V>(of_beta, dy + of_y + column);
      float du[V];
#pragma unroll
      for (int v = 0; v < V; v++) {
        const float n = (u[v] - mean) * rstd;
        of_gamma[v] = of_beta[v] * n;
        du[v] = rstd * ((1.0f + w[v]) * of_beta[v] - mean_g - n * mean_gn);
      }
#pragma unroll
      for (int s = 0; s < S; s++) {
        float d[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
          da[s] = fmaf(xs[s][v], du[v], da[s]);
          d[v] = a[s] * du[v];
        }
        if (dx != nullptr) {
          put_vector<V>(dx + of_x + (long long)s * width + column, d, add_x);
        }
      }
    }
    if (partials != nullptr) {
      float* to = partials + (long long)blockIdx.x * 2 * width;
      put_block_sums<V>(of_gamma, sums[0], to, start, width);
      put_block_sums<V>(of_beta, sums[1], to + width, start, width);
    }
  }
  if (dcoefficients != nullptr && token >= 0) {
#pragma unroll
    for (int s = 0; s < S; s++) {
      da[s] = warp_sum(da[s]);
    }
    put_coefficients<S>(dcoefficients + first, da, 0, add_coefficients);
  }
}

// Blocks: groups × parts, of 256 threads.
KERNEL(hyper_connection_norm_backward, 256, 1)
(const element* __restrict__ x, const float* __restrict__ coefficients, const element* __restrict__ m,
 long long scale, long long stride, int group_tokens, const float* __restrict__ stats,
 const element* __restrict__ dy, element* __restrict__ dx, int add_x, float* __restrict__ dcoefficients,
 int add_coefficients, float* __restrict__ partials, int parts, int streams, int width) {
  SHARED(float, sums, [2][BLOCK_TOKENS][BLOCK_COLUMNS]);
  const int group = blockIdx.x / parts, row = blockIdx.x % parts * BLOCK_TOKENS + warp_id();
  const int token = row < group_tokens ? group * group_tokens + row : -1;
  with_streams(streams, [&](auto count) {
    constexpr int S = count.value;
    with_width(width % WIDTH == 0, [&](auto n) {
      hyper_norm_backward<S, n.value>(x, coefficients, m + group * stride + scale, stats, dy, dx, add_x, dcoefficients,
                                      add_coefficients, partials, token, width, sums);
    });
  });
}
