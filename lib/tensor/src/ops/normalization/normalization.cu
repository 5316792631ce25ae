// dtypes: f32 bf16 f16
// Row normalization: y = (offset + w) ∘ n + b with n = (x - μ)·r. Centred (layernorm): μ the
// mean, r = 1/√(variance + ε); otherwise (rmsnorm): μ = 0, r = 1/√(mean square + ε).
//
// x [groups, group_rows, width]; the vectors of the first group begin at w + w_start and b + b_start, those of the next
// group `stride` elements further. μ and r are saved as f32 [rows, 2].

#include "team.cuh"

// The parameters of all kernels.
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
  variance = team_sum<BLOCK>(variance, scratch + WARP) / width;
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

// V is WIDTH if the width is a multiple of it, otherwise 1. `kind` (kernel/rows.rs) 0: rows of up to COLUMNS<V> columns
// per lane, one warp each; 1: of as many per thread, one block each; 2: of any width, one block each.
#define FORWARD_PARAMETERS                                                                                    \
  const element *__restrict__ x, const element *__restrict__ w, long long w_start,                            \
      const element *__restrict__ b, long long b_start, float *__restrict__ stats, element *__restrict__ out, \
      int rows, int group_rows, int width, long long stride, float offset, float epsilon, int centred
#define FORWARD_NORM                                                                                          \
  {x, w + w_start, b != nullptr ? b + b_start : nullptr, stats, group_rows, width, stride, offset, centred != 0}

#define FORWARD(name, V)                                                                                      \
  KERNEL(name, 512, 1)                                                                                        \
  (FORWARD_PARAMETERS, int kind) {                                                                            \
    SHARED(float, scratch, [2 * WARP]);                                                                       \
    Norm norm = FORWARD_NORM;                                                                                 \
    if (kind == 2) {                                                                                          \
      norm_forward_wide<V>(norm, out, epsilon, scratch);                                                      \
    } else if (kind == 1) {                                                                                   \
      norm_forward<true, V, COLUMNS<V> / V>(norm, out, rows, epsilon, scratch);                               \
    } else {                                                                                                  \
      norm_forward<false, V, COLUMNS<V> / V>(norm, out, rows, epsilon, scratch);                              \
    }                                                                                                         \
  }

FORWARD(normalization_forward, WIDTH)
FORWARD(normalization_forward_odd, 1)

// Rows of at most 32 vectors of WIDTH elements, with 2^shift lanes each.
KERNEL(normalization_forward_narrow, 256)
(FORWARD_PARAMETERS, int shift) {
  norm_forward_narrow(FORWARD_NORM, out, rows, epsilon, 1 << shift, shift);
}
