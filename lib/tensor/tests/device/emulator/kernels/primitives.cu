// dtypes: f32 bf16 f16
// Each primitive once, for ../primitives.rs.
#include "async.cuh"
#include "element.cuh"
#include "mma.cuh"
#include "philox.cuh"
#include "warp.cuh"

// y = x, 16 bytes at a time as far as possible.
KERNEL(primitives_copy)(const element* __restrict__ x, element* __restrict__ y, int n) {
    const int i = (static_cast<int>(blockIdx.x * blockDim.x) + static_cast<int>(threadIdx.x)) * WIDTH;
    if (i + WIDTH <= n) {
        store_vector(y + i, load_vector<WIDTH>(x + i));
    } else {
        for (int j = i; j < n; j++) {
            y[j] = x[j];
        }
    }
}

// Sums and maxima of each row, one block per row. The scratch memory is used before, between and after without a
// barrier.
KERNEL(primitives_reduce, 1024)(const element* __restrict__ x, float* __restrict__ sums, float* __restrict__ maxima,
                                int width) {
    SHARED(float, scratch, [32]);
    float sum = 0.0f, most = -1e30f;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
        const float value = to_float(x[blockIdx.x * static_cast<unsigned>(width) + i]);
        sum += value;
        most = fmaxf(most, value);
    }
    const int own = static_cast<int>(threadIdx.x) % 32;
    const bool first_warp = threadIdx.x < 32;
    if (first_warp) {
        scratch[own] = sum;
    }
    sum = block_sum(sum, scratch);
    if (first_warp) {
        scratch[own] = most;
    }
    most = block_max(most, scratch);
    if (first_warp) {
        scratch[own] = most;
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        maxima[blockIdx.x] = most;
    }
}

// One warp or more: all shuffles of x, written to y + 32 * (which * 3 + width) for the widths 32, 8 and 4.
KERNEL(primitives_shuffle)(const float* __restrict__ x, float* __restrict__ y, int argument) {
    const int i = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
    const float v = x[i];
    int at = i;
    const int widths[3] = {32, 8, 4};
    for (int width : widths) {
        y[at] = __shfl_sync(ALL_LANES, v, argument, width);
        y[at + n] = __shfl_up_sync(ALL_LANES, v, static_cast<unsigned>(argument), width);
        y[at + 2 * n] = __shfl_xor_sync(ALL_LANES, v, argument, width);
        at += 3 * n;
    }
}

// Votes on x > 0 among the even lanes; and 64 bits through a shuffle.
KERNEL(primitives_vote)(const int* __restrict__ x, int* __restrict__ y, long long big) {
    const int i = lane_id();
    if (i % 2 == 0) {
        const unsigned even = 0x55555555u;
        y[2 * i] = static_cast<int>(__ballot_sync(even, x[i] > 0));
    }
    const long long other = __shfl_xor_sync(ALL_LANES, big + i, 1);
    y[2 * i + 1] = other == big + (i ^ 1);
}

#if ELEMENT_BYTES == 2
// d (16x8) = c + a (16x16) b (16x8, given as 8x16), all row-major; ldmatrix is used in both forms: for a by rows; for b
// by rows of its transpose, or, if `transposed`, of b itself (then given as 16x8).
KERNEL(primitives_mma)(const element* __restrict__ a, const element* __restrict__ b, const float* __restrict__ c,
                       float* __restrict__ d, int transposed) {
    // Rows are padded by 16 bytes, as in real kernels.
    SHARED(element, left, [16][24]);
    SHARED(element, right, [16][24]);
    const int lane = lane_id();
    for (int i = lane; i < 256; i += WARP) {
        left[i / 16][i % 16] = a[i];
    }
    const int width = transposed ? 8 : 16;
    for (int i = lane; i < 128; i += WARP) {
        right[i / width][i % width] = b[i];
    }
    __syncwarp();
    unsigned x[4], r[4];
    ldmatrix_x4(x, &left[lane % 16][lane / 16 * 8]);
    if (transposed) {
        ldmatrix_x4_transposed(r, &right[lane % 16][0]);
    } else {
        ldmatrix_x4(r, &right[lane % 8][lane / 8 % 2 * 8]);
    }
    const unsigned y[2] = {r[0], r[1]};
    const int row = lane / 4, column = lane % 4 * 2;
    float sum[4] = {c[row * 8 + column], c[row * 8 + column + 1], c[row * 8 + 64 + column],
                    c[row * 8 + 64 + column + 1]};
    mma_16x8x16(sum, x, y, element{});
    for (int i = 0; i < 4; i++) {
        d[(row + i / 2 * 8) * 8 + column + i % 2] = sum[i];
    }
}

// Four 8x8 matrices of x (32x8) as loaded by ldmatrix, into y [2, 32 lanes, 4 registers, 2].
KERNEL(primitives_ldmatrix)(const element* __restrict__ x, element* __restrict__ y) {
    SHARED(element, rows, [32][8]);
    const int lane = lane_id();
    store_vector(rows[lane], load_vector<8>(x + lane * 8));
    __syncwarp();
    unsigned r[4];
    ldmatrix_x4(r, rows[lane]);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < 8; i++) {
            y[(pass * 32 + lane) * 8 + i].bits = static_cast<unsigned short>(r[i / 2] >> i % 2 * 16);
        }
        ldmatrix_x4_transposed(r, rows[lane]);
    }
}
#else
// d (16x8) = c + a (16x8) b (8x8, given as its transpose), in tf32.
KERNEL(primitives_mma)(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
                       float* __restrict__ d) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const unsigned x[4] = {to_tf32(a[g * 8 + t]), to_tf32(a[g * 8 + 64 + t]), to_tf32(a[g * 8 + t + 4]),
                           to_tf32(a[g * 8 + 64 + t + 4])};
    const unsigned y[2] = {to_tf32(b[g * 8 + t]), to_tf32(b[g * 8 + t + 4])};
    float sum[4];
    for (int i = 0; i < 4; i++) {
        sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    mma_16x8x8(sum, x, y);
    for (int i = 0; i < 4; i++) {
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
    }
}

// The random words of the counters {first + thread, b, c, d}: x [threads, 4].
KERNEL(primitives_philox)(int* __restrict__ x, unsigned key0, unsigned key1, unsigned first, unsigned b, unsigned c,
                          unsigned d) {
    const uint4 words = philox_block(make_uint4(first + threadIdx.x, b, c, d), make_uint2(key0, key1));
    x[4 * threadIdx.x] = static_cast<int>(words.x);
    x[4 * threadIdx.x + 1] = static_cast<int>(words.y);
    x[4 * threadIdx.x + 2] = static_cast<int>(words.z);
    x[4 * threadIdx.x + 3] = static_cast<int>(words.w);
}

// Converts each value to tf32.
KERNEL(primitives_tf32)(const float* __restrict__ x, float* __restrict__ y) {
    y[threadIdx.x] = __uint_as_float(to_tf32(x[threadIdx.x]));
}
#endif

// y = x converted to the dtype and back, with pack for 16 bits; n is even.
KERNEL(primitives_convert)(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ packed, int n) {
    for (int i = 2 * static_cast<int>(threadIdx.x); i < n; i += 2 * static_cast<int>(blockDim.x)) {
        y[i] = to_float(from_float<element>(x[i]));
        y[i + 1] = to_float(from_float<element>(x[i + 1]));
#if ELEMENT_BYTES == 2
        const unsigned both = pack<element>(x[i], x[i + 1]);
        packed[i] = to_float(element{static_cast<unsigned short>(both)});
        packed[i + 1] = to_float(element{static_cast<unsigned short>(both >> 16)});
#else
        packed[i] = x[i];
        packed[i + 1] = x[i + 1];
#endif
    }
}

// y[i] = x[i], or y[i] + x[i] rounded once.
KERNEL(primitives_put)(const float* __restrict__ x, element* __restrict__ y, int add) {
    put(y + threadIdx.x, x[threadIdx.x], add);
}

// y = x through two buffers of a pipeline, 16 bytes per lane; zeros beyond n. 4 bytes at a time if `fine` (for elements
// of 4 bytes).
KERNEL(primitives_async)(const element* __restrict__ x, element* __restrict__ y, int n, int steps, int fine) {
    DYNAMIC_SHARED(buffer);
    const int per_step = static_cast<int>(blockDim.x) * WIDTH;
    const int lane = static_cast<int>(threadIdx.x) * WIDTH;
    auto fetch = [&](int step) {
        if (step < steps) {
            const int from = step * per_step + lane;
            element* to = reinterpret_cast<element*>(buffer) + step % 2 * per_step + lane;
            if (fine) {
                for (int i = 0; i < WIDTH; i += 4 / ELEMENT_BYTES) {
                    copy_async_4(to + i, x + (from + i < n ? from + i : 0), from + i < n);
                }
            } else {
                const int valid = min(max(n - from, 0), WIDTH) * ELEMENT_BYTES;
                copy_async_16(to, x + (valid > 0 ? from : 0), valid);
            }
        }
        commit_async();
    };
    fetch(0);
    for (int step = 0; step < steps; step++) {
        fetch(step + 1);
        wait_async<1>();
        __syncthreads();
        // A value that another thread has fetched.
        const int other = (static_cast<int>(blockDim.x) - 1) * WIDTH - lane;
        const element* from = reinterpret_cast<const element*>(buffer) + step % 2 * per_step + other;
        store_vector(y + step * per_step + other, load_vector<WIDTH>(from));
        __syncthreads();
    }
}
