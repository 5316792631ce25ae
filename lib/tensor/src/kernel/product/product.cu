// dtypes: bf16 f16
// Products of 16-bit matrices on tensor cores, sums in f32: see include/product_kernel.cuh.

#include "product_kernel.cuh"

template <bool LHS, bool RHS>
using Medium = Shape<128, 128, 64, 64, 4, LHS, RHS>;
template <bool LHS, bool RHS>
using Large = Shape<128, 256, 64, 64, 4, LHS, RHS>;

PRODUCT(product_small_nn, MmaWarp, Small, false, false, 128, 4, true)
PRODUCT(product_small_nt, MmaWarp, Small, false, true, 128, 4, true)
PRODUCT(product_small_tn, MmaWarp, Small, true, false, 128, 4, true)
PRODUCT(product_small_tt, MmaWarp, Small, true, true, 128, 4, true)
PRODUCT(product_medium_nn, MmaWarp, Medium, false, false, 128, 2, false)
PRODUCT(product_medium_nt, MmaWarp, Medium, false, true, 128, 2, false)
PRODUCT(product_medium_tn, MmaWarp, Medium, true, false, 128, 2, false)
PRODUCT(product_large_nn, MmaWarp, Large, false, false, 256, 1, false)
PRODUCT(product_large_nt, MmaWarp, Large, false, true, 256, 1, false)
PRODUCT(product_large_tn, MmaWarp, Large, true, false, 256, 1, false)
