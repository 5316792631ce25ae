// dtypes: f32 bf16 f16
// Hyper-connections (hyper_connection/mod.rs): the coefficients of each token, and the input of a branch.

#include "streams.cuh"

// What a norm counts at least.
constexpr float LEAST = 1e-12f;

// The token of this warp.
DEVICE int token_of_warp() { return blockIdx.x * (blockDim.x / WARP) + warp_id(); }

// V f32 weights, 16 bytes at a time if possible.
template <int V>
DEVICE void load_weights(float (&values)[V], const float* from) {
  constexpr int N = V % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int v = 0; v < V; v += N) {
    Vector<float, N> part = load_vector<N>(from + v);
#pragma unroll
    for (int i = 0; i < N; i++) {
      values[v + i] = part.at[i];
    }
  }
}

// features [tokens, S, S + 3]: the products of n_s = c·x_s with the rows of `weights` [S + 2, width], and c = √width/‖x_s‖.
template <int S, int V>
DEVICE void hyper_dots(const element* x, const float* weights, float* features, int token, int width) {
  float sums[S][S + 3] = {};
  for (int column = lane_id() * V; column < width; column += WARP * V) {
    float xs[S][V];
#pragma unroll
    for (int s = 0; s < S; s++) {
      load_floats<V>(xs[s], x + ((long long)token * S + s) * width + column);
#pragma unroll
      for (int v = 0; v < V; v++) {
        sums[s][S + 2] = fmaf(xs[s][v], xs[s][v], sums[s][S + 2]);
      }
    }
#pragma unroll
    for (int j = 0; j < S + 2; j++) {
      float w[V];
      load_weights<V>(w, weights + (long long)j * width + column);
#pragma unroll
      for (int s = 0; s < S; s++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
          sums[s][j] = fmaf(xs[s][v], w[v], sums[s][j]);
        }
      }
    }
  }
  float* to = features + (long long)token * S * (S + 3);
#pragma unroll
  for (int s = 0; s < S; s++) {
    const float c = sqrtf((float)width) / fmaxf(sqrtf(warp_sum(sums[s][S + 2])), LEAST);
#pragma unroll
    for (int j = 0; j < S + 3; j++) {
      const float value = j == S + 2 ? c : c * warp_sum(sums[s][j]);
      if (lane_id() == 0) {
        to[s * (S + 3) + j] = value;
      }
    }
  }
}

#define DOTS(name, S)                                                                                       \
  KERNEL(name, 256)                                                                                         \
  (const element* __restrict__ x, const float* __restrict__ weights, float* __restrict__ features,          \
   int tokens, int width) {                                                                                 \
    const int token = token_of_warp();                                                                      \
    if (token < tokens) {                                                                                   \
      with_width(width % WIDTH == 0, [&](auto n) { hyper_dots<S, n.value>(x, weights, features, token, width); }); \
    }                                                                                                       \
  }

DOTS(hyper_connection_dots_1, 1)
DOTS(hyper_connection_dots_2, 2)
DOTS(hyper_connection_dots_3, 3)
DOTS(hyper_connection_dots_4, 4)

// Given the gradients of the features [tokens, S, S + 3] (mixing.rs): dx_s (+)= Σ_j g_sj·weights_j - g_s,S+2·x_s, and the
// partial sums of the gradient of the weights, f32 [parts, S + 2, width], Σ g_sj·x_s over every parts-th token. Either
// may be null. A thread has V columns of every stream. Blocks: parts × ⌈width/(V·threads)⌉.
template <int S, int V>
DEVICE void hyper_columns(const element* __restrict__ x, const float* __restrict__ weights,
                          const float* __restrict__ gradients, element* __restrict__ dx, int add,
                          float* __restrict__ partials, int tokens, int width, int parts) {
  const int part = blockIdx.x % parts, column = (blockIdx.x / parts * blockDim.x + threadIdx.x) * V;
  if (column >= width) {
    return;
  }
  float w[S + 2][V], sums[S + 2][V] = {};
#pragma unroll
  for (int j = 0; j < S + 2; j++) {
    load_weights<V>(w[j], weights + (long long)j * width + column);
  }
#pragma unroll 1
  for (int token = part; token < tokens; token += parts) {
    const float* g = gradients + (long long)token * S * (S + 3);
#pragma unroll
    for (int s = 0; s < S; s++) {
      const long long at = ((long long)token * S + s) * width + column;
      float xs[V], d[V];
      load_floats<V>(xs, x + at);
      const float own = g[s * (S + 3) + S + 2];
#pragma unroll
      for (int v = 0; v < V; v++) {
        d[v] = -own * xs[v];
      }
#pragma unroll
      for (int j = 0; j < S + 2; j++) {
        const float factor = g[s * (S + 3) + j];
#pragma unroll
        for (int v = 0; v < V; v++) {
          d[v] = fmaf(factor, w[j][v], d[v]);
          sums[j][v] = fmaf(factor, xs[v], sums[j][v]);
        }
      }
      if (dx != nullptr) {
        put_vector<V>(dx + at, d, add);
      }
    }
  }
  if (partials != nullptr) {
#pragma unroll
    for (int j = 0; j < S + 2; j++) {
      store_floats<V>(partials + ((long long)part * (S + 2) + j) * width + column, sums[j]);
    }
  }
}

#define COLUMNS(name, S)                                                                                    \
  KERNEL(name, 256)                                                                                         \
  (const element* __restrict__ x, const float* __restrict__ weights, const float* __restrict__ gradients,   \
   element* __restrict__ dx, int add, float* __restrict__ partials, int tokens, int width, int parts) {     \
    with_width(width % WIDTH == 0, [&](auto n) {                                                            \
      hyper_columns<S, n.value>(x, weights, gradients, dx, add, partials, tokens, width, parts);            \
    });                                                                                                     \
  }

COLUMNS(hyper_connection_columns_1, 1)
COLUMNS(hyper_connection_columns_2, 2)
COLUMNS(hyper_connection_columns_3, 3)
COLUMNS(hyper_connection_columns_4, 4)

// out = Σ_s a_s·x_s [tokens, width].
KERNEL(hyper_connection_width, 256)
(const element* __restrict__ x, const float* __restrict__ coefficients, element* __restrict__ out,
 int tokens, int streams, int width) {
  with_unit(tokens, width, [&](auto n, int token, int column) {
    constexpr int V = n.value;
    with_streams(streams, [&](auto count) {
      constexpr int S = count.value;
      const float* c = coefficients + (long long)token * S * (S + 2);
      float sum[V] = {};
#pragma unroll
      for (int s = 0; s < S; s++) {
        float xs[V];
        load_floats<V>(xs, x + ((long long)token * S + s) * width + column);
#pragma unroll
        for (int v = 0; v < V; v++) {
          sum[v] = fmaf(c[s], xs[v], sum[v]);
        }
      }
      put_vector<V>(out + (long long)token * width + column, sum, 0);
    });
  });
}

// The gradients of x and of a, given that of the input of the branch, dy [tokens, width]: dx_s (+)= a_s·dy,
// da_s (+)= x_s·dy. Either may be null.
KERNEL(hyper_connection_width_backward, 256, 1)
(const element* __restrict__ x, const float* __restrict__ coefficients, const element* __restrict__ dy,
 element* __restrict__ dx, int add_x, float* __restrict__ dcoefficients, int add_coefficients, int tokens,
 int streams, int width) {
  const int token = token_of_warp();
  if (token >= tokens) {
    return;
  }
  with_streams(streams, [&](auto count) {
    constexpr int S = count.value;
    const long long first = (long long)token * S * (S + 2);
    float a[S], da[S] = {};
#pragma unroll
    for (int s = 0; s < S; s++) {
      a[s] = coefficients[first + s];
    }
    with_width(width % WIDTH == 0, [&](auto n) {
      constexpr int V = n.value;
      for (int column = lane_id() * V; column < width; column += WARP * V) {
        float ds[V];
        load_floats<V>(ds, dy + (long long)token * width + column);
#pragma unroll
        for (int s = 0; s < S; s++) {
          const long long at = ((long long)token * S + s) * width + column;
          if (dcoefficients != nullptr) {
            float xs[V];
            load_floats<V>(xs, x + at);
#pragma unroll
            for (int v = 0; v < V; v++) {
              da[s] = fmaf(xs[v], ds[v], da[s]);
            }
          }
          if (dx != nullptr) {
            float d[V];
#pragma unroll
            for (int v = 0; v < V; v++) {
              d[v] = a[s] * ds[v];
            }
            put_vector<V>(dx + at, d, add_x);
          }
        }
      }
    });
    if (dcoefficients != nullptr) {
#pragma unroll
      for (int s = 0; s < S; s++) {
        da[s] = warp_sum(da[s]);
      }
      put_coefficients<S>(dcoefficients + first, da, 0, add_coefficients);
    }
  });
}
