// dtypes: f32
// Products of f32 matrices in full precision: see include/product_kernel.cuh.

#include "product_kernel.cuh"

template <bool LHS, bool RHS>
using Medium = Shape<128, 128, 64, 32, 3, LHS, RHS>;

PRODUCT(product_f32_small_nn, FloatWarp, Small, false, false, 128, 4, true)
PRODUCT(product_f32_small_nt, FloatWarp, Small, false, true, 128, 4, true)
PRODUCT(product_f32_small_tn, FloatWarp, Small, true, false, 128, 4, true)
PRODUCT(product_f32_small_tt, FloatWarp, Small, true, true, 128, 4, true)
PRODUCT(product_f32_medium_nn, FloatWarp, Medium, false, false, 256, 2, false)
PRODUCT(product_f32_medium_nt, FloatWarp, Medium, false, true, 256, 2, false)
PRODUCT(product_f32_medium_tn, FloatWarp, Medium, true, false, 256, 2, false)
