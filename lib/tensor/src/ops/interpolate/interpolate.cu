// dtypes: f32 bf16 f16
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

// The weight of old cell `old` in new cell `at`: what pair(at, ...) gives it, without its division.
DEVICE float share(int old, int at, int from, int to, int linear) {
  if (!linear) {
    long long beyond = (long long)at * from - (long long)old * to;
    return beyond >= 0 && beyond < to ? 1.0f : 0.0f;
  }
  long long unit = 2LL * to, beyond = max((2LL * at + 1) * from - to, 0LL) - old * unit;
  if (beyond <= -unit || beyond >= unit) {
    return 0.0f;
  }
  if (beyond < 0) {
    return (float)(int)(beyond + unit) / (float)unit;
  }
  float weight = (float)(int)beyond / (float)unit;
  // The last cell is its own neighbour.
  return 1.0f - weight + (old == from - 1 ? weight : 0.0f);
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

// `cells` cells of y [B, to_depth, to_rows, to_columns, channels] from x [B, depth, rows, columns, channels].
KERNEL(interpolate_forward)
(const element* __restrict__ x, element* __restrict__ y, int cells, int depth, int rows,
 int columns, int to_depth, int to_rows, int to_columns, int channels, int linear) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    int line = cell / to_columns, layer = line / to_rows, sample = layer / to_depth;
    Pair plane = pair(layer % to_depth, depth, to_depth, linear);
    Pair row = pair(line % to_rows, rows, to_rows, linear);
    Pair column = pair(cell % to_columns, columns, to_columns, linear);
    const element* from = x + (long long)sample * depth * rows * columns * channels + channel;
    float sum[N] = {};
    for (int p = 0; p < 2; p++) {
      float share = p == 0 ? 1.0f - plane.weight : plane.weight;
      // Elements with weight zero are not read: they may be NaN.
      if (share == 0.0f) {
        continue;
      }
      long long first = (long long)(p == 0 ? plane.low : plane.high) * rows;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float weight = share * (i < 2 ? 1.0f - row.weight : row.weight) *
                       (i % 2 == 0 ? 1.0f - column.weight : column.weight);
        if (weight != 0.0f) {
          long long at = (first + (i < 2 ? row.low : row.high)) * columns;
          at += i % 2 == 0 ? column.low : column.high;
          add_weighted(sum, weight, from + at * channels);
        }
      }
    }
    put_vector<N>(y + (long long)cell * channels + channel, sum, 0);
  });
}

// The new cells along one axis that may read an old one: from `begin` to before `end`.
struct Cells {
  int begin, end;
};

DEVICE Cells readers(int old, int from, int to, int linear) {
  return {first_with(old, from, to, linear), end_with(old, from, to, linear)};
}

// `cells` cells of dx (+)= the gradients of the new cells that read an old one, in order, given dy.
KERNEL(interpolate_backward)
(const element* __restrict__ dy, element* __restrict__ dx, int cells, int depth, int rows,
 int columns, int to_depth, int to_rows, int to_columns, int channels, int linear, int add) {
  with_unit(cells, channels, [&](auto n, int cell, int channel) {
    constexpr int N = n.value;
    int line = cell / columns, layer = line / rows, sample = layer / depth;
    int plane = layer % depth, row = line % rows, column = cell % columns;
    const element* from =
        dy + (long long)sample * to_depth * to_rows * to_columns * channels + channel;
    float sum[N] = {};
    Cells planes = readers(plane, depth, to_depth, linear);
    Cells lines = readers(row, rows, to_rows, linear);
    Cells others = readers(column, columns, to_columns, linear);
    for (int i = planes.begin; i < planes.end; i++) {
      float plane_share = share(plane, i, depth, to_depth, linear);
      for (int j = lines.begin; j < lines.end; j++) {
        float line_share = plane_share * share(row, j, rows, to_rows, linear);
        // Unrolled, it takes a third more registers.
#pragma unroll 1
        for (int k = others.begin; k < others.end; k++) {
          float weight = line_share * share(column, k, columns, to_columns, linear);
          if (weight != 0.0f) {
            long long at = ((long long)i * to_rows + j) * to_columns + k;
            add_weighted(sum, weight, from + at * channels);
          }
        }
      }
    }
    put_vector<N>(dx + (long long)cell * channels + channel, sum, add);
  });
}
