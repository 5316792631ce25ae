// The type `element`, its conversions, and 16-byte loads and stores.
//
// A source is compiled once per dtype, with one of -DELEMENT_F32=1, -DELEMENT_BF16=1, -DELEMENT_F16=1. Arithmetic is in
// float: values are converted when they are read and written. With -DEMULATOR the same names are plain C++
// (kernel/emu/emulator.h).
#pragma once

#ifdef EMULATOR
#include "emulator.h"
#define DEVICE inline __attribute__((always_inline, unused))
// build.rs looks for this attribute in the preprocessed source.
#define KERNEL(...) [[emulator::kernel(__VA_ARGS__)]] static void KERNEL_NAME(__VA_ARGS__, )
#define KERNEL_NAME(name, ...) name
#define SHARED(type, name, extent)                                                      \
    static char name##_key;                                                             \
    using name##_array = type extent;                                                   \
    name##_array& name = *static_cast<name##_array*>(                                   \
        emulator_shared(&name##_key, #name, sizeof(name##_array), alignof(name##_array)))
#define DYNAMIC_SHARED(name) unsigned char* const name = emulator_dynamic_shared()
#else
#define DEVICE __device__ __forceinline__
// KERNEL(name) or KERNEL(name, max threads per block[, min blocks per multiprocessor]); without a maximum it is 256, which
// only the emulator enforces.
#define KERNEL(...) KERNEL_PICK(__VA_ARGS__, KERNEL_3, KERNEL_2, KERNEL_1, )(__VA_ARGS__)
#define KERNEL_PICK(a, b, c, pick, ...) pick
#define KERNEL_1(name) extern "C" __global__ void name
#define KERNEL_2(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
#define KERNEL_3(name, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name
// A shared array: SHARED(float, tile, [16][33]); SHARED(int, count, ) is one value.
#define SHARED(type, name, extent) __shared__ __align__(16) type name extent
// Dynamic shared memory, whose size the launch sets, aligned to 16 bytes.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

// bfloat16: the upper half of a float.
struct bf16 {
    unsigned short bits;
};

// IEEE half precision.
struct f16 {
    unsigned short bits;
};

#if defined(ELEMENT_F32)
using element = float;
#define ELEMENT_BYTES 4
#elif defined(ELEMENT_BF16)
using element = bf16;
#define ELEMENT_BYTES 2
#elif defined(ELEMENT_F16)
using element = f16;
#define ELEMENT_BYTES 2
#else
#error "define ELEMENT_F32, ELEMENT_BF16 or ELEMENT_F16"
#endif

// Elements per 16 bytes.
constexpr int WIDTH = 16 / ELEMENT_BYTES;

DEVICE float to_float(float x) {
    return x;
}

DEVICE float to_float(bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

DEVICE float to_float(f16 x) {
#ifdef EMULATOR
    return emulator_from_half(x.bits);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}

// Rounds to nearest, ties to even; NaN becomes the canonical NaN of the GPU.
template <class T>
DEVICE T from_float(float x);

template <>
DEVICE float from_float<float>(float x) {
    return x;
}

template <>
DEVICE bf16 from_float<bf16>(float x) {
    bf16 y;
#ifdef EMULATOR
    y.bits = emulator_to_bfloat(x);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}

template <>
DEVICE f16 from_float<f16>(float x) {
    f16 y;
#ifdef EMULATOR
    y.bits = emulator_to_half(x);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}

// Two 16-bit values in a word, the first in the lower half: an operand of mma_16x8x16.
template <class T>
DEVICE unsigned pack(float low, float high);

template <>
DEVICE unsigned pack<bf16>(float low, float high) {
#ifdef EMULATOR
    return emulator_to_bfloat(low) | static_cast<unsigned>(emulator_to_bfloat(high)) << 16;
#else
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#endif
}

template <>
DEVICE unsigned pack<f16>(float low, float high) {
#ifdef EMULATOR
    return emulator_to_half(low) | static_cast<unsigned>(emulator_to_half(high)) << 16;
#else
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#endif
}

// N values that are loaded and stored at once; the address must be a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
    static_assert(sizeof(T) * N <= 16, "a lane moves at most 16 bytes at once");
    T at[N];
};

template <int N, class T>
DEVICE Vector<T, N> load_vector(const T* from) {
#ifdef EMULATOR
    Vector<T, N> value;
    const EmulatorWords words = emulator_load(from, sizeof(value));
    __builtin_memcpy(&value, &words, sizeof(value));
    return value;
#else
    return *reinterpret_cast<const Vector<T, N>*>(from);
#endif
}

template <class T, int N>
DEVICE void store_vector(T* to, Vector<T, N> value) {
#ifdef EMULATOR
    EmulatorWords words{};
    __builtin_memcpy(&words, &value, sizeof(value));
    emulator_store(to, words, sizeof(value));
#else
    *reinterpret_cast<Vector<T, N>*>(to) = value;
#endif
}

// *to = value, or *to + value with one rounding: how an input gradient is written.
template <class T>
DEVICE void put(T* to, float value, int add) {
    *to = from_float<T>(add ? to_float(*to) + value : value);
}
