// dtypes: f32 bf16 f16
// Rows appended to a cache (updates/append/mod.rs).

#include "rows.cuh"

// cache [B, capacity, width]: row start[b] + t of sample b = row t of x [B, tokens, width], for t < count[b]. A thread
// moves 16 bytes if the width allows it.
KERNEL(append_rows)
(const element* __restrict__ x, const int* __restrict__ start, const int* __restrict__ count,
 element* __restrict__ cache, int rows, int tokens, int width, int capacity) {
  with_unit(rows, width, [&](auto n, int row, int column) {
    constexpr int N = n.value;
    int sample = row / tokens, token = row % tokens;
    long long to = (long long)start[sample] + token;
    if (token < count[sample] && to >= 0 && to < capacity) {
      Vector<element, N> from = load_vector<N>(x + (long long)row * width + column);
      store_vector(cache + (sample * (long long)capacity + to) * width + column, from);
    }
  });
}
