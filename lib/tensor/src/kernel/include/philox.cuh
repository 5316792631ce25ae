// The random words of random/mod.rs: Philox4x32-10, a function of key and counter only, bit-identical to the host's.
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
