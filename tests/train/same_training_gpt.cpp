#include "same_training.hpp"

TEST_CASE("a GPT trains on 4 ranks as on one, whatever the strategy") { toy::check_same_training(false, 4); }

TEST_CASE("a GPT trains on 8 ranks as on one, whatever the strategy") { toy::check_same_training(false, 8); }
