// Warps: lane indices, and sums and maxima over a warp or a block.
//
// The order of a reduction is fixed, so results are bit-identical on every run. All lanes of a warp, or all threads of
// a block, must call together; a block is one-dimensional and consists of whole warps.
#pragma once

#include "element.cuh"

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

DEVICE int lane_id() {
    return static_cast<int>(threadIdx.x) % WARP;
}

DEVICE int warp_id() {
    return static_cast<int>(threadIdx.x) / WARP;
}

// The sum over the warp, in every lane.
DEVICE float warp_sum(float x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, distance);
    }
    return x;
}

// The sum over each group of `lanes` lanes (a power of two), in every lane.
DEVICE float group_sum(float x, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, distance);
    }
    return x;
}

// The maximum over the warp, in every lane.
DEVICE float warp_max(float x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    }
    return x;
}

// The sum over the block, in every thread. `scratch` is 32 shared floats and can be reused afterwards.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    const int warps = static_cast<int>(blockDim.x) / WARP;
    __syncthreads();
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    __syncthreads();
    x = warp_sum(lane_id() < warps ? scratch[lane_id()] : 0.0f);
    __syncthreads();
    return x;
}

// The maximum over the block, in every thread. `scratch` is 32 shared floats and can be reused afterwards.
DEVICE float block_max(float x, float* scratch) {
    x = warp_max(x);
    const int warps = static_cast<int>(blockDim.x) / WARP;
    __syncthreads();
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    __syncthreads();
    // Lanes past the last warp repeat the first value, which does not change the maximum.
    x = warp_max(scratch[lane_id() < warps ? lane_id() : 0]);
    __syncthreads();
    return x;
}
