// What is decided of an update (updates/decision): made by decision.cu, read by the kernels that do it.

#pragma once

#include "element.cuh"

struct Decision {
  double loss, norm;
  // 1 or 0.
  double applied;
  double steps;
  double scale, rate, root, decay;
  // 1 or 0.
  double overflow;
  // For the loss of the next update, and for how many updates it has been the same.
  double loss_scale, steady;
};
