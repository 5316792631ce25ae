// dtypes: f32
// The elementwise parts of a step of Muon; its products are those of product.cu.

#include "decision.cuh"
#include "flat.cuh"

// m = m + (1 - μ)(s·g - m); u = s·g + μ(m - s·g): the momentum and its Nesterov form, n elements.
KERNEL(muon_momentum, 256)(
    const float* __restrict__ g, float* __restrict__ m, float* __restrict__ u,
    const StepControl* __restrict__ decision, float momentum, long long n) {
  if (decision->applied == 0.0) {
    return;
  }
  float scale = (float)decision->scale;
  long long i = flat_index(), end = i + WIDTH < n ? i + WIDTH : n;
  for (; i < end; i++) {
    float scaled = scale * g[i];
    float next = fmaf(1.0f - momentum, scaled - m[i], m[i]);
    m[i] = next;
    u[i] = fmaf(momentum, next - scaled, scaled);
  }
}

// u = u / max(‖u‖, ε) with the square of the norm in `square`, n elements.
KERNEL(muon_normalize, 256)(
    float* __restrict__ u, const double* __restrict__ square, float epsilon, long long n) {
  double norm = sqrt(*square);
  float factor = (float)(1.0 / (norm > epsilon ? norm : epsilon));
  map_flat(u, n, 0, [&](float x) { return factor * x; }, (const float*)u);
}

// a = α·I + β·a + γ·b, matrices with n rows and n columns.
KERNEL(muon_polynomial, 256)(
    float* __restrict__ a, const float* __restrict__ b, float alpha, float beta, float gamma, int n) {
  long long i = flat_index(), all = (long long)n * n, end = i + WIDTH < all ? i + WIDTH : all;
  // Every (n + 1)-th element is on the diagonal.
  int next = (int)(i % (n + 1));
  for (; i < end; i++) {
    a[i] = fmaf(beta, a[i], fmaf(gamma, b[i], next == 0 ? alpha : 0.0f));
    next = next == n ? 0 : next + 1;
  }
}

// p = keep·p + step·u, n elements.
KERNEL(muon_step, 256)(
    float* __restrict__ p, const float* __restrict__ u, const StepControl* __restrict__ decision,
    float keep, float step, long long n) {
  if (decision->applied != 0.0) {
    map_flat(p, n, 0, [&](float x, float y) { return fmaf(step, y, keep * x); }, (const float*)p, u);
  }
}
