// dtypes: f32 bf16 f16
// Hyper-connections (hyper_connection/mod.rs): what reads or writes the streams x [tokens, S, width]. In dots and in the
// gradients of mixtures a warp handles a token, and a lane 16 bytes of each stream at a time if they divide a row,
// otherwise one element.
//
// Coefficients of a token [S·(S + 2)], f32: a [S], P [S, S] by source and target, β [S].

#include "rows.cuh"

// What a norm counts at least.
constexpr float LEAST = 1e-12f;

// The token of this warp.
DEVICE int token_of_warp() { return blockIdx.x * (blockDim.x / WARP) + warp_id(); }

template <int V>
DEVICE void load_floats(float (&values)[V], const element* from) {
  Vector<element, V> part = load_vector<V>(from);
#pragma unroll
  for (int v = 0; v < V; v++) {
    values[v] = to_float(part.at[v]);
  }
}

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

// Calls f(S) with the number of streams as a constant.
template <class F>
DEVICE void with_streams(int streams, F f) {
  if (streams == 1) {
    f(Constant<1>());
  } else if (streams == 2) {
    f(Constant<2>());
  } else if (streams == 3) {
    f(Constant<3>());
  } else {
    f(Constant<4>());
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

// Writes this token's gradients of the coefficients: `values`, of which there are `count` from `start` on, and zeros
// elsewhere; or adds the values.
template <int S, int COUNT>
DEVICE void put_coefficients(float* to, const float (&values)[COUNT], int start, int add) {
  if (lane_id() < S * (S + 2)) {
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      value = start + i == lane_id() ? values[i] : value;
    }
    to[lane_id()] = add ? to[lane_id()] + value : value;
  }
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

// out_t = Σ_s P_st·x_s + β_t·branch.
KERNEL(hyper_connection_depth, 256)
(const element* __restrict__ x, const float* __restrict__ coefficients, const element* __restrict__ branch,
 element* __restrict__ out, int tokens, int streams, int width) {
  with_unit(tokens, width, [&](auto n, int token, int column) {
    constexpr int V = n.value;
    with_streams(streams, [&](auto count) {
      constexpr int S = count.value;
      const float* c = coefficients + (long long)token * S * (S + 2);
      const long long at = (long long)token * S * width + column;
      Vector<element, V> xs[S];
#pragma unroll
      for (int s = 0; s < S; s++) {
        xs[s] = load_vector<V>(x + at + (long long)s * width);
      }
      const Vector<element, V> o = load_vector<V>(branch + (long long)token * width + column);
#pragma unroll
      for (int t = 0; t < S; t++) {
        float sum[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
          sum[v] = c[S * (S + 1) + t] * to_float(o.at[v]);
        }
#pragma unroll
        for (int s = 0; s < S; s++) {
#pragma unroll
          for (int v = 0; v < V; v++) {
            sum[v] = fmaf(c[S + s * S + t], to_float(xs[s].at[v]), sum[v]);
          }
        }
        put_vector<V>(out + at + (long long)t * width, sum, 0);
      }
    });
  });
}

// The gradients of x, P and β, and the output of the branch, given dy [tokens, S, width]: dx_s (+)= Σ_t P_st·dy_t,
// dP_st (+)= x_s·dy_t, dβ_t (+)= branch·dy_t, dbranch (+)= Σ_t β_t·dy_t. Each may be null.
template <int S, int V>
DEVICE void hyper_depth_backward(const element* x, const float* coefficients, const element* branch,
                                 const element* dy, element* dx, int add_x, float* dcoefficients,
                                 int add_coefficients, element* dbranch, int add_branch, int token, int width) {
  const long long first = (long long)token * S * (S + 2);
  float c[S * (S + 1)], dc[S * (S + 1)] = {};
#pragma unroll
  for (int i = 0; i < S * (S + 1); i++) {
    c[i] = coefficients[first + S + i];
  }
  for (int column = lane_id() * V; column < width; column += WARP * V) {
    const long long at = (long long)token * S * width + column, of_branch = (long long)token * width + column;
    Vector<element, V> ds[S];
#pragma unroll
    for (int t = 0; t < S; t++) {
      ds[t] = load_vector<V>(dy + at + (long long)t * width);
    }
#pragma unroll
    for (int s = 0; s <= S; s++) {
      // The streams, then the branch.
      const long long place = s < S ? at + (long long)s * width : of_branch;
      element* to = s < S ? dx : dbranch;
      if (dcoefficients != nullptr) {
        float xs[V];
        load_floats<V>(xs, (s < S ? x : branch) + place);
#pragma unroll
        for (int t = 0; t < S; t++) {
#pragma unroll
          for (int v = 0; v < V; v++) {
            dc[s * S + t] = fmaf(xs[v], to_float(ds[t].at[v]), dc[s * S + t]);
          }
        }
      }
      if (to != nullptr) {
        float d[V] = {};
#pragma unroll
        for (int t = 0; t < S; t++) {
#pragma unroll
          for (int v = 0; v < V; v++) {
            d[v] = fmaf(c[s * S + t], to_float(ds[t].at[v]), d[v]);
          }
        }
        put_vector<V>(to + place, d, s < S ? add_x : add_branch);
      }
    }
  }
  if (dcoefficients != nullptr) {
#pragma unroll
    for (int i = 0; i < S * (S + 1); i++) {
      dc[i] = warp_sum(dc[i]);
    }
    put_coefficients<S>(dcoefficients + first, dc, S, add_coefficients);
  }
}

#define DEPTH_BACKWARD(name, S)                                                                             \
  KERNEL(name, 256, 1)                                                                                      \
  (const element* __restrict__ x, const float* __restrict__ coefficients,                                   \
   const element* __restrict__ branch, const element* __restrict__ dy, element* __restrict__ dx, int add_x, \
   float* __restrict__ dcoefficients, int add_coefficients, element* __restrict__ dbranch, int add_branch,  \
   int tokens, int width) {                                                                                 \
    const int token = token_of_warp();                                                                      \
    if (token < tokens) {                                                                                   \
      with_width(width % WIDTH == 0, [&](auto n) {                                                          \
        hyper_depth_backward<S, n.value>(x, coefficients, branch, dy, dx, add_x, dcoefficients,             \
                                         add_coefficients, dbranch, add_branch, token, width);              \
      });                                                                                                   \
    }                                                                                                       \
  }

DEPTH_BACKWARD(hyper_connection_depth_backward_1, 1)
DEPTH_BACKWARD(hyper_connection_depth_backward_2, 2)
DEPTH_BACKWARD(hyper_connection_depth_backward_3, 3)
DEPTH_BACKWARD(hyper_connection_depth_backward_4, 4)
