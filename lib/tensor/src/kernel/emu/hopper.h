// What a block that uses the primitives of include/hopper.cuh needs: barriers, boxes that are being copied, products of
// warpgroups, and the vector clocks that record which lane knows which of these to be complete.
//
// Barriers order memory between any lanes, not only within a warp or the whole block. So each lane has a clock: an
// entry for each lane of the block (epochs below it are over), for each barrier (phases below it are complete), and for
// each warp (its products up to this number are complete). An arrival adds the lane's clock to that of the barrier, a
// wait adds the barrier's to the lane's.
#pragma once

#include "runtime.h"

namespace emulator {

constexpr unsigned WARPGROUP = 128;
constexpr unsigned MOST_GROUPS = MOST_THREADS / WARPGROUP;
constexpr unsigned MOST_COLUMNS = 256;
constexpr unsigned CHUNK = 16, LINE = 128, EIGHT_LINES = 8 * LINE;

// A copy that has been issued but has not landed.
struct Box {
    const EmulatorTensorMap* map;
    int at[4];
    unsigned char* to;
    Region* region;
    std::vector<unsigned char> seen;  // the box when the copy was issued
    const void* code;
};

struct Barrier {
    uintptr_t address;
    Region* region;
    unsigned index, count;
    unsigned initializer;  // lane
    uint64_t published;    // record of that lane; 0 before
    unsigned phase;        // the first that is not complete
    unsigned pending;      // arrivals that it lacks
    uint64_t expected, issued;  // bytes
    std::vector<Box> boxes;
    std::vector<unsigned> waiting;            // lanes
    std::vector<unsigned> arrived, complete;  // clocks: of this phase so far, of the last one
};

// bar.sync and bar.arrive.
struct NamedBarrier {
    unsigned threads, arrivals;  // that complete it; so far
    std::vector<unsigned> waiting;            // lanes
    std::vector<unsigned> arrived, complete;  // clocks, as of a Barrier
};
constexpr unsigned NAMED_BARRIERS = 16;

// Sums of a lane that products add to.
struct Sums {
    float* to;
    unsigned count;
    unsigned product;  // the last one
    float at[MOST_COLUMNS / 2];
};

struct Product {
    int kind;
    float* sum;
    unsigned columns;
    unsigned long long a, b;
    bool lhs_mn_major, rhs_mn_major;
    bool zero;  // the sums before do not count
    bool from_registers;
    EmulatorWords words;  // of the left operand; a is 0

    bool is_like(const Product& other) const {
        return kind == other.kind && columns == other.columns && a == other.a && b == other.b &&
               lhs_mn_major == other.lhs_mn_major && rhs_mn_major == other.rhs_mn_major && zero == other.zero &&
               from_registers == other.from_registers;
    }
};

// The products of a lane.
struct Products {
    Product next;
    std::vector<Sums> sums;        // not waited for
    std::vector<unsigned> groups;  // the last product of each committed group
    unsigned latest;
    bool fenced;
};

struct Hopper {
    unsigned width;  // of a clock
    std::vector<unsigned> clocks, scratch;
    std::vector<Barrier> barriers;
    NamedBarrier named[NAMED_BARRIERS];
    std::vector<Products> products;  // by lane
    // Products are numbered over all blocks and warpgroups.
    unsigned products_issued, products_before;
    // For each chunk of shared memory and each warpgroup, its last product that reads it.
    std::vector<unsigned> readers;
    std::vector<unsigned char> image;  // of a box that lands
    unsigned waiting[MOST_GROUPS];     // lanes
    unsigned registers[MOST_GROUPS];   // of a lane
    float left[64][16], right[16][MOST_COLUMNS], sum[64][MOST_COLUMNS];

    unsigned* clock(const Lane& lane) {
        return &clocks[lane.index * width];
    }
    // Index of the clock entry of a barrier or a warp.
    static unsigned of_barrier(unsigned barrier) {
        return machine->threads + barrier;
    }
    static unsigned of_warp(unsigned warp) {
        return machine->threads + MOST_BARRIERS + warp;
    }
};

// The state of this block, new when it is first used; a fault if the architecture has no such primitive.
Hopper& use_hopper(const char* what, const void* code);
// Joins the clocks of the lanes whose bit, in the mask of their warp, is set.
void join_clocks(Lane* lanes, unsigned count, unsigned mask);
bool knows_phase(const Lane& lane, unsigned barrier, unsigned phase);
// Whether the readers `who`, lanes of a warp or of the block, have been waited for. If those of several warps have
// read, no race is reported if any of them may have been waited for.
bool knows_readers(const Lane& lane, unsigned who, unsigned epoch);
// Whether a product may still read what a box has filled.
bool is_read_by_products(const Cell& cell);
// The barrier, for a copy or an arrival in its present phase, which this lane must know to have begun.
Barrier& barrier_of(void* pointer, const char* verb, const void* code);
void check_phase(const Barrier& barrier, const char* verb, const void* code);
// After an arrival or a copy: completes the phase if nothing is missing.
void check_completion(Barrier& barrier, const void* code);
// Performs the copies of the phase.
void land_boxes(Barrier& barrier);
// What must not be left over when a lane exits.
void end_lane();
// "wait at a barrier for phase 2, which lacks 1 arrivals and 64 bytes"
void describe_wait(const Lane& lane, char* text, size_t bytes);
// The region of shared memory that contains all of the bytes; a fault if there is none.
Region* shared_region(uintptr_t address, size_t bytes, bool write, const char* what, const void* code);

inline unsigned shared_offset(uintptr_t address) {
    return static_cast<unsigned>(address - reinterpret_cast<uintptr_t>(machine->shared));
}

// The 128-byte swizzle: where a byte of a shared offset is stored.
inline unsigned swizzle(unsigned offset) {
    return offset ^ (offset / LINE % 8 * CHUNK);
}

}  // namespace emulator
