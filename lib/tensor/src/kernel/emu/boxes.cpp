// TMA copies of tensor boxes to shared memory: recorded when issued, performed when a lane waits for the barrier phase
// that counts them.
//
// In between, as for cp.async, the destination is poisoned and must not be accessed, and the source must not change.
#include "hopper.h"

#include <algorithm>
#include <cstring>

namespace emulator {

Region* shared_region(uintptr_t address, size_t bytes, bool write, const char* what, const void* code) {
    Region* region = region_of(address, bytes, write, code);
    if (!region || !region->name) {
        fault(code, "%s outside of shared memory", what);
    }
    return region;
}

static unsigned lines_of(const EmulatorTensorMap& map) {
    return map.box[1] * map.box[2] * map.box[3];
}

// Rejects maps that cuTensorMapEncodeTiled would reject.
static void check_map(const EmulatorTensorMap& map, const void* code) {
    if (reinterpret_cast<uintptr_t>(map.address) % CHUNK != 0) {
        fault(code, "a tensor map of the address %p, which is not a multiple of 16", map.address);
    }
    if (map.element_bytes != 2 && map.element_bytes != 4) {
        fault(code, "a tensor map of elements of %u bytes, not 2 or 4", map.element_bytes);
    }
    for (unsigned i = 0; i < 4; i++) {
        if (map.extents[i] == 0 || map.extents[i] > 1ull << 32 || map.box[i] == 0 || map.box[i] > 256) {
            fault(code, "a tensor map whose dimension %u has %llu elements, %u in a box: at most 2^32 and 256", i,
                  map.extents[i], map.box[i]);
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        if (map.strides[i] % CHUNK != 0 || map.strides[i] >= 1ull << 40) {
            fault(code, "a tensor map whose dimension %u has a stride of %llu bytes: a multiple of 16, below 2^40", i + 1,
                  map.strides[i]);
        }
    }
    if (map.box[0] * map.element_bytes != LINE) {
        fault(code, "a tensor map with boxes of lines of %u bytes, not %u", map.box[0] * map.element_bytes, LINE);
    }
}

static void check_source(uintptr_t address, size_t bytes, const void* code) {
    Region* region = region_of(address, bytes, false, code);
    if (!region || region->name) {
        fault(code, "a box is copied from memory that is not an argument's");
    }
    if (is_written(*region, address, bytes)) {
        fault(code, "a box is copied from %s, which this launch has written: copies do not see that", describe(*region));
    }
    check_read(*region, address, bytes, code);
}

// Gathers the bytes of a box in their shared memory layout, with zeros for elements outside of the tensor.
static void gather(const EmulatorTensorMap& map, const int (&at)[4], unsigned char* to, bool check, const void* code) {
    memset(to, 0, lines_of(map) * LINE);
    const size_t size = map.element_bytes;
    const int64_t extent = static_cast<int64_t>(map.extents[0]);
    const int64_t first = std::max<int64_t>(0, -static_cast<int64_t>(at[0]));
    const int64_t end = std::min<int64_t>(map.box[0], extent - at[0]);
    for (unsigned line = 0; line < lines_of(map) && first < end; line++) {
        const unsigned in_box[3] = {line % map.box[1], line / map.box[1] % map.box[2], line / map.box[1] / map.box[2]};
        uintptr_t from = reinterpret_cast<uintptr_t>(map.address);
        bool inside = true;
        for (unsigned i = 0; i < 3; i++) {
            const int64_t place = static_cast<int64_t>(at[i + 1]) + in_box[i];
            inside = inside && place >= 0 && place < static_cast<int64_t>(map.extents[i + 1]);
            from += static_cast<uintptr_t>(place) * map.strides[i];
        }
        if (!inside) {
            continue;
        }
        from += static_cast<uintptr_t>(at[0] + first) * size;
        if (check) {
            check_source(from, static_cast<size_t>(end - first) * size, code);
        }
        for (int64_t e = first; e < end; e++, from += size) {
            const unsigned offset = line * LINE + static_cast<unsigned>(e) * map.element_bytes;
            memcpy(to + swizzle(offset), reinterpret_cast<const void*>(from), size);
        }
    }
}

// Records a write of the box by `who` in a phase.
static void mark(const Region& region, const unsigned char* to, size_t bytes, unsigned who, unsigned phase) {
    const uint64_t owner = static_cast<uint64_t>(machine->serial) << LANE_BITS | who;
    Cell* cells = region.cells + (reinterpret_cast<uintptr_t>(to) - region.start) / 2;
    for (size_t i = 0; i < bytes / 2; i++) {
        cells[i] = {owner << OWNER_SHIFT | static_cast<uint64_t>(phase) << 2 | 3, 0};
    }
}

void land_boxes(Barrier& barrier) {
    std::vector<unsigned char>& now = machine->hopper->image;
    for (const Box& box : barrier.boxes) {
        now.resize(box.seen.size());
        gather(*box.map, box.at, now.data(), false, box.code);
        if (now != box.seen) {
            fault(box.code, "the source of a box changed before its copy was waited for");
        }
        memcpy(box.to, now.data(), now.size());
        mark(*box.region, box.to, now.size(), BOXES_LANDED + barrier.index, barrier.phase);
    }
    barrier.boxes.clear();
}

}  // namespace emulator

using namespace emulator;

extern "C" {

unsigned emulator_shared_offset(const void* pointer) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    for (const Region* region : machine->shareds) {
        if (address - region->start <= region->size) {
            return shared_offset(address);
        }
    }
    fault(__builtin_return_address(0), "the address %p is outside of shared memory", pointer);
}

void emulator_copy_box(void* to, const EmulatorTensorMap* map, int x, int y, int z, int w, void* barrier) {
    const void* code = __builtin_return_address(0);
    use_hopper("a copy of a box", code);
    check_map(*map, code);
    const unsigned bytes = lines_of(*map) * LINE;
    const uintptr_t target = reinterpret_cast<uintptr_t>(to);
    Region* region = shared_region(target, bytes, true, "a box is copied to memory", code);
    if (shared_offset(target) % EIGHT_LINES != 0) {
        fault(code, "a box is copied to offset %zu of %s, %u of all shared memory, which is not a multiple of %u",
              target - region->start, describe(*region), shared_offset(target), EIGHT_LINES);
    }
    Barrier& b = barrier_of(barrier, "copies a box for", code);
    check_phase(b, "copies a box for", code);
    check_write(*region, target, bytes, code);
    b.boxes.push_back({map, {x, y, z, w}, static_cast<unsigned char*>(to), region, {}, code});
    Box& box = b.boxes.back();
    box.seen.resize(bytes);
    gather(*map, box.at, box.seen.data(), true, code);
    mark(*region, box.to, bytes, BOXES_IN_FLIGHT + b.index, b.phase);
    memset(to, 0xff, bytes);
    b.issued += bytes;
    check_completion(b, code);
}

}  // extern "C"
