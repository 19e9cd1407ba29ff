#include "same_training.hpp"
#include "toy_mixed.hpp"

TEST_CASE("a model with norms of queries and keys, and with latent attention, trains on 4 ranks as on one") {
  toy::check_same_training(toy::attention_kinds(4), 4);
}

TEST_CASE("a model with Gemma's and Phi's blocks trains on 4 ranks as on one") {
  toy::check_same_training(toy::decoder_kinds(4), 4);
}

TEST_CASE("a model with norms of queries and keys, and with latent attention, trains on 8 ranks as on one") {
  toy::check_same_training(toy::attention_kinds(4), 8);
}
