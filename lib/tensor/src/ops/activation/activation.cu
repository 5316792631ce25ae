// dtypes: f32 bf16 f16
// Elementwise activations and their derivatives.

#include "activation.cuh"
#include "flat.cuh"

// Calls use(f) with f(z), which returns value and derivative.
template <class Use>
DEVICE void with_activation(int activation, Use use) {
  switch (activation) {
    case GELU: return use([](float z) { return gelu(z); });
    case GELU_TANH: return use([](float z) { return gelu_tanh(z); });
    case SILU: return use([](float z) { return silu(z); });
    case TANH: return use([](float z) { return tanh_of(z); });
    case SIGMOID: return use([](float z) { return sigmoid_of(z); });
    case RELU: return use([](float z) { return relu(z); });
    case LEAKY_RELU: return use([](float z) { return leaky_relu(z); });
    default: return use([](float z) { return Activated{z, 1.0f}; });
  }
}

// out = f(x).
KERNEL(activation_forward, 256)(
    const element* __restrict__ x, element* __restrict__ out, long long n, int activation) {
  with_activation(activation, [&](auto f) {
    map_flat(out, n, 0, [=](float z) { return f(z).value; }, x);
  });
}

// dx (+)= f'(x)·dy.
KERNEL(activation_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ dy, element* __restrict__ dx,
    int add, long long n, int activation) {
  with_activation(activation, [&](auto f) {
    map_flat(dx, n, add, [=](float z, float dy) { return dy * f(z).derivative; }, x, dy);
  });
}
