// The decision on an update (updates/decision): written by decision.cu, read by the kernels that apply the update.

#pragma once

#include "element.cuh"

struct StepControl {
  double loss, norm;
  // 1 or 0.
  double applied;
  double steps;
  double scale, rate, root, decay;
  // 1 or 0.
  double overflow;
  // The loss scale of the next update, and the number of updates since it last changed.
  double loss_scale, growth_tracker;
  double correction;
};
