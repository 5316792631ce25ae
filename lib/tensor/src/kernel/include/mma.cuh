// Warp-level matrix products on tensor cores, and the loads of their operands (sm_80).
//
// d (16x8) += a (16xK, rows) b (Kx8, columns). With g = lane / 4 and t = lane % 4:
//   d: [0] (g, 2t), [1] (g, 2t+1), [2] (g+8, 2t), [3] (g+8, 2t+1)
//   K = 16, two values per register, the lower half first:
//     a: [0] (g, 2t), [1] (g+8, 2t), [2] (g, 2t+8), [3] (g+8, 2t+8); b: [0] (2t, g), [1] (2t+8, g)
//   K = 8, tf32:
//     a: [0] (g, t), [1] (g+8, t), [2] (g, t+4), [3] (g+8, t+4); b: [0] (t, g), [1] (t+4, g)
// PTX ISA, "Warp-level matrix instructions". All lanes of the warp must take part.
#pragma once

#include "async.cuh"

// Loads 8x8 matrices of 16-bit values from shared memory: lane 8 i + r passes the address of row r of matrix i, 16
// bytes; r[i] receives (g, 2t) and (g, 2t+1) of matrix i, or of its transpose.
#ifdef EMULATOR
#define LDMATRIX(name, transposed)                                                              \
    DEVICE void name(unsigned (&r)[4], const void* shared_row) {                                \
        const EmulatorWords words = emulator_ldmatrix(shared_row, 4, transposed);               \
        __builtin_memcpy(r, &words, sizeof(r));                                                 \
    }
LDMATRIX(ldmatrix_x4, false)
LDMATRIX(ldmatrix_x4_transposed, true)
#undef LDMATRIX
#else
DEVICE void ldmatrix_x4(unsigned (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

DEVICE void ldmatrix_x4_transposed(unsigned (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}
#endif

#ifdef EMULATOR
DEVICE void mma(int kind, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const EmulatorWords rows{a[0], a[1], a[2], a[3]};
    const EmulatorWords sum =
        emulator_mma(kind, rows, EmulatorPair{b[0], b[1]},
                     EmulatorWords{__float_as_uint(d[0]), __float_as_uint(d[1]),
                                   __float_as_uint(d[2]), __float_as_uint(d[3])});
    __builtin_memcpy(d, &sum, sizeof(d));
}
#else
#define MMA(shape, types)                                                                       \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." types ".f32 "                        \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"              \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

// d += a b in bfloat16; the fourth argument only selects the overload.
DEVICE void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) {
#ifdef EMULATOR
    mma(EMULATOR_MMA_BF16, d, a, b);
#else
    MMA("m16n8k16", "bf16.bf16");
#endif
}

// d += a b in half precision; the fourth argument only selects the overload.
DEVICE void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) {
#ifdef EMULATOR
    mma(EMULATOR_MMA_F16, d, a, b);
#else
    MMA("m16n8k16", "f16.f16");
#endif
}

// d += a b in tf32: only the upper 19 bits of each operand are used.
DEVICE void mma_16x8x8(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef EMULATOR
    mma(EMULATOR_MMA_TF32, d, a, b);
#else
    MMA("m16n8k8", "tf32.tf32");
#endif
}

#ifndef EMULATOR
#undef MMA
#endif

// Rounds to the nearest tf32, and ties to even from sm_90 on, which has an instruction for it; otherwise away from
// zero, which takes a comparison and an addition. The addition alone would turn the NaN that arithmetic returns into
// -0.
DEVICE unsigned to_tf32(float x) {
#ifdef EMULATOR
    return emulator_to_tf32(x);
#else
    unsigned y;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#endif
    return y;
#endif
}
