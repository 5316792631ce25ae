// dtypes: bf16 f16
//
// The gradients of keys and values by warpgroups, with the names of attention_wgmma_query_gradient.cu: dV = P^T dO and
// dK = scale (P (dP - delta))^T Q, summed over the query heads that share them. Scores are computed transposed, a key
// per row, so that their fragments are the left operands of both.

#include "attention_wgmma.cuh"

// lse and delta of the queries of a tile. A warp each copies them, with what adds nothing beyond the last query.
template <int QUERIES>
struct alignas(16) Statistics {
    float of[2][QUERIES];
};

// The keys of a block. Tiles of queries begin at `from`, with the first that sees one of the keys; there is none if all
// keys are hidden.
struct Place {
    int first, head, sample, seen, from;
};

template <int QUERIES>
DEVICE Place place_of(const Call& c) {
    const int tiles = (c.keys + ROWS - 1) / ROWS, kv_heads = c.heads / c.group;
    const int block = static_cast<int>(blockIdx.x), first = block % tiles * ROWS, sample = block / tiles / kv_heads;
    const int seen = seen_keys(c, sample), at_least = c.causal ? max(0, first + c.queries - c.keys) : 0;
    return {first, block / tiles % kv_heads, sample, seen, first < seen ? at_least / QUERIES * QUERIES : c.queries};
}

// By a warp: copies those of the queries from `query` on, of `queries`, when `wait` returns.
template <int QUERIES, class Wait>
DEVICE void copy_statistics(float (&to)[QUERIES], const float* from, int query, int queries, float beyond,
                            const Wait& wait) {
    float values[QUERIES / WARP];
#pragma unroll
    for (int i = 0; i < QUERIES / WARP; i++) {
        const int at = query + i * WARP + lane_id();
        values[i] = at < queries ? from[at] : beyond;
    }
    wait();
#pragma unroll
    for (int i = 0; i < QUERIES / WARP; i++) {
        to[i * WARP + lane_id()] = values[i];
    }
    __syncwarp();
}

// P = 0 for keys that a query does not see.
template <int QUERIES>
DEVICE void mask_scores(float (&s)[QUERIES / 2], const Call& c, const Place& place, int tile) {
    const int key = place.first + row_of_thread(threadIdx.x), left = place.seen - key;
    // A key is seen by one query more than the one before.
    const int first = place.from + tile * QUERIES + lane_id() % 4 * 2 + c.keys - c.queries - key;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        const int row = i / 2 % 2 * 8, query = i / 4 * 8 + i % 2;
        if (row >= left || (c.causal && row > first + query)) {
            s[i] = 0.0f;
        }
    }
}

// Which scores dropout keeps: bit i for s[i], of one query head. Four lanes have the same four keys; each looks up
// those of one of its four numbers.
template <class Drop>
DEVICE unsigned kept_scores(const Drop& drop, const Place& place, int q_head, int query) {
    const int thread = static_cast<int>(threadIdx.x), lane = lane_id(), own = lane / 4 % 4;
    const int key = place.first + row_of_thread(thread) + own / 2 * 8;
    unsigned kept = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const unsigned mine =
            drop.keeps(place.sample, q_head, query + 8 * n + lane % 4 * 2 + own % 2, key);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned four = __shfl_sync(ALL_LANES, mine, lane % 4 + lane / 16 * 16 + i * 4);
            kept |= (four >> own & 1) << (4 * n + i);
        }
    }
    return kept;
}

template <int D, int QUERIES, class Drop>
DEVICE void key_gradient(const Call& c, const Drop& drop, const TensorMap& q_map, const TensorMap& o_map, const TensorMap& k_map,
                         const TensorMap& v_map, const float* lse, const float* delta, element* dk, element* dv,
                         int k_stride, int v_stride, int k_add, int v_add, unsigned char* shared) {
    using Memory = Tiles<D, QUERIES>;
    SHARED(Barrier, own_full, );
    SHARED(Ring<Memory::STAGES>, ring, );
    SHARED(Statistics<QUERIES>, statistics, [Memory::STAGES]);
    SHARED(Place, place, );
    const Memory memory{first_box(shared)};
    if (threadIdx.x == 0) {
        place = place_of<QUERIES>(c);
        init_barrier(&own_full, 1);
        // Arrivals per stage: the thread that copies boxes, and the two warps that copy statistics.
        ring.init(3);
        publish_barriers();
    }
    __syncthreads();
    const auto [first, head, sample, seen, from] = place;
    const int apart = c.keys - c.queries;
    const bool any = from < c.queries;
    if (threadIdx.x < WARPGROUP) {
        lower_registers<COPY_REGISTERS>();
        if (threadIdx.x == 0 && any) {
            arrive_and_expect(&own_full, 2 * Memory::OWN);
            copy_tile<ROWS, D>(memory.own(0), k_map, first, c.k_head + head, sample, &own_full);
            copy_tile<ROWS, D>(memory.own(1), v_map, first, c.v_head + head, sample, &own_full);
            int step = 0;
            for (int q_head = head * c.group; q_head < (head + 1) * c.group; q_head++) {
#pragma unroll 1
                for (int query = from; query < c.queries; query += QUERIES, step++) {
                    ring.wait_empty(step);
                    Barrier* full = &ring.full[step % Memory::STAGES];
                    arrive_and_expect(full, 2 * Memory::OTHER);
                    copy_tile<QUERIES, D>(memory.other(0, step), q_map, query, c.q_head + q_head, sample, full);
                    copy_tile<QUERIES, D>(memory.other(1, step), o_map, query, q_head, sample, full);
                }
            }
        } else if (warp_id() == 1 || warp_id() == 2) {
            const int which = warp_id() - 1;
            // The rows of the query heads follow each other.
            const long long row = (static_cast<long long>(sample) * c.heads + head * c.group) * c.queries;
            const float* rows = (which ? delta : lse) + row;
            int step = 0;
#pragma unroll 1
            for (int others = c.group; others > 0; others--, rows += c.queries) {
#pragma unroll 1
                for (int query = from; query < c.queries; query += QUERIES, step++) {
                    copy_statistics<QUERIES>(statistics[step % Memory::STAGES].of[which], rows, query, c.queries,
                                             which ? 0.0f : infinity(), [&] { ring.wait_empty(step); });
                    if (lane_id() == 0) {
                        arrive(&ring.full[step % Memory::STAGES]);
                    }
                }
            }
        }
        return;
    }
    raise_registers<COMPUTE_REGISTERS>();
    const int group = threadIdx.x / WARPGROUP - 1, column = lane_id() % 4 * 2;
    const unsigned char *k = memory.own(0) + group * 64 * LINE, *v = memory.own(1) + group * 64 * LINE;
    float s[QUERIES / 2], dp[QUERIES / 2], k_sum[D / 2], v_sum[D / 2];
    unsigned p[QUERIES / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
        k_sum[i] = v_sum[i] = 0.0f;
    }
    // Tiles of queries of a head, and those that do not see all keys of this warpgroup.
    const int in_head = (c.queries - from + QUERIES - 1) / QUERIES, last = first + group * 64 + 63;
    const int masked = last >= seen ? in_head : c.causal ? max(0, last - apart - from + QUERIES - 1) / QUERIES : 0;
    if (any) {
        wait(&own_full, 0);
    }
#pragma unroll 1
    for (int step = 0, tile = 0, q_head = head * c.group; step < in_head * c.group; step++) {
        const float(&of)[2][QUERIES] = statistics[step % Memory::STAGES].of;
        ring.wait_full(step);
        fence_products();
        multiply_rows<D, QUERIES>(s, k, memory.other(0, step));
        commit_products();
        multiply_rows<D, QUERIES>(dp, v, memory.other(1, step));
        commit_products();
        wait_products<1>();
#pragma unroll
        for (int i = 0; i < QUERIES / 8; i++) {
            const auto base = load_vector<2>(of[0] + 8 * i + column);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[4 * i + j] = power_of_two(fmaf(s[4 * i + j], c.to_base_2, -base.at[j % 2]));
            }
        }
        if (tile < masked) {
            mask_scores<QUERIES>(s, c, place, tile);
        }
        unsigned kept = 0;
        if constexpr (Drop::DROPS) {
            static_assert(QUERIES == 64, "a bit for each score of a lane");
            kept = kept_scores(drop, place, q_head, place.from + tile * QUERIES);
            float dropped[QUERIES / 2];
#pragma unroll
            for (int i = 0; i < QUERIES / 2; i++) {
                dropped[i] = kept >> i & 1 ? s[i] * drop.scale : 0.0f;
            }
            pack_scores<QUERIES>(p, dropped);
        } else {
            pack_scores<QUERIES>(p, s);
        }
        wait_products<0>();
        fence_products();
        multiply_scores<D, QUERIES>(v_sum, p, memory.other(1, step));
        commit_products();
        unsigned ds[QUERIES / 16][4];
#pragma unroll
        for (int i = 0; i < QUERIES / 8; i++) {
            const auto row_sum = load_vector<2>(of[1] + 8 * i + column);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float& gradient = dp[4 * i + j];
                if constexpr (Drop::DROPS) {
                    gradient = kept >> (4 * i + j) & 1 ? gradient * drop.scale : 0.0f;
                }
                s[4 * i + j] *= gradient - row_sum.at[j % 2];
            }
            ds[i / 2][i % 2 * 2] = pack<element>(s[4 * i], s[4 * i + 1]);
            ds[i / 2][i % 2 * 2 + 1] = pack<element>(s[4 * i + 2], s[4 * i + 3]);
        }
        fence_products();
        multiply_scores<D, QUERIES>(k_sum, ds, memory.other(0, step));
        commit_products();
        wait_products<0>();
        __syncwarp();
        ring.release(step);
        if (++tile == in_head) {
            tile = 0;
            q_head++;
        }
    }
    // Read again, because registers do not suffice to keep them.
    const Place to = place;
    const float k_factor[2] = {c.scale, c.scale}, v_factor[2] = {1.0f, 1.0f};
    if (dk) {
        element* rows = dk + static_cast<long long>(to.sample) * c.keys * k_stride + (c.k_head + to.head) * D;
        write_rows<D>(rows, k_stride, to.first, c.keys, k_sum, k_factor, k_add);
    }
    if (dv) {
        element* rows = dv + static_cast<long long>(to.sample) * c.keys * v_stride + (c.v_head + to.head) * D;
        write_rows<D>(rows, v_stride, to.first, c.keys, v_sum, v_factor, v_add);
    }
}

#define KEY_GRADIENT(SUFFIX, DROP, D, QUERIES)                                                                 \
    KERNEL(attention_wgmma_key_gradient##SUFFIX, THREADS, 1)                                                   \
    (TENSOR_MAP q_map, TENSOR_MAP o_map, TENSOR_MAP k_map, TENSOR_MAP v_map, CALL_PARAMETERS,                  \
     GIVEN_PARAMETERS, element* dk, element* dv, int k_stride, int v_stride, int k_add, int v_add,             \
     DROPOUT_PARAMETERS) {                                                                                     \
        DYNAMIC_SHARED(shared);                                                                                \
        key_gradient<D, QUERIES>(CALL, DROP, q_map, o_map, k_map, v_map, lse, delta, dk, dv, k_stride,         \
                                 v_stride, k_add, v_add, shared);                                              \
    }

KEY_GRADIENT(_64, NO_DROPOUT, 64, 128)
KEY_GRADIENT(_128, NO_DROPOUT, 128, 64)
KEY_GRADIENT(_dropout_64, DROPOUT, 64, 64)
