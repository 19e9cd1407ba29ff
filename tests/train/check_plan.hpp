// What every plan is held to: the training of one rank, and the memory that was predicted.
#pragma once

#include <doctest/doctest.h>

#include "toy.hpp"

namespace toy {

/// The largest difference of a gradient's tensor. A ReLU passes the gradient of a unit or does not, and where its input
/// is zero but for rounding, which it does depends on the order of sums.
inline double gradient_tolerance(const ModelSpec& model) {
  for (const LayerSpec& block : model.blocks)
    if (block.activation == ActivationKind::relu) return 2e-2;
  return 1e-5;
}

/// Trains as many steps as the reference, a run on one rank, and compares.
/// @param train  (plan, model, steps) -> Outcome
template <class Train>
void check_plan(const Plan& plan, const ModelSpec& model, const Outcome& reference, const Train& train) {
  INFO(text(plan));
  const Outcome outcome = train(plan, model, static_cast<int>(reference.losses.size()));
  CHECK(difference(outcome.losses, reference.losses) < 1e-5);
  CHECK(difference(outcome.norms, reference.norms) < 1e-4);
  CHECK(difference(outcome.gradients, reference.gradients) < gradient_tolerance(model));
  CHECK(outcome.memory_as_planned);
}

/// With rank threads on the cores.
inline void check_plan(const Plan& plan, const ModelSpec& model, const Outcome& reference) {
  check_plan(plan, model, reference, run);
}

}  // namespace toy
