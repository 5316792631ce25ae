// dtypes: bf16 f16
//
// The output of attention by warpgroups; out and lse as in attention_forward.cu. Blocks are persistent: tiles of the next
// queries are copied while a result is written. Two warpgroups take turns to issue their products, so that one calculates
// exponentials while the tensor cores work for the other (Shah et al. 2024, FlashAttention-3, section 3.1), and a product
// with values overlaps with the exponentials of the next tile (section 3.2).

#include "attention_wgmma.cuh"

constexpr int KEYS = 128, STAGES = 2;

// The queries that a block computes at a time, and the tiles of keys that they see.
struct Work {
    int first, head, sample, seen, tiles;
};

// Every gridDim.x-th work, from blockIdx.x on. It divides only at the beginning.
struct Works {
    int tiles;
    int tile, head, sample;                 // of the present one
    int step_tile, step_head, step_sample;  // to the next

    DEVICE Works(const Call& c) : tiles((c.queries + ROWS - 1) / ROWS) {
        const int block = blockIdx.x, step = gridDim.x;
        tile = block % tiles, head = block / tiles % c.heads, sample = block / tiles / c.heads;
        step_tile = step % tiles, step_head = step / tiles % c.heads, step_sample = step / tiles / c.heads;
    }
    DEVICE bool next(const Call& c) {
        tile += step_tile, head += step_head, sample += step_sample;
        if (tile >= tiles) {
            tile -= tiles, head++;
        }
        if (head >= c.heads) {
            head -= c.heads, sample++;
        }
        return sample < c.batch;
    }
    // With a causal mask, the longest of a head come first.
    DEVICE Work work(const Call& c) const {
        const int first = (c.causal ? tiles - 1 - tile : tile) * ROWS, seen = seen_keys(c, sample);
        const int end = visible(c, seen, min(first + ROWS, c.queries) - 1);
        return {first, head, sample, seen, (end + KEYS - 1) / KEYS};
    }
};

struct Slots {
    Barrier query_full, query_empty;
    Ring<STAGES> keys, values;
};

template <int D>
struct Memory {
    static constexpr int QUERY = TILE_BYTES<ROWS, D>, KEY = TILE_BYTES<KEYS, D>;
    static constexpr int BYTES = BOX_ALIGNMENT + QUERY + 2 * STAGES * KEY;
    unsigned char* start;

    DEVICE unsigned char* keys(int number) const {
        return start + QUERY + number % STAGES * KEY;
    }
    DEVICE unsigned char* values(int number) const {
        return start + QUERY + (STAGES + number % STAGES) * KEY;
    }
};

template <int D>
DEVICE void copy_all(const Call& c, const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                     const Memory<D>& memory, Slots& slots) {
    Works works(c);
    int keys = 0, values = 0, done = 0;
#pragma unroll 1
    for (bool any = works.sample < c.batch; any; any = works.next(c)) {
        const Work w = works.work(c);
        const int head = w.head / c.group;
#pragma unroll 1
        for (int tile = 0; w.tiles > 0 && tile <= w.tiles; tile++) {
            if (tile < w.tiles) {
                slots.keys.wait_empty(keys);
                Barrier* full = &slots.keys.full[keys % STAGES];
                arrive_and_expect(full, memory.KEY);
                copy_tile<KEYS, D>(memory.keys(keys++), k_map, tile * KEYS, c.k_head + head, w.sample, full);
            }
            if (tile == 0) {
                wait(&slots.query_empty, (done++ & 1) ^ 1);
                arrive_and_expect(&slots.query_full, memory.QUERY);
                copy_tile<ROWS, D>(memory.start, q_map, w.first, c.q_head + w.head, w.sample, &slots.query_full);
            } else {
                slots.values.wait_empty(values);
                Barrier* full = &slots.values.full[values % STAGES];
                arrive_and_expect(full, memory.KEY);
                copy_tile<KEYS, D>(memory.values(values++), v_map, (tile - 1) * KEYS, c.v_head + head, w.sample, full);
            }
        }
    }
}

// The rows of a lane: the largest score, and its share of the sum of exponentials.
struct Softmax {
    float top[2], sum[2];

    // Replaces scores by their exponentials; `correction` is the factor of everything summed before.
    DEVICE void apply(float (&s)[KEYS / 2], float to_base_2, float (&correction)[2]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = top[h];
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                largest = fmaxf(largest, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            // If no key is visible yet, any finite number will do.
            const float base = largest == -infinity() ? 0.0f : largest * to_base_2;
            correction[h] = power_of_two(top[h] * to_base_2 - base);
            top[h] = largest;
            float part = 0.0f;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                float &a = s[4 * i + 2 * h], &b = s[4 * i + 2 * h + 1];
                a = power_of_two(fmaf(a, to_base_2, -base));
                b = power_of_two(fmaf(b, to_base_2, -base));
                part += a + b;
            }
            sum[h] = fmaf(sum[h], correction[h], part);
        }
    }
};

DEVICE void mask_keys(float (&s)[KEYS / 2], const Call& c, int seen, int query, int first_key) {
    const int end[2] = {visible(c, seen, query), visible(c, seen, query + 8)};
    const int key = first_key + lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        if (key + i / 4 * 8 + i % 2 >= end[i / 2 % 2]) {
            s[i] = -infinity();
        }
    }
}

// This warpgroup's turn to issue products begins, and ends.
DEVICE void begin_turn(int group) {
    sync_threads(1 + group, GROUPS * WARPGROUP);
}

DEVICE void end_turn(int group) {
    arrive_threads(1 + (group + 1) % GROUPS, GROUPS * WARPGROUP);
}

template <int D, class Drop>
DEVICE void compute_all(const Call& c, const Drop& drop, const Memory<D>& memory, Slots& slots, element* out,
                        float* lse) {
    const int group = threadIdx.x / WARPGROUP - 1;
    const unsigned char* q = memory.start + group * 64 * LINE;
    if (group == GROUPS - 1) {
        arrive_threads(1, GROUPS * WARPGROUP);
    }
    Works works(c);
    int before = 0, done = 0;
#pragma unroll 1
    for (bool any = works.sample < c.batch; any; any = works.next(c)) {
        const Work w = works.work(c);
        const int query = w.first + row_of_thread(threadIdx.x);
        // Keys that all queries of this warpgroup see.
        const int seen_by_all = visible(c, w.seen, w.first + group * 64);
        float s[KEYS / 2], o[D / 2], correction[2];
        unsigned p[KEYS / 16][4];
        Softmax softmax{{-infinity(), -infinity()}, {}};
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            o[i] = 0.0f;
        }
        const auto exponentials = [&](int tile) {
            if ((tile + 1) * KEYS > seen_by_all) {
                mask_keys(s, c, w.seen, query, tile * KEYS);
            }
            softmax.apply(s, c.to_base_2, correction);
            if constexpr (Drop::DROPS) {
                drop_row(drop, s, 0, w.sample, w.head, query, tile * KEYS);
                drop_row(drop, s, 1, w.sample, w.head, query + 8, tile * KEYS);
            }
        };
        if (w.tiles > 0) {
            wait(&slots.query_full, done++ & 1);
            slots.keys.wait_full(before);
            begin_turn(group);
            fence_products();
            multiply_rows<D, KEYS>(s, q, memory.keys(before));
            commit_products();
            end_turn(group);
            wait_products<0>();
            slots.keys.release(before);
            exponentials(0);
            pack_scores<KEYS>(p, s);
        }
#pragma unroll 1
        for (int tile = 1; tile < w.tiles; tile++) {
            const int now = before + tile;
            slots.keys.wait_full(now);
            begin_turn(group);
            fence_products();
            multiply_rows<D, KEYS>(s, q, memory.keys(now));
            commit_products();
            slots.values.wait_full(now - 1);
            multiply_scores<D, KEYS>(o, p, memory.values(now - 1));
            commit_products();
            end_turn(group);
            wait_products<1>();
            slots.keys.release(now);
            exponentials(tile);
            wait_products<0>();
            slots.values.release(now - 1);
#pragma unroll
            for (int i = 0; i < D / 2; i++) {
                o[i] *= correction[i / 2 % 2];
            }
            pack_scores<KEYS>(p, s);
        }
        if (w.tiles > 0) {
            if (lane_id() == 0) {
                arrive(&slots.query_empty);
            }
            const int last = before + w.tiles - 1;
            slots.values.wait_full(last);
            fence_products();
            multiply_scores<D, KEYS>(o, p, memory.values(last));
            commit_products();
            wait_products<0>();
            slots.values.release(last);
        }
        before += w.tiles;
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = softmax.sum[h];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            // Without visible keys the output is zero.
            factor[h] = total == 0.0f ? 0.0f : 1.0f / total;
            if (query + 8 * h < c.queries && lane_id() % 4 == 0) {
                const long long row = (static_cast<long long>(w.sample) * c.heads + w.head) * c.queries;
                lse[row + query + 8 * h] =
                    total == 0.0f ? infinity() : fmaf(softmax.top[h], c.to_base_2, log2f(total));
            }
        }
        const long long stride = static_cast<long long>(c.heads) * D;
        element* to = out + static_cast<long long>(w.sample) * c.queries * stride + w.head * D;
        write_rows<D>(to, stride, w.first, c.queries, o, factor, 0);
    }
}

template <int D, class Drop>
DEVICE void forward(const Call& c, const Drop& drop, const TensorMap& q_map, const TensorMap& k_map,
                    const TensorMap& v_map, element* out, float* lse, unsigned char* shared) {
    SHARED(Slots, slots, );
    const Memory<D> memory{first_box(shared)};
    if (threadIdx.x == 0) {
        init_barrier(&slots.query_full, 1);
        init_barrier(&slots.query_empty, WARPS);
        slots.keys.init(1);
        slots.values.init(1);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        lower_registers<COPY_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_all<D>(c, q_map, k_map, v_map, memory, slots);
        }
    } else {
        raise_registers<COMPUTE_REGISTERS>();
        compute_all<D>(c, drop, memory, slots, out, lse);
    }
}

// Bytes of shared memory, as cuda.rs knows them.
static_assert(Memory<64>::BYTES == 1024 + 640 * 128, "see warpgroups.rs");
static_assert(Memory<128>::BYTES == 1024 + 640 * 256, "see warpgroups.rs");

#define FORWARD(SUFFIX, DROP, D)                                                                       \
    KERNEL(attention_wgmma_forward##SUFFIX, THREADS, 1)                                                \
    (TENSOR_MAP q_map, TENSOR_MAP k_map, TENSOR_MAP v_map, CALL_PARAMETERS, element* __restrict__ out, \
     float* __restrict__ lse, DROPOUT_PARAMETERS) {                                                    \
        DYNAMIC_SHARED(shared);                                                                        \
        forward<D>(CALL, DROP, q_map, k_map, v_map, out, lse, shared);                                 \
    }

FORWARD(_64, NO_DROPOUT, 64)
FORWARD(_128, NO_DROPOUT, 128)
FORWARD(_dropout_64, DROPOUT, 64)
