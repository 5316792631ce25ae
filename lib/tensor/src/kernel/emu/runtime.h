// The runtime of the emulator: the lanes of a block run as fibers on one thread, with the memory they access.
//
// A lane runs until it waits for others. The lane that completes a barrier or a collective does its work for all, so a
// wait costs each lane one switch. A fault ends the launch: it writes its message and switches back to the launching
// thread for good.
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
// Space for the shared arrays of a block, with guards in between.
constexpr size_t SHARED_ROOM = 512 << 10;

// ---- memory

// Who last wrote and read two bytes. A record consists of, from the high end: serial number of the block (30 bits),
// lane (12), epoch (20), which of the two bytes (2). Lanes above 1023 stand for several readers or, with IN_FLIGHT, for
// a copy that has not been performed yet.
struct Cell {
    uint64_t write, read;
};
constexpr unsigned EPOCH_BITS = 20;
constexpr unsigned OWNER_SHIFT = EPOCH_BITS + 2;
constexpr unsigned LANE_BITS = 12;
constexpr unsigned SERIAL_BITS = 30;
constexpr unsigned LANES_OF_WARP = 1024;  // + warp: several lanes of that warp
constexpr unsigned LANES_OF_BLOCK = 1056;
constexpr unsigned IN_FLIGHT = 2048;
// Not lanes either, for writes: a box that is copied for a barrier, of which the epoch is the phase; and a barrier itself.
constexpr unsigned MOST_BARRIERS = 64;
constexpr unsigned BOXES_LANDED = 3072;  // + barrier
constexpr unsigned BOXES_IN_FLIGHT = BOXES_LANDED + MOST_BARRIERS;
constexpr unsigned BARRIERS = BOXES_IN_FLIGHT + MOST_BARRIERS;
constexpr unsigned LANES_OF_BLOCKS = 4095;  // never over: it has the bit of IN_FLIGHT

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
    // Blocks whose records are valid: all of the launch for global memory, only this one for shared memory.
    uint32_t first_serial, serials;
    const char* name;  // of the shared array; null for an allocation
    int argument;      // index of the argument that points into it, or -1
    // Index of a const __restrict__ argument that points into it, or -1: a GPU may read it through a cache that does not see
    // writes.
    int constant;
};

struct Allocation {
    void* memory;
    uintptr_t start;
    size_t size;
    Cell* cells;
};

// Finds the live allocation, with its cells, that contains the address (or ends there); returns false if there is none.
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

// The operands and results of a lane in a collective.
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
    unsigned char seen[16];  // the source when the copy was issued
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
    const void* site;  // the call of the barrier or collective that it waits at
    // Parts of an access record: serial and lane; and everything except the bytes. Then the records of several readers
    // that may include this lane.
    uint64_t owner, record, warp_record, block_record;
    unsigned epoch;
    // For each lane of the warp, the latest epoch that this lane knows to be over.
    unsigned known[WARP];
    Collective collective;
    unsigned mask;
    Operands operands;
    std::vector<Copy> copies;
    unsigned groups;  // committed
    unsigned barrier, phase;  // that it waits for
};

struct Warp {
    Lane* lanes;
    unsigned index, count;
    unsigned ready, waiting;  // lanes
    unsigned base;            // epochs below are known to all lanes of the warp
};

struct Machine;
extern thread_local Machine* machine __attribute__((tls_model("initial-exec")));
extern thread_local Lane* current __attribute__((tls_model("initial-exec")));

// The state that a host thread needs to run a launch; reused for later launches.
struct Machine {
    Machine();
    // The launch.
    const EmulatorSource* source;
    const EmulatorKernel* kernel;
    const uint64_t* arguments;
    uint3 grid, extent, block;
    unsigned dynamic_bytes;
    unsigned most_shared;  // bytes that a block may have
    bool has_hopper;       // the architecture is sm_90a
    uint64_t seed, random;
    uint32_t first_serial, blocks;
    std::vector<Region*> globals;
    Region* cache[64];  // by pages of the address
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
    std::vector<Region*> shareds;  // the dynamic one, then that of each key
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

// Runs all lanes of a block to their end. Returns false after a fault.
bool run_block();
// Runs other lanes until this one is ready again.
void wait_for_others();
void make_ready(Warp& warp, uint32_t lanes);
// Waits until all lanes of `mask` have reached the same call of a collective, which `finish` performs for them; `site` is the
// return address of the call.
void collect(Collective collective, unsigned mask, EmulatorPlace place, const void* site,
             void (*finish)(Warp&, unsigned mask));
// Orders memory: all lanes of the mask now see all accesses so far.
void order_warp(Warp& warp, unsigned mask);
void order_block();
// Starts an epoch of a lane.
void set_epoch(Lane& lane, unsigned epoch);
// Reports which lanes wait for what, when no lane can continue.
void report_endless_wait();
const char* name_of(Collective collective);
// The file name without directories.
const char* base_name(const char* path);
// Ends the launch with an error message about this lane; `code` is the address of an instruction, or null.
[[noreturn]] __attribute__((format(printf, 2, 3), cold)) void fault(const void* code,
                                                                    const char* format, ...);
// Faults if two threads wait at different calls in the source, also at different calls of a function that was inlined. A call
// that the compiler duplicated is one.
void check_site(const char* what, const Lane& mine, const Lane& other);
uint64_t next_random();

// ---- accesses; `code` is the address of the instruction, for the message

Region* new_region();
// The region that contains all of the bytes; a fault if there is none. Null for memory that needs no check.
Region* region_of(uintptr_t address, size_t bytes, bool write, const void* code);
void check_alignment(uintptr_t address, size_t bytes, bool write, const void* code);
// Whether the recorded access is ordered before this lane's accesses.
bool is_over(const Region& region, uint64_t record);
// Faults if an access of another lane conflicts, then records this one. The access covers whole cells.
void check_read(Region& region, uintptr_t address, size_t bytes, const void* code);
void check_write(Region& region, uintptr_t address, size_t bytes, const void* code);
// Whether the launch has written any of the bytes, which cover whole cells.
bool is_written(const Region& region, uintptr_t address, size_t bytes);
// "argument 2 'x' (1024 bytes)"; valid until the next call.
const char* describe(const Region& region);
// Performs the asynchronous copies of all groups of the lane except the latest; all of them when it has exited.
void land_copies(unsigned groups_left);
// Drops the shared arrays of the last block and creates the dynamic one.
void begin_shared();

}  // namespace emulator

extern "C" {
void* emulator_switch(void** save, void* load);
void* emulator_new_stack(void* top, void (*entry)());
}
