// Warpgroup products (wgmma), and the division of registers among warpgroups (setmaxnreg).
//
// A product is computed when the last of 128 lanes issues it. Until a lane waits for it, the accumulators are kept here
// and the kernel's copies are poisoned; the operands must not change until all four warps have waited and the
// overwriting lane knows that they have (vector clocks in hopper.h).
#include "hopper.h"

#include <algorithm>
#include <cstring>

namespace emulator {

// Waits until all lanes of the warpgroup have reached the same call, which `finish` performs for all of them.
static void collect_group(Collective collective, const void* site, void (*finish)(Lane* lanes)) {
    Machine& m = *machine;
    Lane& me = *current;
    const unsigned group = me.index / WARPGROUP;
    Lane* lanes = &m.lanes[group * WARPGROUP];
    if ((group + 1) * WARPGROUP > m.threads) {
        fault(site, "%s in a warpgroup of %u threads only", name_of(collective), m.threads - group * WARPGROUP);
    }
    me.state = State::COLLECTIVE;
    me.collective = collective;
    me.mask = ~0u;
    me.place = {"hopper.cuh", 0};
    me.site = site;
    if (++m.hopper->waiting[group] < WARPGROUP) {
        return wait_for_others();
    }
    m.hopper->waiting[group] = 0;
    for (unsigned i = 0; i < WARPGROUP; i++) {
        check_site(name_of(collective), me, lanes[i]);
    }
    finish(lanes);
    current = &me;
    for (unsigned i = 0; i < WARPGROUP; i += WARP) {
        Warp& warp = *lanes[i].warp;
        for (unsigned j = 0; j < WARP; j++) {
            warp.lanes[j].state = State::READY;
        }
        make_ready(warp, &warp == me.warp ? ~(1u << me.in_warp) : ~0u);
    }
}

// An operand of a product, decoded from its descriptor (PTX ISA, "Matrix descriptor").
struct Operand {
    unsigned start, leading, stride;

    Operand(unsigned long long bits, const void* code)
        : start(field(bits, 0)), leading(field(bits, 16)), stride(field(bits, 32)) {
        constexpr unsigned long long FIELDS = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32;
        if (bits >> 62 != 1) {
            fault(code, "a descriptor 0x%016llx of swizzle mode %llu: only 1, of 128 bytes, is known here", bits,
                  bits >> 62);
        }
        if ((bits & ~(3ull << 62) & ~FIELDS) != 0 || start / LINE % 8 != 0) {
            fault(code, "a descriptor 0x%016llx with a base offset, or with 8 lines that do not begin at a multiple of "
                        "1024",
                  bits);
        }
    }

    static unsigned field(unsigned long long bits, unsigned from) {
        return static_cast<unsigned>(bits >> from & 0x3fff) * CHUNK;
    }

    // Returns the shared memory offset of 8 elements: 8 values of k in one row, or 8 rows of one k.
    unsigned along_k(unsigned row, unsigned k) const {
        return swizzle(start + row / 8 * stride + row % 8 * LINE + k * 2);
    }
    unsigned along_rows(unsigned row, unsigned k) const {
        return swizzle(start + row / 64 * leading + k / 8 * stride + k % 8 * LINE + row % 64 * 2);
    }
};

// Reads the operands of one product.
struct Reader {
    Lane* lanes;
    const void* code;
    Region* region;
    uint64_t known;  // record of a write for which all lanes have waited

    [[noreturn]] void refuse(unsigned offset, const char* why) {
        fault(code, "a product reads %u bytes at offset %zu of %s, %s", CHUNK,
              reinterpret_cast<uintptr_t>(machine->shared) + offset - region->start, describe(*region), why);
    }

    void check(unsigned offset, uint64_t record) {
        const unsigned who = lane_of(record), box = who - BOXES_LANDED, flying = who - BOXES_IN_FLIGHT;
        if (serial_of(record) != machine->serial || (record & 3) == 0) {
            refuse(offset, "which nothing was copied to");
        }
        if (who >= IN_FLIGHT && who < BOXES_LANDED) {
            refuse(offset, "where an asynchronous copy is in flight");
        }
        if (box >= MOST_BARRIERS && flying >= MOST_BARRIERS) {
            refuse(offset, "which were not copied by copy_box: products do not see ordinary writes without a fence "
                           "between proxies");
        }
        for (unsigned i = 0; i < WARPGROUP; i++) {
            if (box >= MOST_BARRIERS || !knows_phase(lanes[i], box, epoch_of(record))) {
                current = &lanes[i];
                refuse(offset, "where a box is copied for a phase of a barrier that this thread has not waited for");
            }
        }
        known = record;
    }

    const unsigned char* chunk(unsigned offset) {
        Machine& m = *machine;
        const uintptr_t address = reinterpret_cast<uintptr_t>(m.shared) + offset;
        if (!region || address - region->start >= region->size || region->size - (address - region->start) < CHUNK) {
            region = shared_region(address, CHUNK, false, "a product reads", code);
        }
        const Cell* cells = region->cells + (address - region->start) / 2;
        for (unsigned i = 0; i < CHUNK / 2; i++) {
            if (cells[i].write != known) {
                check(offset, cells[i].write);
            }
        }
        m.hopper->readers[offset / CHUNK * MOST_GROUPS + lanes->index / WARPGROUP] = m.hopper->products_issued;
        return m.shared + offset;
    }
};

bool is_read_by_products(const Cell& cell) {
    const Machine& m = *machine;
    Hopper& h = *m.hopper;
    const size_t chunk = static_cast<size_t>(&cell - m.shared_cells) / (CHUNK / 2);
    if (h.readers.empty()) {
        return false;
    }
    const unsigned* done = h.clock(*current) + Hopper::of_warp(0);
    for (unsigned warp = 0; warp < m.warps; warp++) {
        const unsigned product = h.readers[chunk * MOST_GROUPS + warp * WARP / WARPGROUP];
        if (product > h.products_before && product > done[warp]) {
            return true;
        }
    }
    return false;
}

static void read_operands(const Product& product, Reader reader) {
    Hopper& h = *machine->hopper;
    const auto value = [&](unsigned bits) {
        return product.kind == EMULATOR_MMA_BF16 ? __uint_as_float(bits << 16)
                                                 : emulator_from_half(static_cast<uint16_t>(bits));
    };
    const auto read = [&](const Operand& operand, unsigned rows, bool along_rows, auto put) {
        for (unsigned i = 0; i < rows * 2; i++) {
            // Chunks that are adjacent in memory are read consecutively.
            const unsigned row = along_rows ? i / 16 * 8 : i / 2, k = along_rows ? i % 16 : i % 2 * 8;
            uint16_t eight[8];
            memcpy(eight, reader.chunk(along_rows ? operand.along_rows(row, k) : operand.along_k(row, k)), CHUNK);
            for (unsigned e = 0; e < 8; e++) {
                put(along_rows ? row + e : row, along_rows ? k : k + e, value(eight[e]));
            }
        }
    };
    if (product.from_registers) {
        for (unsigned i = 0; i < WARPGROUP; i++) {
            const EmulatorWords& words = h.products[reader.lanes[i].index].next.words;
            for (unsigned word = 0; word < 4; word++) {
                const unsigned row = i / WARP * 16 + i % WARP / 4 + word % 2 * 8, k = word / 2 * 8 + i % 4 * 2;
                h.left[row][k] = value(words.at[word] & 0xffff);
                h.left[row][k + 1] = value(words.at[word] >> 16);
            }
        }
    } else {
        read(Operand(product.a, reader.code), 64, product.lhs_mn_major,
             [&](unsigned row, unsigned k, float x) { h.left[row][k] = x; });
    }
    read(Operand(product.b, reader.code), product.columns, product.rhs_mn_major,
         [&](unsigned column, unsigned k, float x) { h.right[k][column] = x; });
}

static bool is_poisoned(const Sums& sums) {
    const unsigned char* byte = reinterpret_cast<const unsigned char*>(sums.to);
    return std::all_of(byte, byte + sums.count * 4, [](unsigned char b) { return b == 0xff; });
}

// Returns the accumulators to which the next product of the lane adds.
static Sums& take_sums(Lane& lane, const void* code) {
    Products& mine = machine->hopper->products[lane.index];
    float* to = mine.next.sum;
    if (mine.next.from_registers && !mine.fenced) {
        fault(code, "a product whose left operand is in registers without fence_products since the last wait_products");
    }
    for (Sums& each : mine.sums) {
        if (each.to == to) {
            if (!is_poisoned(each)) {
                fault(code, "the sums of a product have been written before wait_products");
            }
            return each;
        }
    }
    if (!mine.fenced) {
        fault(code, "a product adds to sums that this thread has used since the last fence_products");
    }
    const unsigned count = mine.next.columns / 2;
    const uintptr_t address = reinterpret_cast<uintptr_t>(to);
    if (address - lane.stack >= STACK || address % 4 != 0) {
        fault(code, "the sums of a product are not local to the thread");
    }
    mine.sums.push_back({to, count, 0, {}});
    memcpy(mine.sums.back().at, to, count * 4);
    memset(to, 0xff, count * 4);
    return mine.sums.back();
}

// Calls `visit` for each accumulator of a lane, with its index in the lane, row and column.
template <class F>
static void each_sum(unsigned lane, unsigned columns, F visit) {
    const unsigned row = lane / WARP * 16 + lane % WARP / 4, column = lane % 4 * 2;
    for (unsigned i = 0; i < columns / 2; i++) {
        visit(i, row + i / 2 % 2 * 8, i / 4 * 8 + column + i % 2);
    }
}

static void multiply(Lane* lanes) {
    Hopper& h = *machine->hopper;
    const void* code = current->site;
    const Product& product = h.products[lanes->index].next;
    for (unsigned i = 0; i < WARPGROUP; i++) {
        if (!h.products[lanes[i].index].next.is_like(product)) {
            current = &lanes[i];
            fault(code, "threads of a warpgroup give a product different operands");
        }
    }
    h.readers.resize(SHARED_ROOM / CHUNK * MOST_GROUPS);
    h.products_issued++;
    read_operands(product, {lanes, code, nullptr, 0});
    for (unsigned i = 0; i < WARPGROUP; i++) {
        current = &lanes[i];
        Products& mine = h.products[lanes[i].index];
        Sums& sums = take_sums(lanes[i], code);
        sums.product = mine.latest = h.products_issued;
        each_sum(i, product.columns, [&](unsigned at, unsigned row, unsigned column) {
            h.sum[row][column] = product.zero ? 0.0f : sums.at[at];
        });
    }
    for (unsigned row = 0; row < 64; row++) {
        for (unsigned k = 0; k < 16; k++) {
            for (unsigned column = 0; column < product.columns; column++) {
                h.sum[row][column] += h.left[row][k] * h.right[k][column];
            }
        }
    }
    for (unsigned i = 0; i < WARPGROUP; i++) {
        Products& mine = h.products[lanes[i].index];
        const auto found = std::find_if(mine.sums.begin(), mine.sums.end(),
                                        [&](const Sums& each) { return each.to == mine.next.sum; });
        each_sum(i, product.columns, [&](unsigned at, unsigned row, unsigned column) {
            found->at[at] = h.sum[row][column];
        });
    }
}

static void issue(const Product& product, const void* site) {
    Hopper& h = use_hopper("wgmma", site);
    if (product.columns == 0 || product.columns > MOST_COLUMNS || product.columns % 8 != 0 ||
        (product.kind != EMULATOR_MMA_BF16 && product.kind != EMULATOR_MMA_F16)) {
        fault(site, "wgmma of kind %d with %u columns", product.kind, product.columns);
    }
    h.products[current->index].next = product;
    collect_group(Collective::WGMMA, site, multiply);
}

static void fence(Warp& warp, unsigned) {
    for (unsigned i = 0; i < WARP; i++) {
        machine->hopper->products[warp.lanes[i].index].fenced = true;
    }
}

static void commit(Warp& warp, unsigned) {
    for (unsigned i = 0; i < WARP; i++) {
        Products& mine = machine->hopper->products[warp.lanes[i].index];
        mine.groups.push_back(mine.latest);
    }
}

// Writes the accumulators back to the kernel for all groups except the latest `left`.
static void wait(Warp& warp, unsigned) {
    Hopper& h = *machine->hopper;
    const unsigned left = current->operands.argument;
    const void* code = current->site;
    Lane* last = current;
    for (unsigned i = 0; i < WARP; i++) {
        Lane& lane = *(current = &warp.lanes[i]);
        Products& mine = h.products[lane.index];
        if (lane.operands.argument != left) {
            fault(code, "lanes of a warp wait for different products");
        }
        if (mine.groups.size() <= left) {
            continue;
        }
        const unsigned done = mine.groups[mine.groups.size() - 1 - left];
        unsigned& known = h.clock(lane)[Hopper::of_warp(warp.index)];
        known = std::max(known, done);
        size_t kept = 0;
        for (const Sums& sums : mine.sums) {
            if (sums.product > done) {
                mine.sums[kept++] = sums;
                continue;
            }
            if (!is_poisoned(sums)) {
                fault(code, "the sums of a product have been written before wait_products");
            }
            memcpy(sums.to, sums.at, sums.count * 4);
            mine.fenced = false;
        }
        mine.sums.resize(kept);
    }
    current = last;
}

static void set_registers(Lane* lanes) {
    for (unsigned i = 0; i < WARPGROUP; i++) {
        if (lanes[i].operands.argument != lanes->operands.argument) {
            fault(current->site, "threads of a warpgroup ask for different numbers of registers");
        }
    }
    machine->hopper->registers[lanes->index / WARPGROUP] = lanes->operands.argument;
}

void end_lane() {
    const Machine& m = *machine;
    const Hopper& h = *m.hopper;
    if (!h.products[current->index].sums.empty()) {
        fault(nullptr, "exits before its products are complete (commit_products and wait_products are missing)");
    }
    if (m.exited < m.threads) {
        return;
    }
    for (const Barrier& each : h.barriers) {
        if (!each.boxes.empty()) {
            fault(each.boxes[0].code, "the block ends while a box is copied for a phase that no thread has waited for");
        }
    }
    unsigned all = 0, before = 0;
    for (unsigned first = 0; first < m.threads; first += WARPGROUP) {
        const unsigned count = std::min(WARPGROUP, m.threads - first);
        all += h.registers[first / WARPGROUP] * count;
        before += std::min(65536 / m.threads / 8 * 8, 256u) * count;
    }
    if (all > before) {
        fault(nullptr, "warpgroups have asked for %u registers in all, but the block has %u: it may wait forever", all,
              before);
    }
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void emulator_wgmma(int kind, float* sum, unsigned columns, unsigned long long a, unsigned long long b,
                    bool lhs_mn_major, bool rhs_mn_major, bool zero) {
    issue({kind, sum, columns, a, b, lhs_mn_major, rhs_mn_major, zero, false, {}}, __builtin_return_address(0));
}

void emulator_wgmma_registers(int kind, float* sum, unsigned columns, EmulatorWords a, unsigned long long b,
                              bool rhs_mn_major) {
    issue({kind, sum, columns, 0, b, false, rhs_mn_major, false, true, a}, __builtin_return_address(0));
}

void emulator_wgmma_fence() {
    const void* site = __builtin_return_address(0);
    use_hopper("wgmma.fence", site);
    collect(Collective::WGMMA_FENCE, ~0u, {"hopper.cuh", 0}, site, fence);
}

void emulator_wgmma_commit() {
    const void* site = __builtin_return_address(0);
    use_hopper("wgmma.commit_group", site);
    collect(Collective::WGMMA_COMMIT, ~0u, {"hopper.cuh", 0}, site, commit);
}

void emulator_wgmma_wait(int left) {
    const void* site = __builtin_return_address(0);
    use_hopper("wgmma.wait_group", site);
    current->operands.argument = static_cast<unsigned>(left);
    collect(Collective::WGMMA_WAIT, ~0u, {"hopper.cuh", 0}, site, wait);
}

void emulator_set_registers(int count) {
    const void* site = __builtin_return_address(0);
    use_hopper("setmaxnreg", site);
    if (count < 24 || count > 256 || count % 8 != 0) {
        fault(site, "setmaxnreg of %d registers: a multiple of 8 from 24 to 256", count);
    }
    current->operands.argument = static_cast<unsigned>(count);
    collect_group(Collective::SET_REGISTERS, site, set_registers);
}

}  // extern "C"
