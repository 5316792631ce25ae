// The largest of several elements, and the probability of the chosen one.
#pragma once

#include "logits.cuh"

// A value and its index as one number, by value. NaN is larger than any number, -0 equals 0, and among equal values the
// lowest index is the largest. Every element has a rank above 0.
DEVICE unsigned long long rank_of(float x, int index) {
  unsigned bits = __float_as_uint(x + 0.0f);
  unsigned order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  order = x != x ? 0xfffffffeu : order;
  return (unsigned long long)order << 32 | ~(unsigned)index;
}

DEVICE int index_of(unsigned long long rank) {
  return (int)~(unsigned)rank;
}

// The largest rank of the block, in every thread. `scratch` is 32 shared numbers and can be reused afterwards.
DEVICE unsigned long long block_best(unsigned long long rank, unsigned long long* scratch) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    unsigned long long other = __shfl_xor_sync(ALL_LANES, rank, distance);
    rank = other > rank ? other : rank;
  }
  const int warps = (int)blockDim.x / WARP;
  __syncthreads();
  if (lane_id() == 0) {
    scratch[warp_id()] = rank;
  }
  __syncthreads();
  rank = lane_id() < warps ? scratch[lane_id()] : 0;
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    unsigned long long other = __shfl_xor_sync(ALL_LANES, rank, distance);
    rank = other > rank ? other : rank;
  }
  __syncthreads();
  return rank;
}

// Σ exp(x - top) of the logits that one thread has seen, and the largest of them.
struct LogSum {
  float top, total;

  DEVICE void add(float x) {
    if (x > top) {
      // exp(-∞) = 0 discards the empty sum.
      total = total * expf(top - x) + 1.0f;
      top = x;
    } else if (x > minus_infinity()) {
      total += power_of_two((x - top) * LOG2_E);
    } else if (x != x) {
      total = x;
    }
  }
};

// Writes the best element of a row and the logarithm of its probability, which is NaN if a logit is NaN or +∞, or all
// are -∞. All threads of the block call this.
DEVICE void write_choice(unsigned long long best, LogSum sums, const element* row, int* index,
                         float* log_p, float* scratch) {
  float top = block_max(sums.top, scratch);
  float scale = sums.top == top ? 1.0f : expf(sums.top - top);
  float total = block_sum(sums.total * scale, scratch);
  if (threadIdx.x == 0) {
    int at = index_of(best);
    *index = at;
    *log_p = top > minus_infinity() ? to_float(row[at]) - top - logf(total) : not_a_number();
  }
}
