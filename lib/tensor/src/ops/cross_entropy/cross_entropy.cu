// dtypes: f32 bf16 f16
// Cross entropy of a softmax (cross_entropy/mod.rs). A block handles a row: forward reads the logits once, keeping a
// running maximum and sum; backward reads them once more while writing the gradient. Rows may have any width and
// alignment: elements before and after the 16-byte aligned part are read one by one.

#include "logits.cuh"

// The largest logit so far, Σ exp(x - top), and Σ x if it `is_smooth`.
struct Sums {
  float top, exponentials, plain;
};

template <int N, int M>
DEVICE void take(Sums& sums, const Vector<element, N> (&x)[M], bool is_smooth) {
  float top = sums.top;
#pragma unroll
  for (int i = 0; i < M * N; i++) {
    top = fmaxf(top, to_float(x[i / N].at[i % N]));
  }
  if (top > sums.top) {
    // exp(-∞) = 0 discards the empty sum.
    sums.exponentials *= expf(sums.top - top);
    sums.top = top;
  }
  // If all logits so far are -∞, exp(-∞ - 0) is 0, whereas exp(-∞ + ∞) would be NaN.
  const float origin = top > minus_infinity() ? top : 0.0f;
#pragma unroll
  for (int i = 0; i < M * N; i++) {
    sums.exponentials += power_of_two((to_float(x[i / N].at[i % N]) - origin) * LOG2_E);
  }
  if (is_smooth) {
#pragma unroll
    for (int i = 0; i < M * N; i++) {
      sums.plain += to_float(x[i / N].at[i % N]);
    }
  }
}

// losses [rows], stats [rows, 2]: the maximum m and log Σ exp(x - m) of each row of x [rows, classes].
// `weights` [rows] may be null (all 1). `kept` is 1 - smoothing, computed by the host in double.
KERNEL(cross_entropy_rows, 512)
(const element* __restrict__ x, const int* __restrict__ targets, const float* __restrict__ weights,
 float* __restrict__ losses, float* __restrict__ stats, int classes, int ignore, float kept,
 float smoothing, float gamma) {
  SHARED(float, scratch, [32]);
  int row = blockIdx.x;
  const element* from = x + (long long)row * classes;
  Sums sums{minus_infinity(), 0.0f, 0.0f};
  for_row(from, classes, [&](auto n, auto m, int i) {
    Vector<element, n.value> logits[m.value];
    load_groups(logits, from + i);
    take(sums, logits, smoothing != 0.0f);
  });
  float top = block_max(sums.top, scratch);
  float scale = sums.top == top ? 1.0f : expf(sums.top - top);
  float total = block_sum(sums.exponentials * scale, scratch);
  float plain = block_sum(sums.plain, scratch);
  if (threadIdx.x > 0) {
    return;
  }
  float log = logf(total);
  stats[2 * row] = top;
  stats[2 * row + 1] = log;
  int target = targets[row];
  float loss = 0.0f;
  if (target != ignore) {
    bool known = target >= 0 && target < classes;
    loss = known ? kept * (log - (to_float(from[target]) - top)) : not_a_number();
    if (gamma != 0.0f && known) {
      float log_p = to_float(from[target]) - top - log;
      loss = -log_p * powf(-expm1f(log_p), gamma);
    }
    if (smoothing != 0.0f) {
      loss += smoothing * (log + top - plain / (float)classes);
    }
    loss *= weights != nullptr ? weights[row] : 1.0f;
  }
  losses[row] = loss;
}

// loss [1] = Σ losses. One block.
KERNEL(cross_entropy_sum, 1024)
(const float* __restrict__ losses, float* __restrict__ loss, int rows) {
  SHARED(float, scratch, [32]);
  float sum = 0.0f;
  for (int row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += losses[row];
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    *loss = sum;
  }
}

// The factor of the gradient of a focal loss, given log p of the target.
DEVICE float focal_slope(float gamma, float log_p) {
  float rest = -expm1f(log_p);
  if (rest == 0.0f) {
    return 0.0f;
  }
  return powf(rest, gamma) - gamma * expf(log_p) * powf(rest, gamma - 1.0f) * log_p;
}

// dx (+)= dy·weight·(softmax(x) - kept·[target] - smoothing/classes); dy [1]. 0 for an ignored row, whatever its logits.
// dx may be x unless the loss is focal, for which every thread reads the logit of the target.
KERNEL(cross_entropy_backward, 512)
(const element* x, const int* __restrict__ targets, const float* __restrict__ weights,
 const float* __restrict__ stats, const float* __restrict__ dy, element* dx, int classes,
 int ignore, float kept, float smoothing, float gamma, int add) {
  int row = blockIdx.x;
  const element* from = x + (long long)row * classes;
  element* to = dx + (long long)row * classes;
  int target = targets[row];
  if (target == ignore) {
    for (int i = threadIdx.x; !add && i < classes; i += blockDim.x) {
      to[i] = from_float<element>(0.0f);
    }
    return;
  }
  float scale = *dy * (weights != nullptr ? weights[row] : 1.0f);
  float top = stats[2 * row], log = stats[2 * row + 1];
  if (gamma != 0.0f && target >= 0 && target < classes) {
    scale *= focal_slope(gamma, to_float(from[target]) - top - log);
  }
  // p = exp(x - top - log), and scale·(p - smoothing/classes) = scale·p + rest.
  const float log2 = log * LOG2_E, rest = scale * smoothing / (float)-classes;
  // Both rows have the same alignment.
  for_row(from, classes, [&](auto n, auto m, int i) {
    constexpr int N = n.value, M = m.value;
    Vector<element, N> logits[M];
    load_groups(logits, from + i);
#pragma unroll
    for (int k = 0; k < M; k++) {
      float out[N];
#pragma unroll
      for (int j = 0; j < N; j++) {
        const float p = power_of_two((to_float(logits[k].at[j]) - top) * LOG2_E - log2);
        out[j] = scale * p + rest;
      }
      const int first = i + k * blockDim.x * N;
      if (target >= first && target < first + N) {
#pragma unroll
        for (int j = 0; j < N; j++) {
          out[j] -= first + j == target ? scale * kept : 0.0f;
        }
      }
      put_vector<N>(to + first, out, add);
    }
  });
}
