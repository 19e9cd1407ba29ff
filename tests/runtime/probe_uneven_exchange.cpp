// Probe: an all-to-all of rows whose counts are known at run time only. What exceeds the room for it is exchanged and
// computed in more rounds, of which the group agrees on the number; no rank's buffers grow.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "probe_rank.hpp"

using namespace galvatron;
using test::HostExecutor;
using test::HostGroups;
using test::probe_width;
using test::ProbeRank;

namespace {

constexpr int ranks = 3;
constexpr std::int64_t capacity = 2;  ///< rows of a block in one round

/// The rank to which row `row` of a rank goes.
int target_of(int rank, std::int64_t row, bool all_to_first) {
  return all_to_first ? 0 : static_cast<int>((rank + row * row) % ranks);
}

/// Sends the rows of this rank to their targets, computes there, and brings the results back; returns them and counts
/// the rounds.
std::vector<float> exchange(ProbeRank& rank, HostExecutor& executor, const std::vector<float>& x, bool all_to_first,
                            int& rounds) {
  comm::Group& group = rank.world.everybody();
  const auto rows = static_cast<std::int64_t>(x.size()) / probe_width;
  std::array<std::vector<std::int64_t>, ranks> to;
  for (std::int64_t row = 0; row < rows; ++row)
    to[static_cast<std::size_t>(target_of(rank.world.rank(), row, all_to_first))].push_back(row);
  std::array<std::int32_t, ranks> sent{};
  std::array<std::int32_t, ranks> got{};
  for (std::size_t i = 0; i < ranks; ++i) sent[i] = static_cast<std::int32_t>(to[i].size());
  group.all_to_all(View<const std::int32_t>(sent.data(), ranks), View<std::int32_t>(got.data(), ranks));
  std::array<float, 1> most{static_cast<float>(*std::max_element(sent.begin(), sent.end()))};
  group.all_reduce(View<float>(most.data(), 1), comm::ReduceOp::max);
  rounds = static_cast<int>(divide_up(static_cast<std::int64_t>(most[0]), capacity));

  const std::int64_t block = capacity * probe_width;
  const View<float> out = rank.memory.take<float>(ranks * block);
  const View<float> in = rank.memory.take<float>(ranks * block);
  const View<float> y = rank.memory.take<float>(ranks * block);
  const auto slot = executor.take_slot(rank.memory);
  std::vector<float> results(x.size());
  for (int round = 0; round < rounds; ++round) {
    const auto in_round = [&](std::int64_t count) {
      return std::clamp<std::int64_t>(count - round * capacity, 0, capacity);
    };
    const auto each = [&](const auto& f) {  // f(row, place in the blocks)
      for (std::size_t i = 0; i < ranks; ++i)
        for (std::int64_t k = 0; k < in_round(sent[i]); ++k)
          f(to[i][static_cast<std::size_t>(round * capacity + k)] * probe_width,
            static_cast<std::int64_t>(i) * block + k * probe_width);
    };
    each([&](std::int64_t row, std::int64_t place) { std::copy_n(x.begin() + row, probe_width, out.begin() + place); });
    group.all_to_all(View<const float>(out), in);
    // Received rows without gaps: as many as there are, down to none.
    std::int64_t received = 0;
    for (std::size_t i = 0; i < ranks; ++i)
      for (std::int64_t k = 0; k < in_round(got[i]); ++k, ++received)
        std::copy_n(in.begin() + static_cast<std::int64_t>(i) * block + k * probe_width, probe_width,
                    executor.input(slot).begin() + received * probe_width);
    program::Numbers numbers = executor.numbers();
    numbers.set(program::Letter::rows, received);
    executor.bind(numbers);
    executor.run(program::Phase::forward, slot, nullptr, y);
    received = 0;
    for (std::size_t i = 0; i < ranks; ++i)
      for (std::int64_t k = 0; k < in_round(got[i]); ++k, ++received)
        std::copy_n(y.begin() + received * probe_width, probe_width,
                    out.begin() + static_cast<std::int64_t>(i) * block + k * probe_width);
    group.all_to_all(View<const float>(out), in);
    each([&](std::int64_t row, std::int64_t place) {
      std::copy_n(in.begin() + place, probe_width, results.begin() + row);
    });
  }
  return results;
}

}  // namespace

TEST_CASE("rows go to the ranks that their data name and come back computed, within the room and beyond it") {
  for (const bool all_to_first : {false, true})
    comm::thread::run(ranks, [&](comm::thread::World& world) {
      ProbeRank rank(world);
      const int self[] = {world.rank()};
      auto context = rank.context({}, self, self, ranks * capacity);
      HostGroups groups(context, test::linear_layer(), 1, nullptr, nullptr, rank.states);
      groups.rest().initialise(runtime::initial_values(5));
      const auto program = program::lower(forward_of(test::linear_layer()), {});
      HostExecutor executor(context, program, groups, ranks * capacity);
      const std::int64_t rows = 3 + world.rank();
      const std::vector<float> x = test::rows_of(10 * world.rank(), rows, 0);
      int rounds = 0;
      const std::vector<float> found = exchange(rank, executor, x, all_to_first, rounds);
      CHECK(rounds == (all_to_first ? 3 : 2));
      program::Numbers numbers = executor.numbers();
      numbers.set(program::Letter::rows, rows);
      executor.bind(numbers);
      const auto slot = executor.take_slot(rank.memory);
      std::copy(x.begin(), x.end(), executor.input(slot).begin());
      const View<float> y = rank.memory.take<float>(rows * probe_width);
      executor.run(program::Phase::forward, slot, nullptr, y);
      CHECK(test::is_near(found, {y.begin(), y.end()}));
    });
}
