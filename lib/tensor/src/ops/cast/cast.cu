// dtypes: f32 bf16 f16
// Conversion between f32 and `element`. A thread handles eight elements: 16 bytes of the shorter type.

#include "table.cuh"

constexpr int EIGHT = 8;

DEVICE long long cast_index() {
  return ((long long)blockIdx.x * blockDim.x + threadIdx.x) * EIGHT;
}

// to (+)= from, for eight elements.
template <class From, class To>
DEVICE void cast(const From* __restrict__ from, To* __restrict__ to, long long n, int add) {
  constexpr int READ = 16 / (int)sizeof(From), WRITE = 16 / (int)sizeof(To);
  long long i = cast_index();
  if (i + EIGHT > n) {
    for (; i < n; i++) {
      put(to + i, to_float(from[i]), add);
    }
    return;
  }
  float values[EIGHT];
#pragma unroll
  for (int j = 0; j < EIGHT; j += READ) {
    Vector<From, READ> part = load_vector<READ>(from + i + j);
#pragma unroll
    for (int v = 0; v < READ; v++) {
      values[j + v] = to_float(part.at[v]);
    }
  }
#pragma unroll
  for (int j = 0; j < EIGHT; j += WRITE) {
    Vector<To, WRITE> part = {};
    if (add) {
      part = load_vector<WRITE>(to + i + j);
    }
#pragma unroll
    for (int v = 0; v < WRITE; v++) {
      float old = add ? to_float(part.at[v]) : 0.0f;
      part.at[v] = from_float<To>(old + values[j + v]);
    }
    store_vector(to + i + j, part);
  }
}

KERNEL(cast_from_f32, 256)(
    const float* __restrict__ from, element* __restrict__ to, long long n, int add) {
  cast<float, element>(from, to, n, add);
}

KERNEL(cast_to_f32, 256)(
    const element* __restrict__ from, float* __restrict__ to, long long n, int add) {
  cast<element, float>(from, to, n, add);
}

// Of many tensors at once. Entries: address of the f32 tensor, first byte of the other one in `to`.
KERNEL(cast_all, 256)(
    const unsigned long long* __restrict__ pieces, const unsigned long long* __restrict__ table,
    unsigned char* __restrict__ to) {
  Piece piece = piece_of_block<2>(pieces, table);
  const float* from = tensor_of<const float>(piece, 0);
  element* out = reinterpret_cast<element*>(to + piece.entry[1]) + piece.first;
  for_piece<2>(piece, [&](auto n, int i) {
    constexpr int N = n.value, READ = N < 4 ? N : 4;
    Vector<element, N> cast;
#pragma unroll
    for (int j = 0; j < N; j += READ) {
      Vector<float, READ> part = load_vector<READ>(from + i + j);
#pragma unroll
      for (int v = 0; v < READ; v++) {
        cast.at[j + v] = from_float<element>(part.at[v]);
      }
    }
    store_vector(out + i, cast);
  });
}
