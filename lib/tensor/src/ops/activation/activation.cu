// elements: f32 bf16 f16
// Elementwise activations and their derivatives.

#include "flat.cuh"

// √(2/π) and the cubic coefficient of the tanh form of GELU; 1/√2; 1/√(2π).
constexpr float TANH_SCALE = 0.7978845608028654f;
constexpr float TANH_CUBIC = 0.044715f;
constexpr float ROOT_HALF = 0.7071067811865476f;
constexpr float DENSITY = 0.3989422804014327f;

DEVICE float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

KERNEL(activation_identity, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float x) { return x; });
}

KERNEL(activation_gelu, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float x) { return 0.5f * x * (1.0f + erff(x * ROOT_HALF)); });
}

KERNEL(activation_gelu_tanh, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float x) {
    return 0.5f * x * (1.0f + tanhf(TANH_SCALE * x * fmaf(TANH_CUBIC * x, x, 1.0f)));
  });
}

KERNEL(activation_silu, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float x) { return x * sigmoid(x); });
}

// dx (+)= f'(x)·dy for each of them.

KERNEL(activation_gelu_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n) {
  map_flat(x, dy, dx, n, add, [](float x, float dy) {
    float cdf = 0.5f + 0.5f * erff(x * ROOT_HALF);
    return dy * fmaf(x, DENSITY * expf(-0.5f * x * x), cdf);
  });
}

KERNEL(activation_gelu_tanh_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n) {
  map_flat(x, dy, dx, n, add, [](float x, float dy) {
    float t = tanhf(TANH_SCALE * x * fmaf(TANH_CUBIC * x, x, 1.0f));
    float inner = TANH_SCALE * fmaf(3.0f * TANH_CUBIC * x, x, 1.0f);
    // Where t is 1 the square of x may be infinite; its product with zero must not be.
    float slope = (1.0f - t * t) * fminf(inner, 1e30f);
    return dy * (0.5f * (1.0f + t) + 0.5f * x * slope);
  });
}

KERNEL(activation_silu_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n) {
  map_flat(x, dy, dx, n, add, [](float x, float dy) {
    float s = sigmoid(x);
    return dy * s * fmaf(x, 1.0f - s, 1.0f);
  });
}
