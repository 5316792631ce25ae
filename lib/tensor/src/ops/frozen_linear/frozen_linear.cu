// dtypes: f32 bf16 f16
// Weights in 4 bits (nf4.rs): dequantised as a whole, or multiplied by a few rows.

#include "activation.cuh"
#include "flat.cuh"

// Elements that share a scale, and scales that share a scale of their own.
constexpr int BLOCK = 64;
constexpr int NESTED_BLOCK = 256;
// Maximum number of rows of a product, and columns that a lane reads at a time.
constexpr int ROWS = 8;
constexpr int COLUMNS = 8;

// A weight: two codes in a byte; scales in f32 or, if `map` is given, codes of their differences from `offset`.
struct Weight {
  const unsigned char* codes;
  const void* scales;
  const float* numbers;
  const float* largest;
  const float* map;
  float offset;
};

// The scale of a block of elements; each operation is rounded, as in bitsandbytes.
DEVICE float scale_of(const Weight& w, long long block) {
  if (!w.map) {
    return static_cast<const float*>(w.scales)[block];
  }
  const int code = static_cast<const unsigned char*>(w.scales)[block];
  return __fadd_rn(__fmul_rn(w.map[code], w.largest[block / NESTED_BLOCK]), w.offset);
}

DEVICE float number_of(const float* numbers, unsigned byte, int i) {
  return numbers[i % 2 ? byte & 15 : byte >> 4];
}

#define WEIGHT                                                                           \
  const unsigned char *__restrict__ codes, const void *__restrict__ scales,              \
      const float *__restrict__ given, const float *__restrict__ largest,                \
      const float *__restrict__ map, float offset

// out = the weight, n elements.
KERNEL(frozen_linear_expand)(WEIGHT, element* __restrict__ out, long long n) {
  SHARED(float, numbers, [16]);
  if (threadIdx.x < 16) {
    numbers[threadIdx.x] = given[threadIdx.x];
  }
  __syncthreads();
  const Weight w{codes, scales, numbers, largest, map, offset};
  long long i = flat_index();
  if (i + WIDTH <= n) {
    // WIDTH divides BLOCK, so all elements have the same scale.
    const float scale = scale_of(w, i / BLOCK);
    const auto bytes = load_vector<WIDTH / 2>(codes + i / 2);
    Vector<element, WIDTH> y;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
      y.at[e] = from_float<element>(number_of(numbers, bytes.at[e / 2], e) * scale);
    }
    store_vector(out + i, y);
  } else {
    for (; i < n; i++) {
      const float number = number_of(numbers, codes[i / 2], (int)(i % 2));
      out[i] = from_float<element>(number * scale_of(w, i / BLOCK));
    }
  }
}

// out [rows, n] = f(z), z = x Wᵀ + bias, for x [rows, k], at most ROWS rows, and k a multiple of COLUMNS. z is written if
// it is given. A warp computes a column.
KERNEL(frozen_linear_rows)(WEIGHT, const element* __restrict__ x, const element* __restrict__ bias,
                           element* __restrict__ out, element* __restrict__ z, int activation,
                           int rows, int n, int k) {
  SHARED(float, numbers, [16]);
  if (threadIdx.x < 16) {
    numbers[threadIdx.x] = given[threadIdx.x];
  }
  __syncthreads();
  const Weight w{codes, scales, numbers, largest, map, offset};
  const int column = blockIdx.x * (blockDim.x / WARP) + warp_id();
  if (column >= n) {
    return;
  }
  float sums[ROWS] = {};
  const long long first = (long long)column * k;
  for (int at = lane_id() * COLUMNS; at < k; at += WARP * COLUMNS) {
    const float scale = scale_of(w, (first + at) / BLOCK);
    const auto bytes = load_vector<COLUMNS / 2>(codes + (first + at) / 2);
    float values[COLUMNS];
#pragma unroll
    for (int e = 0; e < COLUMNS; e++) {
      // As if the weight had been dequantised.
      values[e] = to_float(from_float<element>(number_of(numbers, bytes.at[e / 2], e) * scale));
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row < rows) {
        const element* from = x + (long long)row * k + at;
#pragma unroll
        for (int e = 0; e < COLUMNS; e += WIDTH) {
          const auto part = load_vector<WIDTH>(from + e);
#pragma unroll
          for (int i = 0; i < WIDTH; i++) {
            sums[row] = fmaf(to_float(part.at[i]), values[e + i], sums[row]);
          }
        }
      }
    }
  }
  // Lane i writes row i.
  float sum = 0.0f;
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    const float total = warp_sum(sums[row]);
    sum = lane_id() == row ? total : sum;
  }
  if (lane_id() < rows) {
    const long long to = (long long)lane_id() * n + column;
    sum += bias ? to_float(bias[column]) : 0.0f;
    if (z) {
      z[to] = from_float<element>(sum);
    }
    out[to] = from_float<element>(activation == IDENTITY ? sum : activate(activation, sum).value);
  }
}
