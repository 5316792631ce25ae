// The random numbers of random/mod.rs: Philox4x32-10, a function of (key, sample, element) only. Uniform numbers are
// bit-identical to the host's; normal ones differ by the math library.
#pragma once

#include "element.cuh"

// Four random words: ten rounds applied to the counter.
DEVICE uint4 philox_block(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = 0xD2511F53ull * counter.x;
        const unsigned long long b = 0xCD9E8D57ull * counter.z;
        counter = make_uint4(static_cast<unsigned>(b >> 32) ^ counter.y ^ key.x,
                             static_cast<unsigned>(b),
                             static_cast<unsigned>(a >> 32) ^ counter.w ^ key.y,
                             static_cast<unsigned>(a));
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// The block for elements 4 n .. 4 n + 3 of a sample.
DEVICE uint4 philox_block_at(uint2 key, unsigned long long sample, unsigned long long n) {
    return philox_block(make_uint4(static_cast<unsigned>(n), static_cast<unsigned>(n >> 32),
                                   static_cast<unsigned>(sample),
                                   static_cast<unsigned>(sample >> 32)),
                        key);
}

// In [0, 1), a multiple of 2^-24.
DEVICE float philox_unit(unsigned word) {
    return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

// Four uniform numbers from a block.
DEVICE float4 philox_uniforms(uint4 words) {
    return make_float4(philox_unit(words.x), philox_unit(words.y), philox_unit(words.z),
                       philox_unit(words.w));
}

// Two normal numbers by Box-Muller.
DEVICE float2 philox_normal_pair(unsigned a, unsigned b) {
    // 1 - u is in (0, 1], so the logarithm is finite.
    const float radius = sqrtf(-2.0f * logf(1.0f - philox_unit(a)));
    // In units of π: sinpif and cospif need no reduction of large arguments, and hence no stack.
    const float angle = 2.0f * philox_unit(b);
    return make_float2(radius * cospif(angle), radius * sinpif(angle));
}

// Four normal numbers from a block.
DEVICE float4 philox_normals(uint4 words) {
    const float2 low = philox_normal_pair(words.x, words.y);
    const float2 high = philox_normal_pair(words.z, words.w);
    return make_float4(low.x, low.y, high.x, high.y);
}

DEVICE float philox_pick(float4 four, unsigned long long element) {
    const unsigned i = static_cast<unsigned>(element) & 3;
    return i < 2 ? (i == 0 ? four.x : four.y) : (i == 2 ? four.z : four.w);
}

// Uniform in [0, 1): Philox::uniform.
DEVICE float philox_uniform(uint2 key, unsigned long long sample, unsigned long long element) {
    return philox_pick(philox_uniforms(philox_block_at(key, sample, element / 4)), element);
}

// Standard normal: Philox::normal.
DEVICE float philox_normal(uint2 key, unsigned long long sample, unsigned long long element) {
    return philox_pick(philox_normals(philox_block_at(key, sample, element / 4)), element);
}
