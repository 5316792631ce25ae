// Rows of logits of any width and alignment, and the largest of their elements.
#pragma once

#include "rows.cuh"

// Calls f(N, M, i) for this thread's elements of a row: M groups of N adjacent elements, the first at i and the others
// `blockDim.x * N` further each. In the row's 16-byte aligned part N = WIDTH and, but for its end, M = 2, so that two loads
// are in flight; before and after it single elements.
template <class F>
DEVICE void for_row(const element* row, int width, F f) {
  unsigned long long past = (unsigned long long)row % 16;
  int begin = min(past == 0 ? 0 : (int)(16 - past) / ELEMENT_BYTES, width);
  int end = begin + (width - begin) / WIDTH * WIDTH;
  for (int i = threadIdx.x; i < begin; i += blockDim.x) {
    f(Constant<1>(), Constant<1>(), i);
  }
  const int step = blockDim.x * WIDTH;
  int i = begin + threadIdx.x * WIDTH;
#pragma unroll 1
  for (; i + step < end; i += 2 * step) {
    f(Constant<WIDTH>(), Constant<2>(), i);
  }
  if (i < end) {
    f(Constant<WIDTH>(), Constant<1>(), i);
  }
  for (int i = end + threadIdx.x; i < width; i += blockDim.x) {
    f(Constant<1>(), Constant<1>(), i);
  }
}

template <int N, int M>
DEVICE void load_groups(Vector<element, N> (&x)[M], const element* from) {
#pragma unroll
  for (int m = 0; m < M; m++) {
    x[m] = load_vector<N>(from + m * blockDim.x * N);
  }
}

// 1 / ln 2.
constexpr float LOG2_E = 1.44269504f;

// 2^x, to 2^-22. exp(x) as 2^(x / ln 2) is a third of the instructions of expf, which took longer than the loads of 16-bit
// logits. Its error grows with |x|: here x is a logit minus the largest, and what is far below that counts little.
DEVICE float power_of_two(float x) {
#ifdef EMULATOR
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

DEVICE float minus_infinity() {
  return __uint_as_float(0xff800000u);
}

DEVICE float not_a_number() {
  return __uint_as_float(0x7fc00000u);
}
