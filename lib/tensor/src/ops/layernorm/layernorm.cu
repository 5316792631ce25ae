// elements: f32 bf16 f16
// Layer normalisation; with weights for each group of rows also the adaptive one (`adaln`). The vectors
// of a group begin at w + w_at and b + b_at, `stride` elements from the last group's; the weight is
// offset + w.

#include "norm.cuh"

// Rows of up to 512 columns, a warp each; blocks: one for every warps-th row.
KERNEL(layernorm_forward_warp, 256)(
    const element* __restrict__ x, const element* __restrict__ w, long long w_at,
    const element* __restrict__ b, long long b_at, float* __restrict__ stats,
    element* __restrict__ out, int rows, int group_rows, int width, long long stride, float offset,
    float epsilon) {
  Norm norm = {x, w + w_at, b + b_at, stats, group_rows, width, stride, offset};
  if (width % WIDTH == 0) {
    norm_forward<true, false, WIDTH, COLUMNS / WIDTH>(norm, out, rows, epsilon, nullptr);
  } else {
    norm_forward<true, false, 1, COLUMNS>(norm, out, rows, epsilon, nullptr);
  }
}

// Rows of up to COLUMNS columns a thread, a block each.
KERNEL(layernorm_forward_block, 512)(
    const element* __restrict__ x, const element* __restrict__ w, long long w_at,
    const element* __restrict__ b, long long b_at, float* __restrict__ stats,
    element* __restrict__ out, int rows, int group_rows, int width, long long stride, float offset,
    float epsilon) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w + w_at, b + b_at, stats, group_rows, width, stride, offset};
  if (width % WIDTH == 0) {
    norm_forward<true, true, WIDTH, COLUMNS / WIDTH>(norm, out, rows, epsilon, scratch);
  } else {
    norm_forward<true, true, 1, COLUMNS>(norm, out, rows, epsilon, scratch);
  }
}

// Rows of any width, a block each.
KERNEL(layernorm_forward_wide, 512)(
    const element* __restrict__ x, const element* __restrict__ w, long long w_at,
    const element* __restrict__ b, long long b_at, float* __restrict__ stats,
    element* __restrict__ out, int rows, int group_rows, int width, long long stride, float offset,
    float epsilon) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w + w_at, b + b_at, stats, group_rows, width, stride, offset};
  if (width % WIDTH == 0) {
    norm_forward_wide<true, WIDTH>(norm, out, epsilon, scratch);
  } else {
    norm_forward_wide<true, 1>(norm, out, epsilon, scratch);
  }
}

// Rows of up to 256 columns, a warp each. Blocks: groups × parts.
KERNEL(layernorm_backward_warp, 256)(
    const element* __restrict__ x, const element* __restrict__ w, long long w_at,
    float* __restrict__ stats, const element* __restrict__ dy, element* __restrict__ dx, int add,
    float* __restrict__ partials, int group_rows, int width, long long stride, float offset,
    int parts) {
  SHARED(float, sums, [2 * COLUMNS / 2 * WARP]);
  Norm norm = {x, w + w_at, nullptr, stats, group_rows, width, stride, offset};
  NormGradient gradient = {dy, dx, add, partials, parts};
  if (width % WIDTH == 0) {
    norm_backward<true, false, WIDTH, COLUMNS / 2 / WIDTH>(norm, gradient, nullptr, sums);
  } else {
    norm_backward<true, false, 1, COLUMNS / 2>(norm, gradient, nullptr, sums);
  }
}

// Rows of up to COLUMNS / 2 columns a thread, a block each.
KERNEL(layernorm_backward_block, 512)(
    const element* __restrict__ x, const element* __restrict__ w, long long w_at,
    float* __restrict__ stats, const element* __restrict__ dy, element* __restrict__ dx, int add,
    float* __restrict__ partials, int group_rows, int width, long long stride, float offset,
    int parts) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w + w_at, nullptr, stats, group_rows, width, stride, offset};
  NormGradient gradient = {dy, dx, add, partials, parts};
  if (width % WIDTH == 0) {
    norm_backward<true, true, WIDTH, COLUMNS / 2 / WIDTH>(norm, gradient, scratch, nullptr);
  } else {
    norm_backward<true, true, 1, COLUMNS / 2>(norm, gradient, scratch, nullptr);
  }
}

// Rows of any width, a block each.
KERNEL(layernorm_backward_wide, 512)(
    const element* __restrict__ x, const element* __restrict__ w, long long w_at,
    float* __restrict__ stats, const element* __restrict__ dy, element* __restrict__ dx, int add,
    float* __restrict__ partials, int group_rows, int width, long long stride, float offset,
    int parts) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w + w_at, nullptr, stats, group_rows, width, stride, offset};
  NormGradient gradient = {dy, dx, add, partials, parts};
  if (width % WIDTH == 0) {
    norm_backward_wide<true, WIDTH>(norm, gradient, scratch);
  } else {
    norm_backward_wide<true, 1>(norm, gradient, scratch);
  }
}
