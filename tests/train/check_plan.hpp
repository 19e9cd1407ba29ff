// What every plan is held to: the training of one rank, and the memory that was predicted.
#pragma once

#include <cstddef>

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

/// Norms of gradients agree where those of the first step do but for rounding. Adam divides a gradient by its own size:
/// what rounding makes of a gradient that is zero becomes a whole update, so those of later steps are held to less, and
/// the losses, which such parameters hardly change, are held to more.
inline void check_norms(const Outcome& outcome, const Outcome& reference) {
  REQUIRE(outcome.norms.size() == reference.norms.size());
  CHECK(difference({outcome.norms.front()}, {reference.norms.front()}) < 1e-5);
  CHECK(difference(outcome.norms, reference.norms) < 1e-3);
}

/// What every run is held to: the losses, norms and gradients of the reference, and the memory that was predicted.
inline void check_outcome(const Outcome& outcome, const Outcome& reference, double gradients = 1e-5) {
  CHECK(difference(outcome.losses, reference.losses) < 1e-5);
  check_norms(outcome, reference);
  CHECK(difference(outcome.gradients, reference.gradients) < gradients);
  CHECK(outcome.copies_agree);
  CHECK(outcome.memory_as_planned);
}

/// Trains as many steps as the reference, a run on one rank, and compares.
/// @param train  (plan, model, options) -> Outcome
template <class Train>
void check_plan(const Plan& plan, const ModelSpec& model, const Outcome& reference, const Train& train) {
  INFO(text(plan));
  const RunOptions options{.steps = static_cast<int>(reference.losses.size())};
  check_outcome(train(plan, model, options), reference, gradient_tolerance(model));
}

/// With rank threads on the cores.
inline void check_plan(const Plan& plan, const ModelSpec& model, const Outcome& reference) {
  check_plan(plan, model, reference,
             [](const Plan& p, const ModelSpec& m, const RunOptions& options) { return run(p, m, options); });
}

/// The same plan twice gives the same bits.
/// @param train  (plan, model, options) -> Outcome
template <class Train>
void check_same_bits(const Plan& plan, const ModelSpec& model, int steps, const Train& train) {
  INFO(text(plan));
  const Outcome first = train(plan, model, RunOptions{.steps = steps});
  const Outcome second = train(plan, model, RunOptions{.steps = steps});
  CHECK(first.losses.size() == static_cast<std::size_t>(steps));
  CHECK(!first.parameters.empty());
  CHECK(differences(first, second) == "");
}
inline void check_same_bits(const Plan& plan, const ModelSpec& model, int steps) {
  check_same_bits(plan, model, steps,
                  [](const Plan& p, const ModelSpec& m, const RunOptions& options) { return run(p, m, options); });
}

}  // namespace toy
