// elements: f32 bf16 f16
// Root-mean-square normalisation.

#include "norm.cuh"

// Rows of up to 512 columns, a warp each; blocks: one for every warps-th row.
KERNEL(rmsnorm_forward_warp, 256)(
    const element* __restrict__ x, const element* __restrict__ w, float* __restrict__ stats,
    element* __restrict__ out, int rows, int width, float epsilon) {
  Norm norm = {x, w, nullptr, stats, rows, width, 0, 0.0f};
  if (width % WIDTH == 0) {
    norm_forward<false, false, WIDTH, COLUMNS / WIDTH>(norm, out, rows, epsilon, nullptr);
  } else {
    norm_forward<false, false, 1, COLUMNS>(norm, out, rows, epsilon, nullptr);
  }
}

// Rows of up to COLUMNS columns a thread, a block each.
KERNEL(rmsnorm_forward_block, 512)(
    const element* __restrict__ x, const element* __restrict__ w, float* __restrict__ stats,
    element* __restrict__ out, int rows, int width, float epsilon) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w, nullptr, stats, rows, width, 0, 0.0f};
  if (width % WIDTH == 0) {
    norm_forward<false, true, WIDTH, COLUMNS / WIDTH>(norm, out, rows, epsilon, scratch);
  } else {
    norm_forward<false, true, 1, COLUMNS>(norm, out, rows, epsilon, scratch);
  }
}

// Rows of any width, a block each.
KERNEL(rmsnorm_forward_wide, 512)(
    const element* __restrict__ x, const element* __restrict__ w, float* __restrict__ stats,
    element* __restrict__ out, int rows, int width, float epsilon) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w, nullptr, stats, rows, width, 0, 0.0f};
  if (width % WIDTH == 0) {
    norm_forward_wide<false, WIDTH>(norm, out, epsilon, scratch);
  } else {
    norm_forward_wide<false, 1>(norm, out, epsilon, scratch);
  }
}

// Rows of up to 256 columns, a warp each. Blocks: groups × parts.
KERNEL(rmsnorm_backward_warp, 256)(
    const element* __restrict__ x, const element* __restrict__ w, float* __restrict__ stats,
    const element* __restrict__ dy, element* __restrict__ dx, int add,
    float* __restrict__ partials, int rows, int width, int parts) {
  SHARED(float, sums, [COLUMNS / 2 * WARP]);
  Norm norm = {x, w, nullptr, stats, rows, width, 0, 0.0f};
  NormGradient gradient = {dy, dx, add, partials, parts};
  if (width % WIDTH == 0) {
    norm_backward<false, false, WIDTH, COLUMNS / 2 / WIDTH>(norm, gradient, nullptr, sums);
  } else {
    norm_backward<false, false, 1, COLUMNS / 2>(norm, gradient, nullptr, sums);
  }
}

// Rows of up to COLUMNS / 2 columns a thread, a block each.
KERNEL(rmsnorm_backward_block, 512)(
    const element* __restrict__ x, const element* __restrict__ w, float* __restrict__ stats,
    const element* __restrict__ dy, element* __restrict__ dx, int add,
    float* __restrict__ partials, int rows, int width, int parts) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w, nullptr, stats, rows, width, 0, 0.0f};
  NormGradient gradient = {dy, dx, add, partials, parts};
  if (width % WIDTH == 0) {
    norm_backward<false, true, WIDTH, COLUMNS / 2 / WIDTH>(norm, gradient, scratch, nullptr);
  } else {
    norm_backward<false, true, 1, COLUMNS / 2>(norm, gradient, scratch, nullptr);
  }
}

// Rows of any width, a block each.
KERNEL(rmsnorm_backward_wide, 512)(
    const element* __restrict__ x, const element* __restrict__ w, float* __restrict__ stats,
    const element* __restrict__ dy, element* __restrict__ dx, int add,
    float* __restrict__ partials, int rows, int width, int parts) {
  SHARED(float, scratch, [WARP]);
  Norm norm = {x, w, nullptr, stats, rows, width, 0, 0.0f};
  NormGradient gradient = {dy, dx, add, partials, parts};
  if (width % WIDTH == 0) {
    norm_backward_wide<false, WIDTH>(norm, gradient, scratch);
  } else {
    norm_backward_wide<false, 1>(norm, gradient, scratch);
  }
}
