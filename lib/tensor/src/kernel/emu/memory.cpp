// Memory: allocations of exact size, shared arrays, and the lookup of addresses.
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

// Address range of the loaded program, which contains the constants of kernels.
extern "C" const char __executable_start, _end;

namespace emulator {

// Guard bytes around an allocation, so that addresses past its end belong to no other allocation.
constexpr size_t GUARD = 256;
constexpr size_t SHARED_GUARD = 64;

static std::mutex mutex;
static std::map<uintptr_t, Allocation> allocations;  // by start

static size_t cells_of(size_t bytes) {
    return bytes / 2 + 1;
}

bool find_allocation(uintptr_t address, Allocation& found) {
    const std::lock_guard<std::mutex> guard(mutex);
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) {
        return false;
    }
    Allocation& allocation = (--after)->second;
    if (address - allocation.start > allocation.size) {
        return false;
    }
    if (!allocation.cells) {
        allocation.cells = static_cast<Cell*>(calloc(cells_of(allocation.size), sizeof(Cell)));
    }
    found = allocation;
    return allocation.cells != nullptr;
}

Region* new_region() {
    Machine& m = *machine;
    if (m.spare.empty()) {
        return new Region();
    }
    Region* region = m.spare.back();
    m.spare.pop_back();
    return region;
}

const char* describe(const Region& region) {
    static thread_local char text[200];
    if (region.name) {
        snprintf(text, sizeof text, "shared array '%s' (%zu bytes)", region.name, region.size);
    } else if (region.argument < 0) {
        snprintf(text, sizeof text, "memory whose address an argument holds (%zu bytes)",
                 region.size);
    } else {
        const char* name = machine->kernel->parameters;
        for (int i = 0; i < region.argument && strchr(name, ','); i++) {
            name = strchr(name, ',') + 1;
        }
        snprintf(text, sizeof text, "argument %d '%.*s' (%zu bytes)", region.argument,
                 static_cast<int>(strcspn(name, ",")), name, region.size);
    }
    return text;
}

// Whether the memory of an argument contains a pointer into the allocation.
static bool is_reachable(const Allocation& allocation) {
    for (const Region* region : machine->globals) {
        for (size_t at = 0; at + 8 <= region->size; at += 8) {
            uintptr_t word;
            memcpy(&word, reinterpret_cast<const void*>(region->start + at), 8);
            if (word - allocation.start < allocation.size) {
                return true;
            }
        }
    }
    return false;
}

[[noreturn]] static void fault_outside(uintptr_t address, size_t bytes, bool write,
                                       const void* code) {
    const Region* nearest = nullptr;
    uintptr_t distance = UINTPTR_MAX;
    for (const auto* regions : {&machine->globals, &machine->shareds}) {
        for (const Region* region : *regions) {
            const uintptr_t end = region->start + region->size;
            const uintptr_t away = address < region->start ? region->start - address
                                   : address >= end       ? address - end
                                                          : 0;
            if (away < distance && region->size > 0) {
                distance = away;
                nearest = region;
            }
        }
    }
    const char* verb = write ? "writes" : "reads";
    if (!nearest || distance > 1u << 20) {
        fault(code, "%s %zu bytes at address %p, which is outside of all device memory", verb, bytes,
              reinterpret_cast<void*>(address));
    }
    fault(code, "%s %zu bytes at offset %td, outside of %s", verb, bytes,
          static_cast<ptrdiff_t>(address - nearest->start), describe(*nearest));
}

Region* region_of(uintptr_t address, size_t bytes, bool write, const void* code) {
    Machine& m = *machine;
    for (const auto* regions : {&m.globals, &m.shareds}) {
        for (Region* region : *regions) {
            const uintptr_t offset = address - region->start;
            if (offset < region->size && region->size - offset >= bytes) {
                return m.cache[address >> 12 & 63] = region;
            }
        }
    }
    if (!write && address - reinterpret_cast<uintptr_t>(&__executable_start) <
                      static_cast<uintptr_t>(&_end - &__executable_start)) {
        return nullptr;
    }
    Allocation allocation;
    if (find_allocation(address, allocation) && is_reachable(allocation)) {
        bool known = false;
        for (const Region* region : m.globals) {
            known |= region->start == allocation.start;
        }
        if (!known) {
            Region* region = new_region();
            *region = {allocation.start, allocation.size, allocation.cells, m.first_serial,
                       m.blocks,         nullptr,         -1,               -1};
            m.globals.push_back(region);
            return region_of(address, bytes, write, code);
        }
    }
    fault_outside(address, bytes, write, code);
}

void check_alignment(uintptr_t address, size_t bytes, bool write, const void* code) {
    if (address % bytes != 0) {
        const Region* region = region_of(address, bytes, write, code);
        fault(code, "%s %zu bytes at offset %zu of %s: the address is not a multiple of %zu",
              write ? "writes" : "reads", bytes,
              region ? static_cast<size_t>(address - region->start) : 0,
              region ? describe(*region) : "a constant", bytes);
    }
}

// Creates a region of shared memory followed by a guard.
static Region* new_shared(const char* name, size_t bytes) {
    Machine& m = *machine;
    const size_t start = (m.shared_used + 15) & ~size_t{15};
    m.shared_used = start + bytes + SHARED_GUARD;
    memset(m.shared + start, 0xff, bytes);
    Region* region = new_region();
    *region = {reinterpret_cast<uintptr_t>(m.shared + start), bytes,     m.shared_cells + start / 2,
               m.serial,                                      1,         name,
               -1,                                            -1};
    m.shareds.push_back(region);
    return region;
}

// Drops the shared arrays of the previous block and creates the dynamic shared array.
void begin_shared() {
    Machine& m = *machine;
    m.spare.insert(m.spare.end(), m.shareds.begin(), m.shareds.end());
    m.shareds.clear();
    m.shared_keys.clear();
    memset(m.cache, 0, sizeof m.cache);
    m.static_bytes = 0;
    // Deliberately aligned to 16 bytes only.
    m.shared_used = 16;
    m.dynamic = reinterpret_cast<unsigned char*>(new_shared("dynamic", m.dynamic_bytes)->start);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

// Allocates `bytes` bytes, aligned to 256 bytes; returns null if out of memory.
void* emulator_allocate(size_t bytes) {
    const size_t whole = ((bytes + 255) & ~size_t{255}) + 2 * GUARD;
    void* memory = aligned_alloc(256, whole);
    if (!memory) {
        return nullptr;
    }
    // NaN in every float dtype.
    memset(memory, 0xff, whole);
    const uintptr_t start = reinterpret_cast<uintptr_t>(memory) + GUARD;
    const std::lock_guard<std::mutex> guard(mutex);
    allocations[start] = {memory, start, bytes, nullptr};
    return reinterpret_cast<void*>(start);
}

// Frees an allocation. Returns false if there is no such allocation.
bool emulator_free(void* pointer) {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = allocations.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == allocations.end()) {
        return false;
    }
    memset(pointer, 0xff, found->second.size);
    free(found->second.cells);
    free(found->second.memory);
    allocations.erase(found);
    return true;
}

// Whether all of the bytes are in one allocation.
bool emulator_holds(const void* pointer, size_t bytes) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard<std::mutex> guard(mutex);
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) {
        return false;
    }
    const Allocation& allocation = (--after)->second;
    const size_t offset = address - allocation.start;
    return offset <= allocation.size && bytes <= allocation.size - offset;
}

void* emulator_shared(const void* key, const char* name, size_t bytes, size_t alignment) {
    Machine& m = *machine;
    for (size_t i = 0; i < m.shared_keys.size(); i++) {
        if (m.shared_keys[i] == key) {
            return reinterpret_cast<void*>(m.shareds[i + 1]->start);
        }
    }
    m.static_bytes += (bytes + 15) & ~size_t{15};
    if (m.static_bytes > MOST_STATIC_SHARED) {
        fault(nullptr, "shared arrays of %zu bytes: a GPU has %u for static ones",
              m.static_bytes, MOST_STATIC_SHARED);
    }
    if (m.static_bytes + m.dynamic_bytes > m.most_shared) {
        fault(nullptr, "%zu bytes of shared memory: a block has %u",
              m.static_bytes + m.dynamic_bytes, m.most_shared);
    }
    if (alignment > 16) {
        fault(nullptr, "shared array '%s' requires an alignment of %zu, but gets 16", name, alignment);
    }
    m.shared_keys.push_back(key);
    return reinterpret_cast<void*>(new_shared(name, bytes)->start);
}

unsigned char* emulator_dynamic_shared() {
    return machine->dynamic;
}

}  // extern "C"
