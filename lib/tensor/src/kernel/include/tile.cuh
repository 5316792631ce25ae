// Tiles of matrices in shared memory: how products and convolutions bring their operands in.
//
// A tile is `LINES` lines of `LENGTH` consecutive elements, in chunks of 16 bytes. The chunks of a line
// are permuted by an exclusive or with the line's number, so that the lanes of a warp which read one
// chunk of 8 neighbouring lines (ldmatrix), or 8 neighbouring floats of each of 4 lines, meet every
// bank once.
#pragma once

#include "async.cuh"
#include "element.cuh"

// What a product sums at a time, in elements: a line of 64 bytes.
constexpr int DEPTH = 4 * WIDTH;

template <int LINES_, int LENGTH_>
struct Tile {
    static constexpr int LINES = LINES_;
    static constexpr int LENGTH = LENGTH_;
    static constexpr int CHUNKS = LENGTH / WIDTH;
    static constexpr int BYTES = LINES * CHUNKS * 16;
    static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "lines of 64 bytes, or of multiples of 128");
};

// Offset in bytes of a chunk of a line.
template <class T>
DEVICE int chunk_at(int line, int chunk) {
    // Short lines share the banks two by two; of floats, a warp reads pairs of chunks of 4 lines.
    const int twist = T::CHUNKS == 4 ? (line >> 1) & 3 : (ELEMENT_BYTES == 4 ? 2 * line : line) & 7;
    return (line * T::CHUNKS + (chunk ^ twist)) * 16;
}

// Begins to copy the tile whose first element is at `from`, lines `stride` elements apart: `lines`
// lines of `length` elements of it exist, the others become zero. Every address of a chunk is a
// multiple of 16 bytes.
template <class T, int THREADS>
DEVICE void load_tile(unsigned char* tile, const element* from, long long stride, int lines,
                      int length) {
    static_assert(THREADS % T::CHUNKS == 0 && T::LINES * T::CHUNKS % THREADS == 0,
                  "every thread copies the same chunk of as many lines");
    constexpr int STEP = THREADS / T::CHUNKS;
    const int line = threadIdx.x / T::CHUNKS, chunk = threadIdx.x % T::CHUNKS;
    const int left = min(max(length - chunk * WIDTH, 0), WIDTH) * ELEMENT_BYTES;
    const element* source = from + line * stride + chunk * WIDTH;
#pragma unroll
    for (int j = 0; j < T::LINES; j += STEP) {
        const int bytes = line + j < lines ? left : 0;
        copy_async_16(tile + chunk_at<T>(line + j, chunk), bytes ? source + j * stride : from,
                      bytes);
    }
}

// load_tile() from any address: by floats, or by 16-bit elements, which do not go on beside
// the arithmetic.
template <class T, int THREADS>
DEVICE void load_odd_tile(unsigned char* tile, const element* from, long long stride, int lines,
                          int length) {
#pragma unroll 1
    for (int i = threadIdx.x; i < T::LINES * T::CHUNKS; i += THREADS) {
        const int line = i / T::CHUNKS, chunk = i % T::CHUNKS;
        const element* source = from + line * stride + chunk * WIDTH;
        unsigned char* to = tile + chunk_at<T>(line, chunk);
        const int left = line < lines ? length - chunk * WIDTH : 0;
#if ELEMENT_BYTES == 4
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            copy_async_4(to + 4 * e, e < left ? source + e : from, e < left);
        }
#else
        Vector<element, WIDTH> values;
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            values.at[e] = e < left ? source[e] : from_float<element>(0.0f);
        }
        store_vector(reinterpret_cast<element*>(to), values);
#endif
    }
}
