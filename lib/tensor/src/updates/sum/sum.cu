// elements: f32 bf16 f16
// Sums of gradients.

#include "flat.cuh"
#include "table.cuh"

// a += b, n elements.
KERNEL(sum_add, 256)(element* __restrict__ a, const element* __restrict__ b, long long n) {
  map_flat(b, a, n, 1, [](float x) { return x; });
}

// a += b for many tensors. Entries: b, a.
KERNEL(sum_add_all, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table) {
  Piece piece = piece_of_block<2>(pieces, table);
  const element* b = tensor_of<const element>(piece, 0);
  element* a = tensor_of<element>(piece, 1);
  int vectors = piece.count / WIDTH * WIDTH;
#pragma unroll 2
  for (int i = threadIdx.x * WIDTH; i < vectors; i += blockDim.x * WIDTH) {
    Vector<element, WIDTH> bs = load_vector<WIDTH>(b + i);
    float values[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; v++) {
      values[v] = to_float(bs.at[v]);
    }
    put_vector<WIDTH>(a + i, values, 1);
  }
  int i = vectors + threadIdx.x;
  if (i < piece.count) {
    put(a + i, to_float(b[i]), 1);
  }
}
