// Primitives of Hopper (sm_90a): barriers in shared memory, copies of boxes of tensors (TMA), and products of warpgroups
// (wgmma). PTX ISA, "Parallel synchronization: mbarrier", "cp.async.bulk.tensor" and "Asynchronous warpgroup level matrix
// instructions".
//
// A box is copied in lines of 128 bytes whose chunks of 16 bytes are swizzled by the lower 3 bits of the line's number;
// it begins at a multiple of 1024 bytes of shared memory. A product reads its operands there, by descriptors.
#pragma once

#include "async.cuh"

constexpr int WARPGROUP = 128;
// The length of a line, and the alignment of a box.
constexpr int LINE = 128, BOX_ALIGNMENT = 1024;

// How a tensor lies in global memory, and the extents of a box: made by the host (Value::TensorMap).
#ifdef EMULATOR
#define TENSOR_MAP const TensorMap
#else
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};
#define TENSOR_MAP const __grid_constant__ TensorMap
#endif

// The number of an address in shared memory.
DEVICE unsigned shared_offset(const void* pointer) {
#ifdef EMULATOR
    return emulator_shared_offset(pointer);
#else
    return shared_address(pointer);
#endif
}

// ---- barriers

// A phase of a barrier is complete when `count` arrivals and all bytes that they expect are there; then the next one
// begins. Phases have the parities 0, 1, 0, ...
struct alignas(8) Barrier {
    unsigned long long state;
};

// Before publish_barriers() and a __syncthreads().
DEVICE void init_barrier(Barrier* barrier, unsigned count) {
#ifdef EMULATOR
    emulator_barrier_init(barrier, count);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
#endif
}

// Makes the barriers that this thread has initialized visible to asynchronous copies.
DEVICE void publish_barriers() {
#ifdef EMULATOR
    emulator_barrier_publish();
#else
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

DEVICE void arrive(Barrier* barrier) {
#ifdef EMULATOR
    emulator_barrier_arrive(barrier, 0);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Arrives, and makes the phase wait for `bytes` bytes of copies.
DEVICE void arrive_and_expect(Barrier* barrier, unsigned bytes) {
#ifdef EMULATOR
    emulator_barrier_arrive(barrier, bytes);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
#endif
}

// Waits until the phase with this parity is complete. The phase before the first one counts as complete, with parity 1.
DEVICE void wait(Barrier* barrier, unsigned parity) {
#ifdef EMULATOR
    emulator_barrier_wait(barrier, parity);
#else
    const unsigned address = shared_address(barrier);
    unsigned done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(address), "r"(parity)
                     : "memory");
    } while (!done);
#endif
}

// Barrier `id`, 1 to 15, among `threads` threads: warps that call sync_threads wait until as many have called either
// function; 0 is that of __syncthreads().
DEVICE void sync_threads(int id, int threads) {
#ifdef EMULATOR
    emulator_named_barrier(id, threads, true);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

DEVICE void arrive_threads(int id, int threads) {
#ifdef EMULATOR
    emulator_named_barrier(id, threads, false);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// ---- copies of boxes

// Starts to copy the box at the coordinates, of which the first counts elements of a line; zeros stand for what is
// outside of the tensor. All bytes of the box count for the phase of the barrier.
DEVICE void copy_box(void* to_shared, const TensorMap& map, int x, int y, int z, int w, Barrier* barrier) {
#ifdef EMULATOR
    emulator_copy_box(to_shared, map.map, x, y, z, w, barrier);
#else
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to_shared)),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
                 : "memory");
#endif
}

// ---- products of warpgroups

// The descriptor of an operand in boxes, PTX ISA "Matrix descriptor". Along k: a line has 64 k of a row, 8 lines are 1024
// bytes. Otherwise a line has 64 rows of one k, 8 k are 1024 bytes, and the next 64 rows are `next` bytes away.
DEVICE unsigned long long describe_operand(const void* shared, unsigned next) {
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62, EIGHT_LINES = 8 * LINE / 16;
    return SWIZZLE_128 | EIGHT_LINES << 32 | static_cast<unsigned long long>(next / 16) << 16 |
           (shared_offset(shared) & 0x3ffff) / 16;
}

// Orders the registers of the sums before the products that follow. All threads of a warpgroup execute this function and
// those below.
DEVICE void fence_products() {
#ifdef EMULATOR
    emulator_wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// The products since the last commit form a group.
DEVICE void commit_products() {
#ifdef EMULATOR
    emulator_wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits for all groups except the latest N: the sums may be used, and the operands overwritten.
template <int N>
DEVICE void wait_products() {
#ifdef EMULATOR
    emulator_wgmma_wait(N);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// Gives this warpgroup COUNT registers a thread: fewer before others ask for more.
template <int COUNT>
DEVICE void lower_registers() {
#ifdef EMULATOR
    emulator_set_registers(COUNT);
#else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

template <int COUNT>
DEVICE void raise_registers() {
#ifdef EMULATOR
    emulator_set_registers(COUNT);
#else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// sum (64 x N) += a (64 x 16) b (16 x N), by a warpgroup, for N = 64, 128 and 256; with ZERO, sum = a b. With g = lane / 4 and
// t = lane % 4 of warp w of the group, sum[4 j + 2 h + e] is the element (16 w + g + 8 h, 8 j + 2 t + e). The operands are
// given by descriptors, LHS_LINES and RHS_LINES say whether their lines are along k; or a is in registers, as for
// mma_16x8x16, and a warp has its rows 16 w to 16 w + 15.
#ifdef EMULATOR
template <class T>
constexpr int MMA_KIND = EMULATOR_MMA_F16;
template <>
constexpr int MMA_KIND<bf16> = EMULATOR_MMA_BF16;

template <int N, bool LHS_LINES, bool RHS_LINES, bool ZERO = false, class T>
DEVICE void multiply_64(float (&sum)[N / 2], unsigned long long a, unsigned long long b, T) {
    emulator_wgmma(MMA_KIND<T>, sum, N, a, b, !LHS_LINES, !RHS_LINES, ZERO);
}
template <int N, bool RHS_LINES, class T>
DEVICE void multiply_64(float (&sum)[N / 2], const unsigned (&a)[4], unsigned long long b, T) {
    emulator_wgmma_registers(MMA_KIND<T>, sum, N, EmulatorWords{{a[0], a[1], a[2], a[3]}}, b, !RHS_LINES);
}
#else
#define FOUR(f, i) f(i), f(i + 1), f(i + 2), f(i + 3)
#define SIXTEEN(f, i) FOUR(f, i), FOUR(f, i + 4), FOUR(f, i + 8), FOUR(f, i + 12)
#define SUM(i) "+f"(sum[i])
#define SUMS_64 SIXTEEN(SUM, 0), SIXTEEN(SUM, 16)
#define SUMS_128 SUMS_64, SIXTEEN(SUM, 32), SIXTEEN(SUM, 48)
#define SUMS_256 SUMS_128, SIXTEEN(SUM, 64), SIXTEEN(SUM, 80), SIXTEEN(SUM, 96), SIXTEEN(SUM, 112)
#define NAMES_64                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_128                                                                               \
    NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_256                                                                               \
    NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "          \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// The instruction, its sums and the operands after them.
#define WGMMA(n, type) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" NAMES_##n "}, "
#define MULTIPLY(n, type, operands)                                                             \
    asm volatile(WGMMA(n, type) operands                                                        \
                 : SUMS_##n                                                                     \
                 : "l"(a), "l"(b), "n"(ZERO ? 0 : 1), "n"(LHS_LINES ? 0 : 1), "n"(RHS_LINES ? 0 : 1));
#define MULTIPLY_REGISTERS(n, type, operands)                                                   \
    asm volatile(WGMMA(n, type) operands                                                        \
                 : SUMS_##n                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(RHS_LINES ? 0 : 1));
#define MULTIPLY_ALL(type)                                                                                      \
    template <int N, bool LHS_LINES, bool RHS_LINES, bool ZERO = false>                                         \
    DEVICE void multiply_64(float (&sum)[N / 2], unsigned long long a, unsigned long long b, type) {            \
        static_assert(N == 64 || N == 128 || N == 256, "columns of a product");                                 \
        if constexpr (N == 64) {                                                                                \
            MULTIPLY(64, type, "%32, %33, %34, 1, 1, %35, %36;")                                                \
        } else if constexpr (N == 128) {                                                                        \
            MULTIPLY(128, type, "%64, %65, %66, 1, 1, %67, %68;")                                               \
        } else {                                                                                                \
            MULTIPLY(256, type, "%128, %129, %130, 1, 1, %131, %132;")                                          \
        }                                                                                                       \
    }                                                                                                           \
    template <int N, bool RHS_LINES>                                                                            \
    DEVICE void multiply_64(float (&sum)[N / 2], const unsigned (&a)[4], unsigned long long b, type) {          \
        static_assert(N == 64 || N == 128, "columns of a product");                                             \
        if constexpr (N == 64) {                                                                                \
            MULTIPLY_REGISTERS(64, type, "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;")                            \
        } else {                                                                                                \
            MULTIPLY_REGISTERS(128, type, "{%64, %65, %66, %67}, %68, 1, 1, 1, %69;")                           \
        }                                                                                                       \
    }
MULTIPLY_ALL(bf16)
MULTIPLY_ALL(f16)
#undef MULTIPLY_ALL
#undef MULTIPLY_REGISTERS
#undef MULTIPLY
#undef WGMMA
#undef NAMES_256
#undef NAMES_128
#undef NAMES_64
#undef SUMS_256
#undef SUMS_128
#undef SUMS_64
#undef SUM
#undef SIXTEEN
#undef FOUR
#endif
