// elements: f32 bf16 f16
// Interpolation to another grid size, channels last (interpolate/mod.rs). A thread computes 16 bytes of channels of a
// cell if their number allows it, otherwise one channel.

#include "rows.cuh"

// Quotient and remainder; 64-bit division only if needed, because it costs five times as much.
struct Division {
  int quotient, remainder;
};

DEVICE Division divide(long long a, long long b) {
  if ((a | b) >> 32 == 0) {
    unsigned x = (unsigned)a, y = (unsigned)b;
    return {(int)(x / y), (int)(x % y)};
  }
  return {(int)(a / b), (int)(a % b)};
}

// What a new cell reads along one axis: (1 - weight)·low + weight·high. Positions are exact.
struct Pair {
  int low, high;
  float weight;
};

DEVICE Pair pair(int at, int from, int to, int linear) {
  if (!linear) {
    int low = divide((long long)at * from, to).quotient;
    return {low, low, 0.0f};
  }
  // The position in units of 1/(2·to).
  Division position = divide(max((2LL * at + 1) * from - to, 0LL), 2LL * to);
  int low = position.quotient;
  return {low, min(low + 1, from - 1), (float)position.remainder / (float)(2LL * to)};
}

// The weight of old cell `old` in new cell `at`.
DEVICE float share(int old, int at, int from, int to, int linear) {
  Pair p = pair(at, from, to, linear);
  return (old == p.low ? 1.0f - p.weight : 0.0f) + (old == p.high ? p.weight : 0.0f);
}

// The first new cell that may read old cell `old`, and the first after it that does not.
DEVICE int first_with(int old, int from, int to, int linear) {
  if (!linear) {
    return divide((long long)old * to + from - 1, from).quotient;
  }
  // Where the position exceeds old - 1; a border cell is read by everything beyond it.
  long long passed = (2LL * old - 1) * to - from;
  return passed < 0 ? 0 : divide(passed, 2LL * from).quotient + 1;
}

DEVICE int end_with(int old, int from, int to, int linear) {
  if (!linear) {
    return first_with(old + 1, from, to, linear);
  }
  // Where it reaches old + 1.
  long long reached = (2LL * old + 3) * to - from;
  return reached < 0 ? 0 : min(divide(reached + 2LL * from - 1, 2LL * from).quotient, to);
}

template <int N>
DEVICE void add_weighted(float (&sum)[N], float weight, const element* from) {
  Vector<element, N> x = load_vector<N>(from);
#pragma unroll
  for (int i = 0; i < N; i++) {
    sum[i] = fmaf(weight, to_float(x.at[i]), sum[i]);
  }
}

// `cells` cells of y [B, to_rows, to_columns, channels] from x [B, rows, columns, channels].
KERNEL(interpolate_forward)
(const element* __restrict__ x, element* __restrict__ y, int cells, int rows, int columns,
 int to_rows, int to_columns, int channels, int linear) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    Pair row = pair(cell / to_columns % to_rows, rows, to_rows, linear);
    Pair column = pair(cell % to_columns, columns, to_columns, linear);
    long long sample = (long long)(cell / (to_rows * to_columns)) * rows * columns;
    const element* from = x + sample * channels + channel;
    float sum[N] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float weight = (i < 2 ? 1.0f - row.weight : row.weight) *
                     (i % 2 == 0 ? 1.0f - column.weight : column.weight);
      // Elements with weight zero are not read: they may be NaN.
      if (weight != 0.0f) {
        long long at = (long long)(i < 2 ? row.low : row.high) * columns;
        at += i % 2 == 0 ? column.low : column.high;
        add_weighted(sum, weight, from + at * channels);
      }
    }
    put_vector<N>(y + (long long)cell * channels + channel, sum, 0);
  });
}

// `cells` cells of dx (+)= the gradients of the new cells that read an old one, in order, given dy.
KERNEL(interpolate_backward)
(const element* __restrict__ dy, element* __restrict__ dx, int cells, int rows, int columns,
 int to_rows, int to_columns, int channels, int linear, int add) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    int row = cell / columns % rows, column = cell % columns;
    long long sample = (long long)(cell / (rows * columns)) * to_rows * to_columns;
    const element* from = dy + sample * channels + channel;
    float sum[N] = {};
    int row_end = end_with(row, rows, to_rows, linear);
    int column_begin = first_with(column, columns, to_columns, linear);
    int column_end = end_with(column, columns, to_columns, linear);
    for (int i = first_with(row, rows, to_rows, linear); i < row_end; i++) {
      float row_share = share(row, i, rows, to_rows, linear);
      for (int j = column_begin; j < column_end; j++) {
        float weight = row_share * share(column, j, columns, to_columns, linear);
        if (weight != 0.0f) {
          add_weighted(sum, weight, from + ((long long)i * to_columns + j) * channels);
        }
      }
    }
    put_vector<N>(dx + (long long)cell * channels + channel, sum, add);
  });
}
