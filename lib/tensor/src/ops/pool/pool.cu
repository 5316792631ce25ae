// dtypes: f32 bf16 f16
// Pooling over windows of a grid, channels last (pool/mod.rs). A thread computes 16 bytes of channels of a cell if
// their number allows it, otherwise one channel.

#include "rows.cuh"

// Sample, plane, row and column of a cell of a grid.
struct Cell {
  int sample, plane, row, column;
};

DEVICE Cell split(int cell, int depth, int rows, int columns) {
  int line = cell / columns, plane = line / rows;
  return {plane / depth, plane % depth, line % rows, cell % columns};
}

// The sizes of x [B, depth, rows, columns, channels] and y [B, to_depth, ..], of the window and of its stride.
#define SIZES                                                                                     \
  int depth, int rows, int columns, int to_depth, int to_rows, int to_columns, int channels,      \
      int window_depth, int window_rows, int window_columns, int depth_stride, int row_stride,    \
      int column_stride

// `cells` cells of y from x: the maximum if `chosen` (shaped like y) is given, which receives the index of its cell in
// the window, otherwise the mean.
KERNEL(pool_forward)
(const element* __restrict__ x, element* __restrict__ y, int* __restrict__ chosen, int cells,
 SIZES) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    Cell to = split(cell, to_depth, to_rows, to_columns);
    float value[N] = {};
    int which[N] = {};
    int tap = 0;
    for (int p = 0; p < window_depth; p++) {
      int plane = to.sample * depth + to.plane * depth_stride + p;
      for (int q = 0; q < window_rows; q++) {
        int line = to.row * row_stride + q;
        for (int r = 0; r < window_columns; r++, tap++) {
          int column = to.column * column_stride + r;
          long long from = ((long long)plane * rows + line) * columns + column;
          Vector<element, N> seen = load_vector<N>(x + from * channels + channel);
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
    }
    float share =
        chosen == nullptr ? 1.0f / (float)(window_depth * window_rows * window_columns) : 1.0f;
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

// The windows along one axis that contain cell `at`: from `begin` to before `end`.
struct Windows {
  int begin, end;
};

DEVICE Windows around(int at, int window, int stride, int count) {
  return {max(at - window + stride, 0) / stride, min(at / stride + 1, count)};
}

// `cells` cells of dx (+)= the gradients of the windows that contain a cell, in order, given dy and, for maxima,
// `chosen`.
KERNEL(pool_backward)
(const element* __restrict__ dy, const int* __restrict__ chosen, element* __restrict__ dx,
 int cells, SIZES, int add) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    Cell at = split(cell, depth, rows, columns);
    float sum[N] = {};
    Windows planes = around(at.plane, window_depth, depth_stride, to_depth);
    Windows lines = around(at.row, window_rows, row_stride, to_rows);
    Windows others = around(at.column, window_columns, column_stride, to_columns);
    for (int plane = planes.begin; plane < planes.end; plane++) {
      int p = at.plane - plane * depth_stride;
      for (int line = lines.begin; line < lines.end; line++) {
        int q = p * window_rows + at.row - line * row_stride;
        for (int column = others.begin; column < others.end; column++) {
          int tap = q * window_columns + at.column - column * column_stride;
          long long from = (long long)at.sample * to_depth + plane;
          from = ((from * to_rows + line) * to_columns + column) * channels + channel;
          Vector<element, N> d = load_vector<N>(dy + from);
#pragma unroll
          for (int i = 0; i < N; i++) {
            bool own = chosen == nullptr || chosen[from + i] == tap;
            sum[i] += own ? to_float(d.at[i]) : 0.0f;
          }
        }
      }
    }
    float share =
        chosen == nullptr ? 1.0f / (float)(window_depth * window_rows * window_columns) : 1.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      sum[i] *= share;
    }
    put_vector<N>(dx + (long long)cell * channels + channel, sum, add);
  });
}
