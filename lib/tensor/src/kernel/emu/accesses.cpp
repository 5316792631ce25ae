// Every access of a kernel: the compiler calls these functions before each load and store
// (-fsanitize=thread, of which only the calls are used), and here is what they check.
//
// Bounds, alignment, and races: two lanes touch the same bytes, at least one writes, and nothing orders
// them. __syncthreads() orders the lanes of a block, __syncwarp() those of a warp; shuffles and votes do
// not order memory, nor is there an order between blocks.
#include "runtime.h"

#include <algorithm>
#include <cstdio>

namespace emulator {

static uint32_t serial_of(uint64_t record) {
    return static_cast<uint32_t>(record >> (OWNER_SHIFT + LANE_BITS));
}

static unsigned lane_of(uint64_t record) {
    return static_cast<unsigned>(record >> OWNER_SHIFT) & ((1u << LANE_BITS) - 1);
}

static unsigned epoch_of(uint64_t record) {
    return static_cast<unsigned>(record >> 2) & ((1u << EPOCH_BITS) - 1);
}

bool is_over(const Region& region, uint64_t record) {
    const Machine& m = *machine;
    const uint32_t serial = serial_of(record);
    if (serial - region.first_serial >= region.serials) {
        return true;
    }
    const unsigned who = lane_of(record);
    if (serial != m.serial || who == LANES_OF_BLOCKS || (who & IN_FLIGHT)) {
        return false;
    }
    const unsigned epoch = epoch_of(record);
    if (epoch < m.base) {
        return true;
    }
    const Lane& me = *current;
    const Warp& warp = *me.warp;
    if (who < MOST_THREADS) {
        return who == me.index ||
               (who / WARP == warp.index &&
                (epoch < warp.base || epoch < me.known[who % WARP]));
    }
    // Of several readers of the warp it is not known which: after a barrier of part of the warp that
    // may have been among them, no race is claimed.
    return who == LANES_OF_WARP + warp.index &&
           (epoch < warp.base || epoch < *std::max_element(me.known, me.known + WARP));
}

// "thread 5", "several threads of warp 1".
static const char* describe_lane(uint64_t record, char (&text)[100]) {
    const unsigned who = lane_of(record) & ~IN_FLIGHT;
    const unsigned block = serial_of(record) - machine->first_serial;
    if (who == LANES_OF_BLOCKS) {
        snprintf(text, sizeof text, "threads of several blocks");
    } else if (serial_of(record) != machine->serial) {
        const uint3 grid = machine->grid;
        snprintf(text, sizeof text, "block (%u, %u, %u)", block % grid.x, block / grid.x % grid.y,
                 block / grid.x / grid.y);
    } else if (who == LANES_OF_BLOCK) {
        snprintf(text, sizeof text, "several threads");
    } else if (who >= LANES_OF_WARP) {
        snprintf(text, sizeof text, "several threads of warp %u", who - LANES_OF_WARP);
    } else {
        const uint3 thread = machine->lanes[who].thread;
        snprintf(text, sizeof text, "thread (%u, %u, %u)", thread.x, thread.y, thread.z);
    }
    return text;
}

[[noreturn]] static void fault_race(const Region& region, uintptr_t address, size_t bytes, bool write,
                                    uint64_t record, bool other_writes, const void* code) {
    const size_t offset = address - region.start;
    char who[100];
    if (lane_of(record) & IN_FLIGHT) {
        fault(code,
              "%s %zu bytes at offset %zu of %s, where an asynchronous copy of %s is under way "
              "(wait_async and a barrier are missing)",
              write ? "writes" : "reads", bytes, offset, describe(region),
              describe_lane(record, who));
    }
    fault(code, "race: %s %zu bytes at offset %zu of %s, which %s %s without a barrier between",
          write ? "writes" : "reads", bytes, offset, describe(region), describe_lane(record, who),
          other_writes ? "has written" : "has read");
}

// The record of the readers of `before` and this lane together.
static uint64_t join(uint64_t before, uint64_t mine) {
    if ((before & mine & 3) == 0) {
        return mine;
    }
    const uint64_t serial = static_cast<uint64_t>(serial_of(mine)) << (OWNER_SHIFT + LANE_BITS);
    const uint64_t bytes = before & mine & 3;
    const unsigned who = lane_of(before);
    if (who == LANES_OF_BLOCKS || serial_of(before) != serial_of(mine)) {
        return serial | static_cast<uint64_t>(LANES_OF_BLOCKS) << OWNER_SHIFT | bytes;
    }
    const unsigned warp = lane_of(mine) / WARP;
    const bool same = who < MOST_THREADS ? who / WARP == warp : who == LANES_OF_WARP + warp;
    const uint64_t together = same ? LANES_OF_WARP + warp : LANES_OF_BLOCK;
    const uint64_t epoch = std::max(epoch_of(before), epoch_of(mine));
    return serial | together << OWNER_SHIFT | epoch << 2 | bytes;
}

// One access to one cell; `bytes` has a bit for each of its two bytes.
template <bool WRITE>
static inline __attribute__((always_inline)) uint64_t conflict(const Region& region, Cell& cell,
                                                               uint64_t bytes) {
    const Lane& me = *current;
    const uint64_t write = cell.write;
    if (write >> OWNER_SHIFT != me.owner && (write & bytes) && !is_over(region, write)) {
        return write;
    }
    const uint64_t mine = me.record | bytes;
    const uint64_t read = cell.read;
    if (WRITE) {
        if (read >> OWNER_SHIFT != me.owner && (read & bytes) && !is_over(region, read)) {
            return read;
        }
        cell.write = mine | ((write ^ mine) < 4 ? write & 3 : 0);
    } else if (read != mine) {
        if (read >> OWNER_SHIFT == me.owner) {
            cell.read = mine | ((read ^ mine) < 4 ? read & 3 : 0);
        } else {
            cell.read = is_over(region, read) ? mine : join(read, mine);
        }
    }
    return 0;
}

template <bool WRITE>
static inline __attribute__((always_inline)) void check(Region& region, uintptr_t address,
                                                        size_t bytes, const void* code) {
    const size_t offset = address - region.start;
    for (size_t i = offset / 2; i <= (offset + bytes - 1) / 2; i++) {
        uint64_t mask = 3;
        if (2 * i < offset) {
            mask = 2;
        } else if (2 * i + 2 > offset + bytes) {
            mask = 1;
        }
        Cell& cell = region.cells[i];
        if (const uint64_t other = conflict<WRITE>(region, cell, mask)) {
            fault_race(region, address, bytes, WRITE, other, other == cell.write, code);
        }
    }
}

void check_read(Region& region, uintptr_t address, size_t bytes, const void* code) {
    check<false>(region, address, bytes, code);
}

void check_write(Region& region, uintptr_t address, size_t bytes, const void* code) {
    check<true>(region, address, bytes, code);
}

// An access of the kernel. `aligned`: its type promises that the address is a multiple of its size.
template <bool WRITE>
static inline __attribute__((always_inline)) void access(const void* pointer, size_t bytes,
                                                         bool aligned, const void* code) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (address - current->stack < STACK || bytes == 0) {
        return;
    }
    Region* region = machine->cache[address >> 12 & 63];
    if (!region || address - region->start >= region->size ||
        region->size - (address - region->start) < bytes) {
        region = region_of(address, bytes, WRITE, code);
        if (!region) {
            return;
        }
    }
    if (aligned && (address & (bytes - 1)) != 0) {
        check_alignment(address, bytes, WRITE, code);
    }
    check<WRITE>(*region, address, bytes, code);
}

}  // namespace emulator

using namespace emulator;

#define CODE __builtin_return_address(0)
#define ACCESS(name, bytes, write, aligned)                \
    void name(const void* pointer) {                       \
        access<write>(pointer, bytes, aligned, CODE);      \
    }
#define SIZES(verb, write)                                 \
    ACCESS(__tsan_##verb##1, 1, write, true)               \
    ACCESS(__tsan_##verb##2, 2, write, true)               \
    ACCESS(__tsan_##verb##4, 4, write, true)               \
    ACCESS(__tsan_##verb##8, 8, write, true)               \
    ACCESS(__tsan_##verb##16, 16, write, true)             \
    ACCESS(__tsan_unaligned_##verb##2, 2, write, false)    \
    ACCESS(__tsan_unaligned_##verb##4, 4, write, false)    \
    ACCESS(__tsan_unaligned_##verb##8, 8, write, false)    \
    ACCESS(__tsan_unaligned_##verb##16, 16, write, false)  \
    ACCESS(__tsan_volatile_##verb##1, 1, write, true)      \
    ACCESS(__tsan_volatile_##verb##2, 2, write, true)      \
    ACCESS(__tsan_volatile_##verb##4, 4, write, true)      \
    ACCESS(__tsan_volatile_##verb##8, 8, write, true)      \
    ACCESS(__tsan_volatile_##verb##16, 16, write, true)

extern "C" {

SIZES(read, false)
SIZES(write, true)

void __tsan_read_range(const void* pointer, size_t bytes) {
    access<false>(pointer, bytes, false, CODE);
}

void __tsan_write_range(const void* pointer, size_t bytes) {
    access<true>(pointer, bytes, false, CODE);
}

void __tsan_init() {}

void __tsan_func_entry(const void*) {}

void __tsan_func_exit() {}

void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
    access<false>(from, bytes, false, CODE);
    access<true>(to, bytes, false, CODE);
    return __builtin_memcpy(to, from, bytes);
}

void* __tsan_memmove(void* to, const void* from, size_t bytes) {
    access<false>(from, bytes, false, CODE);
    access<true>(to, bytes, false, CODE);
    return __builtin_memmove(to, from, bytes);
}

void* __tsan_memset(void* to, int value, size_t bytes) {
    access<true>(to, bytes, false, CODE);
    return __builtin_memset(to, value, bytes);
}

EmulatorWords emulator_load(const void* from, unsigned bytes) {
    access<false>(from, bytes, true, CODE);
    EmulatorWords words{};
    __builtin_memcpy(&words, from, bytes);
    return words;
}

void emulator_store(void* to, EmulatorWords words, unsigned bytes) {
    access<true>(to, bytes, true, CODE);
    __builtin_memcpy(to, &words, bytes);
}

}  // extern "C"
