// State of a block that uses the primitives of include/hopper.cuh: barriers, boxes being copied, warpgroup products,
// and the vector clocks that record which of these each lane knows to be complete.
//
// Barriers order memory between any lanes, not only within a warp or the whole block. Each lane therefore has a vector
// clock with an entry for each lane of the block (epochs below it are over), for each barrier (phases below it are
// complete), and for each warp (products up to this number are complete). An arrival joins the lane's clock into the
// barrier's clock; a wait joins the barrier's clock into the lane's clock.
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
    std::vector<unsigned char> seen;  // contents of the box when the copy was issued
    const void* code;
};

struct Barrier {
    uintptr_t address;
    Region* region;
    unsigned index, count;
    unsigned initializer;  // lane index
    uint64_t published;    // record of the initializing lane; 0 if not yet published
    unsigned phase;        // the first incomplete phase
    unsigned pending;      // missing arrivals
    uint64_t expected, issued;  // bytes
    std::vector<Box> boxes;
    std::vector<unsigned> waiting;            // lanes
    std::vector<unsigned> arrived, complete;  // clocks of the current phase so far and of the last complete phase
};

// bar.sync and bar.arrive.
struct NamedBarrier {
    unsigned threads, arrivals;  // required; so far
    std::vector<unsigned> waiting;            // lanes
    std::vector<unsigned> arrived, complete;  // clocks, as in Barrier
};
constexpr unsigned NAMED_BARRIERS = 16;

// Accumulators of a lane.
struct Sums {
    float* to;
    unsigned count;
    unsigned product;  // number of the last product
    float at[MOST_COLUMNS / 2];
};

struct Product {
    int kind;
    float* sum;
    unsigned columns;
    unsigned long long a, b;
    bool lhs_mn_major, rhs_mn_major;
    bool zero;  // overwrite the accumulators instead of adding to them
    bool from_registers;
    EmulatorWords words;  // left operand, if from_registers; a is then 0

    bool is_like(const Product& other) const {
        return kind == other.kind && columns == other.columns && a == other.a && b == other.b &&
               lhs_mn_major == other.lhs_mn_major && rhs_mn_major == other.rhs_mn_major && zero == other.zero &&
               from_registers == other.from_registers;
    }
};

// Products of a lane.
struct Products {
    Product next;
    std::vector<Sums> sums;        // accumulators not yet waited for
    std::vector<unsigned> groups;  // number of the last product in each committed group
    unsigned latest;
    bool fenced;
};

struct Hopper {
    unsigned width;  // entries per clock
    std::vector<unsigned> clocks, scratch;
    std::vector<Barrier> barriers;
    NamedBarrier named[NAMED_BARRIERS];
    std::vector<Products> products;  // by lane
    // Products are numbered across all blocks and warpgroups.
    unsigned products_issued, products_before;
    // For each chunk of shared memory and each warpgroup, the last product of the warpgroup that reads the chunk.
    std::vector<unsigned> readers;
    std::vector<unsigned char> image;  // of a box when its copy is performed
    unsigned waiting[MOST_GROUPS];     // number of waiting lanes
    unsigned registers[MOST_GROUPS];   // per lane
    float left[64][16], right[16][MOST_COLUMNS], sum[64][MOST_COLUMNS];

    unsigned* clock(const Lane& lane) {
        return &clocks[lane.index * width];
    }
    // Indices of the clock entries of a barrier and of a warp.
    static unsigned of_barrier(unsigned barrier) {
        return machine->threads + barrier;
    }
    static unsigned of_warp(unsigned warp) {
        return machine->threads + MOST_BARRIERS + warp;
    }
};

// Returns the state of this block, initialized on first use; faults if the architecture does not support the primitive
// `what`.
Hopper& use_hopper(const char* what, const void* code);
// Joins the clocks of the lanes whose bit in the warp mask is set.
void join_clocks(Lane* lanes, unsigned count, unsigned mask);
bool knows_phase(const Lane& lane, unsigned barrier, unsigned phase);
// Whether this lane has waited for the readers `who` (several lanes of a warp or of the block). For readers in several
// warps, no race is reported if the lane may have waited for any of them.
bool knows_readers(const Lane& lane, unsigned who, unsigned epoch);
// Whether a pending product may still read this cell.
bool is_read_by_products(const Cell& cell);
// Returns the barrier at an address; faults if it is not initialized, published and visible to this lane.
Barrier& barrier_of(void* pointer, const char* verb, const void* code);
void check_phase(const Barrier& barrier, const char* verb, const void* code);
// Completes the phase after an arrival or a copy if nothing is missing.
void check_completion(Barrier& barrier, const void* code);
// Performs the copies of the current phase.
void land_boxes(Barrier& barrier);
// Checks at the exit of a lane that no products, copies or register requests are left over.
void end_lane();
// Writes e.g. "wait at a barrier for phase 2, which lacks 1 arrivals and 64 bytes".
void describe_wait(const Lane& lane, char* text, size_t bytes);
// Returns the region of shared memory that contains all of the bytes; faults if there is none.
Region* shared_region(uintptr_t address, size_t bytes, bool write, const char* what, const void* code);

inline unsigned shared_offset(uintptr_t address) {
    return static_cast<unsigned>(address - reinterpret_cast<uintptr_t>(machine->shared));
}

// Applies the 128-byte swizzle: returns the offset at which the byte at a shared memory offset is stored.
inline unsigned swizzle(unsigned offset) {
    return offset ^ (offset / LINE % 8 * CHUNK);
}

}  // namespace emulator
