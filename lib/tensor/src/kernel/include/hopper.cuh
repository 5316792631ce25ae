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

// sum (64 x N) += a (64 x 16) b (16 x N), by a warpgroup. With g = lane / 4 and t = lane % 4 of warp w of the group,
// sum[FIRST + 4 j + 2 h + e] is the element (16 w + g + 8 h, 8 j + 2 t + e). The operands are given by descriptors;
// LHS_LINES and RHS_LINES say whether their lines are along k. The last argument only selects the overload.
#ifdef EMULATOR
#define MULTIPLY(name, N, kind, type)                                                                         \
    template <int FIRST, bool LHS_LINES, bool RHS_LINES>                                                      \
    DEVICE void name(float (&sum)[128], unsigned long long a, unsigned long long b, type) {                   \
        static_assert(FIRST + N / 2 <= 128, "sums of a lane");                                                \
        emulator_wgmma(kind, sum + FIRST, N, a, b, !LHS_LINES, !RHS_LINES);                                   \
    }
MULTIPLY(multiply_64x256x16, 256, EMULATOR_MMA_BF16, bf16)
MULTIPLY(multiply_64x256x16, 256, EMULATOR_MMA_F16, f16)
MULTIPLY(multiply_64x128x16, 128, EMULATOR_MMA_BF16, bf16)
MULTIPLY(multiply_64x128x16, 128, EMULATOR_MMA_F16, f16)
#else
#define FOUR(x, i) x(i), x(i + 1), x(i + 2), x(i + 3)
#define SIXTEEN(x, i) FOUR(x, i), FOUR(x, i + 4), FOUR(x, i + 8), FOUR(x, i + 12)
#define ALL_64(x, i) SIXTEEN(x, i), SIXTEEN(x, i + 16), SIXTEEN(x, i + 32), SIXTEEN(x, i + 48)
#define ALL_128(x, i) ALL_64(x, i), ALL_64(x, i + 64)
#define SUM(i) "+f"(sum[i])
#define NAMES_OF_64                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "         \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "         \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_OF_128                                                                          \
    NAMES_OF_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "         \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MULTIPLY(name, shape, names, operands, sums, type)                                                    \
    template <int FIRST, bool LHS_LINES, bool RHS_LINES>                                                      \
    DEVICE void name(float (&sum)[128], unsigned long long a, unsigned long long b, type) {                   \
        asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." #type "." #type " {" names "}, " operands ";" \
                     : sums(SUM, FIRST)                                                                       \
                     : "l"(a), "l"(b), "n"(LHS_LINES ? 0 : 1), "n"(RHS_LINES ? 0 : 1));                       \
    }
#define MULTIPLY_256(type) \
    MULTIPLY(multiply_64x256x16, "m64n256k16", NAMES_OF_128, "%128, %129, 1, 1, 1, %130, %131", ALL_128, type)
#define MULTIPLY_128(type) \
    MULTIPLY(multiply_64x128x16, "m64n128k16", NAMES_OF_64, "%64, %65, 1, 1, 1, %66, %67", ALL_64, type)
MULTIPLY_256(bf16)
MULTIPLY_256(f16)
MULTIPLY_128(bf16)
MULTIPLY_128(f16)
#undef MULTIPLY_128
#undef MULTIPLY_256
#undef NAMES_OF_128
#undef NAMES_OF_64
#undef SUM
#undef ALL_128
#undef ALL_64
#undef SIXTEEN
#undef FOUR
#endif
#undef MULTIPLY
