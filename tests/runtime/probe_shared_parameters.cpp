// Probe: one parameter group is used by two nodes of a graph that are on overlapping sets of ranks.
#include <doctest/doctest.h>

#include "probe_rank.hpp"

using namespace galvatron;
using test::HostExecutor;
using test::HostGroups;
using test::ProbeRank;

TEST_CASE("a parameter group of two nodes on ranks {0, 1} and {1, 2} has the gradients of both") {
  // Node a has rows 0 and 1 on rank 0 and row 2 on rank 1; node b rows 3 and 4 on rank 1 and row 5 on rank 2.
  struct Part {
    int rank;
    std::int64_t first, rows;
  };
  constexpr Part parts[] = {{0, 0, 2}, {1, 2, 1}, {1, 3, 2}, {2, 5, 1}};
  const std::vector<float> whole = test::linear_gradients(6);
  for (const int zero : {0, 1})
    comm::thread::run(3, [&](comm::thread::World& world) {
      ProbeRank rank(world);
      const int self[] = {world.rank()};
      const int all[] = {0, 1, 2};  // the union of both nodes' ranks keeps the parameters
      auto context = rank.context({.data = 3, .zero = zero}, self, all, 2);
      HostGroups groups(context, test::linear_layer(), 1, nullptr, nullptr, rank.states);
      groups.rest().initialise(runtime::initial_values(5));
      groups.rest().zero_gradients();
      const auto program = program::lower(forward_of(test::linear_layer()), context.spec);
      for (const Part& part : parts) {
        if (part.rank != world.rank()) continue;
        HostExecutor node(context, program, groups, 2);
        program::Numbers numbers = node.numbers();
        numbers.set_rows(part.rows);
        node.bind(numbers);
        test::run_linear(rank, node, part.first, part.rows);
      }
      groups.rest().synchronise();
      std::vector<float> found = test::gradients_of(groups, zero > 0 ? &world.everybody() : nullptr);
      found.resize(whole.size());  // without the padding of three shards
      CHECK(test::is_near(found, whole));
    });
}
