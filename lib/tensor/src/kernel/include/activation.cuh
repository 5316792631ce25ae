// Activations: f(z) and f'(z), the same formulas as ops/activation/cpu.rs.
#pragma once

#include "element.cuh"

// The codes that kernel/product passes to a launch.
enum Activation { IDENTITY, GELU, GELU_TANH, SILU, TANH, SIGMOID, RELU, LEAKY_RELU };

struct Activated {
    float value;
    float derivative;
};

// z Φ(z), and Φ(z) + z φ(z).
DEVICE Activated gelu(float z) {
    const float cdf = 0.5f + 0.5f * erff(z * 0.70710678118654752f);
    const float density = 0.39894228040143268f * expf(-0.5f * z * z);
    return {z * cdf, fmaf(z, density, cdf)};
}

// 1 / x to one unit in the last place, or two. Without the branch of a division, so that loops over registers have the
// instructions of several elements in flight.
DEVICE float reciprocal(float x) {
#ifdef EMULATOR
    return 1.0f / x;
#else
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// z/2 (1 + tanh u) = z σ(2 u) with u = √(2/π) (z + 0.044715 z³).
DEVICE Activated gelu_tanh(float z) {
    const float twice = 1.5957691216057308f * z * fmaf(0.044715f * z, z, 1.0f);
    const float slope = 1.5957691216057308f * fmaf(3.0f * 0.044715f * z, z, 1.0f);
    const float cdf = reciprocal(1.0f + expf(-twice));
    // When σ is 1 the square of z may be infinite, and its product with zero would be NaN.
    return {z * cdf, fmaf(z * cdf * (1.0f - cdf), fminf(slope, 1e30f), cdf)};
}

// tanh z, and 1 - tanh² z.
DEVICE Activated tanh_of(float z) {
    const float t = tanhf(z);
    return {t, fmaf(-t, t, 1.0f)};
}

// σ(z), and σ(z) (1 - σ(z)).
DEVICE Activated sigmoid_of(float z) {
    const float sigmoid = reciprocal(1.0f + expf(-z));
    return {sigmoid, sigmoid * (1.0f - sigmoid)};
}

// z σ(z), and σ(z) (1 + z (1 - σ(z))).
DEVICE Activated silu(float z) {
    const float sigmoid = reciprocal(1.0f + expf(-z));
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
