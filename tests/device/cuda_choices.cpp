// Choices of experts counted and put in order by the GPU, against the host.
#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/choices.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::ChoiceOrder;

struct Scratch {
  std::vector<std::int32_t> numbers;
  std::uint32_t ticket = 0;
  explicit Scratch(std::int64_t bytes) : numbers(static_cast<std::size_t>(bytes / 4), -77) {}
  View<std::byte> view() {
    return {reinterpret_cast<std::byte*>(numbers.data()), static_cast<std::int64_t>(4 * numbers.size())};
  }
};

void check_order(std::mt19937& random, const ChoiceOrder& how, std::int64_t rows,
                 const std::vector<std::int32_t>& chosen, std::int64_t scratch_bytes = 1 << 20) {
  CAPTURE(how.experts);
  CAPTURE(how.active);
  CAPTURE(how.capacity);
  CAPTURE(static_cast<int>(how.drops));
  CAPTURE(rows);
  TestHost host(1);
  auto weights = random_tensor<float>(random, rows * how.active);
  for (float& weight : weights) weight = std::round(8 * weight) / 8;  // some are equal
  const auto count = static_cast<std::size_t>(rows * how.active);
  std::vector<std::int32_t> order(count, -9), places(count, -9), offsets(static_cast<std::size_t>(how.experts + 1), -9);
  auto expected_order = order;
  auto expected_places = places;
  auto expected_offsets = offsets;
  host->order_choices(how, rows, view(chosen), view(std::as_const(weights)), view(expected_order),
                      view(expected_places), view(expected_offsets));
  Emulator emulator(random());
  Scratch scratch(scratch_bytes);
  cuda::order_choices(emulator, scratch.view(), &scratch.ticket, how, rows, chosen.data(), weights.data(), order.data(),
                      places.data(), offsets.data());
  CHECK(offsets == expected_offsets);
  CHECK(order == expected_order);
  CHECK(places == expected_places);
  CHECK(scratch.ticket == 0);
}

/// Different experts for each row.
std::vector<std::int32_t> random_choices(std::mt19937& random, const ChoiceOrder& how, std::int64_t rows) {
  std::vector<std::int32_t> experts(static_cast<std::size_t>(how.experts)), out;
  std::iota(experts.begin(), experts.end(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t j = 0; j < how.active; ++j) {
      const std::int64_t from = j + static_cast<std::int64_t>(random() % static_cast<unsigned>(how.experts - j));
      std::swap(experts[static_cast<std::size_t>(j)], experts[static_cast<std::size_t>(from)]);
      out.push_back(experts[static_cast<std::size_t>(j)]);
    }
  }
  return out;
}

TEST_CASE("the order of choices is the host's") {
  constexpr unsigned seed = 821;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto check = [&](const ChoiceOrder& how, std::int64_t rows, std::int64_t scratch_bytes = 1 << 20) {
    check_order(random, how, rows, random_choices(random, how, rows), scratch_bytes);
  };
  check({.experts = 4, .active = 1}, 1);
  check({.experts = 8, .active = 2}, 128);  // a tile
  check({.experts = 8, .active = 2}, 129);
  check({.experts = 300, .active = 7}, 150);
  check({.experts = 1, .active = 1}, 600);
  check({.experts = 16, .active = 4}, 500, 16 * 4);      // one run
  check({.experts = 16, .active = 4}, 500, 3 * 16 * 4);  // three of several tiles each
  check_order(random, {.experts = 5, .active = 2}, 300, std::vector<std::int32_t>(600, 3));
}

TEST_CASE("experts drop the choices that the host drops") {
  constexpr unsigned seed = 822;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const DropOrder drops : {DropOrder::position, DropOrder::weight})
    for (const std::int64_t capacity : {1, 20, 64, 1000}) {
      const ChoiceOrder how{.experts = 6, .active = 3, .capacity = capacity, .drops = drops};
      check_order(random, how, 120, random_choices(random, how, 120));
      check_order(random, {.experts = 4, .active = 1, .capacity = capacity, .drops = drops}, 300,
                  std::vector<std::int32_t>(300, 2));
    }
}

TEST_CASE("random choices, with and without a capacity") {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](unsigned end) { return static_cast<std::int64_t>(random() % end); };
  for (int i = 0; i < 10; ++i) {
    const std::int64_t experts = 1 + below(70);
    const std::int64_t active = 1 + below(static_cast<unsigned>(std::min<std::int64_t>(experts, 6)));
    const std::int64_t rows = 1 + below(300);
    const ChoiceOrder how{
        .experts = experts,
        .active = active,
        .capacity = i % 2 == 0 ? 0 : 1 + below(static_cast<unsigned>(2 * rows * active / experts + 1)),
        .drops = below(2) == 0 ? DropOrder::position : DropOrder::weight};
    check_order(random, how, rows, random_choices(random, how, rows), 4 * experts * (1 + below(8)));
  }
}

TEST_CASE("choices of other experts are left out, and rows find the nodes of theirs") {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](unsigned end) { return static_cast<std::int64_t>(random() % end); };
  for (int i = 0; i < 10; ++i) {
    const std::int64_t nodes = 1 + below(4);
    const std::int64_t of_node = 1 + below(9);
    const std::int64_t active = 1 + below(static_cast<unsigned>(std::min<std::int64_t>(nodes * of_node, 5)));
    const std::int64_t rows = 1 + below(300);
    const auto chosen = random_choices(random, {.experts = nodes * of_node, .active = active}, rows);
    std::vector<std::int32_t> places(chosen.size());
    for (std::int32_t& place : places) place = random() % 5 == 0 ? -1 : 1;
    std::vector<std::int32_t> found(static_cast<std::size_t>(rows * nodes), -9), kept(chosen.size(), -9);
    Emulator emulator(random());
    cuda::choose_nodes(emulator, of_node, nodes, active, rows, chosen.data(), places.data(), found.data(), kept.data());
    auto expected = found;
    auto expected_kept = kept;
    TestHost host(1);
    host->choose_nodes(of_node, nodes, active, rows, view(chosen), view(std::as_const(places)), view(expected),
                       view(expected_kept));
    CHECK(found == expected);
    CHECK(kept == expected_kept);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t node = 0; node < nodes; ++node) {
        bool has = false;
        for (std::int64_t j = row * active; j < (row + 1) * active; ++j)
          has |= places[static_cast<std::size_t>(j)] > 0 && chosen[static_cast<std::size_t>(j)] / of_node == node;
        REQUIRE(found[static_cast<std::size_t>(row * nodes + node)] == (has ? node : -1));
      }
    check_order(random, {.experts = of_node, .active = active, .first = below(static_cast<unsigned>(nodes)) * of_node},
                rows, kept);
  }
}

TEST_CASE("no rows: offsets are zero") {
  std::mt19937 random(1);
  check_order(random, {.experts = 3, .active = 2, .capacity = 4}, 0, {});
}

TEST_CASE("choices of samples, and loads, are counted") {
  constexpr unsigned seed = 823;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const std::int64_t rows : {1, 5, 700, 901})
    for (const std::int64_t samples : {1, 3, 300}) {
      CAPTURE(rows);
      CAPTURE(samples);
      const ChoiceOrder how{.experts = 11, .active = 3};
      const auto chosen = random_choices(random, how, rows);
      std::vector<float> expected(static_cast<std::size_t>(samples * 11)), loads(11, 5.0F), expected_loads(11, 5.0F);
      std::vector<float> counts(expected.size(), NAN);
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const auto expert = static_cast<std::size_t>(chosen[i]);
        expected[i / 3 % static_cast<std::size_t>(samples) * 11 + expert] += 1;
        expected_loads[expert] += 1;
      }
      Emulator emulator(random());
      Scratch scratch(1 << 20);
      cuda::sum_choices(emulator, scratch.view(), &scratch.ticket, {rows, samples, 3, 11, chosen.data(), nullptr},
                        cuda::PutCounts{counts.data(), false});
      CHECK(counts == expected);
      cuda::add_loads(emulator, scratch.view(), &scratch.ticket, 3 * rows, 11, chosen.data(), loads.data());
      CHECK(loads == expected_loads);
    }
}

TEST_CASE("a workspace too small for the counts of one run is told") {
  Emulator emulator;
  Scratch scratch(16);
  std::vector<std::int32_t> numbers(20);
  CHECK_THROWS_WITH_AS(cuda::order_choices(emulator, scratch.view(), &scratch.ticket, {.experts = 5, .active = 1}, 4,
                                           numbers.data(), nullptr, numbers.data(), numbers.data(), numbers.data()),
                       doctest::Contains("need 20 bytes of the GPU's workspace, there are 16"), DeviceFailure);
}

}  // namespace
