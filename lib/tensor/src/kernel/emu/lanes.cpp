// Lanes: their order, the block barrier, warp collectives, and what is said when a wait has no end.
#include "runtime.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
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

// One of the bits of `set`: the next above `from`, the next below, or any, by the seed.
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

static void make_ready(Warp& warp, uint32_t lanes) {
    warp.ready |= lanes;
    if (warp.ready) {
        machine->ready_warps |= 1u << warp.index;
    }
}

// The stack to go on with; none is ready: the launching thread's.
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

// What a lane runs.
static void enter() {
    machine->kernel->call(reinterpret_cast<const unsigned long long*>(machine->arguments));
    Lane& me = *current;
    me.state = State::EXITED;
    land_copies(0);
    machine->exited++;
    wait_for_others();
    __builtin_unreachable();
}

void set_epoch(Lane& lane, unsigned epoch) {
    if (epoch >= 1u << EPOCH_BITS) {
        fault(nullptr, "more than %u barriers", (1u << EPOCH_BITS) - 1);
    }
    lane.epoch = epoch;
    lane.record = lane.owner << OWNER_SHIFT | static_cast<uint64_t>(epoch) << 2;
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
}

static const char* base_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char* name_of(Collective collective) {
    switch (collective) {
        case Collective::SYNC: return "__syncwarp";
        case Collective::SHUFFLE_INDEX: return "__shfl_sync";
        case Collective::SHUFFLE_UP: return "__shfl_up_sync";
        case Collective::SHUFFLE_DOWN: return "__shfl_down_sync";
        case Collective::SHUFFLE_XOR: return "__shfl_xor_sync";
        case Collective::VOTE: return "a vote";
        case Collective::LDMATRIX: return "ldmatrix";
        case Collective::MMA: return "mma";
    }
    return "?";
}

static void describe_state(const Lane& lane, char* text, size_t bytes) {
    switch (lane.state) {
        case State::READY: snprintf(text, bytes, "are ready"); break;
        case State::EXITED: snprintf(text, bytes, "have exited"); break;
        case State::SYNC_THREADS:
            snprintf(text, bytes, "wait at __syncthreads (%s:%d)", base_name(lane.place.file),
                     lane.place.line);
            break;
        case State::COLLECTIVE:
            snprintf(text, bytes, "wait at %s with mask 0x%08x (%s:%d)", name_of(lane.collective),
                     lane.mask, base_name(lane.place.file), lane.place.line);
            break;
    }
}

static int begin_message(const Lane* lane) {
    Machine& m = *machine;
    int used = snprintf(m.message, m.message_bytes, "%s.cu (%s), kernel %s, block (%u, %u, %u)",
                        m.source->name, m.source->element, m.kernel->name, m.block.x, m.block.y,
                        m.block.z);
    if (lane) {
        used += snprintf(m.message + used, m.message_bytes - used, ", thread (%u, %u, %u)",
                         lane->thread.x, lane->thread.y, lane->thread.z);
    }
    return used + snprintf(m.message + used, m.message_bytes - used, ": ");
}

// "threads 0-15 wait at ...; threads 16-31 have exited".
static void report_endless_wait() {
    Machine& m = *machine;
    size_t used = static_cast<size_t>(begin_message(nullptr));
    used += snprintf(m.message + used, m.message_bytes - used, "threads wait for others without end");
    char state[200], next[200];
    for (unsigned first = 0; first < m.threads && used + 300 < m.message_bytes;) {
        describe_state(m.lanes[first], state, sizeof state);
        unsigned last = first;
        for (; last + 1 < m.threads; last++) {
            describe_state(m.lanes[last + 1], next, sizeof next);
            if (strcmp(state, next) != 0) {
                break;
            }
        }
        used += snprintf(m.message + used, m.message_bytes - used, "%s threads %u-%u %s",
                         first == 0 ? ":" : ";", first, last, state);
        first = last + 1;
    }
    m.failed = true;
}

void fault(const void* code, const char* format, ...) {
    Machine& m = *machine;
    if (m.message_bytes > 0) {
        int used = begin_message(current);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(m.message + used, m.message_bytes - used, format, arguments);
        va_end(arguments);
        append_source_line(m.message, m.message_bytes, code);
    }
    m.failed = true;
    current = nullptr;
    void* lost;
    emulator_switch(&lost, m.main_stack_pointer);
    __builtin_unreachable();
}

bool run_block() {
    Machine& m = *machine;
    m.waiting = m.exited = m.base = 0;
    m.ready_warps = m.warps == 32 ? ~0u : (1u << m.warps) - 1;
    for (unsigned w = 0; w < m.warps; w++) {
        const unsigned count = std::min(WARP, m.threads - w * WARP);
        m.warp[w] = {&m.lanes[w * WARP], w, count, count == WARP ? ~0u : (1u << count) - 1, 0, 0};
    }
    for (unsigned i = 0; i < m.threads; i++) {
        Lane& lane = m.lanes[i];
        lane.stack_pointer =
            emulator_new_stack(reinterpret_cast<void*>(lane.stack + STACK), enter);
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

void collect(Collective collective, unsigned mask, EmulatorPlace place,
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
    warp.waiting |= 1u << me.in_warp;
    bool complete = (warp.waiting & mask) == mask;
    for (unsigned i = 0; complete && i < warp.count; i++) {
        const Lane& lane = warp.lanes[i];
        complete = !(mask >> i & 1) || (lane.collective == collective && lane.mask == mask);
    }
    if (!complete) {
        return wait_for_others();
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

static void sync_threads(EmulatorPlace place) {
    Machine& m = *machine;
    Lane& me = *current;
    me.state = State::SYNC_THREADS;
    me.place = place;
    if (++m.waiting < m.threads) {
        return wait_for_others();
    }
    for (unsigned i = 0; i < m.threads; i++) {
        const EmulatorPlace& other = m.lanes[i].place;
        if (other.line != place.line || strcmp(other.file, place.file) != 0) {
            fault(nullptr, "divergent __syncthreads: this thread is at %s:%d, thread %u at %s:%d",
                  base_name(place.file), place.line, i, base_name(other.file), other.line);
        }
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
    sync_threads(place);
}

void emulator_sync_warp(unsigned mask, EmulatorPlace place) {
    collect(Collective::SYNC, mask, place, order_warp);
}

}  // extern "C"
