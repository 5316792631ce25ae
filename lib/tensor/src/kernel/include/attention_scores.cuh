// Exponentials and dropout of attention scores: shared by the kernels for all GPUs and those by warpgroups.
#pragma once

#include "dropout.cuh"
#include "element.cuh"
#include "warp.cuh"

// 2^x, within 2 ulp; results below 2^-126 are flushed to zero.
DEVICE float power_of_two(float x) {
#ifdef EMULATOR
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float infinity() {
    return __uint_as_float(0x7f800000u);
}

// No dropout of the probabilities.
struct NoDropout {
    static constexpr bool DROPS = false;
};

// Dropout of the probabilities, as ops/dropout applies it to a tensor [B, heads, queries, keys] with keys rounded up to
// a multiple of 4.
struct ProbabilityDropout {
    static constexpr bool DROPS = true;
    DropoutMask mask;
    float scale;  // 1/(1 - p)
    int queries;
    int blocks;  // of four keys each

    // Whether the four keys around `key` are kept: bits 0 to 3.
    DEVICE unsigned keeps(int sample, int head, int query, int key) const {
        const unsigned row = static_cast<unsigned>(head) * queries + query;
        const uint4 words = mask.words(sample, row * blocks + key / 4);
        return mask.keeps(words.x) | mask.keeps(words.y) << 1 | mask.keeps(words.z) << 2 |
               mask.keeps(words.w) << 3;
    }

    // The factor of a probability: 0 or `scale`.
    DEVICE float factor(int sample, int head, int query, int key) const {
        return keeps(sample, head, query, key) >> key % 4 & 1 ? scale : 0.0f;
    }
};

// The last parameters of every kernel; NO_DROPOUT ignores them.
#define DROPOUT_PARAMETERS \
    const int *__restrict__ counter, unsigned site, unsigned threshold, float keep_scale
#define NO_DROPOUT NoDropout{}
#define DROPOUT \
    ProbabilityDropout{dropout_mask(counter, site, threshold), keep_scale, queries, (keys + 3) / 4}
