// Barriers in shared memory (mbarrier), and the vector clocks with which they order memory.
//
// A phase without copies completes with its last arrival. A phase with copies completes when a lane waits for it, the
// latest possible time on a GPU, to expose kernels that use data without waiting.
#include "hopper.h"

#include <algorithm>
#include <cstdio>

namespace emulator {

constexpr unsigned MOST_ARRIVALS = (1u << 20) - 1, MOST_BYTES = (1u << 20) - 1;

Hopper& use_hopper(const char* what, const void* code) {
    Machine& m = *machine;
    if (m.hopper) {
        return *m.hopper;
    }
    if (!m.has_hopper) {
        fault(code, "%s needs sm_90a", what);
    }
    if (!m.kept_hopper) {
        m.kept_hopper = new Hopper();
    }
    Hopper& h = *(m.hopper = m.kept_hopper);
    h.width = m.threads + MOST_BARRIERS + MOST_THREADS / WARP;
    h.clocks.assign(static_cast<size_t>(m.threads) * h.width, 0);
    h.barriers.clear();
    // Reserved so that references to barriers stay valid.
    h.barriers.reserve(MOST_BARRIERS);
    for (NamedBarrier& each : h.named) {
        each.threads = each.arrivals = 0;
        each.waiting.clear();
    }
    h.products.resize(MOST_THREADS);
    for (Products& each : h.products) {
        each.sums.clear();
        each.groups.clear();
        each.latest = 0;
        each.fenced = false;
    }
    h.products_before = h.products_issued;
    // Registers per lane if a single block is resident: 65536 divided equally.
    const unsigned share = std::min(65536 / m.threads / 8 * 8, 256u);
    for (unsigned i = 0; i < MOST_GROUPS; i++) {
        h.waiting[i] = 0;
        h.registers[i] = share;
    }
    return h;
}

// ---- clocks

static void join(unsigned* to, const unsigned* from) {
    const unsigned width = machine->hopper->width;
    for (unsigned i = 0; i < width; i++) {
        to[i] = std::max(to[i], from[i]);
    }
}

void join_clocks(Lane* lanes, unsigned count, unsigned mask) {
    Hopper& h = *machine->hopper;
    h.scratch.assign(h.width, 0);
    for (unsigned i = 0; i < count; i++) {
        if (mask >> i % WARP & 1) {
            join(h.scratch.data(), h.clock(lanes[i]));
        }
    }
    for (unsigned i = 0; i < count; i++) {
        if (mask >> i % WARP & 1) {
            std::copy(h.scratch.begin(), h.scratch.end(), h.clock(lanes[i]));
        }
    }
}

// Joins this lane's accesses and clock into the clock of a barrier.
static void release(unsigned* to) {
    Lane& me = *current;
    const Warp& warp = *me.warp;
    join(to, machine->hopper->clock(me));
    for (unsigned i = 0; i < warp.count; i++) {
        unsigned& entry = to[warp.index * WARP + i];
        entry = std::max({entry, warp.base, me.known[i]});
    }
    to[me.index] = me.epoch + 1;
    set_epoch(me, me.epoch + 1);
}

bool knows_phase(const Lane& lane, unsigned barrier, unsigned phase) {
    return phase < machine->hopper->clock(lane)[Hopper::of_barrier(barrier)];
}

bool knows_readers(const Lane& lane, unsigned who, unsigned epoch) {
    const Machine& m = *machine;
    const unsigned* clock = m.hopper->clock(lane);
    if (who == LANES_OF_BLOCK) {
        return epoch < *std::max_element(clock, clock + m.threads);
    }
    const unsigned warp = who - LANES_OF_WARP;
    if (warp >= m.warps) {
        return false;
    }
    const unsigned* first = clock + warp * WARP;
    return epoch < *std::min_element(first, first + m.warp[warp].count);
}

// ---- barriers

Barrier& barrier_of(void* pointer, const char* verb, const void* code) {
    Hopper& h = use_hopper("a barrier", code);
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    for (Barrier& each : h.barriers) {
        if (each.address != address) {
            continue;
        }
        if (!each.published) {
            fault(code, "%s a barrier that was initialized but not published (publish_barriers is missing)", verb);
        }
        if (!is_over(*each.region, each.published)) {
            fault(code, "%s a barrier that thread %u has published without a barrier between (__syncthreads)", verb,
                  each.initializer);
        }
        return each;
    }
    Region* region = shared_region(address, 8, true, "a barrier", code);
    check_alignment(address, 8, true, code);
    fault(code, "%s a barrier at offset %zu of %s, which was not initialized", verb, address - region->start,
          describe(*region));
}

void check_phase(const Barrier& barrier, const char* verb, const void* code) {
    if (barrier.pending == 0 && barrier.issued >= barrier.expected) {
        fault(code, "%s a barrier whose phase %u may be complete or not: this thread has not waited for it", verb,
              barrier.phase);
    }
    if (barrier.phase > 0 && !knows_phase(*current, barrier.index, barrier.phase - 1)) {
        fault(code, "%s a barrier in phase %u, but this thread has not waited for phase %u to complete", verb,
              barrier.phase, barrier.phase - 1);
    }
}

// Whether neither arrivals nor bytes are missing.
static bool is_full(const Barrier& barrier) {
    return barrier.pending == 0 && barrier.issued == barrier.expected;
}

static void complete(Barrier& b) {
    land_boxes(b);
    if (++b.phase >= 1u << EPOCH_BITS) {
        fault(nullptr, "more than %u phases of a barrier", (1u << EPOCH_BITS) - 1);
    }
    b.pending = b.count;
    b.expected = b.issued = 0;
    b.arrived[Hopper::of_barrier(b.index)] = b.phase;
    b.complete = b.arrived;
}

void check_completion(Barrier& b, const void* code) {
    if (b.pending > 0) {
        return;
    }
    if (b.issued > b.expected) {
        fault(code, "copies of %zu bytes in phase %u of a barrier, which expects %zu", static_cast<size_t>(b.issued),
              b.phase, static_cast<size_t>(b.expected));
    }
    if (!is_full(b)) {
        return;
    }
    if (b.boxes.empty()) {
        complete(b);
    }
    for (unsigned i : b.waiting) {
        Lane& lane = machine->lanes[i];
        lane.state = State::READY;
        make_ready(*lane.warp, 1u << lane.in_warp);
    }
    b.waiting.clear();
}

void describe_wait(const Lane& lane, char* text, size_t bytes) {
    if (lane.state == State::NAMED_BARRIER) {
        const NamedBarrier& b = machine->hopper->named[lane.barrier];
        snprintf(text, bytes, "wait at barrier %u, which lacks %u of %u threads", lane.barrier,
                 b.threads - b.arrivals, b.threads);
        return;
    }
    const Barrier& b = machine->hopper->barriers[lane.barrier];
    snprintf(text, bytes, "wait at a barrier (offset %zu of '%s') for phase %u, which lacks %u arrivals and %zu bytes",
             b.address - b.region->start, b.region->name, lane.phase, b.pending,
             static_cast<size_t>(b.expected - std::min(b.issued, b.expected)));
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void emulator_barrier_init(void* pointer, unsigned count) {
    const void* code = __builtin_return_address(0);
    Hopper& h = use_hopper("a barrier", code);
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    Region* region = shared_region(address, 8, true, "a barrier", code);
    check_alignment(address, 8, true, code);
    if (count == 0 || count > MOST_ARRIVALS) {
        fault(code, "a barrier for %u arrivals: at least 1, at most %u", count, MOST_ARRIVALS);
    }
    for (const Barrier& each : h.barriers) {
        if (each.address == address) {
            fault(code, "initializes the barrier at offset %zu of %s again", address - region->start,
                  describe(*region));
        }
    }
    if (h.barriers.size() == MOST_BARRIERS) {
        fault(code, "more than %u barriers", MOST_BARRIERS);
    }
    check_write(*region, address, 8, code);
    Cell* cells = region->cells + (address - region->start) / 2;
    for (unsigned i = 0; i < 4; i++) {
        cells[i].write = (static_cast<uint64_t>(machine->serial) << LANE_BITS | BARRIERS) << OWNER_SHIFT | 3;
        cells[i].read = 0;
    }
    h.barriers.emplace_back();
    Barrier& b = h.barriers.back();
    b.address = address;
    b.region = region;
    b.index = static_cast<unsigned>(h.barriers.size() - 1);
    b.count = b.pending = count;
    b.initializer = current->index;
    b.arrived.assign(h.width, 0);
    b.complete.assign(h.width, 0);
}

void emulator_barrier_publish() {
    Hopper& h = use_hopper("a barrier", __builtin_return_address(0));
    for (Barrier& each : h.barriers) {
        if (each.initializer == current->index && !each.published) {
            each.published = current->record | 3;
        }
    }
}

void emulator_barrier_arrive(void* pointer, unsigned bytes) {
    const void* code = __builtin_return_address(0);
    Barrier& b = barrier_of(pointer, "arrives at", code);
    if (b.pending == 0 && b.issued < b.expected) {
        fault(code, "arrives at a barrier that has all %u arrivals of phase %u and lacks only copies of %zu bytes",
              b.count, b.phase, static_cast<size_t>(b.expected - b.issued));
    }
    check_phase(b, "arrives at", code);
    b.pending--;
    b.expected += bytes;
    if (b.expected > MOST_BYTES) {
        fault(code, "a phase of a barrier that expects %zu bytes: at most %u", static_cast<size_t>(b.expected),
              MOST_BYTES);
    }
    release(b.arrived.data());
    check_completion(b, code);
}

void emulator_barrier_wait(void* pointer, unsigned parity) {
    const void* code = __builtin_return_address(0);
    Barrier& b = barrier_of(pointer, "waits at", code);
    Lane& me = *current;
    if (parity > 1) {
        fault(code, "waits for a phase of parity %u", parity);
    }
    if (b.phase % 2 == parity) {
        const unsigned phase = b.phase;
        if (!is_full(b)) {
            me.state = State::BARRIER;
            me.barrier = b.index;
            me.phase = phase;
            b.waiting.push_back(me.index);
            wait_for_others();
        }
        if (b.phase == phase) {
            complete(b);
        } else if (b.phase > phase + 1) {
            fault(code, "waits for phase %u of a barrier of which phase %u is complete: it may wait forever", phase,
                  b.phase - 1);
        }
    }
    join(machine->hopper->clock(me), b.complete.data());
}

void emulator_named_barrier(int id, int threads, bool waits) {
    const void* code = __builtin_return_address(0);
    Hopper& h = use_hopper("a numbered barrier", code);
    if (id < 1 || id >= static_cast<int>(NAMED_BARRIERS)) {
        fault(code, "barrier %d: 1 to %u", id, NAMED_BARRIERS - 1);
    }
    if (threads <= 0 || threads % static_cast<int>(WARP) != 0 || threads > static_cast<int>(machine->threads)) {
        fault(code, "barrier %d for %d threads: a multiple of %u, at most the %u of the block", id, threads, WARP,
              machine->threads);
    }
    // All lanes of a warp arrive together.
    collect(Collective::NAMED_BARRIER, ~0u, {"hopper.cuh", 0}, code, [](Warp&, unsigned) {});
    NamedBarrier& b = h.named[id];
    Lane& me = *current;
    if (b.arrivals == 0) {
        b.threads = static_cast<unsigned>(threads);
        b.arrived.assign(h.width, 0);
    } else if (b.threads != static_cast<unsigned>(threads)) {
        fault(code, "barrier %d for %d threads, of which others say %u", id, threads, b.threads);
    }
    release(b.arrived.data());
    if (++b.arrivals == b.threads) {
        b.arrivals = 0;
        b.complete = b.arrived;
        for (unsigned i : b.waiting) {
            Lane& lane = machine->lanes[i];
            lane.state = State::READY;
            join(h.clock(lane), b.complete.data());
            make_ready(*lane.warp, 1u << lane.in_warp);
        }
        b.waiting.clear();
        if (waits) {
            join(h.clock(me), b.complete.data());
        }
    } else if (waits) {
        me.state = State::NAMED_BARRIER;
        me.barrier = static_cast<unsigned>(id);
        b.waiting.push_back(me.index);
        wait_for_others();
    }
}

}  // extern "C"
