// The subset of CUDA available to a kernel that is compiled as C++ for the host.
//
// Every operation that involves other lanes is a call into the runtime (runtime.h). Operands are passed by value in
// registers, so that accesses to a kernel's locals are not instrumented as memory accesses.
#pragma once

#include "numbers.h"
#include "table.h"

using size_t = decltype(sizeof(0));

#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __device__
#define __forceinline__ inline __attribute__((always_inline))

struct uint3 {
    unsigned x, y, z;
};
using dim3 = uint3;

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

// Vectors of 16 and 8 bytes.
struct EmulatorWords {
    unsigned at[4];
};
struct EmulatorPair {
    unsigned at[2];
};

// The source location at which a lane waits.
struct EmulatorPlace {
    const char* file;
    int line;
};
#define EMULATOR_HERE EmulatorPlace{file, line}
#define EMULATOR_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

enum EmulatorShuffle { EMULATOR_INDEX, EMULATOR_UP, EMULATOR_XOR };
enum EmulatorMatrix { EMULATOR_MMA_BF16, EMULATOR_MMA_F16, EMULATOR_MMA_TF32 };

extern "C" {
uint3 emulator_thread_index() __attribute__((const));
uint3 emulator_block_index() __attribute__((const));
uint3 emulator_block_extent() __attribute__((const));
uint3 emulator_grid_extent() __attribute__((const));

void emulator_sync_threads(EmulatorPlace place);
void emulator_sync_warp(unsigned mask, EmulatorPlace place);
unsigned long long emulator_shuffle(EmulatorShuffle kind, unsigned mask, unsigned long long value,
                                    unsigned argument, unsigned width, EmulatorPlace place);
unsigned emulator_ballot(unsigned mask, bool vote, EmulatorPlace place);

void* emulator_shared(const void* key, const char* name, size_t bytes, size_t alignment);
unsigned char* emulator_dynamic_shared() __attribute__((const));
EmulatorWords emulator_load(const void* from, unsigned bytes);
void emulator_store(void* to, EmulatorWords words, unsigned bytes);

void emulator_copy_async(void* to, const void* from, int bytes, int valid);
void emulator_commit_async();
void emulator_wait_async(int left);

EmulatorWords emulator_ldmatrix(const void* row, int matrices, bool transposed);
EmulatorWords emulator_mma(int kind, EmulatorWords a, EmulatorPair b, EmulatorWords d);

// For hopper.cuh; defined in barriers.cpp, boxes.cpp and wgmma.cpp.
unsigned emulator_shared_offset(const void* pointer);
void emulator_barrier_init(void* barrier, unsigned count);
void emulator_barrier_publish();
void emulator_barrier_arrive(void* barrier, unsigned expected_bytes);
void emulator_barrier_wait(void* barrier, unsigned parity);
void emulator_named_barrier(int id, int threads, bool waits);
void emulator_copy_box(void* to, const EmulatorTensorMap* map, int x, int y, int z, int w, void* barrier);
void emulator_wgmma(int kind, float* sum, unsigned columns, unsigned long long a, unsigned long long b,
                    bool lhs_mn_major, bool rhs_mn_major, bool zero);
void emulator_wgmma_registers(int kind, float* sum, unsigned columns, EmulatorWords a, unsigned long long b,
                              bool rhs_mn_major);
void emulator_wgmma_fence();
void emulator_wgmma_commit();
void emulator_wgmma_wait(int left);
void emulator_set_registers(int count);
}

#define threadIdx emulator_thread_index()
#define blockIdx emulator_block_index()
#define blockDim emulator_block_extent()
#define gridDim emulator_grid_extent()

// ---- barriers, shuffles, votes

// Returns the upper 32 bits of the product.
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

static inline void __syncthreads(EMULATOR_PLACE) {
    emulator_sync_threads(EMULATOR_HERE);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_PLACE) {
    emulator_sync_warp(mask, EMULATOR_HERE);
}

template <class T>
static inline T emulator_shuffle_value(EmulatorShuffle kind, unsigned mask, T value,
                                       unsigned argument, int width, EmulatorPlace place) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take values of 4 or 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = emulator_shuffle(kind, mask, bits, argument, static_cast<unsigned>(width), place);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_INDEX, mask, value, static_cast<unsigned>(lane), width,
                                  EMULATOR_HERE);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_UP, mask, value, delta, width, EMULATOR_HERE);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_XOR, mask, value, static_cast<unsigned>(lane_mask),
                                  width, EMULATOR_HERE);
}

static inline unsigned __ballot_sync(unsigned mask, int vote, EMULATOR_PLACE) {
    return emulator_ballot(mask, vote != 0, EMULATOR_HERE);
}
