// elements: f32 bf16 f16
// A branch joins its trunk, with a gate or without.
//
// The gate of a row is offset + gate[group · stride + at ..]; groups have group_rows rows.

#include "flat.cuh"

// out = x + y, n elements.
KERNEL(residual_plain, 256)(
    const element* __restrict__ x, const element* __restrict__ y, element* __restrict__ out,
    long long n) {
  map_flat(x, y, out, n, 0, [](float x, float y) { return x + y; });
}

// What the kernels with a gate are given.
struct Gate {
  const element* gate;
  long long at;
  long long stride;
  int group_rows;
  int width;
  float offset;
};

// The rows and columns of this warp: tiles of 32 · V columns, `parts` of each group's rows.
struct Place {
  int group, part, column;
};

template <int V>
DEVICE Place residual_place(int width, int parts) {
  int tiles = (width + WARP * V - 1) / (WARP * V);
  int block = blockIdx.x;
  int tile = block % tiles;
  block /= tiles;
  return {block / parts, block % parts, (tile * WARP + lane_id()) * V};
}

template <int V>
DEVICE void residual_row_gate(float (&to)[V], Gate gate, Place place) {
  const element* from = gate.gate + gate.at + place.group * gate.stride + place.column;
  Vector<element, V> stored = load_vector<V>(from);
#pragma unroll
  for (int v = 0; v < V; v++) {
    to[v] = gate.offset + to_float(stored.at[v]);
  }
}

// out = x + gate ∘ y.
template <int V>
DEVICE void residual_forward(const element* x, const element* y, element* out, Gate gate, int parts) {
  Place place = residual_place<V>(gate.width, parts);
  if (place.column >= gate.width) {
    return;
  }
  float factor[V];
  residual_row_gate<V>(factor, gate, place);
  int warps = blockDim.x / WARP;
#pragma unroll 4
  for (int i = place.part * warps + warp_id(); i < gate.group_rows; i += parts * warps) {
    long long at = ((long long)place.group * gate.group_rows + i) * gate.width + place.column;
    Vector<element, V> xs = load_vector<V>(x + at), ys = load_vector<V>(y + at);
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      sum[v] = fmaf(factor[v], to_float(ys.at[v]), to_float(xs.at[v]));
    }
    put_vector<V>(out + at, sum, 0);
  }
}

KERNEL(residual_gated, 256)(
    const element* __restrict__ x, const element* __restrict__ y, const element* __restrict__ gate,
    long long at, element* __restrict__ out, int group_rows, int width, long long stride,
    float offset, int parts) {
  Gate g = {gate, at, stride, group_rows, width, offset};
  if (width % WIDTH == 0) {
    residual_forward<WIDTH>(x, y, out, g, parts);
  } else {
    residual_forward<1>(x, y, out, g, parts);
  }
}

// dbranch (+)= gate ∘ dy, and partials [groups, parts, 1, width] of dgate = Σ dy ∘ y; both may be null.
// Every warp sums over its rows, then the warps' sums are added in their order.
template <int V>
DEVICE void residual_backward(
    const element* y, const element* dy, element* dbranch, int add, float* partials, Gate gate,
    int parts, float (*sums)[WARP * WIDTH]) {
  Place place = residual_place<V>(gate.width, parts);
  int warps = blockDim.x / WARP;
  float total[V] = {};
  if (place.column < gate.width) {
    float factor[V];
    residual_row_gate<V>(factor, gate, place);
#pragma unroll 4
    for (int i = place.part * warps + warp_id(); i < gate.group_rows; i += parts * warps) {
      long long at = ((long long)place.group * gate.group_rows + i) * gate.width + place.column;
      Vector<element, V> ds = load_vector<V>(dy + at);
      if (partials != nullptr) {
        Vector<element, V> ys = load_vector<V>(y + at);
#pragma unroll
        for (int v = 0; v < V; v++) {
          total[v] = fmaf(to_float(ds.at[v]), to_float(ys.at[v]), total[v]);
        }
      }
      if (dbranch != nullptr) {
        float d[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
          d[v] = factor[v] * to_float(ds.at[v]);
        }
        put_vector<V>(dbranch + at, d, add);
      }
    }
  }
  if (partials == nullptr) {
    return;
  }
#pragma unroll
  for (int v = 0; v < V; v++) {
    sums[warp_id()][v * WARP + lane_id()] = total[v];
  }
  __syncthreads();
  if (warp_id() == 0 && place.column < gate.width) {
    for (int warp = 1; warp < warps; warp++) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        total[v] += sums[warp][v * WARP + lane_id()];
      }
    }
    long long row = (long long)place.group * parts + place.part;
    store_floats<V>(partials + row * gate.width + place.column, total);
  }
}

KERNEL(residual_gated_backward, 256)(
    const element* __restrict__ y, const element* __restrict__ gate, long long at,
    const element* __restrict__ dy, element* __restrict__ dbranch, int add,
    float* __restrict__ partials, int group_rows, int width, long long stride, float offset,
    int parts) {
  SHARED(float, sums, [8][WARP * WIDTH]);
  Gate g = {gate, at, stride, group_rows, width, offset};
  if (width % WIDTH == 0) {
    residual_backward<WIDTH>(y, dy, dbranch, add, partials, g, parts, sums);
  } else {
    residual_backward<1>(y, dy, dbranch, add, partials, g, parts, sums);
  }
}
