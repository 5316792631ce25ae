// A row of a matrix, shared out to the registers of a team of threads: a warp, or a whole block.
//
// A thread holds COUNT vectors of V elements; those of a team lie side by side, so that a load of all
// its threads is one stretch of memory. V = WIDTH (16 bytes) wants rows that are a multiple of it.

#pragma once

#include "element.cuh"
#include "warp.cuh"

// Most columns that a thread holds; a row of up to 32 times as many is a warp's.
constexpr int COLUMNS = 16;

// A team's threads: how many there are, and which this is.
template <bool BLOCK>
DEVICE int team_size() { return BLOCK ? (int)blockDim.x : WARP; }
template <bool BLOCK>
DEVICE int team_rank() { return BLOCK ? (int)threadIdx.x : lane_id(); }

// Teams of a block, and which of them this is.
template <bool BLOCK>
DEVICE int teams() { return BLOCK ? 1 : (int)blockDim.x / WARP; }
template <bool BLOCK>
DEVICE int team_id() { return BLOCK ? 0 : warp_id(); }

// The sum over a team, in every thread; scratch of 32 shared floats for a block.
template <bool BLOCK>
DEVICE float team_sum(float x, float* scratch) { return BLOCK ? block_sum(x, scratch) : warp_sum(x); }

// The first column of this thread's j-th vector of V.
template <bool BLOCK, int V>
DEVICE int column_of(int j) { return (j * team_size<BLOCK>() + team_rank<BLOCK>()) * V; }

// A thread's share of a row; zeros beyond the end.
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

// V floats to aligned memory, 16 bytes at a time where there are as many.
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
