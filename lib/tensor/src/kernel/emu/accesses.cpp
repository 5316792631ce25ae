// Checks of every memory access of a kernel. The compiler inserts calls to these functions before each load and store
// (-fsanitize=thread, without its runtime).
//
// The checks cover bounds, alignment, and races: two lanes access the same bytes, at least one writes, and nothing
// orders the accesses. __syncthreads() orders the lanes of a block, and __syncwarp() orders the lanes of a warp;
// shuffles and votes do not order memory, and blocks are not ordered.
#include "hopper.h"

#include <algorithm>
#include <cstdio>

namespace emulator {

bool is_over(const Region& region, uint64_t record) {
    const Machine& m = *machine;
    const uint32_t serial = serial_of(record);
    if (serial - region.first_serial >= region.serials) {
        return true;
    }
    const unsigned who = lane_of(record);
    const unsigned epoch = epoch_of(record);
    if (serial != m.serial || (who & IN_FLIGHT)) {
        return serial == m.serial && who - BOXES_LANDED < MOST_BARRIERS &&
               knows_phase(*current, who - BOXES_LANDED, epoch);
    }
    if (epoch < m.base) {
        return true;
    }
    const Lane& me = *current;
    const Warp& warp = *me.warp;
    if (who < MOST_THREADS) {
        return who == me.index ||
               (who / WARP == warp.index &&
                (epoch < warp.base || epoch < me.known[who % WARP])) ||
               (m.hopper && epoch < m.hopper->clock(me)[who]);
    }
    // If several lanes of a warp have read, individual readers are not recorded. No race is reported if a barrier of
    // part of the warp may have included them.
    return (who == LANES_OF_WARP + warp.index &&
            (epoch < warp.base || epoch < *std::max_element(me.known, me.known + WARP))) ||
           (m.hopper && knows_readers(me, who, epoch));
}

// Describes the lane of a record, e.g. "thread (5, 0, 0)" or "several threads of warp 1".
static const char* describe_lane(uint64_t record, char (&text)[100]) {
    const unsigned all = lane_of(record);
    const unsigned who = all == LANES_OF_BLOCKS ? all : all & ~IN_FLIGHT;
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
    if (other_writes && lane_of(record) >= BOXES_LANDED && serial_of(record) == machine->serial) {
        const char* what = lane_of(record) == BARRIERS   ? "where a barrier is"
                           : is_over(region, record)     ? "which a product may still read (wait_products and an "
                                                           "arrival at a barrier are missing)"
                                                         : nullptr;
        if (what) {
            fault(code, "%s %zu bytes at offset %zu of %s, %s", write ? "writes" : "reads", bytes, offset,
                  describe(region), what);
        }
        fault(code, "%s %zu bytes at offset %zu of %s, where a box is copied for phase %u of a barrier, which this "
                    "thread has not waited for",
              write ? "writes" : "reads", bytes, offset, describe(region), epoch_of(record));
    }
    if (other_writes && (lane_of(record) & IN_FLIGHT)) {
        fault(code,
              "%s %zu bytes at offset %zu of %s, where an asynchronous copy of %s is in flight "
              "(wait_async and a barrier are missing)",
              write ? "writes" : "reads", bytes, offset, describe(region),
              describe_lane(record, who));
    }
    const bool same_warp = serial_of(record) == machine->serial &&
                           lane_of(record) / WARP == current->warp->index;
    fault(code, "race: %s %zu bytes at offset %zu of %s, which %s %s without a barrier between%s",
          write ? "writes" : "reads", bytes, offset, describe(region), describe_lane(record, who),
          other_writes ? "has written" : "has read",
          same_warp ? " (__syncwarp is one, a shuffle is not)" : "");
}

[[noreturn]] __attribute__((cold, noinline)) static void fault_constant(const Region& region,
                                                                        uintptr_t address, size_t bytes,
                                                                        const void* code) {
    fault(code,
          "writes %zu bytes at offset %zu of %s, which argument %d gives as const __restrict__: a GPU may read it "
          "through a cache that does not see writes",
          bytes, address - region.start, describe(region), region.constant);
}

// Returns a record of the readers in `before` and this lane.
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

// is_over() with its common cases inlined: the record belongs to this lane or another launch, or precedes the last
// barrier of the block.
template <bool WRITE>
static inline __attribute__((always_inline)) bool is_over_quickly(const Region& region, const Cell& cell,
                                                                  uint64_t record) {
    const uint32_t serial = serial_of(record);
    return record >> OWNER_SHIFT == current->owner ||
           serial - region.first_serial >= region.serials ||
           (serial == machine->serial && epoch_of(record) < machine->base &&
            !(lane_of(record) & IN_FLIGHT)) ||
           (is_over(region, record) &&
            !(WRITE && lane_of(record) - BOXES_LANDED < MOST_BARRIERS && is_read_by_products(cell)));
}

// Checks and records one access to one cell; `bytes` has one bit for each of the two bytes. Returns the record of a
// conflicting access, or 0.
template <bool WRITE>
static inline __attribute__((always_inline)) uint64_t touch(const Region& region, Cell& cell,
                                                            uint64_t bytes) {
    const Lane& me = *current;
    const uint64_t write = cell.write, read = cell.read;
    const uint64_t mine = me.record | bytes;
    if (WRITE ? (write == mine && read == mine) : read == mine) {
        return 0;
    }
    if ((write & bytes) && !is_over_quickly<WRITE>(region, cell, write)) {
        return write;
    }
    if (WRITE) {
        if ((read & bytes) && !is_over_quickly<false>(region, cell, read)) {
            return read;
        }
        cell.write = mine | ((write ^ mine) < 4 ? write & 3 : 0);
    } else if (read >> OWNER_SHIFT == me.owner) {
        cell.read = mine | ((read ^ mine) < 4 ? read & 3 : 0);
    } else if (read != (me.warp_record | bytes) && read != (me.block_record | bytes)) {
        cell.read = is_over_quickly<false>(region, cell, read) ? mine : join(read, mine);
    }
    return 0;
}

// Checks and records an access. `WHOLE` means that the access covers whole cells.
template <bool WRITE, bool WHOLE>
static inline __attribute__((always_inline)) void check(Region& region, uintptr_t address,
                                                        size_t bytes, const void* code) {
    if (WRITE && region.constant >= 0) {
        fault_constant(region, address, bytes, code);
    }
    const size_t offset = address - region.start;
    Cell* cell = &region.cells[offset / 2];
    const size_t cells = WHOLE ? bytes / 2 : (offset + bytes - 1) / 2 - offset / 2 + 1;
    Cell before = *cell, *first = cell;
    for (size_t i = 0; i < cells; i++, cell++) {
        // Usually all cells of an access have the same history, and therefore the same result.
        if (WHOLE && i > 0 && cell->write == before.write && cell->read == before.read) {
            *cell = *first;
            continue;
        }
        before = *cell;
        first = cell;
        uint64_t mask = 3;
        if (!WHOLE) {
            mask &= i == 0 && offset % 2 ? 2 : 3;
            mask &= i + 1 == cells && (offset + bytes) % 2 ? 1 : 3;
        }
        if (const uint64_t other = touch<WRITE>(region, *cell, mask)) {
            fault_race(region, address, bytes, WRITE, other, other == cell->write, code);
        }
    }
}

void check_read(Region& region, uintptr_t address, size_t bytes, const void* code) {
    check<false, true>(region, address, bytes, code);
}

void check_write(Region& region, uintptr_t address, size_t bytes, const void* code) {
    check<true, true>(region, address, bytes, code);
}

bool is_written(const Region& region, uintptr_t address, size_t bytes) {
    const Cell* cell = region.cells + (address - region.start) / 2;
    return std::any_of(cell, cell + bytes / 2, [&](const Cell& each) {
        return serial_of(each.write) - region.first_serial < region.serials;
    });
}

// Checks an access by the kernel. `aligned` means that the type requires the address to be a multiple of its size.
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
    if (!aligned || bytes == 1) {
        return check<WRITE, false>(*region, address, bytes, code);
    }
    if ((address & (bytes - 1)) != 0) {
        check_alignment(address, bytes, WRITE, code);
    }
    check<WRITE, true>(*region, address, bytes, code);
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
