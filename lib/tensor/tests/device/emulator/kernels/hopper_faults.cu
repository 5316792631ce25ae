// dtypes: bf16
// Kernels that each break one rule of hopper.cuh, chosen by `wrong`, for ../hopper_faults.rs. 0 keeps to them all.
#include "element.cuh"
#include "hopper.cuh"
#include "warp.cuh"

constexpr int BOX = 64 * LINE;

DEVICE unsigned char* first_box(unsigned char* shared) {
    return shared + (-shared_offset(shared) & (BOX_ALIGNMENT - 1));
}

DEVICE void begin_barrier(Barrier* barrier, unsigned count) {
    if (threadIdx.x == 0) {
        init_barrier(barrier, count);
        publish_barriers();
    }
    __syncthreads();
}

// Two warps: the first thread of each arrives, all wait.
KERNEL(hopper_faults_barrier)(float* y, int wrong) {
    SHARED(Barrier, barriers, [2]);
    Barrier* barrier = barriers;
    const int i = static_cast<int>(threadIdx.x);
    if (i == 0 && wrong != 1) {
        init_barrier(barrier, wrong == 2 ? 0 : 2);
        if (wrong == 3) {
            init_barrier(barrier, 2);
        }
        if (wrong != 4 && wrong != 5) {
            publish_barriers();
        }
    }
    if (wrong != 6) {
        __syncthreads();
    }
    if (wrong == 5) {
        if (i == 0) {
            publish_barriers();
        }
        // A vote is no barrier.
        __ballot_sync(ALL_LANES, 1);
    }
    if (wrong == 7) {
        barrier = reinterpret_cast<Barrier*>(reinterpret_cast<unsigned char*>(barrier) + 4);
    }
    if (wrong == 8) {
        barrier = reinterpret_cast<Barrier*>(y);
    }
    if (wrong == 9) {
        y[i] = static_cast<float>(barrier->state);
    }
    if (i % WARP == 0) {
        wait(barrier, 1);
    }
    if (i == 0 && wrong == 10) {
        arrive_and_expect(barrier, 64);
        arrive_and_expect(barrier, 64);
        arrive(barrier);
    }
    if (i == 0 && wrong == 11) {
        arrive(barrier);
        arrive(barrier);
        arrive(barrier);
    }
    if (i % WARP == 0 && !(wrong == 12 && i > 0)) {
        arrive_and_expect(barrier, wrong == 13 ? 64 : wrong == 14 ? 1 << 20 : 0);
    }
    wait(barrier, 0);
    y[i] = 1.0f;
}

// The second warp waits for a phase that the first one completes together with the next.
KERNEL(hopper_faults_overtake)(int wrong) {
    SHARED(Barrier, barrier, );
    begin_barrier(&barrier, 1);
    if (threadIdx.x >= WARP) {
        wait(&barrier, 0);
    } else if (threadIdx.x == 0) {
        arrive(&barrier);
        if (wrong) {
            wait(&barrier, 0);
            arrive(&barrier);
        }
    }
}

// The first warp writes values and arrives; the second waits, reads, and allows to overwrite them.
KERNEL(hopper_faults_order)(float* y, int wrong) {
    SHARED(float, values, [32]);
    SHARED(Barrier, full, );
    SHARED(Barrier, empty, );
    begin_barrier(&full, 1);
    if (threadIdx.x == 0) {
        init_barrier(&empty, 1);
        publish_barriers();
    }
    __syncthreads();
    const int lane = lane_id();
    if (threadIdx.x < WARP) {
        if (wrong != 1) {
            values[lane] = static_cast<float>(lane);
        }
        if (wrong != 2) {
            __syncwarp();
        }
        if (lane == 0) {
            arrive(&full);
        }
        if (wrong == 1) {
            values[lane] = static_cast<float>(lane);
        }
        if (wrong != 3) {
            wait(&empty, 0);
        }
        values[lane] = 0.0f;
    } else {
        if (wrong != 4 && (wrong != 5 || lane == 0)) {
            wait(&full, 0);
        }
        y[lane] = values[31 - lane];
        if (wrong != 6) {
            __syncwarp();
        }
        if (lane == 0) {
            arrive(&empty);
        }
        if (wrong == 7) {
            y[lane] = values[lane];
        }
    }
}

// The first thread copies a box, the second warp reads it.
KERNEL(hopper_faults_copy)(TENSOR_MAP map, element* x, element* y, int wrong) {
    DYNAMIC_SHARED(shared);
    SHARED(Barrier, barrier, );
    unsigned char* to = first_box(shared);
    begin_barrier(&barrier, 1);
    const int i = static_cast<int>(threadIdx.x);
    if (wrong == 1 && i == WARP) {
        y[0] = reinterpret_cast<element*>(to)[5];
    }
    if (i == 0) {
        if (wrong == 2) {
            x[5] = element{0};
        }
        if (wrong != 3) {
            arrive_and_expect(&barrier, wrong == 4 ? BOX / 2 : wrong == 5 ? 2 * BOX : BOX);
        }
        copy_box(wrong == 6 ? to + LINE : wrong == 7 ? reinterpret_cast<unsigned char*>(y) : to, map, 0, 0, 0, 0,
                 &barrier);
        if (wrong == 3) {
            arrive_and_expect(&barrier, BOX / 2);
        }
        if (wrong == 8) {
            copy_box(to, map, 0, 0, 0, 0, &barrier);
        }
        if (wrong == 9) {
            x[5] = element{static_cast<unsigned short>(x[5].bits ^ 1)};
        }
        if (wrong == 10) {
            reinterpret_cast<element*>(to)[5] = element{0};
        }
        if (wrong == 11) {
            arrive(&barrier);
        }
    }
    if (wrong == 12) {
        return;
    }
    if (i >= WARP && (wrong != 13 || i == WARP)) {
        wait(&barrier, 0);
    }
    if (i >= WARP) {
        y[i] = reinterpret_cast<element*>(to)[i];
    }
    if (wrong == 14) {
        __syncthreads();
        if (i == 1) {
            copy_box(to, map, 0, 0, 0, 0, &barrier);
        }
    }
    if (wrong == 15 && i == WARP) {
        // Others may not have read yet.
        arrive_and_expect(&barrier, BOX);
        copy_box(to, map, 0, 0, 0, 0, &barrier);
    }
}

// One warpgroup, or part of one: a product of 16 k, of boxes along lines. Writes one of the sums of each thread.
KERNEL(hopper_faults_product)(TENSOR_MAP lhs, TENSOR_MAP rhs, float* y, int wrong) {
    DYNAMIC_SHARED(shared);
    SHARED(Barrier, barrier, );
    unsigned char *boxes = first_box(shared), *other = boxes + 5 * BOX;
    begin_barrier(&barrier, 1);
    const int i = static_cast<int>(threadIdx.x);
    if (i == 0) {
        arrive_and_expect(&barrier, 5 * BOX);
        copy_box(boxes, lhs, 0, 0, 0, 0, &barrier);
        copy_box(boxes + BOX, rhs, 0, 0, 0, 0, &barrier);
        if (wrong == 1) {
            reinterpret_cast<float*>(other)[0] = 1.0f;
        }
        if (wrong == 2) {
            copy_async_16(other, y, 16);
        }
    }
    if (wrong != 3 && (wrong != 4 || i < 2 * WARP)) {
        wait(&barrier, 0);
    }
    if (wrong == 1 || wrong == 2) {
        __syncthreads();
    }
    float here[128] = {};
    float(&sum)[128] = wrong == 5 ? *reinterpret_cast<float(*)[128]>(other) : here;
    if (wrong != 6) {
        fence_products();
    }
    unsigned long long a = describe_operand(boxes, 16), b = describe_operand(boxes + BOX, 16);
    if (wrong == 1 || wrong == 2 || wrong == 7) {
        a = describe_operand(other, 16);
    }
    if (wrong == 8 && i / WARP == 1) {
        b = describe_operand(boxes + BOX, 32);
    }
    if (wrong == 9) {
        a ^= 1ull << 62;
    }
    if (wrong == 10) {
        a = describe_operand(boxes + LINE, 16);
    }
    if (wrong == 11 && i / WARP == 1) {
        multiply_64<256, true, true>(sum, a, b, element());
    } else if (wrong != 12 || i / WARP != 1) {
        multiply_64<256, true, true>(sum, a, b, element());
    }
    if (wrong == 13) {
        sum[7] = 1.0f;
    }
    if (wrong == 14) {
        y[i] = sum[i];
    }
    if (wrong == 15 && i == 0) {
        reinterpret_cast<float*>(boxes)[0] = 1.0f;
    }
    if (wrong == 16 && i == 0) {
        arrive_and_expect(&barrier, BOX);
        copy_box(boxes, lhs, 0, 0, 0, 0, &barrier);
    }
    if (wrong != 17) {
        commit_products();
    }
    if (wrong == 18) {
        i % WARP < 16 ? wait_products<0>() : wait_products<1>();
    }
    if (wrong != 19) {
        wait_products<0>();
    }
    if (wrong == 20 && i == 0) {
        reinterpret_cast<float*>(boxes)[0] = 1.0f;
    }
    if (wrong == 22) {
        const unsigned words[4] = {};
        float(&narrow)[64] = *reinterpret_cast<float(*)[64]>(here);
        multiply_64<128, true>(narrow, words, b, element());
        commit_products();
        wait_products<0>();
    }
    if (wrong == 21) {
        multiply_64<256, true, true>(sum, a, b, element());
        commit_products();
        wait_products<0>();
    }
    if (wrong != 14) {
        y[i] = sum[i];
    }
    // Now it is allowed.
    __syncthreads();
    if (i == 0) {
        reinterpret_cast<float*>(boxes)[0] = 1.0f;
    }
}

// The first warp writes values and lets the second one read them, by a numbered barrier.
KERNEL(hopper_faults_numbered)(float* y, int wrong) {
    SHARED(float, values, [32]);
    const int lane = lane_id();
    if (threadIdx.x < WARP) {
        values[lane] = static_cast<float>(lane);
        if (wrong == 1 && lane < 16) {
            return;
        }
        if (wrong != 2) {
            arrive_threads(wrong == 3 ? 0 : wrong == 4 ? 16 : 5, wrong == 5 ? 48 : wrong == 6 ? 96 : 64);
        }
        if (wrong == 7) {
            values[lane] = 0.0f;
        }
    } else {
        if (wrong != 8) {
            sync_threads(5, wrong == 9 ? 32 : 64);
        }
        y[lane] = values[31 - lane];
    }
}

// Two warpgroups: one has fewer registers than the other.
KERNEL(hopper_faults_registers)(int wrong) {
    if (wrong == 2 && threadIdx.x < WARP) {
        return;
    }
    if (threadIdx.x < WARPGROUP) {
        if (wrong == 3) {
            lower_registers<28>();
        }
        if (wrong == 4) {
            threadIdx.x < 32 ? lower_registers<240>() : lower_registers<248>();
        }
        if (wrong != 5) {
            lower_registers<256>();
        }
    } else if (wrong == 6) {
        raise_registers<264>();
    } else {
        raise_registers<256>();
    }
}

// Three warpgroups, of which one has to give up registers.
KERNEL(hopper_faults_more_registers, 3 * WARPGROUP)(int wrong) {
    if (threadIdx.x >= WARPGROUP) {
        raise_registers<240>();
    } else if (!wrong) {
        lower_registers<24>();
    }
}
