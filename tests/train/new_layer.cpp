// A layer that the library does not have, from its forward pass alone: a block whose MLP is gated by a square ReLU.
#include <galvatron/model/layers.hpp>

#include <doctest/doctest.h>

#include "check_plan.hpp"
#include "toy.hpp"

using namespace galvatron;

namespace {

/// y = x2 + (relu(n W_gate)^2 * n W_up) W_down with n = norm(x2), x2 = x + attention(norm(x)).
forward::Graph square_relu_block(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = b.whole(l.hidden);
  const forward::Width f = b.split(l.ffn);
  const auto norm = [&](forward::Tensor t, int number) {
    return b.norm(t, b.vector(user_parameter(number), h, ParameterInit::one), b.vector(user_parameter(number + 1), h));
  };
  const forward::Tensor x = b.input(h);
  const forward::Tensor x2 = b.add(x, self_attention(b, l, norm(x, 0)));
  const forward::Tensor n = norm(x2, 2);
  const forward::Tensor r = b.activation(ActivationKind::relu, b.linear(n, b.weight(user_parameter(4), f, h)), f);
  const forward::Tensor up = b.linear(n, b.weight(user_parameter(5), f, h));
  const forward::Tensor g = b.multiply(b.multiply(r, r), up);
  b.output(b.add(x2, b.linear(g, b.weight(user_parameter(6), h, f))));
  return b.graph();
}

ModelSpec square_relu_model() {
  ModelSpec model = toy::model(false, 4);
  for (LayerSpec& block : model.blocks) block.forward_pass = square_relu_block;
  return model;
}

}  // namespace

TEST_CASE("a layer of the user trains under every kind of strategy as on one rank") {
  const ModelSpec model = square_relu_model();
  const toy::Outcome reference = toy::run(toy::single_rank(model), model, 4);
  CHECK(reference.losses.back() < reference.losses.front());
  for (const StrategySpec& spec :
       {StrategySpec{.tensor = 2, .data = 2}, StrategySpec{.tensor = 4, .sequence = SequenceKind::megatron},
        StrategySpec{.data = 4, .zero = 3}, StrategySpec{.sequence = SequenceKind::ring, .context = 2, .data = 2},
        StrategySpec{.tensor = 2, .data = 2, .recompute = RecomputeKind::full},
        StrategySpec{.tensor = 2, .data = 2, .recompute = RecomputeKind::none}}) {
    toy::check_plan(toy::uniform(model, 1, spec, 2, ScheduleKind::one_f_one_b), model, reference);
    if (spec.context == 1) toy::check_plan(toy::uniform(model, 2, spec, 2, ScheduleKind::zb_h1), model, reference);
  }
  CHECK(why_unfit(model.blocks[0], {.tensor = 3}, 8, 16) != "");
}
