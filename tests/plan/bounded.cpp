// Plans of mixed clusters are found in bounded time, however many devices they have.
#include <doctest/doctest.h>

#include <cstdint>
#include <ctime>
#include <string>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/find.hpp>

#include "../sanitized.hpp"

using namespace galvatron;

TEST_CASE("no mixed cluster and no batch makes a search long") {
  struct Question {
    std::string model;
    std::string cluster;
    std::int64_t global_batch;
  };
  const Question questions[] = {
      {"olmoe-1b-7b", "5040xt4-16g+5040xt4-16g+2xa100-80g", 65},     // ranks that exchange tokens
      {"moe-tiny", "2863xv100-32g+8xa100-80g+256xl4-24g", 1441440},  // a batch of very many divisors
      {"llama2-7b", "720720xa100-40g+475592xrtx4090-24g", 5040},     // very many devices
  };
  for (const Question& q : questions) {
    if (test::sanitized && &q != questions) continue;
    INFO(q.model, " on ", q.cluster, ", batch ", q.global_batch);
    search::SearchOptions options;
    options.global_batch = q.global_batch;
    const std::clock_t begin = std::clock();
    const MixedCluster cluster = value_or_throw(mixed_preset(q.cluster));
    CHECK(find_plan(value_or_throw(find_model(q.model)), cluster, options).has_value());
    CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < (test::sanitized ? 300 : 40));
  }
}
