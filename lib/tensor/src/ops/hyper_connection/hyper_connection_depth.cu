// dtypes: f32 bf16 f16
// Hyper-connections (hyper_connection/mod.rs): the streams after a branch.

#include "streams.cuh"

// out_t = Σ_s P_st·x_s + β_t·w ∘ branch, with w = 1 + g, or 1 if m is null. The g of the first group of tokens begins at
// `start` of m, those of the next groups `stride` elements further.
KERNEL(hyper_connection_depth, 256)
(const element* __restrict__ x, const float* __restrict__ coefficients, const element* __restrict__ branch,
 const element* __restrict__ m, long long start, long long stride, int group_tokens, element* __restrict__ out,
 int tokens, int streams, int width) {
  with_unit(tokens, width, [&](auto n, int token, int column) {
    constexpr int V = n.value;
    float o[V];
    load_floats<V>(o, branch + (long long)token * width + column);
    if (m != nullptr) {
      float g[V];
      load_floats<V>(g, m + start + token / group_tokens * stride + column);
#pragma unroll
      for (int v = 0; v < V; v++) {
        o[v] *= 1.0f + g[v];
      }
    }
    with_streams(streams, [&](auto count) {
      constexpr int S = count.value;
      const float* c = coefficients + (long long)token * S * (S + 2);
      const long long at = (long long)token * S * width + column;
      Vector<element, V> xs[S];
#pragma unroll
      for (int s = 0; s < S; s++) {
        xs[s] = load_vector<V>(x + at + (long long)s * width);
      }
#pragma unroll
      for (int t = 0; t < S; t++) {
        float sum[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
          sum[v] = c[S * (S + 1) + t] * o[v];
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

// The gradients of x, P and β, the output of the branch and g, given dy [tokens, S, width]: dx_s (+)= Σ_t P_st·dy_t,
// dP_st (+)= x_s·dy_t, dβ_t (+)= (w ∘ branch)·dy_t, dbranch (+)= w ∘ q, where q = Σ_t β_t·dy_t, and in `partials`
// [blocks, width] the sum of branch ∘ q over the tokens of this block. Each may be null. g is that of the block's group,
// or null; without a token (-1), a warp only takes part in the sums.
template <int S, int V>
DEVICE void hyper_depth_backward(const element* x, const float* coefficients, const element* branch,
                                 const element* g, const element* dy, element* dx, int add_x, float* dcoefficients,
                                 int add_coefficients, element* dbranch, int add_branch, float* partials, int token,
                                 int width, float (&sums)[2][BLOCK_TOKENS][BLOCK_COLUMNS]) {
  const long long first = (long long)token * S * (S + 2);
  float c[S * (S + 1)] = {}, dc[S * (S + 1)] = {};
  if (token >= 0) {
#pragma unroll
    for (int i = 0; i < S * (S + 1); i++) {
      c[i] = coefficients[first + S + i];
    }
  }
  for (int start = 0; start < width; start += WARP * V) {
    const int column = start + lane_id() * V;
    float dg[V] = {};
    if (token >= 0 && column < width) {
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
        float xs[V] = {}, w[V];
        if (dcoefficients != nullptr || (s == S && partials != nullptr)) {
          load_floats<V>(xs, (s < S ? x : branch) + place);
        }
        const bool scaled = s == S && g != nullptr;
        if (scaled) {
          load_floats<V>(w, g + column);
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
          w[v] = scaled ? 1.0f + w[v] : 1.0f;
        }
        if (dcoefficients != nullptr) {
#pragma unroll
          for (int t = 0; t < S; t++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
              dc[s * S + t] = fmaf(w[v] * xs[v], to_float(ds[t].at[v]), dc[s * S + t]);
            }
          }
        }
        if (to != nullptr || (s == S && partials != nullptr)) {
          float d[V] = {};
#pragma unroll
          for (int t = 0; t < S; t++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
              d[v] = fmaf(c[s * S + t], to_float(ds[t].at[v]), d[v]);
            }
          }
#pragma unroll
          for (int v = 0; v < V; v++) {
            dg[v] = s == S ? d[v] * xs[v] : 0.0f;
            d[v] *= w[v];
          }
          if (to != nullptr) {
            put_vector<V>(to + place, d, s < S ? add_x : add_branch);
          }
        }
      }
    }
    if (partials != nullptr) {
      // Two parts in turn.
      put_block_sums<V>(dg, sums[start / (WARP * V) % 2], partials + (long long)blockIdx.x * width, start, width);
    }
  }
  if (dcoefficients != nullptr && token >= 0) {
#pragma unroll
    for (int i = 0; i < S * (S + 1); i++) {
      dc[i] = warp_sum(dc[i]);
    }
    put_coefficients<S>(dcoefficients + first, dc, S, add_coefficients);
  }
}

// Blocks: groups × parts, of 256 threads.
#define DEPTH_BACKWARD(name, S)                                                                              \
  KERNEL(name, 256, 1)                                                                                       \
  (const element* __restrict__ x, const float* __restrict__ coefficients,                                    \
   const element* __restrict__ branch, const element* __restrict__ m, long long start, long long stride,     \
   int group_tokens, const element* __restrict__ dy, element* __restrict__ dx, int add_x,                    \
   float* __restrict__ dcoefficients, int add_coefficients, element* __restrict__ dbranch, int add_branch,   \
   float* __restrict__ partials, int parts, int width) {                                                     \
    SHARED(float, sums, [2][BLOCK_TOKENS][BLOCK_COLUMNS]);                                                   \
    const int group = blockIdx.x / parts, row = blockIdx.x % parts * BLOCK_TOKENS + warp_id();               \
    const int token = row < group_tokens ? group * group_tokens + row : -1;                                  \
    const element* g = m == nullptr ? nullptr : m + start + group * stride;                                  \
    with_width(width % WIDTH == 0, [&](auto n) {                                                             \
      hyper_depth_backward<S, n.value>(x, coefficients, branch, g, dy, dx, add_x, dcoefficients,             \
                                       add_coefficients, dbranch, add_branch, partials, token, width, sums); \
    });                                                                                                      \
  }

DEPTH_BACKWARD(hyper_connection_depth_backward_1, 1)
DEPTH_BACKWARD(hyper_connection_depth_backward_2, 2)
DEPTH_BACKWARD(hyper_connection_depth_backward_3, 3)
DEPTH_BACKWARD(hyper_connection_depth_backward_4, 4)
