// elements: f32
// Products of f32 matrices on tensor cores: operands are rounded to tf32 (11 bits), sums are f32: see
// include/product_kernel.cuh.
//
// The last letters of a kernel name say how A and B are stored: n like op(), t transposed.

#include "product_kernel.cuh"

template <bool LHS, bool RHS>
using Small = Shape<64, 64, 32, 32, 4, LHS, RHS>;
template <bool LHS, bool RHS>
using Medium = Shape<128, 128, 64, 64, 4, LHS, RHS>;

#define PRODUCT(name, shape, threads, blocks, odd)              \
    KERNEL(name, threads, blocks)(PRODUCT_PARAMETERS) {         \
        DYNAMIC_SHARED(shared);                                 \
        const Product p = PRODUCT_ARGUMENTS;                    \
        using S = shape;                                        \
        make_product<S, MmaWarp<S>, odd>(p, shared);          \
    }

#define COMMA ,
PRODUCT(product_tf32_small_nn, Small<false COMMA false>, 128, 4, true)
PRODUCT(product_tf32_small_nt, Small<false COMMA true>, 128, 4, true)
PRODUCT(product_tf32_small_tn, Small<true COMMA false>, 128, 4, true)
PRODUCT(product_tf32_small_tt, Small<true COMMA true>, 128, 4, true)
PRODUCT(product_tf32_medium_nn, Medium<false COMMA false>, 128, 2, false)
PRODUCT(product_tf32_medium_nt, Medium<false COMMA true>, 128, 2, false)
PRODUCT(product_tf32_medium_tn, Medium<true COMMA false>, 128, 2, false)
