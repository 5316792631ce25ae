// Rows of a matrix distributed over the registers of a team of threads: a warp or a whole block.
//
// A thread holds COUNT vectors of V elements; the vectors of a team are interleaved, so that each load of a team is
// contiguous. V = WIDTH (16 bytes) requires rows whose length is a multiple of it.

#pragma once

#include "rows.cuh"

// Maximum columns per thread in vectors of V elements: four vectors of 16 bytes, so that enough loads are in flight, or
// 16 single elements. A warp handles rows of up to 32 times as many.
template <int V>
constexpr int COLUMNS = V > 1 ? 4 * V : 16;

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

// The sum over a team, in every thread. In a block it takes one barrier: `scratch` is 32 shared floats that nothing else
// in the kernel writes.
template <bool BLOCK>
DEVICE float team_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (!BLOCK) {
    return x;
  }
  if (lane_id() == 0) {
    scratch[warp_id()] = x;
  }
  __syncthreads();
  return warp_sum(lane_id() < static_cast<int>(blockDim.x) / WARP ? scratch[lane_id()] : 0.0f);
}

// Two sums over each team of `warps` warps of a block, in every thread; all teams must call. Calls that follow one
// another alternate `turn` between 0 and 1, and so need one barrier each; `scratch` is 4 · 32 shared floats.
DEVICE void team_sums(float& x, float& y, float* scratch, int team, int warps, int turn) {
  x = warp_sum(x);
  y = warp_sum(y);
  if (warps == 1) {
    return;
  }
  float* sums = scratch + turn * 2 * WARP;
  if (lane_id() == 0) {
    sums[warp_id()] = x;
    sums[WARP + warp_id()] = y;
  }
  __syncthreads();
  const bool is_warp = lane_id() < warps;
  sums += team * warps + lane_id();
  x = warp_sum(is_warp ? sums[0] : 0.0f);
  y = warp_sum(is_warp ? sums[WARP] : 0.0f);
}

// The first column of this thread's j-th vector of V elements.
template <bool BLOCK, int V>
DEVICE int column_of(int j) { return (j * team_size<BLOCK>() + team_rank<BLOCK>()) * V; }

// Loads V elements that a multiprocessor reads once: the lines of L1 are left to what it reads again.
template <int V>
DEVICE Vector<element, V> load_once(const element* from) {
#ifndef EMULATOR
  if constexpr (V == WIDTH) {
    union {
      uint4 words;
      Vector<element, V> value;
    } loaded;
    asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(loaded.words.x), "=r"(loaded.words.y), "=r"(loaded.words.z), "=r"(loaded.words.w)
        : "l"(__cvta_generic_to_global(from)));
    return loaded.value;
  }
#endif
  return load_vector<V>(from);
}

// A thread's share of a row that is read once; zeros past its end.
template <bool BLOCK, int V, int COUNT>
DEVICE void load_row(Vector<element, V> (&share)[COUNT], const element* row, int width) {
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    int column = column_of<BLOCK, V>(j);
    if (column < width) {
      share[j] = load_once<V>(row + column);
    } else {
#pragma unroll
      for (int v = 0; v < V; v++) {
        share[j].at[v] = from_float<element>(0.0f);
      }
    }
  }
}
