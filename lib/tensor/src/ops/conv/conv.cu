// elements: f32 bf16 f16
// Convolution as a matrix product whose operands are gathered as they are read (conv/mod.rs): nothing
// is unfolded in memory. Forward, out = seen·wᵀ: a row is an output cell, a column of `seen` a tap and
// a channel. The gradient of x, dx = readers·w: a column of `readers` is a tap and a filter. The
// gradient of w, dw = dyᵀ·seen, is split over cells into partial sums that kernel/columns adds up.
//
// A block of 256 threads makes 128 rows by 64 or 128 columns of a result, over pieces of 64 bytes of
// the inner axis that come by cp.async while the ones before are worked on: tensor cores for 16-bit
// elements, multiply-adds for f32. Channels that are no multiple of 16 bytes have kernels that read
// one element at a time.

#include "mma.cuh"
#include "warp.cuh"

constexpr int THREADS = 256;
// Rows of a block's part of the result, and of the inner axis at a time.
constexpr int TILE_ROWS = 128;
constexpr int TILE_INNER = 4 * WIDTH;
constexpr int STAGES = 3;

// One axis of the grid (conv/geometry.rs).
struct Axis {
  int from, to, taps, stride, dilation, margin;
};

struct Geometry {
  int batch, channels, filters, periodic;
  Axis rows, columns;
};

#define GEOMETRY                                                                              \
  int batch, int channels, int filters, int periodic, int rows, int to_rows, int row_taps,    \
      int row_stride, int row_dilation, int row_margin, int columns, int to_columns,          \
      int column_taps, int column_stride, int column_dilation, int column_margin
#define GEOMETRY_OF_PARAMETERS                                                                \
  {batch, channels, filters, periodic,                                                        \
   {rows, to_rows, row_taps, row_stride, row_dilation, row_margin},                           \
   {columns, to_columns, column_taps, column_stride, column_dilation, column_margin}}

// A cell of a grid or a tap of a filter, before it is looked up; none where `plane` is negative.
struct Place {
  int plane, row, column;
};

DEVICE Place nowhere() {
  return {-1, 0, 0};
}

DEVICE int wrap(int at, int length) {
  while (at < 0) {
    at += length;
  }
  while (at >= length) {
    at -= length;
  }
  return at;
}

// Operands: matrices whose neighbouring columns are mostly neighbours in memory. `find_row` and
// `find_column` work out once what `address` needs of each; an element that is zero has no address.

// Rows are output cells, columns a tap and a channel: what a cell sees of x.
struct Seen {
  using Row = Place;
  using Column = Place;
  const element* data;
  Geometry g;
  int rows, columns;
};

DEVICE Place find_row(const Seen& seen, int cell) {
  const Geometry& g = seen.g;
  if (cell >= seen.rows) {
    return nowhere();
  }
  int i = cell / g.columns.to;
  return {i / g.rows.to, i % g.rows.to * g.rows.stride - g.rows.margin,
          cell % g.columns.to * g.columns.stride - g.columns.margin};
}

// Where a tap is, and which of `planes` channels or filters.
DEVICE Place find_tap(const Geometry& g, int at, int planes, int columns) {
  if (at >= columns) {
    return nowhere();
  }
  int tap = at / planes;
  return {at % planes, tap / g.columns.taps * g.rows.dilation,
          tap % g.columns.taps * g.columns.dilation};
}

DEVICE Place find_column(const Seen& seen, int at) {
  return find_tap(seen.g, at, seen.g.channels, seen.columns);
}

DEVICE const element* address(const Seen& seen, Place cell, Place tap) {
  const Geometry& g = seen.g;
  if (cell.plane < 0 || tap.plane < 0) {
    return nullptr;
  }
  int i = cell.row + tap.row, j = cell.column + tap.column;
  if (g.periodic) {
    i = wrap(i, g.rows.from);
    j = wrap(j, g.columns.from);
  } else if (i < 0 || i >= g.rows.from || j < 0 || j >= g.columns.from) {
    return nullptr;
  }
  long long at = ((long long)cell.plane * g.rows.from + i) * g.columns.from + j;
  return seen.data + at * g.channels + tap.plane;
}

// Rows are input cells, columns a tap and a filter: the gradients of the outputs that read a cell.
struct Readers {
  using Row = Place;
  using Column = Place;
  const element* data;
  Geometry g;
  int rows, columns;
};

DEVICE Place find_row(const Readers& readers, int cell) {
  const Geometry& g = readers.g;
  if (cell >= readers.rows) {
    return nowhere();
  }
  int i = cell / g.columns.from;
  return {i / g.rows.from, i % g.rows.from + g.rows.margin,
          cell % g.columns.from + g.columns.margin};
}

DEVICE Place find_column(const Readers& readers, int at) {
  return find_tap(readers.g, at, readers.g.filters, readers.columns);
}

// The output along an axis whose first cell is `at`, or -1.
DEVICE int target(const Axis& axis, int at, int periodic) {
  if (periodic) {
    at = wrap(at, axis.from);
  }
  if (axis.stride == 1) {
    return at < axis.to ? at : -1;
  }
  int to = at / axis.stride;
  return at < 0 || at % axis.stride != 0 || to >= axis.to ? -1 : to;
}

DEVICE const element* address(const Readers& readers, Place cell, Place tap) {
  const Geometry& g = readers.g;
  if (cell.plane < 0 || tap.plane < 0) {
    return nullptr;
  }
  int i = target(g.rows, cell.row - tap.row, g.periodic);
  int j = target(g.columns, cell.column - tap.column, g.periodic);
  if (i < 0 || j < 0) {
    return nullptr;
  }
  long long at = ((long long)cell.plane * g.rows.to + i) * g.columns.to + j;
  return readers.data + at * g.filters + tap.plane;
}

// A plain matrix; with `filters`, w with a row for each tap and filter and a column for each channel.
struct Matrix {
  using Row = int;
  using Column = int;
  const element* data;
  int rows, columns, taps, filters;
};

DEVICE int find_row(const Matrix& matrix, int at) {
  if (at >= matrix.rows) {
    return -1;
  }
  return matrix.filters > 0 ? at % matrix.filters * matrix.taps + at / matrix.filters : at;
}

DEVICE int find_column(const Matrix& matrix, int at) {
  return at < matrix.columns ? at : -1;
}

DEVICE const element* address(const Matrix& matrix, int row, int column) {
  return row < 0 || column < 0 ? nullptr
                               : matrix.data + (long long)row * matrix.columns + column;
}

// Where column `at` of row `row` of a tile in shared memory lies. Pieces of 16 bytes are permuted within
// a row, so that neither the rows nor the columns of a fragment meet in a bank.
template <int COLUMNS>
DEVICE int place(int row, int at) {
  int turned = COLUMNS / WIDTH == 4 ? row / 2 % 4 : row % 8;
  return row * COLUMNS + ((at / WIDTH) ^ turned) * WIDTH + at % WIDTH;
}

// Copies tiles of an operand: OUTER of its rows by TILE_INNER columns or, where the inner axis is that
// of the rows, the other way round. A thread moves PIECES times 16 bytes, all in one column of pieces;
// what does not change from tile to tile is worked out once.
template <class Operand, bool INNER_ROWS, bool VECTOR, int OUTER>
struct Copier {
  static constexpr int ROWS = INNER_ROWS ? TILE_INNER : OUTER;
  static constexpr int COLUMNS = INNER_ROWS ? OUTER : TILE_INNER;
  static constexpr int IN_ROW = COLUMNS / WIDTH;
  static constexpr int PIECES = ROWS * IN_ROW / THREADS;
  static constexpr int ROW_STEP = THREADS / IN_ROW;
  static_assert(PIECES > 0, "every thread has something to copy");
  Operand operand;
  int outer;
  typename Operand::Row rows[PIECES];
  typename Operand::Column column;
};

template <class Operand, bool INNER_ROWS, bool VECTOR, int OUTER>
DEVICE void begin(
    Copier<Operand, INNER_ROWS, VECTOR, OUTER>& copier, const Operand& operand, int outer) {
  using C = Copier<Operand, INNER_ROWS, VECTOR, OUTER>;
  copier.operand = operand;
  copier.outer = outer;
  if (INNER_ROWS) {
    copier.column = find_column(operand, outer + (int)threadIdx.x % C::IN_ROW * WIDTH);
  } else {
#pragma unroll
    for (int i = 0; i < C::PIECES; i++) {
      int row = (int)threadIdx.x / C::IN_ROW + i * C::ROW_STEP;
      copier.rows[i] = find_row(operand, outer + row);
    }
  }
}

// The tile whose inner axis begins at `inner`.
template <class Operand, bool INNER_ROWS, bool VECTOR, int OUTER>
DEVICE void copy(
    Copier<Operand, INNER_ROWS, VECTOR, OUTER>& copier, element* tile, int inner) {
  using C = Copier<Operand, INNER_ROWS, VECTOR, OUTER>;
  int first = (int)threadIdx.x / C::IN_ROW, at = (int)threadIdx.x % C::IN_ROW * WIDTH;
  if (!INNER_ROWS) {
    copier.column = find_column(copier.operand, inner + at);
  }
#pragma unroll
  for (int i = 0; i < C::PIECES; i++) {
    int row = first + i * C::ROW_STEP;
    if (INNER_ROWS) {
      copier.rows[i] = find_row(copier.operand, inner + row);
    }
    element* to = tile + place<C::COLUMNS>(row, at);
    if (VECTOR) {
      const element* from = address(copier.operand, copier.rows[i], copier.column);
      copy_async_16(to, from == nullptr ? copier.operand.data : from, from == nullptr ? 0 : 16);
    } else {
      int column = (INNER_ROWS ? copier.outer : inner) + at;
#pragma unroll 1
      for (int j = 0; j < WIDTH; j++) {
        auto found = find_column(copier.operand, column + j);
        const element* from = address(copier.operand, copier.rows[i], found);
        to[j] = from == nullptr ? from_float<element>(0.0f) : *from;
      }
    }
  }
}

#if ELEMENT_BYTES == 2

// Warps side by side make 32 columns each; those above one another share the rows.
template <int COLUMNS>
struct Sums {
  static constexpr int WARPS_ALONG = COLUMNS / 32;
  static constexpr int ROWS = TILE_ROWS * WARPS_ALONG / (THREADS / WARP);
  float at[ROWS / 16][4][4];
};

// A 16x16 fragment at (outer, inner) of a tile, as the left operand of mma_16x8x16; or, `right`, two
// fragments of 8 columns as its right operand, r[0..2] and r[2..4].
template <bool INNER_ROWS, int OUTER>
DEVICE void fragment(unsigned (&r)[4], const element* tile, int outer, int inner, bool right) {
  int matrix = lane_id() / 8, row = lane_id() % 8;
  int along_inner = (right ? matrix % 2 : matrix / 2) * 8;
  int along_outer = (right ? matrix / 2 : matrix % 2) * 8;
  if (INNER_ROWS) {
    int at = place<OUTER>(inner + along_inner + row, outer + along_outer);
    ldmatrix_x4_transposed(r, tile + at);
  } else {
    ldmatrix_x4(r, tile + place<TILE_INNER>(outer + along_outer + row, inner + along_inner));
  }
}

// sums += a tile of the left operand times one of the right.
template <int COLUMNS, bool LEFT_INNER_ROWS, bool RIGHT_INNER_ROWS>
DEVICE void add_product(Sums<COLUMNS>& sums, const element* left, const element* right) {
  using S = Sums<COLUMNS>;
  int row = warp_id() / S::WARPS_ALONG * S::ROWS, column = warp_id() % S::WARPS_ALONG * 32;
#pragma unroll
  for (int inner = 0; inner < TILE_INNER; inner += 16) {
    unsigned b[2][4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      fragment<RIGHT_INNER_ROWS, COLUMNS>(b[j], right, column + 16 * j, inner, true);
    }
#pragma unroll
    for (int i = 0; i < S::ROWS / 16; i++) {
      unsigned a[4];
      fragment<LEFT_INNER_ROWS, TILE_ROWS>(a, left, row + 16 * i, inner, false);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const unsigned pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
        mma_16x8x16(sums.at[i][j], a, pair, element{});
      }
    }
  }
}

// Calls store(row, column, values) for all sums of this thread, two columns at a time.
template <int COLUMNS, class Store>
DEVICE void each_sum(const Sums<COLUMNS>& sums, Store store) {
  using S = Sums<COLUMNS>;
  int row = warp_id() / S::WARPS_ALONG * S::ROWS + lane_id() / 4;
  int column = warp_id() % S::WARPS_ALONG * 32 + lane_id() % 4 * 2;
#pragma unroll
  for (int i = 0; i < S::ROWS / 16; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float(&d)[4] = sums.at[i][j];
      store(row + 16 * i, column + 8 * j, Vector<float, 2>{{d[0], d[1]}});
      store(row + 16 * i + 8, column + 8 * j, Vector<float, 2>{{d[2], d[3]}});
    }
  }
}

#else

// A thread makes every 16th row and every 16th column.
template <int COLUMNS>
struct Sums {
  float at[TILE_ROWS / 16][COLUMNS / 16];
};

// Four elements along the inner axis.
template <bool INNER_ROWS, int OUTER>
DEVICE Vector<float, 4> four(const element* tile, int outer, int inner) {
  if (!INNER_ROWS) {
    return load_vector<4>(tile + place<TILE_INNER>(outer, inner));
  }
  Vector<float, 4> values;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    values.at[i] = tile[place<OUTER>(inner + i, outer)];
  }
  return values;
}

template <int COLUMNS, bool LEFT_INNER_ROWS, bool RIGHT_INNER_ROWS>
DEVICE void add_product(Sums<COLUMNS>& sums, const element* left, const element* right) {
  int row = threadIdx.x / 16, column = threadIdx.x % 16;
  // Not unrolled: operands of one step are all that registers hold.
#pragma unroll 1
  for (int inner = 0; inner < TILE_INNER; inner += 4) {
    Vector<float, 4> a[TILE_ROWS / 16];
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 16; i++) {
      a[i] = four<LEFT_INNER_ROWS, TILE_ROWS>(left, row + 16 * i, inner);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; j++) {
      Vector<float, 4> b = four<RIGHT_INNER_ROWS, COLUMNS>(right, column + 16 * j, inner);
#pragma unroll
      for (int i = 0; i < TILE_ROWS / 16; i++) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
          sums.at[i][j] = fmaf(a[i].at[k], b.at[k], sums.at[i][j]);
        }
      }
    }
  }
}

template <int COLUMNS, class Store>
DEVICE void each_sum(const Sums<COLUMNS>& sums, Store store) {
  int row = threadIdx.x / 16, column = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < TILE_ROWS / 16; i++) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; j++) {
      store(row + 16 * i, column + 16 * j, Vector<float, 1>{{sums.at[i][j]}});
    }
  }
}

#endif

// The part of a product that begins at (row, column), over [inner_begin, inner_end) of the inner axis;
// calls store(row, column, values) for sums of neighbouring columns, in range or not.
template <
    int COLUMNS, bool VECTOR, bool LEFT_INNER_ROWS, bool RIGHT_INNER_ROWS, class Left, class Right,
    class Store>
DEVICE void multiply(
    const Left& left, const Right& right, int row, int column, int inner_begin, int inner_end,
    Store store) {
  constexpr int LEFT_SIZE = TILE_ROWS * TILE_INNER, RIGHT_SIZE = COLUMNS * TILE_INNER;
  SHARED(element, tiles, [STAGES][LEFT_SIZE + RIGHT_SIZE]);
  Copier<Left, LEFT_INNER_ROWS, VECTOR, TILE_ROWS> copy_left;
  Copier<Right, RIGHT_INNER_ROWS, VECTOR, COLUMNS> copy_right;
  begin(copy_left, left, row);
  begin(copy_right, right, column);
  int steps = (inner_end - inner_begin + TILE_INNER - 1) / TILE_INNER;
  auto fetch = [&](int step) {
    if (step < steps) {
      element* tile = tiles[step % STAGES];
      copy(copy_left, tile, inner_begin + step * TILE_INNER);
      copy(copy_right, tile + LEFT_SIZE, inner_begin + step * TILE_INNER);
    }
    // A group for every step, also an empty one: so that the latest but STAGES - 2 is this one's.
    commit_async();
  };
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) {
    fetch(step);
  }
  Sums<COLUMNS> sums = {};
  for (int step = 0; step < steps; step++) {
    wait_async<STAGES - 2>();
    // All see this tile, and are done with the one that is copied over next.
    __syncthreads();
    fetch(step + STAGES - 1);
    const element* tile = tiles[step % STAGES];
    add_product<COLUMNS, LEFT_INNER_ROWS, RIGHT_INNER_ROWS>(sums, tile, tile + LEFT_SIZE);
  }
  each_sum(sums, [&](int i, int j, auto values) { store(row + i, column + j, values); });
}

// Writes neighbouring values of a row of `out` [rows, columns], as far as they are in range.
template <class T, int N>
DEVICE void write(
    T* out, int rows, int columns, int row, int column, Vector<float, N> values, int add) {
  if (row >= rows || column >= columns) {
    return;
  }
  T* to = out + (long long)row * columns + column;
  if (columns % N == 0) {
    Vector<T, N> old;
    if (add) {
      old = load_vector<N>(to);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
      put(&old.at[i], values.at[i], add);
    }
    store_vector(to, old);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (column + i < columns) {
        put(to + i, values.at[i], add);
      }
    }
  }
}

template <int COLUMNS, bool VECTOR>
DEVICE void forward(
    const element* x, const element* w, const element* bias, element* out, Geometry g) {
  int inner = g.rows.taps * g.columns.taps * g.channels;
  int cells = g.batch * g.rows.to * g.columns.to;
  int across = (g.filters + COLUMNS - 1) / COLUMNS;
  int row = blockIdx.x / across * TILE_ROWS, column = blockIdx.x % across * COLUMNS;
  Seen seen{x, g, cells, inner};
  Matrix filters{w, g.filters, inner, 0, 0};
  auto store = [&](int i, int j, auto values) {
    constexpr int N = sizeof(values) / sizeof(float);
#pragma unroll
    for (int k = 0; k < N; k++) {
      values.at[k] += bias != nullptr && j + k < g.filters ? to_float(bias[j + k]) : 0.0f;
    }
    write(out, cells, g.filters, i, j, values, 0);
  };
  multiply<COLUMNS, VECTOR, false, false>(seen, filters, row, column, 0, inner, store);
}

template <int COLUMNS, bool VECTOR>
DEVICE void input(const element* dy, const element* w, element* dx, Geometry g, int add) {
  int taps = g.rows.taps * g.columns.taps, inner = taps * g.filters;
  int cells = g.batch * g.rows.from * g.columns.from;
  int across = (g.channels + COLUMNS - 1) / COLUMNS;
  int row = blockIdx.x / across * TILE_ROWS, column = blockIdx.x % across * COLUMNS;
  Readers readers{dy, g, cells, inner};
  Matrix filters{w, inner, g.channels, taps, g.filters};
  auto store = [&](int i, int j, auto values) {
    write(dx, cells, g.channels, i, j, values, add);
  };
  multiply<COLUMNS, VECTOR, false, true>(readers, filters, row, column, 0, inner, store);
}

template <int COLUMNS, bool VECTOR>
DEVICE void filter(
    const element* x, const element* dy, float* partials, Geometry g, int chunk_cells) {
  int width = g.rows.taps * g.columns.taps * g.channels;
  int cells = g.batch * g.rows.to * g.columns.to;
  int across = (width + COLUMNS - 1) / COLUMNS;
  int row = blockIdx.x / across * TILE_ROWS, column = blockIdx.x % across * COLUMNS;
  int begin = blockIdx.y * chunk_cells, end = min(begin + chunk_cells, cells);
  float* out = partials + (long long)blockIdx.y * g.filters * width;
  Matrix gradient{dy, end, g.filters, 0, 0};
  Seen seen{x, g, end, width};
  auto store = [&](int i, int j, auto values) {
    write(out, g.filters, width, i, j, values, 0);
  };
  multiply<COLUMNS, VECTOR, true, true>(gradient, seen, row, column, begin, end, store);
}

// out [cells, filters] = what each cell sees of x, times w, plus `bias` unless null. Blocks: tiles of the
// result, row by row. `_wide` makes 128 columns a block, for which
// f32 has not the registers; `_odd` is for channels of any number.
#define FORWARD(name, columns_of_tile, vector)                                                  KERNEL(name, 256, 2)                                                                          (const element* __restrict__ x, const element* __restrict__ w,                                 const element* __restrict__ bias, element* __restrict__ out, GEOMETRY) {                       forward<columns_of_tile, vector>(x, w, bias, out, GEOMETRY_OF_PARAMETERS);                  }
FORWARD(conv_forward, 64, true)
#if ELEMENT_BYTES == 2
FORWARD(conv_forward_wide, 128, true)
#endif
FORWARD(conv_forward_odd, 64, false)

// dx [input cells, channels] (+)= the gradient, given dy.
#define INPUT(name, columns_of_tile, vector)                                                    KERNEL(name, 256, 2)                                                                          (const element* __restrict__ dy, const element* __restrict__ w, element* __restrict__ dx,      GEOMETRY, int add) {                                                                           input<columns_of_tile, vector>(dy, w, dx, GEOMETRY_OF_PARAMETERS, add);                     }
INPUT(conv_input, 64, true)
#if ELEMENT_BYTES == 2
INPUT(conv_input_wide, 128, true)
#endif
INPUT(conv_input_odd, 64, false)

// partials [chunks, filters, taps, channels]: the gradient of w over chunks of output cells, a multiple
// of TILE_INNER each. Blocks: tiles of the result, by chunks.
#define FILTER(name, columns_of_tile, vector)                                                   KERNEL(name, 256, 2)                                                                          (const element* __restrict__ x, const element* __restrict__ dy,                                float* __restrict__ partials, GEOMETRY, int chunk_cells) {                                     filter<columns_of_tile, vector>(x, dy, partials, GEOMETRY_OF_PARAMETERS, chunk_cells);      }
FILTER(conv_filter, 64, true)
#if ELEMENT_BYTES == 2
FILTER(conv_filter_wide, 128, true)
#endif
FILTER(conv_filter_odd, 64, false)

template <int N>
DEVICE void bias(
    const element* __restrict__ dy, float* __restrict__ partials, int cells, int chunk_cells,
    int chunks, int filters) {
  int id = blockIdx.x * blockDim.x + threadIdx.x;
  int chunk = id / (filters / N), column = id % (filters / N) * N;
  if (chunk >= chunks) {
    return;
  }
  int end = min((chunk + 1) * chunk_cells, cells);
  float sum[N] = {};
#pragma unroll 4
  for (int cell = chunk * chunk_cells; cell < end; cell++) {
    Vector<element, N> d = load_vector<N>(dy + (long long)cell * filters + column);
#pragma unroll
    for (int i = 0; i < N; i++) {
      sum[i] += to_float(d.at[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    partials[(long long)chunk * filters + column + i] = sum[i];
  }
}

// partials [chunks, filters]: the sums of dy [cells, filters] over chunks of cells.
KERNEL(conv_bias)
(const element* __restrict__ dy, float* __restrict__ partials, int cells, int chunk_cells,
 int chunks, int filters) {
  if (filters % WIDTH == 0) {
    bias<WIDTH>(dy, partials, cells, chunk_cells, chunks, filters);
  } else {
    bias<1>(dy, partials, cells, chunk_cells, chunks, filters);
  }
}
