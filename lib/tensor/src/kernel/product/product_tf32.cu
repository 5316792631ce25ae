// dtypes: f32
// Products of f32 matrices on tensor cores: operands are rounded to tf32 (11 bits), sums are f32: see
// include/product_kernel.cuh.

#include "product_kernel.cuh"

template <bool LHS, bool RHS>
using Medium = Shape<128, 128, 64, 64, 4, LHS, RHS>;

PRODUCT(product_tf32_small_nn, MmaWarp, Small, false, false, 128, 4, true)
PRODUCT(product_tf32_small_nt, MmaWarp, Small, false, true, 128, 4, true)
PRODUCT(product_tf32_small_tn, MmaWarp, Small, true, false, 128, 4, true)
PRODUCT(product_tf32_small_tt, MmaWarp, Small, true, true, 128, 4, true)
PRODUCT(product_tf32_medium_nn, MmaWarp, Medium, false, false, 128, 2, false)
PRODUCT(product_tf32_medium_nt, MmaWarp, Medium, false, true, 128, 2, false)
PRODUCT(product_tf32_medium_tn, MmaWarp, Medium, true, false, 128, 2, false)
