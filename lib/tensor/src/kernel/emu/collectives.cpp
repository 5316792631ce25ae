// Shuffles, votes, ldmatrix and mma: the last lane to arrive performs the operation for its warp.
#include "runtime.h"

#include <cstring>

namespace emulator {

// Returns the source lane of a shuffle, or the lane itself if the source is outside its segment of `width` lanes (PTX
// ISA, shfl.sync).
static unsigned source_lane(Collective kind, unsigned lane, unsigned argument, unsigned width) {
    const unsigned first = lane & ~(width - 1), last = first + width - 1;
    argument &= WARP - 1;
    switch (kind) {
        case Collective::SHUFFLE_INDEX: return first | (argument & (width - 1));
        case Collective::SHUFFLE_UP: return lane < first + argument ? lane : lane - argument;
        default: return (lane ^ argument) > last ? lane : lane ^ argument;
    }
}

static void shuffle(Warp& warp, unsigned mask) {
    uint64_t values[WARP];
    for (unsigned i = 0; i < warp.count; i++) {
        values[i] = warp.lanes[i].operands.value;
    }
    for (unsigned i = 0; i < warp.count; i++) {
        if (!(mask >> i & 1)) {
            continue;
        }
        Lane& lane = warp.lanes[i];
        const unsigned from =
            source_lane(lane.collective, i, lane.operands.argument, lane.operands.width);
        if (!(mask >> from & 1)) {
            current = &lane;
            fault(nullptr, "a shuffle with mask 0x%08x reads lane %u, which does not participate", mask,
                  from);
        }
        lane.operands.value = values[from];
    }
}

static void vote(Warp& warp, unsigned mask) {
    uint64_t votes = 0;
    for (unsigned i = 0; i < warp.count; i++) {
        if (mask >> i & 1) {
            votes |= warp.lanes[i].operands.value << i;
        }
    }
    for (unsigned i = 0; i < warp.count; i++) {
        if (mask >> i & 1) {
            warp.lanes[i].operands.value = votes;
        }
    }
}

static void load_matrices(Warp& warp, unsigned) {
    Lane* last = current;
    const int matrices = last->operands.kind;
    const bool transposed = last->operands.argument;
    uint16_t rows[4][8][8];
    for (int i = 0; i < matrices * 8; i++) {
        Lane& lane = warp.lanes[i];
        current = &lane;
        const uintptr_t address = reinterpret_cast<uintptr_t>(lane.operands.row);
        if (lane.operands.kind != matrices || (lane.operands.argument != 0) != transposed) {
            fault(nullptr, "lanes of a warp execute different forms of ldmatrix");
        }
        Region* region = region_of(address, 16, false, nullptr);
        if (!region || !region->name) {
            fault(nullptr, "ldmatrix reads outside of shared memory");
        }
        check_alignment(address, 16, false, nullptr);
        check_read(*region, address, 16, nullptr);
        memcpy(rows[i / 8][i % 8], lane.operands.row, 16);
    }
    current = last;
    for (unsigned i = 0; i < WARP; i++) {
        const unsigned g = i / 4, t = i % 4 * 2;
        for (int m = 0; m < matrices; m++) {
            const uint32_t low = transposed ? rows[m][t][g] : rows[m][g][t];
            const uint32_t high = transposed ? rows[m][t + 1][g] : rows[m][g][t + 1];
            warp.lanes[i].operands.a.at[m] = low | high << 16;
        }
    }
}

template <int K>
static void multiply(Warp& warp, const float (&a)[16][K], const float (&b)[K][8]) {
    float d[16][8];
    for (unsigned i = 0; i < WARP; i++) {
        const unsigned g = i / 4, t = i % 4 * 2;
        memcpy(&d[g][t], &warp.lanes[i].operands.d.at[0], 8);
        memcpy(&d[g + 8][t], &warp.lanes[i].operands.d.at[2], 8);
    }
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < K; k++) {
            for (int column = 0; column < 8; column++) {
                d[row][column] += a[row][k] * b[k][column];
            }
        }
    }
    for (unsigned i = 0; i < WARP; i++) {
        const unsigned g = i / 4, t = i % 4 * 2;
        memcpy(&warp.lanes[i].operands.d.at[0], &d[g][t], 8);
        memcpy(&warp.lanes[i].operands.d.at[2], &d[g + 8][t], 8);
    }
}

template <float (*VALUE)(uint32_t)>
static void multiply_16(Warp& warp) {
    float a[16][16], b[16][8];
    for (unsigned i = 0; i < WARP; i++) {
        const Operands& o = warp.lanes[i].operands;
        const unsigned g = i / 4, t = i % 4 * 2;
        for (unsigned half = 0; half < 2; half++) {
            const unsigned shift = 16 * half;
            a[g][t + half] = VALUE(o.a.at[0] >> shift);
            a[g + 8][t + half] = VALUE(o.a.at[1] >> shift);
            a[g][t + 8 + half] = VALUE(o.a.at[2] >> shift);
            a[g + 8][t + 8 + half] = VALUE(o.a.at[3] >> shift);
            b[t + half][g] = VALUE(o.b.at[0] >> shift);
            b[t + 8 + half][g] = VALUE(o.b.at[1] >> shift);
        }
    }
    multiply<16>(warp, a, b);
}

static float of_bfloat(uint32_t bits) {
    return __uint_as_float(bits << 16);
}

static float of_half(uint32_t bits) {
    return emulator_from_half(static_cast<uint16_t>(bits));
}

static float of_tf32(uint32_t bits) {
    return __uint_as_float(bits & 0xffffe000);
}

static void multiply_matrices(Warp& warp, unsigned) {
    const int kind = current->operands.kind;
    for (unsigned i = 0; i < WARP; i++) {
        if (warp.lanes[i].operands.kind != kind) {
            fault(nullptr, "lanes of a warp execute different forms of mma");
        }
    }
    if (kind == EMULATOR_MMA_BF16) {
        return multiply_16<of_bfloat>(warp);
    }
    if (kind == EMULATOR_MMA_F16) {
        return multiply_16<of_half>(warp);
    }
    float a[16][8], b[8][8];
    for (unsigned i = 0; i < WARP; i++) {
        const Operands& o = warp.lanes[i].operands;
        const unsigned g = i / 4, t = i % 4;
        a[g][t] = of_tf32(o.a.at[0]);
        a[g + 8][t] = of_tf32(o.a.at[1]);
        a[g][t + 4] = of_tf32(o.a.at[2]);
        a[g + 8][t + 4] = of_tf32(o.a.at[3]);
        b[t][g] = of_tf32(o.b.at[0]);
        b[t + 4][g] = of_tf32(o.b.at[1]);
    }
    multiply<8>(warp, a, b);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

unsigned long long emulator_shuffle(EmulatorShuffle kind, unsigned mask, unsigned long long value,
                                    unsigned argument, unsigned width, EmulatorPlace place) {
    if (width == 0 || width > WARP || (width & (width - 1))) {
        fault(nullptr, "a shuffle of width %u, which is not a power of two up to 32", width);
    }
    Operands& mine = current->operands;
    mine.value = value;
    mine.argument = argument;
    mine.width = width;
    const int first = static_cast<int>(Collective::SHUFFLE_INDEX);
    collect(static_cast<Collective>(first + kind), mask, place, __builtin_return_address(0), shuffle);
    return mine.value;
}

unsigned emulator_ballot(unsigned mask, bool ballot, EmulatorPlace place) {
    Operands& mine = current->operands;
    mine.value = ballot;
    collect(Collective::VOTE, mask, place, __builtin_return_address(0), vote);
    return static_cast<unsigned>(mine.value);
}

EmulatorWords emulator_ldmatrix(const void* row, int matrices, bool transposed) {
    Operands& mine = current->operands;
    mine.row = row;
    mine.kind = matrices;
    mine.argument = transposed;
    collect(Collective::LDMATRIX, ~0u, {"mma.cuh", 0}, __builtin_return_address(0), load_matrices);
    return mine.a;
}

EmulatorWords emulator_mma(int kind, EmulatorWords a, EmulatorPair b, EmulatorWords d) {
    Operands& mine = current->operands;
    mine.kind = kind;
    mine.a = a;
    mine.b = b;
    mine.d = d;
    collect(Collective::MMA, ~0u, {"mma.cuh", 0}, __builtin_return_address(0), multiply_matrices);
    return mine.d;
}

}  // extern "C"
