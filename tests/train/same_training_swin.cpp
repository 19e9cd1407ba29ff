#include "same_training.hpp"
#include "toy_mixed.hpp"

TEST_CASE("a Swin trains on 4 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::swin({2, 2, 0, 0}), 4);
}

TEST_CASE("a Swin trains on 8 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::swin({2, 2, 0, 0}), 8);
}

TEST_CASE("a Swin with experts trains on 4 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::swin_experts({2, 2, 0, 0}), 4);
}
