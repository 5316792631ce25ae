// Which elements dropout keeps: a function of (key, micro-batch, sample, site, element), bit-identical to the host
// (ops/dropout/mod.rs).
#pragma once

#include "philox.cuh"

struct DropoutMask {
    uint2 key;
    unsigned micro_batch;
    unsigned first;
    unsigned site;
    unsigned threshold;

    // The words for elements 4·block to 4·block + 3 of a sample.
    DEVICE uint4 words(unsigned sample, unsigned block) const {
        return philox_block(make_uint4(block, first + sample, micro_batch, site), key);
    }

    DEVICE bool keeps(unsigned word) const {
        return word >= threshold;
    }
};

// counter [4]: low and high word of the key, micro-batch, first sample.
DEVICE DropoutMask dropout_mask(const int* counter, unsigned site, unsigned threshold) {
    return {{static_cast<unsigned>(counter[0]), static_cast<unsigned>(counter[1])},
            static_cast<unsigned>(counter[2]),
            static_cast<unsigned>(counter[3]),
            site,
            threshold};
}
