// dtypes: bf16 f16
//
// The gradient of queries by warpgroups: with P = softmax(scale Q K^T), dP = dO V^T and delta = rowsum(O dO),
// dQ = scale P (dP - delta) K (Dao et al. 2022, FlashAttention, algorithm 4). P is recomputed from `lse`.

#include "attention_wgmma.cuh"

template <int D, int KEYS, class Drop>
DEVICE void query_gradient(const Call& c, const Drop& drop, const TensorMap& q_map, const TensorMap& o_map, const TensorMap& k_map,
                           const TensorMap& v_map, const float* lse, const float* delta, element* dq, int stride, int add,
                           unsigned char* shared) {
    using Memory = Tiles<D, KEYS>;
    SHARED(Barrier, own_full, );
    SHARED(Ring<Memory::STAGES>, ring, );
    const Memory memory{first_box(shared)};
    if (threadIdx.x == 0) {
        init_barrier(&own_full, 1);
        ring.init(1);
        publish_barriers();
    }
    __syncthreads();
    const int tiles = (c.queries + ROWS - 1) / ROWS, tile = static_cast<int>(blockIdx.x) % tiles;
    const int head = static_cast<int>(blockIdx.x) / tiles % c.heads;
    const int sample = static_cast<int>(blockIdx.x) / tiles / c.heads;
    // With a causal mask, the longest come first.
    const int first = (c.causal ? tiles - 1 - tile : tile) * ROWS, seen = seen_keys(c, sample);
    const int steps = (visible(c, seen, min(first + ROWS, c.queries) - 1) + KEYS - 1) / KEYS;
    if (threadIdx.x < WARPGROUP) {
        lower_registers<COPY_REGISTERS>();
        if (threadIdx.x != 0) {
            return;
        }
        arrive_and_expect(&own_full, 2 * Memory::OWN);
        copy_tile<ROWS, D>(memory.own(0), q_map, first, c.q_head + head, sample, &own_full);
        copy_tile<ROWS, D>(memory.own(1), o_map, first, head, sample, &own_full);
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            ring.wait_empty(step);
            Barrier* full = &ring.full[step % Memory::STAGES];
            arrive_and_expect(full, 2 * Memory::OTHER);
            copy_tile<KEYS, D>(memory.other(0, step), k_map, step * KEYS, c.k_head + head / c.group, sample, full);
            copy_tile<KEYS, D>(memory.other(1, step), v_map, step * KEYS, c.v_head + head / c.group, sample, full);
        }
        return;
    }
    raise_registers<COMPUTE_REGISTERS>();
    const int group = threadIdx.x / WARPGROUP - 1, query = first + row_of_thread(threadIdx.x);
    const int seen_by_all = visible(c, seen, first + group * 64);
    const int end[2] = {visible(c, seen, query), visible(c, seen, query + 8)};
    const unsigned char *q = memory.own(0) + group * 64 * LINE, *dout = memory.own(1) + group * 64 * LINE;
    float s[KEYS / 2], dp[KEYS / 2], sum[D / 2], base[2], row_sum[2];
    unsigned ds[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
        sum[i] = 0.0f;
    }
    const long long statistics = (static_cast<long long>(sample) * c.heads + head) * c.queries;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool in_range = query + 8 * h < c.queries;
        base[h] = in_range ? lse[statistics + query + 8 * h] : infinity();
        row_sum[h] = in_range ? delta[statistics + query + 8 * h] : 0.0f;
    }
    wait(&own_full, 0);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        ring.wait_full(step);
        fence_products();
        multiply_rows<D, KEYS>(s, q, memory.other(0, step));
        commit_products();
        multiply_rows<D, KEYS>(dp, dout, memory.other(1, step));
        commit_products();
        wait_products<1>();
        if ((step + 1) * KEYS > seen_by_all) {
            const int key = step * KEYS + lane_id() % 4 * 2;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                if (key + i / 4 * 8 + i % 2 >= end[i / 2 % 2]) {
                    s[i] = -infinity();
                }
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            s[i] = power_of_two(fmaf(s[i], c.to_base_2, -base[i / 2 % 2]));
        }
        wait_products<0>();
        if constexpr (Drop::DROPS) {
            drop_row(drop, dp, 0, sample, head, query, step * KEYS);
            drop_row(drop, dp, 1, sample, head, query + 8, step * KEYS);
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            s[i] *= dp[i] - row_sum[i / 2 % 2];
        }
        pack_scores<KEYS>(ds, s);
        fence_products();
        multiply_scores<D, KEYS>(sum, ds, memory.other(0, step));
        commit_products();
        wait_products<0>();
        ring.release(step);
    }
    const float factor[2] = {c.scale, c.scale};
    element* to = dq + static_cast<long long>(sample) * c.queries * stride + (c.q_head + head) * D;
    write_rows<D>(to, stride, first, c.queries, sum, factor, add);
}

static_assert(Tiles<64, 128>::BYTES == 1024 + 768 * 128, "see warpgroups.rs");
static_assert(Tiles<128, 64>::BYTES == 1024 + 512 * 256, "see warpgroups.rs");

#define QUERY_GRADIENT(SUFFIX, DROP, D, KEYS)                                                               \
    KERNEL(attention_wgmma_query_gradient##SUFFIX, THREADS, 1)                                             \
    (TENSOR_MAP q_map, TENSOR_MAP o_map, TENSOR_MAP k_map, TENSOR_MAP v_map, CALL_PARAMETERS,              \
     GIVEN_PARAMETERS, element* dq, int stride, int add, DROPOUT_PARAMETERS) {                             \
        DYNAMIC_SHARED(shared);                                                                            \
        query_gradient<D, KEYS>(CALL, DROP, q_map, o_map, k_map, v_map, lse, delta, dq, stride, add, shared); \
    }

QUERY_GRADIENT(_64, NO_DROPOUT, 64, 128)
QUERY_GRADIENT(_128, NO_DROPOUT, 128, 64)
QUERY_GRADIENT(_dropout_64, DROPOUT, 64, 64)
