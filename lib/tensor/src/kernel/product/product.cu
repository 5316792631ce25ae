// elements: bf16 f16
// Products of 16-bit matrices on tensor cores, sums in f32: see include/product_kernel.cuh.
//
// The last letters of a kernel name say how A and B are stored: n like op(), t transposed.

#include "product_kernel.cuh"

template <bool LHS, bool RHS>
using Small = Shape<64, 64, 32, 32, 4, LHS, RHS>;
template <bool LHS, bool RHS>
using Medium = Shape<128, 128, 64, 64, 4, LHS, RHS>;
template <bool LHS, bool RHS>
using Large = Shape<128, 256, 64, 64, 4, LHS, RHS>;

#define PRODUCT(name, shape, threads, blocks, odd)              \
    KERNEL(name, threads, blocks)(PRODUCT_PARAMETERS) {         \
        DYNAMIC_SHARED(shared);                                 \
        const Product p = PRODUCT_ARGUMENTS;                    \
        using S = shape;                                        \
        make_product<S, MmaWarp<S>, odd>(p, shared);            \
    }

#define COMMA ,
PRODUCT(product_small_nn, Small<false COMMA false>, 128, 4, true)
PRODUCT(product_small_nt, Small<false COMMA true>, 128, 4, true)
PRODUCT(product_small_tn, Small<true COMMA false>, 128, 4, true)
PRODUCT(product_small_tt, Small<true COMMA true>, 128, 4, true)
PRODUCT(product_medium_nn, Medium<false COMMA false>, 128, 2, false)
PRODUCT(product_medium_nt, Medium<false COMMA true>, 128, 2, false)
PRODUCT(product_medium_tn, Medium<true COMMA false>, 128, 2, false)
PRODUCT(product_large_nn, Large<false COMMA false>, 256, 1, false)
PRODUCT(product_large_nt, Large<false COMMA true>, 256, 1, false)
PRODUCT(product_large_tn, Large<true COMMA false>, 256, 1, false)
