// cp.async: a copy is recorded when issued and performed when a lane waits for its group.
//
// In between, the destination must not be accessed; its bytes are poisoned. The source must not change: a GPU may copy at
// any time until then.
#include "runtime.h"

#include <cstring>

namespace emulator {

// Performs the copies of all committed groups except the latest `groups_left`; performs all copies if the lane has
// exited.
void land_copies(unsigned groups_left) {
    Lane& me = *current;
    const bool all = groups_left == 0 && me.state == State::EXITED;
    size_t kept = 0;
    for (const Copy& copy : me.copies) {
        if (!all && copy.group + groups_left >= me.groups) {
            me.copies[kept++] = copy;
            continue;
        }
        if (memcmp(copy.from, copy.seen, copy.valid) != 0) {
            fault(copy.code,
                  "the source of an asynchronous copy changed before the copy was waited for");
        }
        memcpy(copy.to, copy.from, copy.valid);
        memset(copy.to + copy.valid, 0, copy.bytes - copy.valid);
        Cell* cells =
            copy.region->cells + (reinterpret_cast<uintptr_t>(copy.to) - copy.region->start) / 2;
        for (unsigned i = 0; i < copy.bytes / 2; i++) {
            cells[i].write = me.record | 3;
        }
    }
    me.copies.resize(kept);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void emulator_copy_async(void* to, const void* from, int bytes, int valid) {
    const void* code = __builtin_return_address(0);
    const uintptr_t target = reinterpret_cast<uintptr_t>(to);
    const uintptr_t source = reinterpret_cast<uintptr_t>(from);
    const size_t size = static_cast<size_t>(bytes);
    if (valid < 0 || valid > bytes) {
        fault(code, "an asynchronous copy of %d bytes has %d valid bytes", bytes, valid);
    }
    Region* region = region_of(target, size, true, code);
    if (!region || !region->name) {
        fault(code, "an asynchronous copy writes outside of shared memory");
    }
    check_alignment(target, size, true, code);
    if (source % size != 0) {
        fault(code, "an asynchronous copy of %d bytes reads from the misaligned address %p",
              bytes, from);
    }
    if (valid > 0) {
        Region* global = region_of(source, static_cast<size_t>(valid), false, code);
        if (global && global->name) {
            fault(code, "an asynchronous copy reads from shared memory");
        }
        if (global) {
            check_read(*global, source, static_cast<size_t>(valid), code);
        }
    }
    check_write(*region, target, size, code);
    Cell* cells = region->cells + (target - region->start) / 2;
    for (size_t i = 0; i < size / 2; i++) {
        cells[i].write |= static_cast<uint64_t>(IN_FLIGHT) << OWNER_SHIFT;
    }
    memset(to, 0xff, size);
    Copy copy = {static_cast<unsigned char*>(to),
                 static_cast<const unsigned char*>(from),
                 static_cast<unsigned>(bytes),
                 static_cast<unsigned>(valid),
                 current->groups,
                 region,
                 {},
                 code};
    memcpy(copy.seen, from, static_cast<size_t>(valid));
    current->copies.push_back(copy);
}

void emulator_commit_async() {
    current->groups++;
}

void emulator_wait_async(int left) {
    land_copies(static_cast<unsigned>(left));
}

}  // extern "C"
