// What every plan is held to: the training of one rank, and the memory that was predicted.
#pragma once

#include <doctest/doctest.h>

#include "toy.hpp"

namespace toy {

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
