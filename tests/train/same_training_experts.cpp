#include "same_training.hpp"
#include "toy_mixed.hpp"

TEST_CASE("a model with experts trains on 4 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::experts(4), 4);
}

TEST_CASE("a model with experts trains on 8 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::experts(8), 8);
}
