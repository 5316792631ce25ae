// CUDA's math functions, and conversions of 16-bit floats and tf32.
//
// Functions of the C library are declared here, because kernels include no host headers.
#pragma once

extern "C" {
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float expm1f(float);
float powf(float, float);
float sqrtf(float);
double sqrt(double);
double pow(double, double);
float tanhf(float);
float erff(float);
float fmaf(float, float, float);
float fmaxf(float, float);
float fminf(float, float);
}

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

// Sources are compiled without contraction, so every operation is rounded anyway.
static inline float __fmul_rn(float x, float y) {
    return x * y;
}

static inline float __fadd_rn(float x, float y) {
    return x + y;
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}

static inline bool isnan(float x) {
    return __builtin_isnan(x);
}

#define MIN_MAX(T)                        \
    static inline T min(T a, T b) {       \
        return b < a ? b : a;             \
    }                                     \
    static inline T max(T a, T b) {       \
        return a < b ? b : a;             \
    }
MIN_MAX(int)
MIN_MAX(unsigned)
MIN_MAX(long long)
MIN_MAX(unsigned long long)
#undef MIN_MAX

static inline float min(float a, float b) {
    return fminf(a, b);
}

static inline float max(float a, float b) {
    return fmaxf(a, b);
}

// ---- 16-bit floats and tf32

static inline unsigned short emulator_to_bfloat(float x) {
    const unsigned bits = __float_as_uint(x);
    if (isnan(x)) {
        return 0x7fff;
    }
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline unsigned short emulator_to_half(float x) {
    const unsigned bits = __float_as_uint(x);
    const unsigned sign = bits >> 16 & 0x8000;
    const unsigned size = bits & 0x7fffffff;
    unsigned half;
    if (size > 0x7f800000) {
        return 0x7fff;
    } else if (size >= 0x477ff000) {
        half = 0x7c00;  // 65520 and above
    } else if (size >= 0x38800000) {
        const unsigned shifted = size - 0x38000000;
        half = (shifted + 0xfff + (shifted >> 13 & 1)) >> 13;
    } else {
        // Below 2^-14: the last bit of the sum has the value 2^-24, so the addition rounds to that bit.
        half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000;
    }
    return static_cast<unsigned short>(sign | half);
}

static inline float emulator_from_half(unsigned short half) {
    const unsigned sign = static_cast<unsigned>(half & 0x8000) << 16;
    const unsigned size = half & 0x7fff;
    if (size >= 0x7c00) {
        return __uint_as_float(sign | 0x7f800000 | (size & 0x3ff) << 13);
    }
    // 2^112 corrects the exponent, also for subnormal numbers.
    const float value = __uint_as_float(size << 13) * 5192296858534827628530496329220096.0f;
    return __uint_as_float(sign | __float_as_uint(value));
}

static inline unsigned emulator_to_tf32(float x) {
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0x7fffffff;
    }
    return (bits & 0x7fffffff) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000;
}
