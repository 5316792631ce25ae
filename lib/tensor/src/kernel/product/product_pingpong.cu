// dtypes: bf16 f16
// Products of 16-bit matrices by warpgroups of Hopper (sm_90a), whose two warpgroups take parts in turns: see
// include/product_wgmma.cuh.

#include "product_wgmma.cuh"

PRODUCT_BY_WARPGROUPS(product_pingpong_nn, PingPong, true, false)
PRODUCT_BY_WARPGROUPS(product_pingpong_nt, PingPong, true, true)
PRODUCT_BY_WARPGROUPS(product_pingpong_tn, PingPong, false, false)
