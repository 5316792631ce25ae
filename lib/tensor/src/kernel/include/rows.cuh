// Rows of a matrix distributed over the registers of a team of threads: a warp or a whole block.
//
// A thread holds COUNT vectors of V elements; the vectors of a team are interleaved, so that each load of a team is
// contiguous. V = WIDTH (16 bytes) requires rows whose length is a multiple of it.

#pragma once

#include "element.cuh"
#include "warp.cuh"

// Maximum columns per thread; a warp handles rows of up to 32 times as many.
constexpr int COLUMNS = 16;

// Number of threads of a team, and the index of this thread.
template <bool BLOCK>
DEVICE int team_size() { return BLOCK ? (int)blockDim.x : WARP; }
template <bool BLOCK>
DEVICE int team_rank() { return BLOCK ? (int)threadIdx.x : lane_id(); }

// Number of teams of a block, and the index of this team.
template <bool BLOCK>
DEVICE int teams() { return BLOCK ? 1 : (int)blockDim.x / WARP; }
template <bool BLOCK>
DEVICE int team_id() { return BLOCK ? 0 : warp_id(); }

// The sum over a team, in every thread; for a block, `scratch` is 32 shared floats.
template <bool BLOCK>
DEVICE float team_sum(float x, float* scratch) { return BLOCK ? block_sum(x, scratch) : warp_sum(x); }

// Two sums over a team, in every thread. In a block, calls that follow one another alternate `turn` between 0 and 1, and
// so need one barrier each; `scratch` is 4 · 32 shared floats.
template <bool BLOCK>
DEVICE void team_sums(float& x, float& y, float* scratch, int turn) {
  x = warp_sum(x);
  y = warp_sum(y);
  if (!BLOCK) {
    return;
  }
  float* sums = scratch + turn * 2 * WARP;
  if (lane_id() == 0) {
    sums[warp_id()] = x;
    sums[WARP + warp_id()] = y;
  }
  __syncthreads();
  const bool is_warp = lane_id() < static_cast<int>(blockDim.x) / WARP;
  x = warp_sum(is_warp ? sums[lane_id()] : 0.0f);
  y = warp_sum(is_warp ? sums[WARP + lane_id()] : 0.0f);
}

// The first column of this thread's j-th vector of V elements.
template <bool BLOCK, int V>
DEVICE int column_of(int j) { return (j * team_size<BLOCK>() + team_rank<BLOCK>()) * V; }

// A thread's share of a row; zeros past its end.
template <bool BLOCK, int V, int COUNT>
DEVICE void load_row(Vector<element, V> (&share)[COUNT], const element* row, int width) {
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    int column = column_of<BLOCK, V>(j);
    if (column < width) {
      share[j] = load_vector<V>(row + column);
    } else {
#pragma unroll
      for (int v = 0; v < V; v++) {
        share[j].at[v] = from_float<element>(0.0f);
      }
    }
  }
}

// N as an argument: `n.value` is a constant in the function that receives it.
template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls f(N): N = WIDTH if `whole`, otherwise 1.
template <class F>
DEVICE void with_width(bool whole, F f) {
  if (whole) {
    f(Constant<WIDTH>());
  } else {
    f(Constant<1>());
  }
}

// Calls f(N, row, column) for this thread's N adjacent elements of `rows` rows of `width` elements: N = WIDTH
// (16 bytes) if the width is a multiple of it, otherwise 1 (kernel/units.rs).
template <class F>
DEVICE void with_unit(int rows, int width, F f) {
  with_width(width % WIDTH == 0, [&](auto n) {
    constexpr int N = n.value;
    int unit = blockIdx.x * blockDim.x + threadIdx.x;
    int row = unit / (width / N);
    if (row < rows) {
      f(n, row, unit % (width / N) * N);
    }
  });
}

// Calls f(N, i) for the groups of N adjacent elements of this thread among the `count` elements of its block: N = 4 if
// `whole`, otherwise 1.
template <class F>
DEVICE void for_units(int count, bool whole, F f) {
  if (whole) {
    for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
      f(Constant<4>(), i);
    }
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      f(Constant<1>(), i);
    }
  }
}

// to (+)= values, V of them.
template <int V>
DEVICE void put_vector(element* to, const float (&values)[V], int add) {
  Vector<element, V> out;
  if (add) {
    Vector<element, V> old = load_vector<V>(to);
#pragma unroll
    for (int v = 0; v < V; v++) {
      out.at[v] = from_float<element>(to_float(old.at[v]) + values[v]);
    }
  } else {
#pragma unroll
    for (int v = 0; v < V; v++) {
      out.at[v] = from_float<element>(values[v]);
    }
  }
  store_vector(to, out);
}

// Writes V floats to aligned memory, 16 bytes at a time if possible.
template <int V>
DEVICE void store_floats(float* to, const float (&values)[V]) {
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int v = 0; v < V; v += 4) {
      store_vector(to + v, Vector<float, 4>{{values[v], values[v + 1], values[v + 2], values[v + 3]}});
    }
  } else {
#pragma unroll
    for (int v = 0; v < V; v++) {
      to[v] = values[v];
    }
  }
}
