// Probe: ranks that share a layer's parameters have other numbers of rows, down to none.
#include <doctest/doctest.h>

#include "probe_rank.hpp"

using namespace galvatron;
using test::HostExecutor;
using test::HostGroups;
using test::ProbeRank;

TEST_CASE("two linear layers over shards of 0, 1 and 3 rows have the gradients of 4 rows on one rank") {
  const std::vector<float> whole = test::linear_gradients(4);
  constexpr std::int64_t ratios[] = {0, 1, 3};
  const Sharding sharding = Sharding::by_ratios<std::int64_t>(4, ratios);
  for (const int zero : {0, 2}) {
    comm::thread::run(3, [&](comm::thread::World& world) {
      ProbeRank rank(world);
      const int self[] = {world.rank()};
      const int all[] = {0, 1, 2};
      auto context = rank.context({.data = 3, .zero = zero}, self, all, 3);  // room for 3 rows
      HostGroups groups(context, test::linear_layer(), 1, nullptr, nullptr, rank.states);
      groups.rest().initialise(runtime::initial_values(5));
      groups.rest().zero_gradients();
      const auto program = program::lower(forward_of(test::linear_layer()), {.data = 3, .zero = zero});
      HostExecutor executor(context, program, groups, 3);
      const Sharding::Range own = sharding.range(world.rank());
      program::Numbers numbers = executor.numbers();
      numbers.set_rows(own.count());
      executor.bind(numbers);
      test::run_linear(rank, executor, own.begin, own.count());
      groups.rest().synchronise();
      std::vector<float> found = test::gradients_of(groups, zero > 0 ? &world.everybody() : nullptr);
      found.resize(whole.size());  // without the padding of three shards
      CHECK(test::is_near(found, whole));
    });
  }
}
