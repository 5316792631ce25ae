// dtypes: f32 bf16 f16
// Depthwise convolution over a grid of tokens (depthwise_conv/mod.rs). A thread computes RUN adjacent tokens of a row
// of the grid, 16 bytes of channels if their number allows it, otherwise one channel. It reads each row
// once; other threads that read the same find it in the L1 cache.

#include "divide.cuh"
#include "rows.cuh"

// Adjacent tokens of a thread (depthwise_conv/cuda.rs).
constexpr int RUN = 4;

// The grid and the filter; the same for every kernel.
struct Axis {
  Divisor length;
  int filter;
  int lift;  // a multiple of the length that is at least as large as half the filter
};

struct Grid {
  Axis row, column;
  int channels, periodic;

  DEVICE int rows() const { return row.length.by; }
  DEVICE int columns() const { return column.length.by; }
};

#define GRID_PARAMETERS                                                                   \
  DIVISOR_PARAMETERS(rows), int filter_rows, int row_lift, DIVISOR_PARAMETERS(columns), \
      int filter_columns, int column_lift, int channels, int periodic
#define GRID                                                                                        \
  Grid {                                                                                            \
    {DIVISOR(rows), filter_rows, row_lift}, {DIVISOR(columns), filter_columns, column_lift}, channels, \
        periodic                                                                                    \
  }

// Up to RUN tokens of a row, from `column`. `first` is the first token of the sample.
struct Run {
  int first, row, column;
};

DEVICE Run run_at(const Grid& g, int run) {
  int runs = (g.columns() + RUN - 1) / RUN;
  int line = run / runs, sample = divide(line, g.row.length);
  return {sample * g.rows() * g.columns(), line - sample * g.rows(), run % runs * RUN};
}

DEVICE void advance(const Grid& g, Run& run) {
  run.column += RUN;
  if (run.column >= g.columns()) {
    run.column = 0;
    run.row++;
  }
  if (run.row == g.rows()) {
    run.row = 0;
    run.first += g.rows() * g.columns();
  }
}

// A position along an axis; outside of it if the padding is zero.
DEVICE int wrap(int at, const Axis& axis, int periodic) {
  const int lifted = at + axis.lift;
  return periodic ? lifted - divide(lifted, axis.length) * axis.length.by : at;
}

template <int N>
DEVICE void load_floats(float (&values)[N], const element* from) {
  const auto vector = load_vector<N>(from);
#pragma unroll
  for (int i = 0; i < N; i++) {
    values[i] = to_float(vector.at[i]);
  }
}

// Calls f(j, values) for the tokens j = 0 .. COUNT - 1 of row `row` of a sample, the first of which is at `column`;
// zeros outside of the grid. Nothing if the whole row is outside.
template <int N, int COUNT, class F>
DEVICE void for_tokens(const Grid& g, const element* x, int first, int row, int column, int channel, F f) {
  row = wrap(row, g.row, g.periodic);
  if (row < 0 || row >= g.rows()) {
    return;
  }
  const element* line = x + static_cast<long long>(first + row * g.columns()) * g.channels + channel;
  int at = wrap(column, g.column, g.periodic);
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    float values[N] = {};
    if (at >= 0 && at < g.columns()) {
      load_floats<N>(values, line + static_cast<long long>(at) * g.channels);
    }
    f(j, values);
    at++;
    if (g.periodic && at == g.columns()) {
      at = 0;
    }
  }
}

// y [tokens, channels] (+)= x convolved with the filter w [taps, channels], plus `bias` unless null; `flip` reverses
// the filter, which gives the gradient of x from that of y. COLUMNS_ of the filter, or any number if 0.
template <int COLUMNS_, int N>
DEVICE void apply(const Grid& g, const element* x, const element* w, const element* bias, element* y, int run,
                  int channel, int flip, int add) {
  const Run at = run_at(g, run);
  float sum[RUN][N] = {};
  if (bias != nullptr) {
#pragma unroll
    for (int r = 0; r < RUN; r++) {
      load_floats<N>(sum[r], bias + channel);
    }
  }
  const auto weight = [&](int p, int q) {
    int tap = p * g.column.filter + q;
    tap = flip ? g.row.filter * g.column.filter - 1 - tap : tap;
    return load_vector<N>(w + static_cast<long long>(tap) * g.channels + channel);
  };
  for (int p = 0; p < g.row.filter; p++) {
    const int row = at.row + p - g.row.filter / 2, column = at.column - g.column.filter / 2;
    if constexpr (COLUMNS_ > 0) {
      // Kept in the dtype of the elements: seven times 8 floats would be too many registers.
      Vector<element, N> f[COLUMNS_];
#pragma unroll
      for (int q = 0; q < COLUMNS_; q++) {
        f[q] = weight(p, q);
      }
      for_tokens<N, RUN + COLUMNS_ - 1>(g, x, at.first, row, column, channel, [&](int j, const float (&a)[N]) {
#pragma unroll
        for (int q = 0; q < COLUMNS_; q++) {
          if (j - q >= 0 && j - q < RUN) {
#pragma unroll
            for (int i = 0; i < N; i++) {
              sum[j - q][i] = fmaf(to_float(f[q].at[i]), a[i], sum[j - q][i]);
            }
          }
        }
      });
    } else {
#pragma unroll 1
      for (int q = 0; q < g.column.filter; q++) {
        const auto f = weight(p, q);
        for_tokens<N, RUN>(g, x, at.first, row, column + q, channel, [&](int j, const float (&a)[N]) {
#pragma unroll
          for (int i = 0; i < N; i++) {
            sum[j][i] = fmaf(to_float(f.at[i]), a[i], sum[j][i]);
          }
        });
      }
    }
  }
  const long long token = at.first + at.row * g.columns() + at.column;
#pragma unroll
  for (int r = 0; r < RUN; r++) {
    if (at.column + r < g.columns()) {
      put_vector<N>(y + (token + r) * g.channels + channel, sum[r], add);
    }
  }
}

// Sums over a chunk of runs of the gradient of row p of the filter: dw [taps, channels] of the chunk.
template <int COLUMNS_, int N>
DEVICE void filter_gradient(const Grid& g, const element* x, const element* dy, float* dw, int begin, int end,
                            int p, int channel) {
  // Columns of the filter that are summed at a time.
  constexpr int TAPS = COLUMNS_ > 0 ? COLUMNS_ : 1;
#pragma unroll 1
  for (int q = 0; q < g.column.filter; q += TAPS) {
    float sum[TAPS][N] = {};
    Run at = run_at(g, begin);
#pragma unroll 1
    for (int run = begin; run < end; run++) {
      float d[RUN][N];
      for_tokens<N, RUN>(g, dy, at.first, at.row, at.column, channel, [&](int r, const float (&values)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) {
          // Tokens past the end of the row may be those of its beginning.
          d[r][i] = at.column + r < g.columns() ? values[i] : 0.0f;
        }
      });
      const int row = at.row + p - g.row.filter / 2, column = at.column + q - g.column.filter / 2;
      for_tokens<N, RUN + TAPS - 1>(g, x, at.first, row, column, channel, [&](int j, const float (&a)[N]) {
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
          if (j - t >= 0 && j - t < RUN) {
#pragma unroll
            for (int i = 0; i < N; i++) {
              sum[t][i] = fmaf(d[j - t][i], a[i], sum[t][i]);
            }
          }
        }
      });
      advance(g, at);
    }
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
      const long long tap = p * g.column.filter + q + t;
      store_floats<N>(dw + tap * g.channels + channel, sum[t]);
    }
  }
}

// Calls f(N, unit, channel); filters with a kernel of their own have channels in units of 16 bytes.
template <int COLUMNS_, class F>
DEVICE void for_unit(int units, int channels, F f) {
  with_unit(units, channels, [&](auto n, int unit, int channel) {
    if constexpr (COLUMNS_ == 0 || n.value == WIDTH) {
      f(n, unit, channel);
    }
  });
}

#define DEPTHWISE(suffix, COLUMNS_, apply_blocks, filter_blocks)                                          \
  KERNEL(depthwise_conv_apply##suffix, 256, apply_blocks)                                                 \
  (const element* __restrict__ x, const element* __restrict__ w, const element* __restrict__ bias,        \
   element* __restrict__ y, int runs, GRID_PARAMETERS, int flip, int add) {                               \
    const Grid g = GRID;                                                                                  \
    for_unit<COLUMNS_>(runs, channels, [&](auto n, int run, int channel) {                                \
      apply<COLUMNS_, n.value>(g, x, w, bias, y, run, channel, flip, add);                                \
    });                                                                                                   \
  }                                                                                                       \
  /* Chunks of runs; the threads of a chunk have a row of the filter each. */                             \
  KERNEL(depthwise_conv_filter##suffix, 256, filter_blocks)                                               \
  (const element* __restrict__ x, const element* __restrict__ dy, float* __restrict__ dw, int runs,       \
   int chunk_runs, int chunks, GRID_PARAMETERS) {                                                         \
    const Grid g = GRID;                                                                                  \
    for_unit<COLUMNS_>(chunks * filter_rows, channels, [&](auto n, int part, int channel) {               \
      const int p = part % filter_rows, chunk = part / filter_rows, begin = chunk * chunk_runs;           \
      float* to = dw + static_cast<long long>(chunk) * filter_rows * filter_columns * channels;           \
      filter_gradient<COLUMNS_, n.value>(g, x, dy, to, begin, min(begin + chunk_runs, runs), p, channel); \
    });                                                                                                   \
  }

// Blocks per multiprocessor: two have 128 registers a thread, which is not enough for five or seven sums of 8 channels.
DEPTHWISE(, 0, 2, 2)
DEPTHWISE(_3, 3, 2, 2)
DEPTHWISE(_5, 5, 2, 1)
DEPTHWISE(_7, 7, 1, 1)
