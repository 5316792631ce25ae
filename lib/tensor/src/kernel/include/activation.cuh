// Activations: f(z) and f'(z), the same formulas as ops/activation/cpu.rs.
#pragma once

#include "element.cuh"

// The codes that kernel/product passes to a launch.
enum Activation { IDENTITY, GELU, GELU_TANH, SILU, TANH, SIGMOID, RELU, LEAKY_RELU };

struct Activated {
    float value;
    float derivative;
};

#if ELEMENT_BYTES == 4
DEVICE float reciprocal(float x) {
    return 1.0f / x;
}

DEVICE float exponential(float x) {
    return expf(x);
}

// z Φ(z), and Φ(z) + z φ(z).
DEVICE Activated gelu(float z) {
    const float cdf = 0.5f + 0.5f * erff(z * 0.70710678118654752f);
    const float density = 0.39894228040143268f * expf(-0.5f * z * z);
    return {z * cdf, fmaf(z, density, cdf)};
}

// z/2 (1 + tanh u) with u = √(2/π) (z + 0.044715 z³).
DEVICE Activated gelu_tanh(float z) {
    const float u = 0.79788456080286536f * z * fmaf(0.044715f * z, z, 1.0f);
    const float slope = 0.79788456080286536f * fmaf(3.0f * 0.044715f * z, z, 1.0f);
    const float t = tanhf(u);
    const float cdf = fmaf(0.5f, t, 0.5f);
    // When t is 1 the square of z may be infinite, and its product with zero would be NaN.
    return {z * cdf, fmaf(0.5f * z * fmaf(-t, t, 1.0f), fminf(slope, 1e30f), cdf)};
}
#else
// 1 / x to one unit in the last place, or two, and 0 if x is above 2^126. Without the branch of a division, so that loops
// over registers have the instructions of several elements in flight. Volatile, here and below, so that the compiler does not
// compute several activations at once and then select one, for which registers do not suffice.
DEVICE float reciprocal(float x) {
#ifdef EMULATOR
    return 1.0f / x;
#else
    float y;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// 2^x, within 2 ulp; results below 2^-126 are flushed to zero.
DEVICE float power_of_two(float x) {
#ifdef EMULATOR
    return exp2f(x);
#else
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// For results of 16 bits: the relative error is 2^-22 + 2^-24 |x|.
DEVICE float exponential(float x) {
    return power_of_two(1.4426950408889634f * x);
}

// z Φ(z), and Φ(z) + z φ(z). Φ(-|z|) is φ(z) times a polynomial in 1 / (1 + 0.2316419 |z|), with an error of 7.5e-8
// (Abramowitz and Stegun 26.2.17): half as many instructions as erff, and far below a 16-bit rounding also where Φ is small.
DEVICE Activated gelu(float z) {
    const float size = __uint_as_float(__float_as_uint(z) & 0x7fffffff);
    const float t = reciprocal(fmaf(0.2316419f, size, 1.0f));
    const float density = 0.39894228040143268f * power_of_two(-0.72134752044448170f * z * z);
    float sum = fmaf(1.330274429f, t, -1.821255978f);
    sum = fmaf(sum, t, 1.781477937f);
    sum = fmaf(sum, t, -0.356563782f);
    sum = fmaf(sum, t, 0.319381530f);
    const float tail = density * t * sum;
    const float cdf = z < 0.0f ? tail : 1.0f - tail;
    return {z * cdf, fmaf(z, density, cdf)};
}

// z/2 (1 + tanh u) = z σ(2 u) with u = √(2/π) (z + 0.044715 z³).
DEVICE Activated gelu_tanh(float z) {
    const float twice = 1.5957691216057308f * z * fmaf(0.044715f * z, z, 1.0f);
    const float slope = 1.5957691216057308f * fmaf(3.0f * 0.044715f * z, z, 1.0f);
    const float cdf = reciprocal(1.0f + exponential(-twice));
    // When σ is 1 the square of z may be infinite, and its product with zero would be NaN.
    return {z * cdf, fmaf(z * cdf * (1.0f - cdf), fminf(slope, 1e30f), cdf)};
}
#endif

// tanh z, and 1 - tanh² z.
DEVICE Activated tanh_of(float z) {
    const float t = tanhf(z);
    return {t, fmaf(-t, t, 1.0f)};
}

// σ(z), and σ(z) (1 - σ(z)).
DEVICE Activated sigmoid_of(float z) {
    const float sigmoid = reciprocal(1.0f + exponential(-z));
    return {sigmoid, sigmoid * (1.0f - sigmoid)};
}

// z σ(z), and σ(z) (1 + z (1 - σ(z))).
DEVICE Activated silu(float z) {
    const float sigmoid = reciprocal(1.0f + exponential(-z));
    return {z * sigmoid, sigmoid * fmaf(z, 1.0f - sigmoid, 1.0f)};
}

// max(z, 0), and whether z is positive.
DEVICE Activated relu(float z) {
    return z <= 0.0f ? Activated{0.0f, 0.0f} : Activated{z, 1.0f};
}

// max(z, z/100), and its slope.
DEVICE Activated leaky_relu(float z) {
    return z <= 0.0f ? Activated{0.01f * z, 0.01f} : Activated{z, 1.0f};
}

// Of any activation. Those with one function of the library in common share its code: registers of the product
// in f32 are scarce.
DEVICE Activated activate(int activation, float z) {
    switch (activation) {
        case GELU: return gelu(z);
        case GELU_TANH: return gelu_tanh(z);
        case SILU:
        case SIGMOID: {
            const Activated s = sigmoid_of(z);
            const Activated linear = {z * s.value, s.value * fmaf(z, 1.0f - s.value, 1.0f)};
            return activation == SILU ? linear : s;
        }
        case TANH: return tanh_of(z);
        case RELU: return relu(z);
        case LEAKY_RELU: return leaky_relu(z);
        default: return {z, 1.0f};
    }
}

// Where z was too large for its dtype, f' would have a product of infinity and zero; it is constant beyond the bounds.
// NaN has reached the loss before.
DEVICE float bounded(float z) {
    return fminf(fmaxf(z, -1e4f), 1e4f);
}
