// elements: f32 bf16 f16
// Depthwise convolution over a grid of tokens (depthwise_conv/mod.rs). A thread computes 16 bytes of channels if their
// number allows it, otherwise one channel. The neighbours of a token are read through the L1 cache.

#include "rows.cuh"

// The grid and the filter; the same for every kernel.
struct Grid {
  int rows, columns, filter_rows, filter_columns, channels, periodic;
};

// `at` + `step` along an axis of `length`; negative in zero padding.
DEVICE int neighbour(int at, int step, int length, int periodic) {
  int moved = at + step;
  if (periodic) {
    while (moved < 0) {
      moved += length;
    }
    while (moved >= length) {
      moved -= length;
    }
    return moved;
  }
  return moved < length ? moved : -1;
}

// The token that `tap` reads at (row, column) in the same sample, or -1. `sign` -1 flips the filter.
DEVICE int source(Grid g, int row, int column, int tap, int sign) {
  int p = tap / g.filter_columns, q = tap % g.filter_columns;
  int from_row = neighbour(row, sign * (p - g.filter_rows / 2), g.rows, g.periodic);
  int from_column = neighbour(column, sign * (q - g.filter_columns / 2), g.columns, g.periodic);
  return from_row < 0 || from_column < 0 ? -1 : from_row * g.columns + from_column;
}

// y [tokens, channels] (+)= x convolved with the filter w [taps, channels], plus `bias` unless null. `sign` -1 flips
// the filter, which gives the gradient of x from that of y.
KERNEL(depthwise_conv_apply)
(const element* __restrict__ x, const element* __restrict__ w, const element* __restrict__ bias,
 element* __restrict__ y, int tokens, int rows, int columns, int filter_rows, int filter_columns,
 int channels, int periodic, int sign, int add) {
  Grid g{rows, columns, filter_rows, filter_columns, channels, periodic};
  with_unit(tokens, channels, [&](auto n, int token, int channel) {
    constexpr int N = n.value;
    int sample = token / (g.rows * g.columns) * (g.rows * g.columns);
    int row = (token - sample) / g.columns, column = (token - sample) % g.columns;
    float sum[N] = {};
    if (bias != nullptr) {
      Vector<element, N> b = load_vector<N>(bias + channel);
#pragma unroll
      for (int i = 0; i < N; i++) {
        sum[i] = to_float(b.at[i]);
      }
    }
#pragma unroll 4
    for (int tap = 0; tap < g.filter_rows * g.filter_columns; tap++) {
      int from = source(g, row, column, tap, sign);
      if (from < 0) {
        continue;
      }
      Vector<element, N> a = load_vector<N>(x + (long long)(sample + from) * g.channels + channel);
      Vector<element, N> f = load_vector<N>(w + (long long)tap * g.channels + channel);
#pragma unroll
      for (int i = 0; i < N; i++) {
        sum[i] = fmaf(to_float(f.at[i]), to_float(a.at[i]), sum[i]);
      }
    }
    put_vector<N>(y + (long long)token * g.channels + channel, sum, add);
  });
}

// Sums over chunks of tokens: dw [chunks, taps, channels].
KERNEL(depthwise_conv_filter)
(const element* __restrict__ x, const element* __restrict__ dy, float* __restrict__ dw, int tokens,
 int chunk_tokens, int chunks, int rows, int columns, int filter_rows, int filter_columns, int channels,
 int periodic) {
  Grid g{rows, columns, filter_rows, filter_columns, channels, periodic};
  int taps = filter_rows * filter_columns, cells = rows * columns;
  with_unit(chunks * taps, channels, [&](auto n, int part, int channel) {
    constexpr int N = n.value;
    int tap = part % taps, begin = part / taps * chunk_tokens, end = min(begin + chunk_tokens, tokens);
    int sample = begin / cells * cells;
    int row = (begin - sample) / g.columns, column = (begin - sample) % g.columns;
    float sum[N] = {};
    for (int token = begin; token < end; token++) {
      int from = source(g, row, column, tap, 1);
      if (from >= 0) {
        Vector<element, N> d = load_vector<N>(dy + (long long)token * g.channels + channel);
        const element* seen = x + (long long)(sample + from) * g.channels + channel;
        Vector<element, N> a = load_vector<N>(seen);
#pragma unroll
        for (int i = 0; i < N; i++) {
          sum[i] = fmaf(to_float(d.at[i]), to_float(a.at[i]), sum[i]);
        }
      }
      column++;
      if (column == g.columns) {
        column = 0;
        row++;
      }
      if (row == g.rows) {
        row = 0;
        sample += cells;
      }
    }
    store_floats<N>(dw + (long long)part * g.channels + channel, sum);
  });
}
