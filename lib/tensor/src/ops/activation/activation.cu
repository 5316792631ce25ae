// elements: f32 bf16 f16
// Elementwise activations and their derivatives.

#include "activation.cuh"
#include "flat.cuh"

// out = f(x).
KERNEL(activation_forward, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n, int activation) {
  switch (activation) {
    case GELU: return map_flat(x, out, n, 0, [](float z) { return gelu(z).value; });
    case GELU_TANH: return map_flat(x, out, n, 0, [](float z) { return gelu_tanh(z).value; });
    case SILU: return map_flat(x, out, n, 0, [](float z) { return silu(z).value; });
    case TANH: return map_flat(x, out, n, 0, [](float z) { return tanh_of(z).value; });
    case SIGMOID: return map_flat(x, out, n, 0, [](float z) { return sigmoid_of(z).value; });
    default: return map_flat(x, out, n, 0, [](float z) { return z; });
  }
}

// dx (+)= f'(x)·dy.
KERNEL(activation_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n, int activation) {
  switch (activation) {
    case GELU:
      return map_flat(x, dy, dx, n, add, [](float z, float dy) { return dy * gelu(z).derivative; });
    case GELU_TANH:
      return map_flat(
          x, dy, dx, n, add, [](float z, float dy) { return dy * gelu_tanh(z).derivative; });
    case SILU:
      return map_flat(x, dy, dx, n, add, [](float z, float dy) { return dy * silu(z).derivative; });
    case TANH:
      return map_flat(x, dy, dx, n, add, [](float z, float dy) { return dy * tanh_of(z).derivative; });
    case SIGMOID:
      return map_flat(
          x, dy, dx, n, add, [](float z, float dy) { return dy * sigmoid_of(z).derivative; });
    default: return map_flat(dy, dx, n, add, [](float dy) { return dy; });
  }
}
