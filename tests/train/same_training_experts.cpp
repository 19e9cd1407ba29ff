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

TEST_CASE("a Swin trains as on one rank whatever ranks share the experts of its stages") {
  CHECK(toy::check_expert_degrees(toy::swin_experts({2, 2, 2, 0})) > 20);
}
