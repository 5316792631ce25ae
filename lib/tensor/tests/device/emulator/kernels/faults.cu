// dtypes: f32
// Kernels that each break one rule, for ../faults.rs. `wrong` 0 keeps to it.
#include "async.cuh"
#include "element.cuh"
#include "mma.cuh"
#include "warp.cuh"

// Reads one element too many.
KERNEL(faults_read)(const float* x, float* y, int n, int wrong) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n + wrong) {
        y[i < n ? i : 0] = x[i];
    }
}

// Writes one element too many.
KERNEL(faults_write)(const float* x, float* y, int n, int wrong) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n + wrong) {
        y[i] = x[i < n ? i : 0];
    }
}

// Reads before the start of its buffer.
KERNEL(faults_before)(const float* x, float* y, int wrong) {
    y[0] = x[-wrong];
}

// Reads past the end of a shared array into the next one.
KERNEL(faults_shared)(float* y, int wrong) {
    SHARED(float, first, [32]);
    SHARED(float, second, [32]);
    const int i = static_cast<int>(threadIdx.x);
    second[i] = 1.0f;
    first[i + wrong] = 2.0f;
    y[i] = second[i];
}

// Loads four floats from an address that is not a multiple of 16: by load_vector (0), float4 (1).
KERNEL(faults_alignment)(const float* x, float* y, int how, int wrong) {
    if (how == 0) {
        y[0] = load_vector<4>(x + wrong).at[3];
    } else {
        const float4 four = *reinterpret_cast<const float4*>(x + wrong);
        y[0] = four.x + four.w;
    }
}

// Reads another warp's values without a barrier.
KERNEL(faults_barrier)(float* y, int wrong) {
    SHARED(float, values, [64]);
    const int i = static_cast<int>(threadIdx.x);
    values[i] = static_cast<float>(i);
    if (!wrong) {
        __syncthreads();
    }
    y[i] = values[63 - i];
}

// Overwrites a value that another warp may not have read yet.
KERNEL(faults_overwrite)(float* y, int wrong) {
    SHARED(float, values, [64]);
    const int i = static_cast<int>(threadIdx.x);
    for (int step = 0; step < 2; step++) {
        values[i] = static_cast<float>(i + step);
        __syncthreads();
        y[64 * step + i] = values[63 - i];
        if (!wrong) {
            __syncthreads();
        }
    }
}

// Reads a value of another lane in the same warp: a shuffle alone does not order memory accesses.
KERNEL(faults_lanes)(float* y, int wrong) {
    SHARED(float, values, [32]);
    const int i = lane_id();
    values[i] = static_cast<float>(i);
    if (wrong) {
        y[i] = warp_sum(1.0f);
    } else {
        __syncwarp();
    }
    y[i] = values[31 - i];
}

// Half a warp synchronizes among itself; the halves are not ordered.
KERNEL(faults_half_warp)(float* y, int wrong) {
    SHARED(float, values, [32]);
    const int i = lane_id();
    values[i] = static_cast<float>(i);
    __syncwarp(i < 16 ? 0x0000ffffu : 0xffff0000u);
    y[i] = values[wrong ? 31 - i : i ^ 15];
}

// Every block writes to the same location.
KERNEL(faults_blocks)(float* y, int wrong) {
    y[wrong ? 0 : blockIdx.x] = static_cast<float>(blockIdx.x);
}

// Reads what another block writes.
KERNEL(faults_neighbour)(float* y, float* z, int wrong) {
    z[blockIdx.x] = wrong ? y[(blockIdx.x + 1) % gridDim.x] : y[blockIdx.x];
    y[blockIdx.x] = 1.0f;
}

// Two 16-bit values in the same four bytes, written by different blocks: not a race.
KERNEL(faults_neighbouring_halves)(unsigned short* y) {
    y[blockIdx.x] = static_cast<unsigned short>(blockIdx.x);
}

// The same in bytes.
KERNEL(faults_neighbouring_bytes)(unsigned char* y) {
    y[blockIdx.x] = static_cast<unsigned char>(blockIdx.x);
    y[blockIdx.x] = static_cast<unsigned char>(y[blockIdx.x] + 1);
}

// Reads the target of an asynchronous copy that is in flight.
KERNEL(faults_wait)(const float* x, float* y, int wrong) {
    SHARED(float, values, [32][4]);
    const int i = lane_id();
    copy_async_16(values[i], x + 4 * i, 16);
    commit_async();
    if (!wrong) {
        wait_async<0>();
    }
    __syncthreads();
    y[i] = values[31 - i][0];
}

// Waits for its own copies, but not for those of other lanes.
KERNEL(faults_wait_alone)(const float* x, float* y, int wrong) {
    SHARED(float, values, [64][4]);
    const int i = static_cast<int>(threadIdx.x);
    copy_async_16(values[i], x + 4 * i, 16);
    commit_async();
    wait_async<0>();
    if (!wrong) {
        __syncthreads();
    }
    y[i] = values[63 - i][0];
}

// Copies into memory that others may still read.
KERNEL(faults_copy_over)(const float* x, float* y, int wrong) {
    SHARED(float, values, [64][4]);
    const int i = static_cast<int>(threadIdx.x);
    values[i][0] = 1.0f;
    __syncthreads();
    y[i] = values[63 - i][0];
    if (!wrong) {
        __syncthreads();
    }
    copy_async_16(values[i], x + 4 * i, 16);
    commit_async();
    wait_async<0>();
}

// Changes what a copy of its own reads while it is in flight.
KERNEL(faults_copy_from)(float* x, float* y, int wrong) {
    SHARED(float, values, [32][4]);
    const int i = lane_id();
    copy_async_16(values[i], x + 4 * i, 16);
    commit_async();
    if (wrong) {
        x[4 * i] = 7.0f;
    }
    wait_async<0>();
    y[i] = values[i][0];
}

// Reads what it writes, if both are the same tensor, through a cache that does not see writes.
KERNEL(faults_constant)(const float* __restrict__ x, float* y) {
    y[threadIdx.x] = 2.0f * x[threadIdx.x];
}

// Half of the threads skip the barrier.
KERNEL(faults_divergent)(float* y, int wrong) {
    if (!wrong || threadIdx.x < 16) {
        __syncthreads();
    }
    y[threadIdx.x] = 1.0f;
}

// The two halves wait at two different barriers.
KERNEL(faults_two_barriers)(float* y, int wrong) {
    if (!wrong || threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    y[threadIdx.x] = 1.0f;
}

// The two halves of a warp take part in two different sums.
KERNEL(faults_two_sums)(float* y, int wrong) {
    if (!wrong || threadIdx.x < 16) {
        y[threadIdx.x] = warp_sum(1.0f);
    } else {
        y[threadIdx.x] = warp_sum(2.0f);
    }
}

// The two halves of a warp multiply and load matrices at different places.
KERNEL(faults_two_products)(float* y, int wrong) {
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const unsigned a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    if (!wrong || threadIdx.x < 16) {
        mma_16x8x8(d, a, b);
    } else {
        mma_16x8x8(d, a, b);
        d[0] += 1.0f;
    }
    y[threadIdx.x] = d[0];
}

KERNEL(faults_two_loads)(float* y, int wrong) {
    SHARED(float, values, [128]);
    for (int i = threadIdx.x; i < 128; i += 32) {
        values[i] = 0.0f;
    }
    __syncwarp();
    unsigned r[4];
    if (!wrong || threadIdx.x < 16) {
        ldmatrix_x4(r, &values[4 * threadIdx.x]);
    } else {
        ldmatrix_x4(r, &values[4 * threadIdx.x]);
        r[0] += 1;
    }
    y[threadIdx.x] = static_cast<float>(r[0]);
}

// A shuffle of the whole warp that lane 7 does not reach.
KERNEL(faults_absent)(float* y, int wrong) {
    if (wrong && threadIdx.x == 7) {
        return;
    }
    y[threadIdx.x] = warp_sum(1.0f);
}

// A shuffle that reads from a lane outside of its mask.
KERNEL(faults_mask)(float* y, int wrong) {
    if (threadIdx.x < 16) {
        y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, wrong ? 20 : 3);
    }
}

// At most 64 threads.
KERNEL(faults_launch_bounds, 64)(float* y) {
    y[threadIdx.x] = 1.0f;
}

// One parameter of each kind.
KERNEL(faults_arguments)(float* y, int a, unsigned b, long long c, unsigned long long d, float e) {
    y[0] = static_cast<float>(a);
    y[1] = static_cast<float>(b);
    y[2] = static_cast<float>(c);
    y[3] = static_cast<float>(d);
    y[4] = e;
}

// Uninitialized memory, global and shared.
KERNEL(faults_poison)(const float* x, float* y) {
    SHARED(float, values, [1]);
    y[0] = x[0];
    y[1] = values[0];
}

// Addresses in memory, by which one launch works on many tensors.
KERNEL(faults_table)(float* const* table, int n, int wrong) {
    table[threadIdx.x][n - 1 + wrong] = 3.0f;
}
