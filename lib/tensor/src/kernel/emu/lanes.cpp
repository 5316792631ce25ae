// Lane scheduling, the block barrier, and warp collectives.
#include "hopper.h"

#include <algorithm>
#include <cstring>

namespace emulator {

thread_local Machine* machine;
thread_local Lane* current;

uint64_t next_random() {
    // xorshift64*
    uint64_t x = machine->random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    machine->random = x;
    return x * 0x2545F4914F6CDD1Dull;
}

// Chooses a bit of `set`: the next above `from`, the next below, or a random bit, depending on the seed.
static unsigned choose(uint32_t set, unsigned from) {
    if (machine->seed == 0) {
        const uint32_t above = set & ~((2u << from) - 1);
        return static_cast<unsigned>(__builtin_ctz(above ? above : set));
    }
    if (machine->seed == 1) {
        const uint32_t below = set & ((1u << from) - 1);
        return 31 - static_cast<unsigned>(__builtin_clz(below ? below : set));
    }
    const unsigned turn = next_random() >> 59;
    const uint32_t turned = set >> turn | (turn ? set << (32 - turn) : 0);
    return (static_cast<unsigned>(__builtin_ctz(turned)) + turn) % 32;
}

void make_ready(Warp& warp, uint32_t lanes) {
    warp.ready |= lanes;
    if (warp.ready) {
        machine->ready_warps |= 1u << warp.index;
    }
}

// Returns the stack to switch to: a ready lane's stack, or the launching thread's stack if no lane is ready.
static void* next_stack(unsigned warp_index, unsigned in_warp) {
    Machine& m = *machine;
    if (!m.ready_warps) {
        current = nullptr;
        return m.main_stack_pointer;
    }
    const bool stay = m.seed < 2 && (m.ready_warps >> warp_index & 1);
    Warp& warp = m.warp[stay ? warp_index : choose(m.ready_warps, warp_index)];
    const unsigned from = stay ? in_warp : m.seed == 1 ? 0 : WARP - 1;
    const unsigned i = choose(warp.ready, from);
    warp.ready &= ~(1u << i);
    if (!warp.ready) {
        m.ready_warps &= ~(1u << warp.index);
    }
    current = &warp.lanes[i];
    return current->stack_pointer;
}

void wait_for_others() {
    Lane& me = *current;
    void* next = next_stack(me.warp->index, me.in_warp);
    emulator_switch(&me.stack_pointer, next);
}

// The entry point of a lane.
static void enter() {
    machine->kernel->call(reinterpret_cast<const unsigned long long*>(machine->arguments));
    Lane& me = *current;
    me.state = State::EXITED;
    land_copies(0);
    machine->exited++;
    if (machine->hopper) {
        end_lane();
    }
    wait_for_others();
    __builtin_unreachable();
}

void set_epoch(Lane& lane, unsigned epoch) {
    if (epoch >= 1u << EPOCH_BITS) {
        fault(nullptr, "more than %u barriers", (1u << EPOCH_BITS) - 1);
    }
    lane.epoch = epoch;
    const uint64_t serial = static_cast<uint64_t>(machine->serial) << LANE_BITS;
    const uint64_t when = static_cast<uint64_t>(epoch) << 2;
    lane.record = lane.owner << OWNER_SHIFT | when;
    lane.warp_record = (serial | (LANES_OF_WARP + lane.warp->index)) << OWNER_SHIFT | when;
    lane.block_record = (serial | LANES_OF_BLOCK) << OWNER_SHIFT | when;
}

void order_warp(Warp& warp, unsigned mask) {
    const unsigned all = warp.count == WARP ? ~0u : (1u << warp.count) - 1;
    unsigned joined[WARP] = {};
    for (unsigned i = 0; i < warp.count; i++) {
        if (!(mask >> i & 1)) {
            continue;
        }
        const Lane& lane = warp.lanes[i];
        if (mask != all) {
            for (unsigned j = 0; j < warp.count; j++) {
                joined[j] = std::max(joined[j], lane.known[j]);
            }
        }
        joined[i] = std::max(joined[i], lane.epoch + 1);
    }
    if (mask == all) {
        warp.base = *std::max_element(joined, joined + warp.count);
    }
    for (unsigned i = 0; i < warp.count; i++) {
        if (mask >> i & 1) {
            Lane& lane = warp.lanes[i];
            set_epoch(lane, mask == all ? warp.base : lane.epoch + 1);
            if (mask != all) {
                for (unsigned j = 0; j < warp.count; j++) {
                    lane.known[j] = std::max(lane.known[j], joined[j]);
                }
            }
        }
    }
    if (machine->hopper) {
        join_clocks(warp.lanes, warp.count, mask);
    }
}

void order_block() {
    Machine& m = *machine;
    unsigned latest = 0;
    for (unsigned i = 0; i < m.threads; i++) {
        latest = std::max(latest, m.lanes[i].epoch);
    }
    m.base = latest + 1;
    for (unsigned i = 0; i < m.threads; i++) {
        set_epoch(m.lanes[i], m.base);
    }
    for (unsigned w = 0; w < m.warps; w++) {
        m.warp[w].base = m.base;
    }
    if (m.hopper) {
        join_clocks(m.lanes, m.threads, ~0u);
    }
}

bool run_block() {
    Machine& m = *machine;
    m.waiting = m.exited = m.base = 0;
    m.hopper = nullptr;
    m.ready_warps = m.warps == 32 ? ~0u : (1u << m.warps) - 1;
    for (unsigned w = 0; w < m.warps; w++) {
        const unsigned count = std::min(WARP, m.threads - w * WARP);
        m.warp[w] = {&m.lanes[w * WARP], w, count, count == WARP ? ~0u : (1u << count) - 1, 0, 0};
    }
    for (unsigned i = 0; i < m.threads; i++) {
        Lane& lane = m.lanes[i];
        // Stacks start at different offsets within a page; otherwise they would compete for the same cache sets.
        const uintptr_t top = lane.stack + STACK - i % 64 * 576;
        lane.stack_pointer = emulator_new_stack(reinterpret_cast<void*>(top), enter);
        lane.warp = &m.warp[i / WARP];
        lane.index = i;
        lane.in_warp = i % WARP;
        lane.thread = {i % m.extent.x, i / m.extent.x % m.extent.y, i / (m.extent.x * m.extent.y)};
        lane.state = State::READY;
        lane.owner = static_cast<uint64_t>(m.serial) << LANE_BITS | i;
        set_epoch(lane, 1);
        memset(lane.known, 0, sizeof lane.known);
        lane.copies.clear();
        lane.groups = 0;
    }
    void* first = next_stack(m.seed == 1 ? 0 : 31, m.seed == 1 ? 0 : 31);
    emulator_switch(&m.main_stack_pointer, first);
    if (!m.failed && m.exited < m.threads) {
        report_endless_wait();
    }
    return !m.failed;
}

void collect(Collective collective, unsigned mask, EmulatorPlace place, const void* site,
             void (*finish)(Warp&, unsigned mask)) {
    Lane& me = *current;
    Warp& warp = *me.warp;
    if (!(mask >> me.in_warp & 1)) {
        fault(nullptr, "%s (%s:%d) has mask 0x%08x, without the calling lane %u",
              name_of(collective), base_name(place.file), place.line, mask, me.in_warp);
    }
    if (warp.count < WARP && mask >> warp.count) {
        fault(nullptr, "%s (%s:%d) has mask 0x%08x, but the warp has %u lanes only",
              name_of(collective), base_name(place.file), place.line, mask, warp.count);
    }
    me.state = State::COLLECTIVE;
    me.collective = collective;
    me.mask = mask;
    me.place = place;
    me.site = site;
    warp.waiting |= 1u << me.in_warp;
    bool complete = (warp.waiting & mask) == mask;
    for (unsigned i = 0; complete && i < warp.count; i++) {
        const Lane& lane = warp.lanes[i];
        complete = !(mask >> i & 1) || (lane.collective == collective && lane.mask == mask);
    }
    if (!complete) {
        return wait_for_others();
    }
    for (unsigned i = 0; i < warp.count; i++) {
        if (mask >> i & 1) {
            check_site(name_of(collective), me, warp.lanes[i]);
        }
    }
    finish(warp, mask);
    for (unsigned i = 0; i < warp.count; i++) {
        if (mask >> i & 1) {
            warp.lanes[i].state = State::READY;
        }
    }
    warp.waiting &= ~mask;
    make_ready(warp, mask & ~(1u << me.in_warp));
}

static void sync_threads(EmulatorPlace place, const void* site) {
    Machine& m = *machine;
    Lane& me = *current;
    me.state = State::SYNC_THREADS;
    me.place = place;
    me.site = site;
    if (++m.waiting < m.threads) {
        return wait_for_others();
    }
    for (unsigned i = 0; i < m.threads; i++) {
        check_site("__syncthreads", me, m.lanes[i]);
        m.lanes[i].state = State::READY;
    }
    m.waiting = 0;
    order_block();
    for (unsigned w = 0; w < m.warps; w++) {
        Warp& warp = m.warp[w];
        uint32_t lanes = warp.count == WARP ? ~0u : (1u << warp.count) - 1;
        make_ready(warp, &warp == me.warp ? lanes & ~(1u << me.in_warp) : lanes);
    }
}

}  // namespace emulator

using namespace emulator;

extern "C" {

uint3 emulator_thread_index() {
    return current->thread;
}

uint3 emulator_block_index() {
    return machine->block;
}

uint3 emulator_block_extent() {
    return machine->extent;
}

uint3 emulator_grid_extent() {
    return machine->grid;
}

void emulator_sync_threads(EmulatorPlace place) {
    sync_threads(place, __builtin_return_address(0));
}

void emulator_sync_warp(unsigned mask, EmulatorPlace place) {
    collect(Collective::SYNC, mask, place, __builtin_return_address(0), order_warp);
}

}  // extern "C"
