// Residual streams x [tokens, S, width] of hyper-connections (ops/hyper_connection/mod.rs), of which a warp handles a
// token, and a lane 16 bytes of each stream at a time if they divide a row, otherwise one element.
//
// Coefficients of a token [S·(S + 2)], f32: a [S], P [S, S] by source and target, β [S].

#pragma once

#include "rows.cuh"

// Tokens of a block in a backward pass with sums over tokens, one per warp, and the columns that they handle at a time at
// most.
constexpr int BLOCK_TOKENS = 8;
constexpr int BLOCK_COLUMNS = WARP * WIDTH;

// to[column] = the sum over the warps of a block, where a lane has V values, for WARP·V columns from `start` on; `width`
// bounds them. Between two calls with the same `part`, all threads must pass another barrier.
template <int V>
DEVICE void put_block_sums(const float (&values)[V], float (&part)[BLOCK_TOKENS][BLOCK_COLUMNS], float* to, int start,
                           int width) {
#pragma unroll
  for (int v = 0; v < V; v++) {
    part[warp_id()][lane_id() * V + v] = values[v];
  }
  __syncthreads();
  const int i = threadIdx.x;
  if (i < WARP * V && start + i < width) {
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < BLOCK_TOKENS; warp++) {
      total += part[warp][i];
    }
    to[start + i] = total;
  }
}

template <int V>
DEVICE void load_floats(float (&values)[V], const element* from) {
  Vector<element, V> part = load_vector<V>(from);
#pragma unroll
  for (int v = 0; v < V; v++) {
    values[v] = to_float(part.at[v]);
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
