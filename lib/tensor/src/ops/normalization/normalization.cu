// elements: f32 bf16 f16
// Row normalization, forward and backward: y = (offset + w) ∘ n + b with n = (x - μ)·r. Centred (layernorm): μ the
// mean, r = 1/√(variance + ε); otherwise (rmsnorm): μ = 0, r = 1/√(mean square + ε).
//
// x [groups, group_rows, width]; the vectors of the first group begin at w + w_start and b + b_start, those of the next
// group `stride` elements further. μ and r are saved as f32 [rows, 2].

#include "rows.cuh"

// The common parameters of all normalization kernels.
struct Norm {
  const element* x;
  const element* w;
  const element* b;  // null: none
  float* stats;
  int group_rows;
  int width;
  long long stride;
  float offset;
  bool centred;
};

// One row, distributed over the threads of a team.
template <bool BLOCK, int V, int COUNT>
DEVICE void norm_forward(Norm norm, element* out, int rows, float epsilon, float* scratch) {
  int row = blockIdx.x * teams<BLOCK>() + team_id<BLOCK>();
  if (row >= rows) {
    return;
  }
  int width = norm.width;
  long long start = (long long)row * width;
  long long group = row / norm.group_rows * norm.stride;
  Vector<element, V> x[COUNT];
  load_row<BLOCK, V, COUNT>(x, norm.x + start, width);

  float mean = 0.0f;
  if (norm.centred) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        mean += to_float(x[j].at[v]);
      }
    }
    mean = team_sum<BLOCK>(mean, scratch) / width;
  }
  float variance = 0.0f;
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    if (column_of<BLOCK, V>(j) < width) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        float d = to_float(x[j].at[v]) - mean;
        variance += d * d;
      }
    }
  }
  variance = team_sum<BLOCK>(variance, scratch) / width;
  float rstd = 1.0f / sqrtf(variance + epsilon);
  if (team_rank<BLOCK>() == 0) {
    norm.stats[2 * (long long)row] = mean;
    norm.stats[2 * (long long)row + 1] = rstd;
  }

#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    int column = column_of<BLOCK, V>(j);
    if (column < width) {
      Vector<element, V> w = load_vector<V>(norm.w + group + column);
      float y[V];
#pragma unroll
      for (int v = 0; v < V; v++) {
        y[v] = (to_float(x[j].at[v]) - mean) * rstd * (norm.offset + to_float(w.at[v]));
      }
      if (norm.b != nullptr) {
        Vector<element, V> b = load_vector<V>(norm.b + group + column);
#pragma unroll
        for (int v = 0; v < V; v++) {
          y[v] += to_float(b.at[v]);
        }
      }
      put_vector<V>(out + start + column, y, 0);
    }
  }
}

// A row of at most 32 vectors of WIDTH elements, one for each of `lanes` lanes, a power of two.
DEVICE void norm_forward_narrow(Norm norm, element* out, int rows, float epsilon, int lanes, int shift) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) >> shift, column = (threadIdx.x & (lanes - 1)) * WIDTH;
  bool is_valid = row < rows && column < norm.width;
  long long at = (long long)row * norm.width + column;
  Vector<element, WIDTH> part = {}, w = {}, b = {};
  if (is_valid) {
    part = load_vector<WIDTH>(norm.x + at);
    long long group = norm.stride == 0 ? 0 : row / norm.group_rows * norm.stride;
    w = load_vector<WIDTH>(norm.w + group + column);
    if (norm.b != nullptr) {
      b = load_vector<WIDTH>(norm.b + group + column);
    }
  }
  float x[WIDTH], mean = 0.0f, variance = 0.0f;
#pragma unroll
  for (int v = 0; v < WIDTH; v++) {
    x[v] = to_float(part.at[v]);
    mean += x[v];
  }
  mean = norm.centred ? group_sum(mean, lanes) / norm.width : 0.0f;
#pragma unroll
  for (int v = 0; v < WIDTH; v++) {
    x[v] -= mean;
    variance += is_valid ? x[v] * x[v] : 0.0f;
  }
  float rstd = 1.0f / sqrtf(group_sum(variance, lanes) / norm.width + epsilon);
  if (!is_valid) {
    return;
  }
  if (column == 0) {
    norm.stats[2 * (long long)row] = mean;
    norm.stats[2 * (long long)row + 1] = rstd;
  }
#pragma unroll
  for (int v = 0; v < WIDTH; v++) {
    x[v] = x[v] * rstd * (norm.offset + to_float(w.at[v])) + to_float(b.at[v]);
  }
  put_vector<WIDTH>(out + at, x, 0);
}

// A row of any width, handled by a block that rereads it in each pass.
template <int V>
DEVICE void norm_forward_wide(Norm norm, element* out, float epsilon, float* scratch) {
  int row = blockIdx.x, width = norm.width, step = blockDim.x * V;
  const element* x = norm.x + (long long)row * width;
  long long group = row / norm.group_rows * norm.stride;

  float mean = 0.0f;
  if (norm.centred) {
    for (int column = threadIdx.x * V; column < width; column += step) {
      Vector<element, V> part = load_vector<V>(x + column);
#pragma unroll
      for (int v = 0; v < V; v++) {
        mean += to_float(part.at[v]);
      }
    }
    mean = block_sum(mean, scratch) / width;
  }
  float variance = 0.0f;
  for (int column = threadIdx.x * V; column < width; column += step) {
    Vector<element, V> part = load_vector<V>(x + column);
#pragma unroll
    for (int v = 0; v < V; v++) {
      float d = to_float(part.at[v]) - mean;
      variance += d * d;
    }
  }
  variance = block_sum(variance, scratch) / width;
  float rstd = 1.0f / sqrtf(variance + epsilon);
  if (threadIdx.x == 0) {
    norm.stats[2 * (long long)row] = mean;
    norm.stats[2 * (long long)row + 1] = rstd;
  }

  for (int column = threadIdx.x * V; column < width; column += step) {
    Vector<element, V> part = load_vector<V>(x + column);
    Vector<element, V> w = load_vector<V>(norm.w + group + column);
    float y[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      y[v] = (to_float(part.at[v]) - mean) * rstd * (norm.offset + to_float(w.at[v]));
      y[v] += norm.b != nullptr ? to_float(norm.b[group + column + v]) : 0.0f;
    }
    put_vector<V>(out + (long long)row * width + column, y, 0);
  }
}

// Additional parameters of backward: dx may be null, and so may the partial sums of dw and db,
// f32 [groups, parts, 2, width].
struct NormGradient {
  const element* dy;
  element* dx;
  int add;
  float* partials;
  int parts;
};

// dx (+)= r·(g - mean(g) - n·mean(g ∘ n)) with g = (offset + w) ∘ dy, and this block's share of dw = Σ dy ∘ n,
// db = Σ dy: one pass over every parts-th row (or set of rows, one per warp) of a group. `sums` holds
// 2 · COUNT · V · 32 floats if teams are warps.
template <bool BLOCK, int V, int COUNT>
DEVICE void norm_backward(Norm norm, NormGradient gradient, float* scratch, float* sums) {
  int group = blockIdx.x / gradient.parts, part = blockIdx.x % gradient.parts;
  int width = norm.width;
  Vector<element, V> w[COUNT];
  load_row<BLOCK, V, COUNT>(w, norm.w + group * norm.stride, width);
  float total[2][COUNT][V] = {};
  int turn = 0;

  for (int i = part * teams<BLOCK>() + team_id<BLOCK>(); i < norm.group_rows;
       i += gradient.parts * teams<BLOCK>()) {
    long long row = (long long)group * norm.group_rows + i;
    Vector<element, V> x[COUNT], dy[COUNT];
    load_row<BLOCK, V, COUNT>(x, norm.x + row * width, width);
    load_row<BLOCK, V, COUNT>(dy, gradient.dy + row * width, width);
    float mean = norm.stats[2 * row], rstd = norm.stats[2 * row + 1];
    float sum_g = 0.0f, sum_gn = 0.0f;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        // Past the end of the row dy is zero, and so is everything that is summed.
        float d = to_float(dy[j].at[v]);
        float n = (to_float(x[j].at[v]) - mean) * rstd;
        float g = (norm.offset + to_float(w[j].at[v])) * d;
        sum_g += g;
        sum_gn += g * n;
        total[0][j][v] += d * n;
        total[1][j][v] += d;
      }
    }
    if (gradient.dx == nullptr) {
      continue;
    }
    team_sums<BLOCK>(sum_g, sum_gn, scratch, turn);
    turn = 1 - turn;
    float mean_g = norm.centred ? sum_g / width : 0.0f, mean_gn = sum_gn / width;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      int column = column_of<BLOCK, V>(j);
      if (column < width) {
        float d[V];
#pragma unroll
        for (int v = 0; v < V; v++) {
          float n = (to_float(x[j].at[v]) - mean) * rstd;
          float g = (norm.offset + to_float(w[j].at[v])) * to_float(dy[j].at[v]);
          d[v] = rstd * (g - mean_g - n * mean_gn);
        }
        put_vector<V>(gradient.dx + row * width + column, d, gradient.add);
      }
    }
  }
  if (gradient.partials == nullptr) {
    return;
  }

  // Each warp adds the sums of the warps before it to its own; the last one has the total.
  for (int team = 0; team < teams<BLOCK>(); team++) {
    if (teams<BLOCK>() > 1 && team_id<BLOCK>() == team) {
#pragma unroll
      for (int i = 0; i < 2 * COUNT * V; i++) {
        float& own = total[i / (COUNT * V)][i / V % COUNT][i % V];
        own += team > 0 ? sums[i * WARP + lane_id()] : 0.0f;
        sums[i * WARP + lane_id()] = own;
      }
    }
    __syncthreads();
  }
  if (team_id<BLOCK>() == teams<BLOCK>() - 1) {
#pragma unroll
    for (int vector = 0; vector < 2; vector++) {
      float* to = gradient.partials + ((long long)blockIdx.x * 2 + vector) * width;
#pragma unroll
      for (int j = 0; j < COUNT; j++) {
        int column = column_of<BLOCK, V>(j);
        if (column < width) {
          store_floats<V>(to + column, total[vector][j]);
        }
      }
    }
  }
}

// The same for rows of any width: the sums of dw and db stay in memory, where each thread has its own columns.
template <int V>
DEVICE void norm_backward_wide(Norm norm, NormGradient gradient, float* scratch) {
  int group = blockIdx.x / gradient.parts, part = blockIdx.x % gradient.parts;
  int width = norm.width, step = blockDim.x * V;
  const element* w = norm.w + group * norm.stride;
  float* dw = gradient.partials;
  if (dw != nullptr) {
    dw += (long long)blockIdx.x * 2 * width;
    for (int column = threadIdx.x * V; column < width; column += step) {
#pragma unroll
      for (int v = 0; v < 2 * V; v++) {
        dw[v / V * width + column + v % V] = 0.0f;
      }
    }
  }
  for (int i = part; i < norm.group_rows; i += gradient.parts) {
    long long row = (long long)group * norm.group_rows + i;
    const element* x = norm.x + row * width;
    const element* dy = gradient.dy + row * width;
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
    if (gradient.dx == nullptr) {
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
      put_vector<V>(gradient.dx + row * width + column, d, gradient.add);
    }
  }
}

// V is WIDTH if the width is a multiple of it, otherwise 1. `kind` (kernel/rows.rs) 0: rows of up to 512 columns, one warp
// each; 1: of up to COLUMNS columns per thread, one block each; 2: of any width, one block each.
#define FORWARD_PARAMETERS                                                                                    \
  const element *__restrict__ x, const element *__restrict__ w, long long w_start,                            \
      const element *__restrict__ b, long long b_start, float *__restrict__ stats, element *__restrict__ out, \
      int rows, int group_rows, int width, long long stride, float offset, float epsilon, int centred
#define FORWARD_NORM \
  {x, w + w_start, b != nullptr ? b + b_start : nullptr, stats, group_rows, width, stride, offset, centred != 0}

#define FORWARD(name, V)                                                                                      \
  KERNEL(name, 512, 1)                                                                                        \
  (FORWARD_PARAMETERS, int kind) {                                                                            \
    SHARED(float, scratch, [WARP]);                                                                           \
    Norm norm = FORWARD_NORM;                                                                                 \
    if (kind == 2) {                                                                                          \
      norm_forward_wide<V>(norm, out, epsilon, scratch);                                                      \
    } else if (kind == 1) {                                                                                   \
      norm_forward<true, V, COLUMNS / V>(norm, out, rows, epsilon, scratch);                                  \
    } else {                                                                                                  \
      norm_forward<false, V, COLUMNS / V>(norm, out, rows, epsilon, scratch);                                 \
    }                                                                                                         \
  }

FORWARD(normalization_forward, WIDTH)
FORWARD(normalization_forward_odd, 1)

// Rows of at most 32 vectors of WIDTH elements, with 2^shift lanes each.
KERNEL(normalization_forward_narrow, 256)
(FORWARD_PARAMETERS, int shift) {
  norm_forward_narrow(FORWARD_NORM, out, rows, epsilon, 1 << shift, shift);
}

// `kind` 0: rows of up to 256 columns, one warp each; 1: of up to COLUMNS / 2 columns per thread, one block each; 2: of
// any width, one block each. Blocks: groups × parts.
#define BACKWARD(name, V)                                                                                     \
  KERNEL(name, 512, 1)                                                                                        \
  (const element* __restrict__ x, const element* __restrict__ w, long long w_start, float* __restrict__ stats, \
   const element* __restrict__ dy, element* __restrict__ dx, int add, float* __restrict__ partials,           \
   int group_rows, int width, long long stride, float offset, int parts, int centred, int kind) {             \
    constexpr int COUNT = COLUMNS / 2;                                                                        \
    SHARED(float, shared, [2 * COUNT * WARP]);                                                                \
    Norm norm = {x, w + w_start, nullptr, stats, group_rows, width, stride, offset, centred != 0};            \
    NormGradient gradient = {dy, dx, add, partials, parts};                                                   \
    if (kind == 2) {                                                                                          \
      norm_backward_wide<V>(norm, gradient, shared);                                                          \
    } else if (kind == 1) {                                                                                   \
      norm_backward<true, V, COUNT / V>(norm, gradient, shared, nullptr);                                     \
    } else {                                                                                                  \
      norm_backward<false, V, COUNT / V>(norm, gradient, nullptr, shared);                                    \
    }                                                                                                         \
  }

BACKWARD(normalization_backward, WIDTH)
BACKWARD(normalization_backward_odd, 1)
