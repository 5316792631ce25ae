// A launch: finds the kernel, checks what a card would refuse, runs the blocks one after another.
#include "runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>

// Written by build.rs.
extern "C" const EmulatorSource* const emulator_sources[];

namespace emulator {

// Room for the shared arrays of a block with guards between.
constexpr size_t SHARED_ROOM = 512 << 10;

static void* map(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("emulator: mmap");
        abort();
    }
    return memory;
}

Machine::Machine() : globals(), spare(), lanes(), warp() {
    const size_t page = 4096 << 4;  // a multiple of every page size
    stacks = static_cast<unsigned char*>(map(MOST_THREADS * (STACK + page)));
    for (unsigned i = 0; i < MOST_THREADS; i++) {
        unsigned char* guard = stacks + i * (STACK + page);
        mprotect(guard, page, PROT_NONE);
        lanes[i].stack = reinterpret_cast<uintptr_t>(guard + page);
    }
    shared = static_cast<unsigned char*>(map(SHARED_ROOM));
    shared_cells = static_cast<Cell*>(map(SHARED_ROOM / 2 * sizeof(Cell)));
}

static std::mutex mutex;
static std::vector<Machine*> idle;
static std::atomic<uint32_t> next_serial{1};

static Machine* take_machine() {
    const std::lock_guard<std::mutex> guard(mutex);
    if (idle.empty()) {
        return new Machine();
    }
    Machine* machine = idle.back();
    idle.pop_back();
    return machine;
}

static void give_machine(Machine* machine) {
    const std::lock_guard<std::mutex> guard(mutex);
    idle.push_back(machine);
}

static const char* const KINDS[] = {"a pointer", "i32", "u32", "i64", "u64", "f32", "f64"};

// Words about what is wrong with a launch, or nothing.
static void check_launch(const unsigned char* kinds, unsigned count, char* text, size_t bytes) {
    const Machine& m = *machine;
    const EmulatorKernel& k = *m.kernel;
    const uint3 g = m.grid, b = m.extent;
    const uint64_t threads = static_cast<uint64_t>(b.x) * b.y * b.z;
    if (count != k.count) {
        snprintf(text, bytes, "takes %u arguments (%s), got %u", k.count, k.parameters, count);
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        if (kinds[i] != k.kinds[i]) {
            snprintf(text, bytes, "argument %u of (%s) is %s, got %s", i, k.parameters,
                     KINDS[k.kinds[i]], kinds[i] < 7 ? KINDS[kinds[i]] : "an unknown kind");
            return;
        }
    }
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535 ||
        static_cast<uint64_t>(g.x) * g.y * g.z >= 1u << (SERIAL_BITS - 2)) {
        snprintf(text, bytes, "a grid of (%u, %u, %u): at least 1, at most 2147483647, 65535, 65535",
                 g.x, g.y, g.z);
    } else if (threads == 0 || b.x > 1024 || b.y > 1024 || b.z > 64 || threads > 1024) {
        snprintf(text, bytes,
                 "a block of (%u, %u, %u): at least 1, at most 1024, 1024, 64 and 1024 together", b.x,
                 b.y, b.z);
    } else if (threads > k.most_threads) {
        snprintf(text, bytes, "a block of %zu threads, but its KERNEL names at most %u",
                 static_cast<size_t>(threads), k.most_threads);
    } else if (m.dynamic_bytes > MOST_SHARED) {
        snprintf(text, bytes, "%u bytes of shared memory: a block has %u", m.dynamic_bytes,
                 MOST_SHARED);
    }
}

// The allocations that arguments point into. False, with words, for any other address.
static bool find_regions(char* text, size_t bytes) {
    Machine& m = *machine;
    for (unsigned i = 0; i < m.kernel->count; i++) {
        if (m.kernel->kinds[i] != 0 || m.arguments[i] == 0) {
            continue;
        }
        Allocation found;
        if (!find_allocation(m.arguments[i], found)) {
            snprintf(text, bytes, "argument %u of (%s) points to no memory of this device", i,
                     m.kernel->parameters);
            return false;
        }
        bool known = false;
        for (const Region* region : m.globals) {
            known |= region->start == found.start;
        }
        if (!known) {
            Region* region = new_region();
            *region = {found.start, found.size, found.cells,        m.first_serial,
                       m.blocks,    nullptr,    static_cast<int>(i)};
            m.globals.push_back(region);
        }
    }
    return true;
}

// Runs the blocks in the order that the seed gives. False after a fault.
static bool run_blocks() {
    Machine& m = *machine;
    // A stride without a common divisor visits every block once.
    uint64_t first = 0, stride = 1;
    if (m.seed == 1) {
        first = stride = m.blocks - 1;
    } else if (m.seed > 1) {
        first = next_random() % m.blocks;
        do {
            stride = 1 + next_random() % m.blocks;
        } while (std::gcd(stride, uint64_t{m.blocks}) != 1);
    }
    for (uint64_t n = 0; n < m.blocks; n++) {
        const uint32_t block = static_cast<uint32_t>((first + n * stride) % m.blocks);
        m.block = {block % m.grid.x, block / m.grid.x % m.grid.y, block / m.grid.x / m.grid.y};
        m.serial = m.first_serial + block;
        begin_shared();
        if (!run_block()) {
            return false;
        }
    }
    return true;
}

}  // namespace emulator

using namespace emulator;

extern "C" {

// Runs a kernel to its end. Arguments are values of 8 bytes with the kinds 0 pointer, 1 i32, 2 u32,
// 3 i64, 4 u64, 5 f32, 6 f64. The order of lanes and blocks is forward for seed 0, backward for 1, and
// arbitrary for others. Returns 0, or 1 with words in `message`.
int emulator_launch(const char* source, const char* element, const char* kernel,
                    const unsigned* grid, const unsigned* block, unsigned shared_bytes,
                    const uint64_t* arguments, const unsigned char* kinds, unsigned count,
                    uint64_t seed, char* message, size_t message_bytes) {
    const EmulatorSource* found = nullptr;
    for (const EmulatorSource* const* each = emulator_sources; *each; each++) {
        if (strcmp((*each)->name, source) == 0 && strcmp((*each)->element, element) == 0) {
            found = *each;
        }
    }
    if (!found) {
        snprintf(message, message_bytes, "no source %s.cu was compiled for %s", source, element);
        return 1;
    }
    const EmulatorKernel* called = nullptr;
    for (unsigned i = 0; i < found->count; i++) {
        if (strcmp(found->kernels[i].name, kernel) == 0) {
            called = &found->kernels[i];
        }
    }
    if (!called) {
        snprintf(message, message_bytes, "%s.cu has no kernel %s", source, kernel);
        return 1;
    }
    Machine& m = *(machine = take_machine());
    m.source = found;
    m.kernel = called;
    m.arguments = arguments;
    m.grid = {grid[0], grid[1], grid[2]};
    m.extent = {block[0], block[1], block[2]};
    m.dynamic_bytes = shared_bytes;
    m.seed = seed;
    m.random = seed | 1;
    m.message = message;
    m.message_bytes = message_bytes;
    m.failed = false;
    int used = snprintf(message, message_bytes, "%s.cu (%s), kernel %s: ", source, element, kernel);
    char* text = message + used;
    const size_t room = message_bytes - static_cast<size_t>(used);
    *text = 0;
    check_launch(kinds, count, text, room);
    m.failed = *text != 0;
    if (!m.failed) {
        m.threads = block[0] * block[1] * block[2];
        m.warps = (m.threads + WARP - 1) / WARP;
        m.blocks = grid[0] * grid[1] * grid[2];
        // Serial numbers of a launch do not wrap around.
        uint32_t first = next_serial.load(), after;
        do {
            const uint32_t limit = (1u << SERIAL_BITS) - 1;
            m.first_serial = first + m.blocks >= limit ? 1 : first;
            after = m.first_serial + m.blocks;
        } while (!next_serial.compare_exchange_weak(first, after));
        m.failed = !find_regions(text, room);
        m.failed = m.failed || !run_blocks();
        m.spare.insert(m.spare.end(), m.globals.begin(), m.globals.end());
        m.globals.clear();
    }
    const bool failed = m.failed;
    machine = nullptr;
    give_machine(&m);
    if (!failed) {
        *message = 0;
    }
    return failed;
}

}  // extern "C"
