// Rows of a matrix: which elements a thread handles, in vectors of 16 bytes where rows allow it, and how it writes them.

#pragma once

#include "element.cuh"
#include "warp.cuh"

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
