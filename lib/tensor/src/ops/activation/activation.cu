// elements: f32 bf16 f16
// Elementwise activations and their derivatives.

#include "activation.cuh"
#include "flat.cuh"

KERNEL(activation_identity, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float x) { return x; });
}

KERNEL(activation_gelu, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float z) { return gelu(z).value; });
}

KERNEL(activation_gelu_tanh, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float z) { return gelu_tanh(z).value; });
}

KERNEL(activation_silu, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n) {
  map_flat(x, out, n, 0, [](float z) { return silu(z).value; });
}

// dx (+)= f'(x)·dy for each of them.

KERNEL(activation_gelu_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n) {
  map_flat(x, dy, dx, n, add, [](float z, float dy) { return dy * gelu(z).derivative; });
}

KERNEL(activation_gelu_tanh_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n) {
  map_flat(x, dy, dx, n, add, [](float z, float dy) { return dy * gelu_tanh(z).derivative; });
}

KERNEL(activation_silu_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n) {
  map_flat(x, dy, dx, n, add, [](float z, float dy) { return dy * silu(z).derivative; });
}
