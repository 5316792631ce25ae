// dtypes: f32 bf16 f16
// The gradients of row normalization (normalization.cu): dx (+)= r·(g - mean(g) - n·mean(g ∘ n)) with g = (offset + w) ∘ dy
// and n = (x - μ)·r, and partial sums of dw = Σ dy ∘ n, db = Σ dy.

#include "async.cuh"
#include "team.cuh"

// x, dy [groups, group_rows, width]; the vector of the first group begins at w, those of the next group `stride` elements
// further. dx may be null, and so may the partial sums of dw and db, f32 [groups, parts, 2, width].
struct Norm {
  const element* x;
  const element* w;
  const float* stats;
  const element* dy;
  element* dx;
  int add;
  float* partials;
  int group_rows;
  int width;
  long long stride;
  float offset;
  int parts;
  bool centred;
};

// Vectors of V elements of x, and of dy, that a thread holds: 32 bytes of each, or 8 single elements.
template <int V>
constexpr int HELD = V > 1 ? 2 : 8;

// Rows of x and dy in flight: a thread copies its own part of a row to shared memory while it sums the two rows before it,
// without registers and without a barrier. A multiprocessor with 512 threads has 64 KB in flight.
constexpr int IN_FLIGHT = 2;

// dx (+)= r·(g - mean(g) - n·mean(g ∘ n)) with g = (offset + w) ∘ dy, and this block's share of dw = Σ dy ∘ n,
// db = Σ dy. A team of `warps` warps handles a row, and the teams of a block adjacent rows at the same time: every
// parts-th set of rows of a group. `shared` has 128 bytes per thread: the rows in flight, and then the sums of each team.
template <int V>
DEVICE void norm_backward(Norm norm, int warps, float* scratch, unsigned char* shared) {
  constexpr int COUNT = HELD<V>;
  const int group = blockIdx.x / norm.parts, part = blockIdx.x % norm.parts;
  const int size = warps * WARP, team = warp_id() / warps, rank = threadIdx.x - team * size;
  const int width = norm.width, teams = blockDim.x / size, step = norm.parts * teams;
  const long long first = (long long)group * norm.group_rows;
  const auto column = [&](int j) { return (j * size + rank) * V; };
  const auto slot = [&](int turn, int j) {
    return reinterpret_cast<element*>(shared + ((turn * COUNT + j) * 2 * blockDim.x + threadIdx.x) * 16);
  };
  const int to_dy = blockDim.x * WIDTH;
  // Starts to copy this thread's part of a row.
  const auto start = [&](int turn, int row) {
    if constexpr (V > 1) {
#pragma unroll
      for (int j = 0; j < COUNT; j++) {
        if (row < norm.group_rows && column(j) < width) {
          const long long at = (first + row) * width + column(j);
          copy_async_16(slot(turn, j), norm.x + at, 16);
          copy_async_16(slot(turn, j) + to_dy, norm.dy + at, 16);
        }
      }
      commit_async();
    }
  };
  const auto stats_of = [&](int row) {
    return row < norm.group_rows ? load_vector<2>(norm.stats + 2 * (first + row)) : Vector<float, 2>{};
  };

  const float inverse = 1.0f / width;
  const int begin = part * teams;
  start(0, begin + team);
  start(1, begin + step + team);
  Vector<float, 2> stats = stats_of(begin + team), next_stats = stats_of(begin + step + team);
  float w[COUNT][V] = {}, total[2][COUNT][V] = {};
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    if (column(j) < width) {
      const auto part_of_w = load_vector<V>(norm.w + group * norm.stride + column(j));
#pragma unroll
      for (int v = 0; v < V; v++) {
        w[j][v] = norm.offset + to_float(part_of_w.at[v]);
      }
    }
  }

  int turn = 0;
#pragma unroll 1
  for (int base = begin; base < norm.group_rows; base += step) {
    const int row = base + team;
    const bool is_row = row < norm.group_rows;
    const long long row_start = (first + row) * width;
    const float mean = stats.at[0], rstd = stats.at[1];
    stats = next_stats;
    next_stats = stats_of(row + 2 * step);
    float n[COUNT][V], g[COUNT][V], sum_g = 0.0f, sum_gn = 0.0f;
    if (V > 1) {
      wait_async<IN_FLIGHT - 1>();
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      if (is_row && column(j) < width) {
        Vector<element, V> x, dy;
        if constexpr (V > 1) {
          x = load_vector<V>(slot(turn, j));
          dy = load_vector<V>(slot(turn, j) + to_dy);
        } else {
          x = load_vector<V>(norm.x + row_start + column(j));
          dy = load_vector<V>(norm.dy + row_start + column(j));
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
          const float d = to_float(dy.at[v]);
          n[j][v] = (to_float(x.at[v]) - mean) * rstd;
          g[j][v] = w[j][v] * d;
          sum_g += g[j][v];
          sum_gn += g[j][v] * n[j][v];
          total[0][j][v] += d * n[j][v];
          total[1][j][v] += d;
        }
      }
    }
    // What this thread has read is overwritten.
    start(turn, row + IN_FLIGHT * step);
    turn = 1 - turn;
    if (norm.dx == nullptr) {
      continue;
    }
    team_sums(sum_g, sum_gn, scratch, team, warps, turn);
    const float mean_g = norm.centred ? sum_g * inverse * rstd : 0.0f, mean_gn = sum_gn * inverse * rstd;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      if (is_row && column(j) < width) {
        float d[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
          d[v] = g[j][v] * rstd - mean_g - n[j][v] * mean_gn;
        }
        put_vector<V>(norm.dx + row_start + column(j), d, norm.add);
      }
    }
  }
  if (norm.partials == nullptr) {
    return;
  }

  // The sums of the teams [teams, 2, width], added in order.
  wait_async<0>();
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < 2 * COUNT; i++) {
    const int vector = i / COUNT, j = i % COUNT;
    if (column(j) < width) {
      store_floats<V>(sums + (team * 2 + vector) * width + column(j), total[vector][j]);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * width; i += blockDim.x) {
    float sum = sums[i];
    for (int other = 1; other < teams; other++) {
      sum += sums[other * 2 * width + i];
    }
    norm.partials[(long long)blockIdx.x * 2 * width + i] = sum;
  }
}

// The same for rows of any width, handled by a block: the sums of dw and db stay in memory, where each thread has its own columns.
template <int V>
DEVICE void norm_backward_wide(Norm norm, float* scratch) {
  int group = blockIdx.x / norm.parts, part = blockIdx.x % norm.parts;
  int width = norm.width, step = blockDim.x * V;
  const element* w = norm.w + group * norm.stride;
  float* dw = norm.partials;
  if (dw != nullptr) {
    dw += (long long)blockIdx.x * 2 * width;
    for (int column = threadIdx.x * V; column < width; column += step) {
#pragma unroll
      for (int v = 0; v < 2 * V; v++) {
        dw[v / V * width + column + v % V] = 0.0f;
      }
    }
  }
  for (int i = part; i < norm.group_rows; i += norm.parts) {
    long long row = (long long)group * norm.group_rows + i;
    const element* x = norm.x + row * width;
    const element* dy = norm.dy + row * width;
    float mean = norm.stats[2 * row], rstd = norm.stats[2 * row + 1];
    float sum_g = 0.0f, sum_gn = 0.0f;
    for (int column = threadIdx.x * V; column < width; column += step) {
      Vector<element, V> xs = load_vector<V>(x + column), ds = load_vector<V>(dy + column);
      Vector<element, V> ws = load_vector<V>(w + column);
#pragma unroll
      for (int v = 0; v < V; v++) {
        float d = to_float(ds.at[v]);
        float n = (to_float(xs.at[v]) - mean) * rstd;
        float g = (norm.offset + to_float(ws.at[v])) * d;
        sum_g += g;
        sum_gn += g * n;
        if (dw != nullptr) {
          dw[column + v] += d * n;
          dw[width + column + v] += d;
        }
      }
    }
    if (norm.dx == nullptr) {
      continue;
    }
    float mean_g = norm.centred ? block_sum(sum_g, scratch) / width : 0.0f;
    float mean_gn = block_sum(sum_gn, scratch) / width;
    for (int column = threadIdx.x * V; column < width; column += step) {
      Vector<element, V> xs = load_vector<V>(x + column), ds = load_vector<V>(dy + column);
      Vector<element, V> ws = load_vector<V>(w + column);
      float d[V];
#pragma unroll
      for (int v = 0; v < V; v++) {
        float n = (to_float(xs.at[v]) - mean) * rstd;
        float g = (norm.offset + to_float(ws.at[v])) * to_float(ds.at[v]);
        d[v] = rstd * (g - mean_g - n * mean_gn);
      }
      put_vector<V>(norm.dx + row * width + column, d, norm.add);
    }
  }
}

// `warps` per row, or 0: rows of any width, one block each. Blocks: groups × parts.
#define BACKWARD(name, V)                                                                                     \
  KERNEL(name, 512, 1)                                                                                        \
  (const element* __restrict__ x, const element* __restrict__ w, long long w_start,                           \
   const float* __restrict__ stats, const element* __restrict__ dy, element* __restrict__ dx, int add,        \
   float* __restrict__ partials,                                                                              \
   int group_rows, int width, long long stride, float offset, int parts, int centred, int warps) {            \
    SHARED(float, scratch, [4 * WARP]);                                                                       \
    DYNAMIC_SHARED(shared);                                                                                   \
    Norm norm = {x,     w + w_start, stats,  dy,     dx,    add,         partials,                            \
                 group_rows, width, stride, offset, parts, centred != 0};                                     \
    if (warps == 0) {                                                                                         \
      norm_backward_wide<V>(norm, scratch);                                                                   \
    } else {                                                                                                  \
      norm_backward<V>(norm, warps, scratch, shared);                                                         \
    }                                                                                                         \
  }

BACKWARD(normalization_backward, WIDTH)
BACKWARD(normalization_backward_odd, 1)
