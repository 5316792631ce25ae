// elements: f32 bf16 f16
// Pooling over windows of a grid, channels last (pool/mod.rs). A thread computes 16 bytes of channels of a cell if
// their number allows it, otherwise one channel.

#include "rows.cuh"

// Sample, row and column of a cell of a grid.
struct Cell {
  int sample, row, column;
};

DEVICE Cell split(int cell, int rows, int columns) {
  return {cell / (rows * columns), cell / columns % rows, cell % columns};
}

// `cells` cells of y [B, to_rows, to_columns, channels] from x [B, rows, columns, channels]: the maximum if `chosen`
// (shaped like y) is given, which receives the index of its cell in the window, otherwise the mean.
KERNEL(pool_forward)
(const element* __restrict__ x, element* __restrict__ y, int* __restrict__ chosen, int cells,
 int rows, int columns, int to_rows, int to_columns, int channels, int window_rows,
 int window_columns, int row_stride, int column_stride) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    Cell to = split(cell, to_rows, to_columns);
    float value[N] = {};
    int which[N] = {};
    for (int p = 0; p < window_rows; p++) {
      for (int q = 0; q < window_columns; q++) {
        int row = to.row * row_stride + p, column = to.column * column_stride + q;
        long long from = ((long long)to.sample * rows + row) * columns + column;
        Vector<element, N> seen = load_vector<N>(x + from * channels + channel);
        int tap = p * window_columns + q;
#pragma unroll
        for (int i = 0; i < N; i++) {
          float a = to_float(seen.at[i]);
          if (chosen == nullptr) {
            value[i] += a;
          } else if (tap == 0 || a > value[i] || a != a) {
            value[i] = a;
            which[i] = tap;
          }
        }
      }
    }
    float share = chosen == nullptr ? 1.0f / (float)(window_rows * window_columns) : 1.0f;
    long long at = (long long)cell * channels + channel;
#pragma unroll
    for (int i = 0; i < N; i++) {
      value[i] *= share;
    }
    put_vector<N>(y + at, value, 0);
    if (chosen != nullptr) {
      constexpr int INTS = N < 4 ? N : 4;
#pragma unroll
      for (int i = 0; i < N; i += INTS) {
        Vector<int, INTS> part;
#pragma unroll
        for (int j = 0; j < INTS; j++) {
          part.at[j] = which[i + j];
        }
        store_vector(chosen + at + i, part);
      }
    }
  });
}

// `cells` cells of dx (+)= the gradients of the windows that contain a cell, in order, given dy and, for maxima,
// `chosen`.
KERNEL(pool_backward)
(const element* __restrict__ dy, const int* __restrict__ chosen, element* __restrict__ dx,
 int cells, int rows, int columns, int to_rows, int to_columns, int channels, int window_rows,
 int window_columns, int row_stride, int column_stride, int add) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    Cell at = split(cell, rows, columns);
    float sum[N] = {};
    int row_begin = max(at.row - window_rows + row_stride, 0) / row_stride;
    int column_begin = max(at.column - window_columns + column_stride, 0) / column_stride;
    int row_end = min(at.row / row_stride + 1, to_rows);
    int column_end = min(at.column / column_stride + 1, to_columns);
    for (int row = row_begin; row < row_end; row++) {
      for (int column = column_begin; column < column_end; column++) {
        long long from = ((long long)at.sample * to_rows + row) * to_columns + column;
        from = from * channels + channel;
        Vector<element, N> d = load_vector<N>(dy + from);
        int tap = (at.row - row * row_stride) * window_columns + at.column - column * column_stride;
#pragma unroll
        for (int i = 0; i < N; i++) {
          bool own = chosen == nullptr || chosen[from + i] == tap;
          sum[i] += own ? to_float(d.at[i]) : 0.0f;
        }
      }
    }
    float share = chosen == nullptr ? 1.0f / (float)(window_rows * window_columns) : 1.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      sum[i] *= share;
    }
    put_vector<N>(dx + (long long)cell * channels + channel, sum, add);
  });
}
