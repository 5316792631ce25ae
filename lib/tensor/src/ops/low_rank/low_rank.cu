// dtypes: f32 bf16 f16
// The factor of a low-rank update (low_rank/mod.rs).

#include "flat.cuh"

// x *= factor, n elements.
KERNEL(low_rank_scale)(element* x, float factor, long long n) {
  map_flat(x, n, 0, [=](float value) { return factor * value; }, x);
}
