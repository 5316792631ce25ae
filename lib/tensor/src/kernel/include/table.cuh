// Kernels that work on many tensors at once (kernel/table.rs): each block handles a piece of one of them.

#pragma once

#include "rows.cuh"

// Elements per piece; the last piece of a tensor may have fewer.
constexpr int PIECE = 4096;

// The piece of this block.
struct Piece {
  // Addresses of the tensors of an entry, their length, and its scalars as bits.
  const unsigned long long* entry;
  long long first;
  int count;
};

// pieces [blocks]: the entry index in the upper half, the index of its piece in the lower half. table
// [entries, POINTERS + 2].
template <int POINTERS>
DEVICE Piece piece_of_block(const unsigned long long* pieces, const unsigned long long* table) {
  unsigned long long piece = pieces[blockIdx.x];
  const unsigned long long* entry = table + (piece >> 32) * (POINTERS + 2);
  long long first = (long long)(piece & 0xffffffffull) * PIECE;
  long long rest = (long long)entry[POINTERS] - first;
  return {entry, first, rest < PIECE ? (int)rest : PIECE};
}

// Calls f(N, i) for the groups of N adjacent elements of this thread: whole vectors of 16 bytes, then the other
// elements one by one.
template <int UNROLL, class F>
DEVICE void for_piece(Piece piece, F f) {
  int vectors = piece.count / WIDTH * WIDTH;
#pragma unroll UNROLL
  for (int i = threadIdx.x * WIDTH; i < vectors; i += blockDim.x * WIDTH) {
    f(Constant<WIDTH>(), i);
  }
  int i = vectors + threadIdx.x;
  if (i < piece.count) {
    f(Constant<1>(), i);
  }
}

// This block's piece of the i-th tensor of its entry.
template <class T>
DEVICE T* tensor_of(Piece piece, int i) {
  return reinterpret_cast<T*>(piece.entry[i]) + piece.first;
}
