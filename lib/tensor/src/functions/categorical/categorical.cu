// dtypes: f32 bf16 f16
// Samples from the softmax of each row by the Gumbel-max trick (functions/categorical/mod.rs). A block handles a row; a
// thread handles groups of four elements, which share the words of a Philox block.

#include "choice.cuh"
#include "philox.cuh"

// Above the largest noise, 33 ln 2.
constexpr float MOST = 23.0f;

// Standard Gumbel noise of a random word; the formulas of the host.
DEVICE float gumbel(unsigned word) {
  float v = fminf(((float)word + 0.5f) * 2.3283064365386963e-10f, 0.99999994f);
  float series = 0.2f + v * 0.16666667f;
  series = v * (1.0f + v * (0.5f + v * (0.33333333f + v * (0.25f + v * series))));
  float exponential = v < 0.0625f ? series : -logf(1.0f - v);
  return -logf(exponential);
}

// index [rows], log_p [rows]: a sample among the first `columns` elements of each row of x [rows, width], except for
// element `hidden`. counter [4]: low and high word of the key, step, first row. `inverse` is 1 / temperature.
KERNEL(categorical_rows, 512)
(const element* __restrict__ x, const int* __restrict__ counter, int* __restrict__ index,
 float* __restrict__ log_p, int width, int columns, int hidden, unsigned site, float inverse) {
  SHARED(float, scratch, [32]);
  SHARED(unsigned long long, ranks, [32]);
  const element* row = x + (long long)blockIdx.x * width;
  const uint2 key = make_uint2((unsigned)counter[0], (unsigned)counter[1]);
  const unsigned step = (unsigned)counter[2], sample = (unsigned)counter[3] + blockIdx.x;
  const bool whole = width % 4 == 0;
  LogSum sums{minus_infinity(), 0.0f};
  unsigned long long best = 0;
  float least = minus_infinity();
#pragma unroll 1
  for (int i = threadIdx.x * 4; i < columns; i += blockDim.x * 4) {
    float logits[4];
    if (whole) {
      const Vector<element, 4> four = load_vector<4>(row + i);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        logits[j] = to_float(four.at[j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        logits[j] = i + j < columns ? to_float(row[i + j]) : minus_infinity();
      }
    }
    bool is_low = true;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (i + j < columns && i + j != hidden) {
        sums.add(logits[j]);
        is_low = is_low && logits[j] * inverse + MOST < least;
      }
    }
    if (is_low) {
      // No noise makes these elements the largest.
      continue;
    }
    const uint4 words = philox_block(make_uint4(i / 4, sample, step, site), key);
    const float noise[4] = {gumbel(words.x), gumbel(words.y), gumbel(words.z), gumbel(words.w)};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (i + j < columns && i + j != hidden) {
        float y = logits[j] * inverse + noise[j];
        unsigned long long rank = rank_of(y, i + j);
        best = rank > best ? rank : best;
        least = y > least ? y : least;
      }
    }
  }
  best = block_best(best, ranks);
  write_choice(best, sums, row, index + blockIdx.x, log_p + blockIdx.x, scratch);
}
