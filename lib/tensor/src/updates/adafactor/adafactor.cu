// dtypes: f32
// Adafactor for one parameter of n = rows·width elements g; a parameter with fewer than two axes has a width of 1 and no
// averages of columns.

#include "decision.cuh"
#include "divide.cuh"
#include "table.cuh"
#include "total.cuh"

// Rows that a thread of adafactor_columns adds up; as in adafactor/mod.rs.
constexpr int CHUNK = 64;

// The average `old` after step t with a mean square `now`.
DEVICE float averaged(float old, double now, double steps, double exponent, double epsilon) {
  double beta = 1.0 - pow(steps, exponent);
  return (float)(beta * old + (1.0 - beta) * (now + epsilon));
}

// r [rows]: the average of each row. One block per row.
KERNEL(adafactor_rows, 256)(
    const float* __restrict__ g, float* __restrict__ r, const StepControl* __restrict__ decision, int width,
    double exponent, double epsilon) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  if (decision->applied == 0.0) {
    return;
  }
  const float* row = g + (long long)blockIdx.x * width;
  float scale = (float)decision->scale;
  double sum = block_total_of(width, scratch, [&](int i) {
    float x = scale * row[i];
    return (double)x * x;
  });
  if (threadIdx.x == 0) {
    r[blockIdx.x] = averaged(r[blockIdx.x], sum / width, decision->steps, exponent, epsilon);
  }
}

// partials [chunks of rows, width]: sums of squares. One block per chunk and 256 columns.
KERNEL(adafactor_columns, 256)(
    const float* __restrict__ g, double* __restrict__ partials, const StepControl* __restrict__ decision, int rows,
    int width) {
  int tiles = (width + 255) / 256, chunk = blockIdx.x / tiles;
  int column = blockIdx.x % tiles * 256 + threadIdx.x;
  if (decision->applied == 0.0 || column >= width) {
    return;
  }
  float scale = (float)decision->scale;
  int last = (chunk + 1) * CHUNK < rows ? (chunk + 1) * CHUNK : rows;
  double sum = 0.0;
  for (int row = chunk * CHUNK; row < last; row++) {
    float x = scale * g[(long long)row * width + column];
    sum += (double)x * x;
  }
  partials[(long long)chunk * width + column] = sum;
}

// c [width]: the average of each column, from the partial sums of all chunks.
KERNEL(adafactor_averages, 256)(
    const double* __restrict__ partials, float* __restrict__ c, const StepControl* __restrict__ decision, int rows,
    int width, double exponent, double epsilon) {
  int column = blockIdx.x * 256 + threadIdx.x;
  if (decision->applied == 0.0 || column >= width) {
    return;
  }
  double sum = 0.0;
  for (int chunk = 0; chunk * CHUNK < rows; chunk++) {
    sum += partials[(long long)chunk * width + column];
  }
  c[column] = averaged(c[column], sum / rows, decision->steps, exponent, epsilon);
}

// mean [1]: the mean of the averages of all rows. One block.
KERNEL(adafactor_mean, 256)(
    const float* __restrict__ r, double* __restrict__ mean, const StepControl* __restrict__ decision, int rows) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  if (decision->applied == 0.0) {
    return;
  }
  double sum = block_total_of(rows, scratch, [&](int i) { return (double)r[i]; });
  if (threadIdx.x == 0) {
    *mean = sum / rows;
  }
}

// A block's piece of the direction before it is limited; without averages of columns, that of r alone. It begins at
// column `column` of row `row`; rows have less than 2^31 - PIECE elements.
struct Direction {
  const float *g, *r, *c;
  const double* mean;
  float scale;
  long long first, row;
  int column, count;
  Divisor width;

  DEVICE float at(int i) const {
    if (c == nullptr) {
      return scale * g[first + i] / sqrtf(r[first + i]);
    }
    int rows = divide(column + i, width);
    float average = (float)(r[row + rows] / *mean);
    return scale * g[first + i] / (sqrtf(average) * sqrtf(c[column + i - rows * width.by]));
  }
};

DEVICE Direction direction_of_block(
    const float* g, const float* r, const float* c, const double* mean, float scale, long long n, Divisor width) {
  long long first = (long long)blockIdx.x * PIECE, row = first / width.by;
  int column = (int)(first - row * width.by), count = n - first < PIECE ? (int)(n - first) : PIECE;
  return {g, r, c, mean, scale, first, row, column, count, width};
}

// sums [blocks]: the squares of the direction of each piece.
KERNEL(adafactor_squares, 256)(
    const float* __restrict__ g, const float* __restrict__ r, const float* __restrict__ c,
    const double* __restrict__ mean, double* __restrict__ sums, const StepControl* __restrict__ decision,
    long long n, DIVISOR_PARAMETERS(width)) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  if (decision->applied == 0.0) {
    return;
  }
  Direction u = direction_of_block(g, r, c, mean, (float)decision->scale, n, DIVISOR(width));
  double sum = block_total_of(u.count, scratch, [&](int i) {
    float x = u.at(i);
    return (double)x * x;
  });
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// p = keep·p + step·u / max(1, RMS(u) / limit), with the sums of adafactor_squares; in as many blocks.
KERNEL(adafactor_step, 256)(
    const float* __restrict__ g, const float* __restrict__ r, const float* __restrict__ c,
    const double* __restrict__ mean, const double* __restrict__ sums, float* __restrict__ p,
    const StepControl* __restrict__ decision, long long n, DIVISOR_PARAMETERS(width), float keep, double step,
    double limit) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  if (decision->applied == 0.0) {
    return;
  }
  double sum = block_total_of(gridDim.x, scratch, [&](int i) { return sums[i]; });
  double excess = sqrt(sum / n) / limit;
  float factor = (float)(step / (excess > 1.0 ? excess : 1.0));
  Direction u = direction_of_block(g, r, c, mean, (float)decision->scale, n, DIVISOR(width));
  for (int i = threadIdx.x; i < u.count; i += blockDim.x) {
    float* to = p + u.first + i;
    *to = fmaf(factor, u.at(i), keep * *to);
  }
}
