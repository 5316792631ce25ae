// Tiles of a product C = op(A) op(B): the pipeline from global memory to the sums of a block.
//
// A block computes BM x BN of C. Each of its warps computes WM x WN of it and sums over DEPTH at a time, from tiles in
// shared memory of which STAGES - 1 are in flight (cp.async) while one is used. A warp processes a tile with one of
//   MmaWarp    tensor cores, f32 sums; 16-bit elements, or f32 elements rounded to tf32
//   FloatWarp  f32 elements in full precision, multiplied and added in f32
// The sum of an element runs over k in order, whatever the tile.
//
// The structure follows "CUTLASS: fast linear algebra in CUDA C++" (NVIDIA, 2017): block, warp and lane tiles, with
// software pipelining on each level.
#pragma once

#include "mma.cuh"
#include "tile.cuh"
#include "warp.cuh"

// Sizes of a block. Unless transposed, a line of A's tile is along k, one of B's along n.
template <int BM_, int BN_, int WM_, int WN_, int STAGES_, bool LHS_TRANSPOSED_,
          bool RHS_TRANSPOSED_>
struct Shape {
    static constexpr int BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr bool LHS_TRANSPOSED = LHS_TRANSPOSED_, RHS_TRANSPOSED = RHS_TRANSPOSED_;
    static constexpr int THREADS = BM / WM * (BN / WN) * WARP;
    using Lhs = Tile<LHS_TRANSPOSED ? DEPTH : BM, LHS_TRANSPOSED ? BM : DEPTH>;
    using Rhs = Tile<RHS_TRANSPOSED ? BN : DEPTH, RHS_TRANSPOSED ? DEPTH : BN>;
    static constexpr int BYTES = Lhs::BYTES + Rhs::BYTES;
    // The sums are written through shared memory, 32 rows of each warp at a time (see write_sums).
    static constexpr int SLAB = 32, PITCH = WN + 8;
    static_assert(THREADS / WARP * SLAB * PITCH * 4 <= STAGES * BYTES, "the pipeline's shared memory suffices");
};

// First row and column of this warp in its block.
template <class S>
DEVICE int warp_row() {
    return warp_id() / (S::BN / S::WN) * S::WM;
}

template <class S>
DEVICE int warp_column() {
    return warp_id() % (S::BN / S::WN) * S::WN;
}

// Sums and operands of a warp on tensor cores: 16 x 8 products over 2 * WIDTH at a time, two steps per tile. 16-bit
// operands of one step are loaded while those of the other are used; for tf32, where a step is half as fast, there are
// not enough registers.
constexpr int BUFFERS = ELEMENT_BYTES == 4 ? 1 : 2;

template <class S>
struct MmaWarp {
    float sum[S::WM / 16][S::WN / 8][4];
    unsigned lhs[BUFFERS][S::WM / 16][4];
    unsigned rhs[BUFFERS][S::WN / 8][2];
};

#if ELEMENT_BYTES == 4
// The element at (k, i) of a tile whose lines are along m or n, as tf32.
template <class T>
DEVICE unsigned tf32_at(const unsigned char* tile, int k, int i) {
    const int offset = chunk_at<T>(k, i / WIDTH) + i % WIDTH * 4;
    return to_tf32(*reinterpret_cast<const float*>(tile + offset));
}

template <int N>
DEVICE void round_to_tf32(unsigned (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        r[i] = to_tf32(__uint_as_float(r[i]));
    }
}
#endif

template <class S>
DEVICE void load_lhs(unsigned (&a)[4], const unsigned char* tile, int m, int step) {
    const int lane = lane_id();
    using T = typename S::Lhs;
    if constexpr (!S::LHS_TRANSPOSED) {
        ldmatrix_x4(a, tile + chunk_at<T>(m + lane % 16, 2 * step + lane / 16));
#if ELEMENT_BYTES == 4
        round_to_tf32(a);
    } else {
        const int k = 2 * WIDTH * step + lane % 4;
        a[0] = tf32_at<T>(tile, k, m + lane / 4);
        a[1] = tf32_at<T>(tile, k, m + lane / 4 + 8);
        a[2] = tf32_at<T>(tile, k + 4, m + lane / 4);
        a[3] = tf32_at<T>(tile, k + 4, m + lane / 4 + 8);
#else
    } else {
        const int k = 2 * WIDTH * step + lane / 16 * 8 + lane % 8;
        ldmatrix_x4_transposed(a, tile + chunk_at<T>(k, m / WIDTH + lane / 8 % 2));
#endif
    }
}

// Two adjacent operands of 8 columns, starting at column n.
template <class S>
DEVICE void load_rhs(unsigned (&first)[2], unsigned (&second)[2], const unsigned char* tile, int n,
                     int step) {
    const int lane = lane_id();
    using T = typename S::Rhs;
    unsigned b[4];
    if constexpr (S::RHS_TRANSPOSED) {
        const int line = n + lane / 16 * 8 + lane % 8;
        ldmatrix_x4(b, tile + chunk_at<T>(line, 2 * step + lane / 8 % 2));
#if ELEMENT_BYTES == 4
        round_to_tf32(b);
    } else {
        const int k = 2 * WIDTH * step + lane % 4;
        b[0] = tf32_at<T>(tile, k, n + lane / 4);
        b[1] = tf32_at<T>(tile, k + 4, n + lane / 4);
        b[2] = tf32_at<T>(tile, k, n + lane / 4 + 8);
        b[3] = tf32_at<T>(tile, k + 4, n + lane / 4 + 8);
#else
    } else {
        const int k = 2 * WIDTH * step + lane % 16;
        ldmatrix_x4_transposed(b, tile + chunk_at<T>(k, n / WIDTH + lane / 16));
#endif
    }
    first[0] = b[0], first[1] = b[1];
    second[0] = b[2], second[1] = b[3];
}

template <class S>
DEVICE void load_step(MmaWarp<S>& warp, const unsigned char* tiles, int step) {
    const int buffer = step % BUFFERS, row = warp_row<S>(), column = warp_column<S>();
#pragma unroll
    for (int i = 0; i < S::WM / 16; i++) {
        load_lhs<S>(warp.lhs[buffer][i], tiles, row + 16 * i, step);
    }
#pragma unroll
    for (int j = 0; j < S::WN / 8; j += 2) {
        load_rhs<S>(warp.rhs[buffer][j], warp.rhs[buffer][j + 1], tiles + S::Lhs::BYTES,
                    column + 8 * j, step);
    }
}

template <class S>
DEVICE void multiply_step(MmaWarp<S>& warp, int step) {
    const int buffer = step % BUFFERS;
#pragma unroll
    for (int i = 0; i < S::WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < S::WN / 8; j++) {
#if ELEMENT_BYTES == 4
            mma_16x8x8(warp.sum[i][j], warp.lhs[buffer][i], warp.rhs[buffer][j]);
#else
            mma_16x8x16(warp.sum[i][j], warp.lhs[buffer][i], warp.rhs[buffer][j], element());
#endif
        }
    }
}

template <class S>
DEVICE void begin(MmaWarp<S>& warp, const unsigned char* tiles) {
    if constexpr (BUFFERS == 2) {
        load_step(warp, tiles, 0);
    }
}

// Adds the product of the tiles at `here`, part of which begin() has loaded; calls `next` when the following tiles are
// needed, and loads the part of those that begin() would load.
template <class S, class Next>
DEVICE void multiply(MmaWarp<S>& warp, const unsigned char* here, Next next) {
    if constexpr (BUFFERS == 2) {
        load_step(warp, here, 1);
        multiply_step(warp, 0);
        if (const unsigned char* tiles = next()) {
            load_step(warp, tiles, 0);
        }
        multiply_step(warp, 1);
    } else {
        load_step(warp, here, 0);
        multiply_step(warp, 0);
        load_step(warp, here, 1);
        multiply_step(warp, 1);
        next();
    }
}

// Rows 32 slab .. 32 slab + 31 of the warp's sums, with row stride PITCH.
template <class S>
DEVICE void store_slab(const MmaWarp<S>& warp, float* to, int slab) {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < S::WN / 8; j++) {
            const float(&sum)[4] = warp.sum[2 * slab + i / 2][j];
            store_vector(to + (row + 8 * i) * S::PITCH + 8 * j + column,
                         Vector<float, 2>{{sum[i % 2 * 2], sum[i % 2 * 2 + 1]}});
        }
    }
}

#if ELEMENT_BYTES == 4
// Sums of a warp in f32: each of 8 x 4 lanes has WM/8 rows and WN/4 columns. From tiles with lines along k a lane reads
// 2 k of its rows at once, from others 4 of its rows; the assignment of rows is chosen to suit.
template <class S>
struct FloatWarp {
    float sum[S::WM / 8][S::WN / 4];
};

// The lines along k of a lane, 4 `LANES` from `first`: the lanes read 2 k of each at once without bank conflicts, with
// the same permutation of chunks.
template <int LANES>
DEVICE int line_along_k(int lane, int i) {
    return LANES == 8 ? lane + 8 * i : 2 * lane + i / 2 * 8 + i % 2;
}

// Four operands over 2 k, from lines along k or from adjacent elements: those of this lane among the 4 `LANES` from
// `base` + `from`. `base` is a multiple of 32 and `from` a constant, so that offsets which depend on `from` are constants
// as well: the swizzle only depends on the lane and the step.
template <class T, int LANES, bool ALONG_K>
DEVICE void load_four(float (&x)[4][2], const unsigned char* tile, int base, int from, int lane, int step) {
    if constexpr (ALONG_K) {
        static_assert(T::CHUNKS == 4, "8 lines, and so all lines of a lane, have the same swizzle");
        const int first = line_along_k<LANES>(lane, 0);
        const unsigned char* line = tile + base * 64 + chunk_at<T>(first, step / 2) + step % 2 * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int lines = from + line_along_k<LANES>(0, i);
            const auto two = load_vector<2>(reinterpret_cast<const float*>(line + lines * 64));
            x[i][0] = two.at[0], x[i][1] = two.at[1];
        }
    } else {
        static_assert(T::CHUNKS % 8 == 0, "32 elements are swizzled among themselves");
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int chunk = from % 32 / 4 + lane;
            const unsigned char* line = tile + (base + from / 32 * 32) * 4;
            const auto four = load_vector<4>(reinterpret_cast<const float*>(line + chunk_at<T>(2 * step + k, chunk)));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i][k] = four.at[i];
            }
        }
    }
}

template <class S>
DEVICE void begin(FloatWarp<S>&, const unsigned char*) {}

template <class S, class Next>
DEVICE void multiply(FloatWarp<S>& warp, const unsigned char* here, Next next) {
    const int lane = lane_id(), row = warp_row<S>(), column = warp_column<S>();
    // Two steps at once, unless that takes more registers than there are.
    constexpr int AT_ONCE = S::WM == 64 ? 1 : 2;
#pragma unroll AT_ONCE
    for (int step = 0; step < DEPTH / 2; step++) {
        float a[S::WM / 32][4][2];
#pragma unroll
        for (int i = 0; i < S::WM / 32; i++) {
            load_four<typename S::Lhs, 8, !S::LHS_TRANSPOSED>(a[i], here, row, 32 * i, lane / 4, step);
        }
#pragma unroll
        for (int j = 0; j < S::WN / 4; j += 4) {
            float b[4][2];
            load_four<typename S::Rhs, 4, S::RHS_TRANSPOSED>(b, here + S::Lhs::BYTES, column, 4 * j,
                                                             lane % 4, step);
#pragma unroll
            for (int k = 0; k < 2; k++) {
#pragma unroll
                for (int i = 0; i < S::WM / 8; i++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        warp.sum[i][j + e] = fmaf(a[i / 4][i % 4][k], b[e][k], warp.sum[i][j + e]);
                    }
                }
            }
        }
    }
    next();
}

template <class S>
DEVICE void store_slab(const FloatWarp<S>& warp, float* to, int slab) {
    const int lane = lane_id();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = S::LHS_TRANSPOSED ? lane / 4 * 4 + i : line_along_k<8>(lane / 4, i);
#pragma unroll
        for (int j = 0; j < S::WN / 4; j++) {
            const int column = S::RHS_TRANSPOSED ? line_along_k<4>(lane % 4, j % 4) : lane % 4 * 4 + j % 4;
            to[row * S::PITCH + j / 4 * 16 + column] = warp.sum[4 * slab + i][j];
        }
    }
}
#endif

// The sums of a block over `count` tiles. `load(to)` starts to copy the next tiles: that of A, followed by that of B.
// `shared` has STAGES * BYTES bytes and can be reused afterwards.
template <class S, class Warp, class Load>
DEVICE void sum_tiles(Warp& warp, unsigned char* shared, int count, Load load) {
#pragma unroll 1
    for (int t = 0; t < S::STAGES - 1; t++) {
        if (t < count) {
            load(shared + t * S::BYTES);
        }
        commit_async();
    }
    wait_async<S::STAGES - 2>();
    __syncthreads();
    if (count > 0) {
        begin(warp, shared);
    }
    const auto slot = [&](int t) { return shared + t % S::STAGES * S::BYTES; };
#pragma unroll 1
    for (int t = 0; t < count; t++) {
        // Overwrites the previous tiles: nobody has read them since the last barrier.
        if (t + S::STAGES - 1 < count) {
            load(slot(t + S::STAGES - 1));
        }
        commit_async();
        multiply(warp, slot(t), [&]() -> const unsigned char* {
            wait_async<S::STAGES - 2>();
            __syncthreads();
            return t + 1 < count ? slot(t + 1) : nullptr;
        });
    }
    wait_async<0>();
    __syncthreads();
}

// N adjacent sums of a row.
template <int N>
struct Sums {
    float at[N];
};

// Sums of a slab. Of 8, every other group of 4 lanes reads the second half first: without bank conflicts.
template <int N>
DEVICE Sums<N> load_sums(const float* from) {
    static_assert(N == 4 || N == 8, "one or two vectors");
    const int half = N == 8 ? lane_id() / 4 % 2 : 0;
    Vector<float, 4> parts[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        parts[i] = load_vector<4>(from + 4 * (i ^ half));
    }
    Sums<N> sums;
#pragma unroll
    for (int e = 0; e < N; e++) {
        sums.at[e] = half ? parts[N / 4 - 1 - e / 4].at[e % 4] : parts[e / 4].at[e % 4];
    }
    return sums;
}

// Passes the sums of a block to `write(row, column, sums, read(row, column))`, N adjacent elements of a row at a time;
// row and column are relative to the block. `read` is called several turns ahead, so that its loads are not waited for;
// it may read what `write` overwrites.
template <class S, int N, class Warp, class Read, class Write>
DEVICE void write_sums(const Warp& warp, unsigned char* shared, Read read, Write write) {
    // In f32, more would take registers from the main loop.
    constexpr int VECTORS = S::WN / N, ROWS = WARP / VECTORS, AHEAD = N == 8 ? 4 : 2;
    static_assert(AHEAD * ROWS <= S::WM, "a warp has as many turns");
    float* slab = reinterpret_cast<float*>(shared) + warp_id() * S::SLAB * S::PITCH;
    const int lane = lane_id(), column = lane % VECTORS * N;
    const int first_row = warp_row<S>(), first_column = warp_column<S>() + column;
    decltype(read(0, 0)) ahead[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        ahead[i] = read(first_row + lane / VECTORS + i * ROWS, first_column);
    }
#pragma unroll 1
    for (int i = 0; i < S::WM / S::SLAB; i++) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < S::WM / S::SLAB; j++) {
            if (i == j) {
                store_slab(warp, slab, j);
            }
        }
        __syncwarp();
#pragma unroll 1
        for (int row = lane / VECTORS; row < S::SLAB; row += ROWS) {
            const int at = i * S::SLAB + row;
            const auto now = ahead[0];
#pragma unroll
            for (int j = 1; j < AHEAD; j++) {
                ahead[j - 1] = ahead[j];
            }
            if (at + AHEAD * ROWS < S::WM) {
                ahead[AHEAD - 1] = read(first_row + at + AHEAD * ROWS, first_column);
            }
            write(first_row + at, first_column, load_sums<N>(slab + row * S::PITCH + column), now);
        }
    }
}
