#include "same_training.hpp"

TEST_CASE("a llama trains on 4 ranks as on one, whatever the strategy") { toy::check_same_training(true, 4); }

TEST_CASE("a llama trains on 8 ranks as on one, whatever the strategy") { toy::check_same_training(true, 8); }
