// dtypes: bf16 f16
// Products of 16-bit matrices by warpgroups of Hopper (sm_90a), whose two warpgroups share each part: see
// include/product_wgmma.cuh.

#include "product_wgmma.cuh"

PRODUCT_BY_WARPGROUPS(product_wgmma_nn, Cooperative, true, false)
PRODUCT_BY_WARPGROUPS(product_wgmma_nt, Cooperative, true, true)
PRODUCT_BY_WARPGROUPS(product_wgmma_tn, Cooperative, false, false)
