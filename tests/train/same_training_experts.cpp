#include <cmath>

#include "same_training.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;

TEST_CASE("a model with experts trains on 4 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::experts(4), 4);
}

TEST_CASE("a model with experts trains on 8 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::experts(8), 8);
}

TEST_CASE("a model trains as on one rank whatever ranks share its experts") {
  CHECK(toy::check_expert_degrees(toy::experts(8)) > 40);
}

TEST_CASE("noise in what experts get is the same in every plan") {
  const ModelSpec model = toy::jittered_experts(4);
  toy::check_same_training(model, 4);
  CHECK(toy::check_expert_degrees(toy::jittered_experts(8), 5) > 40);
  // It is there, and another one in every step and every layer: with steps that change nothing, losses differ.
  ModelSpec plain = model;
  for (LayerSpec& block : plain.blocks) block.router.jitter = 0;
  const toy::Outcome noisy = toy::run(toy::single_rank(model), model, 3);
  const toy::Outcome exact = toy::run(toy::single_rank(plain), plain, 3);
  CHECK(std::abs(noisy.losses[0] - exact.losses[0]) > 1e-5);
  CHECK(toy::difference(noisy.losses, exact.losses) > 1e-5);
}

TEST_CASE("a Swin trains as on one rank whatever ranks share the experts of its stages") {
  CHECK(toy::check_expert_degrees(toy::swin_experts({2, 2, 2, 0})) > 20);
}
