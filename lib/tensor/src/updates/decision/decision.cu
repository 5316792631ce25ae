// dtypes: f32
// Decides whether and how an update is applied, without involving the host.

#include "decision.cuh"
#include "table.cuh"
#include "total.cuh"

DEVICE bool is_finite(double x) { return x - x == 0.0; }

// Like powi on the host: repeated squaring from the lowest bit.
DEVICE double power(double x, long long n) {
  double result = 1.0;
  for (; n > 0; n /= 2) {
    result = n % 2 == 1 ? result * x : result;
    x *= x;
  }
  return result;
}

// Entries of the table: losses, then as many weights. `sums` holds partial sums of the squared gradient norm. The loss
// scale is adjusted to the gradients unless `patience`, the number of updates after which it is doubled, is 0;
// gradients are computed with the loss scale times `unit`. One block.
KERNEL(decision_make, 256)(
    const unsigned long long* __restrict__ table, int losses, const double* __restrict__ sums, int n,
    const StepControl* __restrict__ before, StepControl* __restrict__ decision,
    float* __restrict__ next_loss_scale, double learning_rate, double clip, double beta1, double beta2,
    double decay, int warmup, double unit, unsigned long long patience) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double squares = block_total_of(n, scratch, [&](int i) { return sums[i]; });
  if (threadIdx.x > 0) {
    return;
  }
  double loss = 0.0, weight = 0.0;
  for (int i = 0; i < losses; i++) {
    loss += *reinterpret_cast<const float*>(table[3 * i]);
    weight += *reinterpret_cast<const float*>(table[3 * (losses + i)]);
  }
  loss /= weight;
  double loss_scale = before->loss_scale, growth_tracker = before->growth_tracker;
  double divisor = weight * loss_scale * unit;
  double norm = sqrt(squares) / divisor;
  bool applied = is_finite(loss) && is_finite(norm);
  bool overflow = patience > 0 && !applied && is_finite(loss) && loss_scale > 1.0;
  if (overflow) {
    loss_scale = loss_scale * 0.5 > 1.0 ? loss_scale * 0.5 : 1.0;
    growth_tracker = 0.0;
  } else if (patience > 0) {
    bool doubled = growth_tracker + 1.0 == (double)patience;
    loss_scale = doubled ? loss_scale * 2.0 : loss_scale;
    growth_tracker = doubled ? 0.0 : growth_tracker + 1.0;
  }
  double steps = before->steps + applied;
  double most = clip / (norm + 1e-6), warm = (1.0 + steps) / (10.0 + steps);
  StepControl made;
  made.loss = loss;
  made.norm = norm;
  made.applied = applied;
  made.steps = steps;
  made.scale = (most < 1.0 ? most : 1.0) * (1.0 / divisor);
  made.rate = learning_rate / (1.0 - power(beta1, (long long)steps));
  made.root = 1.0 / sqrt(1.0 - power(beta2, (long long)steps));
  made.decay = warmup && warm < decay ? warm : decay;
  made.overflow = overflow;
  made.loss_scale = loss_scale;
  made.growth_tracker = growth_tracker;
  made.correction = 1.0 / (1.0 - power(beta1, (long long)steps));
  *decision = made;
  *next_loss_scale = (float)(loss_scale * unit);
}
