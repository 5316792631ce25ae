// dtypes: f32 bf16 f16
// Rotary position embedding of heads, after an optional RMS normalization of each head; formulas in mod.rs.
//
// A group of 2^shift lanes of one warp holds a head, each lane the same N = WIDTH elements of both halves, so that it has
// whole pairs. Heads of a row are adjacent, and so mostly read the same row of the table.

#include "divide.cuh"
#include "rows.cuh"

constexpr int N = WIDTH;
// Elements of the largest head.
constexpr int LARGEST = 2 * N * WARP;
constexpr int WARPS = 8;

// Elements of the first and of the second half of a row of `dim` numbers.
struct Pairs {
  float first[N];
  float second[N];
};

// The sizes of a call. `whole`: halves of heads are multiples of 16 bytes.
struct Sizes {
  int count;
  int dim;
  Divisor heads;
  Divisor positions;
  int shift;
  int whole;

  DEVICE int column() const { return (lane_id() & ((1 << shift) - 1)) * N; }
  // The first head of this warp, of those that all warps handle at once, and the number of the latter in this block.
  DEVICE int first() const { return (blockIdx.x * WARPS + warp_id()) * (WARP >> shift); }
  DEVICE int own() const { return first() + (lane_id() >> shift); }
  // The first number of the row of the table for a head.
  DEVICE long long angles(int head) const {
    return static_cast<long long>(remainder(divide(head, heads), positions)) * dim;
  }
};

#define SIZES_PARAMETERS \
  int count, int dim, DIVISOR_PARAMETERS(heads), DIVISOR_PARAMETERS(positions), int shift, int whole
#define SIZES {count, dim, DIVISOR(heads), DIVISOR(positions), shift, whole}

// N numbers from `column` on of a half of `half` numbers; zeros past its end.
template <class T>
DEVICE void load_half(float (&to)[N], const T* from, int column, int half, int whole) {
  if (whole && column < half) {
    constexpr int EACH = 16 / sizeof(T);
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
      const Vector<T, EACH> values = load_vector<EACH>(from + column + i);
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        to[i + j] = to_float(values.at[j]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) {
      to[i] = column + i < half ? to_float(from[column + i]) : 0.0f;
    }
  }
}

template <class T>
DEVICE Pairs load_pairs(const T* row, int column, Sizes sizes) {
  Pairs pairs;
  load_half(pairs.first, row, column, sizes.dim / 2, sizes.whole);
  load_half(pairs.second, row + sizes.dim / 2, column, sizes.dim / 2, sizes.whole);
  return pairs;
}

DEVICE void put_half(element* to, const float (&values)[N], int column, int half, int whole, int add) {
  if (whole && column < half) {
    put_vector<N>(to + column, values, add);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (column + i < half) {
        put(to + column + i, values[i], add);
      }
    }
  }
}

DEVICE void put_pairs(element* row, const Pairs& pairs, int column, Sizes sizes, int add) {
  put_half(row, pairs.first, column, sizes.dim / 2, sizes.whole, add);
  put_half(row + sizes.dim / 2, pairs.second, column, sizes.dim / 2, sizes.whole, add);
}

DEVICE float dot(const Pairs& a, const Pairs& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) {
    sum = fmaf(a.first[i], b.first[i], sum);
    sum = fmaf(a.second[i], b.second[i], sum);
  }
  return sum;
}

DEVICE void scale(Pairs& pairs, float factor, const Pairs& w) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    pairs.first[i] *= factor * w.first[i];
    pairs.second[i] *= factor * w.second[i];
  }
}

// Rotates pairs by the angles with these cosines and sines; sign -1 rotates back.
DEVICE void rotate(Pairs& pairs, const Pairs& angles, float sign) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float c = angles.first[i], s = sign * angles.second[i], a = pairs.first[i], b = pairs.second[i];
    pairs.first[i] = a * c - b * s;
    pairs.second[i] = b * c + a * s;
  }
}

DEVICE float inverse_rms(const Pairs& x, Sizes sizes, float epsilon) {
  return 1.0f / sqrtf(group_sum(dot(x, x), 1 << sizes.shift) / sizes.dim + epsilon);
}

// y (+)= the rotation of x, or of w ∘ x / rms(x) unless w is null. x, y [rows, heads, dim]; table [positions, dim], whose
// rows repeat.
KERNEL(rotary_rotate, 256)
(const element* __restrict__ x, const float* __restrict__ table, const element* __restrict__ w, element* y,
 SIZES_PARAMETERS, float epsilon, int inverse, int add) {
  const Sizes sizes = SIZES;
  const int column = sizes.column(), own = sizes.own();
  // Lanes past the end read the first head.
  const bool valid = own < count;
  const int head = valid ? own : 0;
  Pairs pairs = load_pairs(x + static_cast<long long>(head) * dim, column, sizes);
  const Pairs angles = load_pairs(table + sizes.angles(head), column, sizes);
  if (w != nullptr) {
    scale(pairs, inverse_rms(pairs, sizes, epsilon), load_pairs(w, column, sizes));
  }
  rotate(pairs, angles, inverse ? -1.0f : 1.0f);
  if (valid) {
    put_pairs(y + static_cast<long long>(head) * dim, pairs, column, sizes, add);
  }
}

// With n = r x and g = w dn, where dn is dy rotated back: dx (+)= r (g - n mean(g n)), unless dx is null. The sums of
// dn n over the heads of each block go to partials [blocks, dim].
KERNEL(rotary_backward, 256)
(const element* __restrict__ x, const float* __restrict__ table, const element* __restrict__ w,
 const element* __restrict__ dy, element* dx, float* __restrict__ partials, SIZES_PARAMETERS, float epsilon,
 int add) {
  SHARED(float, sums, [WARPS][LARGEST]);
  const Sizes sizes = SIZES;
  const int column = sizes.column(), half = dim / 2;
  const Pairs weight = load_pairs(w, column, sizes);
  Pairs dw = {};
  const int step = static_cast<int>(gridDim.x) * WARPS * (WARP >> shift);
  // All lanes of a warp take the same number of turns.
  int own = sizes.own();
  for (int first = sizes.first(); first < count; first += step, own += step) {
    const bool valid = own < count;
    const int head = valid ? own : 0;
    const long long start = static_cast<long long>(head) * dim;
    const Pairs values = load_pairs(x + start, column, sizes);
    Pairs g = load_pairs(dy + start, column, sizes);
    rotate(g, load_pairs(table + sizes.angles(head), column, sizes), -1.0f);
    const float r = inverse_rms(values, sizes, epsilon), weighted = valid ? r : 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      dw.first[i] += g.first[i] * values.first[i] * weighted;
      dw.second[i] += g.second[i] * values.second[i] * weighted;
    }
    if (dx == nullptr) {
      continue;
    }
    scale(g, 1.0f, weight);
    const float mean = group_sum(dot(g, values), 1 << shift) * r * r / dim;
#pragma unroll
    for (int i = 0; i < N; i++) {
      g.first[i] = r * (g.first[i] - values.first[i] * mean);
      g.second[i] = r * (g.second[i] - values.second[i] * mean);
    }
    if (valid) {
      put_pairs(dx + start, g, column, sizes, add);
    }
  }
  // Over the groups of a warp, then over warps.
  for (int distance = 1 << shift; distance < WARP; distance *= 2) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      dw.first[i] += __shfl_xor_sync(ALL_LANES, dw.first[i], distance);
      dw.second[i] += __shfl_xor_sync(ALL_LANES, dw.second[i], distance);
    }
  }
  if (lane_id() < 1 << shift) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (column + i < half) {
        sums[warp_id()][column + i] = dw.first[i];
        sums[warp_id()][half + column + i] = dw.second[i];
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < dim; at += blockDim.x) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      sum += sums[i][at];
    }
    partials[static_cast<long long>(blockIdx.x) * dim + at] = sum;
  }
}
