// Tiles of matrices in shared memory: how matrix products and convolutions load their operands.
//
// A tile is `LINES` lines of `LENGTH` consecutive elements, in chunks of 16 bytes. The chunks of a line are swizzled by
// an exclusive or with the line number, so that lanes of a warp that read one chunk of 8 adjacent lines (ldmatrix), or
// 8 adjacent floats of each of 4 lines, access every bank once.
#pragma once

#include "async.cuh"
#include "element.cuh"

// Elements that a product sums at a time: a line of 64 bytes.
constexpr int DEPTH = 4 * WIDTH;

template <int LINES_, int LENGTH_>
struct Tile {
    static constexpr int LINES = LINES_;
    static constexpr int LENGTH = LENGTH_;
    static constexpr int CHUNKS = LENGTH / WIDTH;
    static constexpr int BYTES = LINES * CHUNKS * 16;
    static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "lines of 64 bytes, or of multiples of 128");
};

// Byte offset of a chunk of a line.
template <class T>
DEVICE int chunk_at(int line, int chunk) {
    // Two short lines share the banks; for floats, a warp reads pairs of chunks of 4 lines.
    const int twist = T::CHUNKS == 4 ? (line >> 1) & 3 : (ELEMENT_BYTES == 4 ? 2 * line : line) & 7;
    return (line * T::CHUNKS + (chunk ^ twist)) * 16;
}

// The offset from the tile's first element at which a thread begins to copy.
template <class T, int THREADS>
DEVICE long long thread_offset(long long stride) {
    return threadIdx.x / T::CHUNKS * stride + threadIdx.x % T::CHUNKS * WIDTH;
}

// Starts to copy a tile with line stride `stride` in elements; this thread's first chunk is at `from`. `lines` lines of
// `length` elements exist, the rest is filled with zeros. Every chunk address is a multiple of 16 bytes.
template <class T, int THREADS>
DEVICE void load_tile(unsigned char* tile, const element* from, long long stride, int lines,
                      int length) {
    static_assert(THREADS % T::CHUNKS == 0 && T::LINES * T::CHUNKS % THREADS == 0,
                  "every thread copies the same chunk of equally many lines");
    const int line = threadIdx.x / T::CHUNKS, chunk = threadIdx.x % T::CHUNKS;
    const int left = min(max(length - chunk * WIDTH, 0), WIDTH) * ELEMENT_BYTES;
#pragma unroll
    for (int j = 0; j < T::LINES; j += THREADS / T::CHUNKS) {
        // The address of a chunk that is not read may be invalid.
        copy_async_16(tile + chunk_at<T>(line + j, chunk), from + j * stride,
                      line + j < lines ? left : 0);
    }
}

// The same for any alignment, given the tile's first element: copies single floats, or 16-bit elements, whose copies
// are synchronous.
template <class T, int THREADS>
DEVICE void load_unaligned_tile(unsigned char* tile, const element* from, long long stride, int lines,
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
