// The runtime of the emulator: runs the lanes of a block as fibers on one thread and tracks the memory they access.
//
// A lane runs until it waits for other lanes. The lane that completes a barrier or collective performs it for all
// participants, so a wait costs each lane one switch. A fault ends the launch: it writes its message and switches back
// to the launching thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator.h"

namespace emulator {

constexpr unsigned WARP = 32;
constexpr unsigned MOST_THREADS = 1024;
constexpr unsigned MOST_STATIC_SHARED = 49152;
constexpr size_t STACK = 256 << 10;
// Size of the memory for the shared arrays of a block, including guards between them.
constexpr size_t SHARED_ROOM = 512 << 10;

// ---- memory

// The last write and the last read of two bytes. A record consists of, from the high end: the serial number of the
// block (30 bits), lane (12), epoch (20), and a mask of the two bytes (2). Lanes above 1023 stand for several readers
// or, with IN_FLIGHT, for a copy that has not been performed yet.
struct Cell {
    uint64_t write, read;
};
constexpr unsigned EPOCH_BITS = 20;
constexpr unsigned OWNER_SHIFT = EPOCH_BITS + 2;
constexpr unsigned LANE_BITS = 12;
constexpr unsigned SERIAL_BITS = 30;
constexpr unsigned LANES_OF_WARP = 1024;  // + warp index: several lanes of that warp
constexpr unsigned LANES_OF_BLOCK = 1056;
constexpr unsigned IN_FLIGHT = 2048;
// Pseudo-lanes for writes: a box that is copied for a barrier (the epoch is the barrier's phase), and a barrier itself.
constexpr unsigned MOST_BARRIERS = 64;
constexpr unsigned BOXES_LANDED = 3072;  // + barrier index
constexpr unsigned BOXES_IN_FLIGHT = BOXES_LANDED + MOST_BARRIERS;
constexpr unsigned BARRIERS = BOXES_IN_FLIGHT + MOST_BARRIERS;
constexpr unsigned LANES_OF_BLOCKS = 4095;  // never over, because the IN_FLIGHT bit is set

inline uint32_t serial_of(uint64_t record) {
    return static_cast<uint32_t>(record >> (OWNER_SHIFT + LANE_BITS));
}
inline unsigned lane_of(uint64_t record) {
    return static_cast<unsigned>(record >> OWNER_SHIFT) & ((1u << LANE_BITS) - 1);
}
inline unsigned epoch_of(uint64_t record) {
    return static_cast<unsigned>(record >> 2) & ((1u << EPOCH_BITS) - 1);
}

// Memory that a kernel may access: an allocation or a shared array.
struct Region {
    uintptr_t start;
    size_t size;
    Cell* cells;
    // Blocks whose records are valid: all blocks of the launch for global memory, only the current block for shared
    // memory.
    uint32_t first_serial, serials;
    const char* name;  // name of the shared array; null for an allocation
    int argument;      // index of the argument that points into the region, or -1
    // Index of a const __restrict__ argument that points into the region, or -1: a GPU may read it through a cache that
    // does not see writes.
    int constant;
};

struct Allocation {
    void* memory;
    uintptr_t start;
    size_t size;
    Cell* cells;
};

// Finds the live allocation, with its cells, that contains or ends at the address; returns false if there is none.
bool find_allocation(uintptr_t address, Allocation& found);

// ---- lanes

struct Warp;
struct Hopper;

enum class State { READY, SYNC_THREADS, COLLECTIVE, BARRIER, NAMED_BARRIER, EXITED };

enum class Collective {
    SYNC,
    SHUFFLE_INDEX,
    SHUFFLE_UP,
    SHUFFLE_XOR,
    VOTE,
    LDMATRIX,
    MMA,
    WGMMA,
    WGMMA_FENCE,
    WGMMA_COMMIT,
    WGMMA_WAIT,
    SET_REGISTERS,
    NAMED_BARRIER,
};

// Operands and results of one lane in a collective.
struct Operands {
    EmulatorWords a, d;
    EmulatorPair b;
    uint64_t value;
    const void* row;
    unsigned argument, width;
    int kind;
};

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned bytes, valid, group;
    Region* region;
    unsigned char seen[16];  // contents of the source when the copy was issued
    const void* code;
};

struct Lane {
    void* stack_pointer;
    uintptr_t stack;  // lowest address
    Warp* warp;
    unsigned index, in_warp;
    uint3 thread;
    State state;
    EmulatorPlace place;
    const void* site;  // return address of the barrier or collective call at which the lane waits
    // Parts of this lane's access records: `owner` is serial and lane, `record` is everything except the byte mask.
    // `warp_record` and `block_record` stand for several readers that may include this lane.
    uint64_t owner, record, warp_record, block_record;
    unsigned epoch;
    // For each lane of the warp, the epoch below which this lane knows all epochs to be over.
    unsigned known[WARP];
    Collective collective;
    unsigned mask;
    Operands operands;
    std::vector<Copy> copies;
    unsigned groups;  // number of committed groups
    unsigned barrier, phase;  // for which the lane waits
};

struct Warp {
    Lane* lanes;
    unsigned index, count;
    unsigned ready, waiting;  // lane masks
    unsigned base;            // epochs below are known to all lanes of the warp
};

struct Machine;
extern thread_local Machine* machine __attribute__((tls_model("initial-exec")));
extern thread_local Lane* current __attribute__((tls_model("initial-exec")));

// The state of a host thread that runs a launch; reused for later launches.
struct Machine {
    Machine();
    // The launch.
    const EmulatorSource* source;
    const EmulatorKernel* kernel;
    const uint64_t* arguments;
    uint3 grid, extent, block;
    unsigned dynamic_bytes;
    unsigned most_shared;  // maximum bytes of shared memory per block
    bool has_hopper;       // the architecture is sm_90a
    uint64_t seed, random;
    uint32_t first_serial, blocks;
    std::vector<Region*> globals;
    Region* cache[64];  // indexed by the page of the address
    char* message;
    size_t message_bytes;
    bool failed;

    // The block.
    uint32_t serial;
    unsigned threads, warps, waiting, exited;
    uint32_t ready_warps;
    unsigned base;  // epochs below are known to all lanes of the block
    void* main_stack_pointer;
    std::vector<const void*> shared_keys;
    std::vector<Region*> shareds;  // the dynamic array, then one array per key
    size_t shared_used, static_bytes;
    unsigned char* dynamic;
    Hopper* hopper;  // hopper.h; null unless the block has used one of its primitives

    // Memory.
    unsigned char* stacks;
    unsigned char* shared;
    Cell* shared_cells;
    std::vector<Region*> spare;
    Hopper* kept_hopper;
    Lane lanes[MOST_THREADS];
    Warp warp[MOST_THREADS / WARP];
};

// Runs all lanes of a block to completion. Returns false after a fault.
bool run_block();
// Runs other lanes until this one is ready again.
void wait_for_others();
void make_ready(Warp& warp, uint32_t lanes);
// Waits until all lanes of `mask` have reached the same collective call, which `finish` performs for all of them;
// `site` is the return address of the call.
void collect(Collective collective, unsigned mask, EmulatorPlace place, const void* site,
             void (*finish)(Warp&, unsigned mask));
// Orders memory accesses: all participating lanes now see each other's earlier accesses.
void order_warp(Warp& warp, unsigned mask);
void order_block();
// Sets a lane's epoch and updates its access records.
void set_epoch(Lane& lane, unsigned epoch);
// Reports which lanes wait for what, when no lane can continue.
void report_endless_wait();
const char* name_of(Collective collective);
// Returns the file name without directories.
const char* base_name(const char* path);
// Ends the launch with an error message about this lane; `code` is the address of an instruction, or null.
[[noreturn]] __attribute__((format(printf, 2, 3), cold)) void fault(const void* code,
                                                                    const char* format, ...);
// Faults if two threads wait at different calls in the source, including different inlined copies of a function. Copies
// of one call that were duplicated by the compiler count as the same call.
void check_site(const char* what, const Lane& mine, const Lane& other);
uint64_t next_random();

// ---- accesses; `code` is the address of the instruction, for the message

Region* new_region();
// Returns the region that contains all of the bytes; faults if there is none. Null for memory that needs no check.
Region* region_of(uintptr_t address, size_t bytes, bool write, const void* code);
void check_alignment(uintptr_t address, size_t bytes, bool write, const void* code);
// Whether the recorded access is ordered before this lane's accesses.
bool is_over(const Region& region, uint64_t record);
// Faults if an access by another lane conflicts with this one; otherwise records it. The access covers whole cells.
void check_read(Region& region, uintptr_t address, size_t bytes, const void* code);
void check_write(Region& region, uintptr_t address, size_t bytes, const void* code);
// Whether the launch has written any of the bytes, which cover whole cells.
bool is_written(const Region& region, uintptr_t address, size_t bytes);
// Returns e.g. "argument 2 'x' (1024 bytes)"; valid until the next call.
const char* describe(const Region& region);
// Performs the asynchronous copies of all groups of the lane except the latest `groups_left`; performs all copies if
// the lane has exited.
void land_copies(unsigned groups_left);
// Drops the shared arrays of the previous block and creates the dynamic shared array.
void begin_shared();

}  // namespace emulator

extern "C" {
void* emulator_switch(void** save, void* load);
void* emulator_new_stack(void* top, void (*entry)());
}
