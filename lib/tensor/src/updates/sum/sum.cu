// dtypes: f32 bf16 f16
// Sums of gradients.

#include "flat.cuh"
#include "table.cuh"

// a += b, n elements.
KERNEL(sum_add, 256)(element* __restrict__ a, const element* __restrict__ b, long long n) {
  map_flat(a, n, 1, [](float x) { return x; }, b);
}

// a += b for many tensors. Entries: b, a.
KERNEL(sum_add_all, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table) {
  Piece piece = piece_of_block<2>(pieces, table);
  const element* b = tensor_of<const element>(piece, 0);
  element* a = tensor_of<element>(piece, 1);
  for_piece<2>(piece, [&](auto n, int i) {
    constexpr int N = n.value;
    Vector<element, N> bs = load_vector<N>(b + i);
    float values[N];
#pragma unroll
    for (int v = 0; v < N; v++) {
      values[v] = to_float(bs.at[v]);
    }
    put_vector<N>(a + i, values, 1);
  });
}
