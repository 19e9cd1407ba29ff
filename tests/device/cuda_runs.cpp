// Runs copied and added by kernels, in the emulator, against their definition.
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/pointwise.hpp>

#include "few_blocks.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::Runs;

template <class F>
void for_each_element(const Runs& runs, const F& f) {
  const auto place = [](const Runs::Distances& d, std::int64_t block, std::int64_t repeat, std::int64_t row) {
    return block * d.block + repeat * d.repeat + row * d.row;
  };
  for (std::int64_t block = 0; block < runs.blocks; ++block)
    for (std::int64_t repeat = 0; repeat < runs.repeats; ++repeat)
      for (std::int64_t row = 0; row < runs.rows; ++row)
        for (std::int64_t i = 0; i < runs.width; ++i)
          f(place(runs.from, block, repeat, row) + i, place(runs.to, block, repeat, row) + i);
}

template <class A, class C>
void check_types(Emulator& emulator, std::mt19937& random, const Runs& runs, std::int64_t most_blocks,
                 std::int64_t offset) {
  FewBlocks few(emulator, most_blocks);
  std::int64_t from_end = 0;
  std::int64_t to_end = 0;
  for_each_element(runs, [&](std::int64_t source, std::int64_t target) {
    from_end = std::max(from_end, source + 1);
    to_end = std::max(to_end, target + 1);
  });
  const auto from = random_tensor<A>(random, offset + from_end);
  const auto before = random_tensor<C>(random, offset + to_end + 3);
  auto copied = before;
  auto added = before;
  auto expected_copy = before;
  auto expected_sum = before;
  for_each_element(runs, [&](std::int64_t i, std::int64_t j) {
    const auto source = static_cast<float>(from[static_cast<std::size_t>(offset + i)]);
    const auto target = static_cast<std::size_t>(offset + j);
    expected_copy[target] = C(source);
    expected_sum[target] = C(static_cast<float>(expected_sum[target]) + source);
  });
  cuda::move_runs<false>(few, runs, from.data() + offset, copied.data() + offset);
  cuda::move_runs<true>(few, runs, from.data() + offset, added.data() + offset);
  CHECK(same_bits(copied, expected_copy));
  CHECK(same_bits(added, expected_sum));
}

void check(Emulator& emulator, std::mt19937& random, const Runs& runs) {
  CAPTURE(runs.blocks);
  CAPTURE(runs.repeats);
  CAPTURE(runs.rows);
  CAPTURE(runs.width);
  for (const std::int64_t most_blocks : {1, 3, 1000})
    for (const std::int64_t offset : {0, 1, 8}) {
      CAPTURE(most_blocks);
      CAPTURE(offset);
      check_types<float, float>(emulator, random, runs, most_blocks, offset);
      check_types<bfloat16, bfloat16>(emulator, random, runs, most_blocks, offset);
      check_types<bfloat16, float>(emulator, random, runs, most_blocks, offset);
      check_types<float, bfloat16>(emulator, random, runs, most_blocks, offset);
    }
}

}  // namespace

TEST_CASE("runs on a GPU are copied and added from and to anywhere") {
  constexpr unsigned seed = 463;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  // Columns of tokens to parts for ranks, two copies of each, and back with the copies added up.
  check(emulator, random,
        {.blocks = 3,
         .repeats = 2,
         .rows = 9,
         .width = 32,
         .from = {.block = 32, .repeat = 0, .row = 3 * 32 + 16},
         .to = {.block = 2 * 9 * 32, .repeat = 9 * 32, .row = 32}});
  check(emulator, random,
        {.blocks = 3,
         .repeats = 2,
         .rows = 9,
         .width = 32,
         .from = {.block = 2 * 9 * 32, .repeat = 9 * 32, .row = 32},
         .to = {.block = 32, .repeat = 0, .row = 3 * 32 + 16}});
  // Corners of squares of tokens, and their way back.
  check(emulator, random,
        {.blocks = 5,
         .repeats = 7,
         .rows = 2,
         .width = 24,
         .from = {.block = 2 * 14 * 48, .repeat = 2 * 48, .row = 24},
         .to = {.block = 7 * 2 * 96, .repeat = 2 * 96, .row = 96}});
  // A row to all rows, as a bias.
  check(emulator, random, {.rows = 70, .width = 33, .to = {.row = 33}});
  check(emulator, random, {.rows = 9, .width = 48, .to = {.row = 48}});
  // Odd widths and distances; one run; narrow columns; nothing.
  check(emulator, random,
        {.blocks = 2,
         .repeats = 3,
         .rows = 5,
         .width = 37,
         .from = {.block = 40, .repeat = 0, .row = 130},
         .to = {.block = 3 * 185, .repeat = 185, .row = 37}});
  check(emulator, random, {.rows = 6, .width = 16, .from = {.row = 17}, .to = {.row = 16}});
  check(emulator, random, {.rows = 6, .width = 16, .from = {.row = 16}, .to = {.row = 17}});
  check(emulator, random, {.width = 5000});
  check(emulator, random, {.rows = 300, .width = 1, .from = {.row = 1}, .to = {.row = 3}});
  check(emulator, random, {.rows = 0, .width = 5});
  check(emulator, random, {.blocks = 0, .rows = 3, .width = 5, .to = {.row = 5}});
  check(emulator, random, {.rows = 3, .width = 0});
}

TEST_CASE("runs to the same places on a GPU follow each other as blocks and repeats do") {
  constexpr unsigned seed = 467;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  check(emulator, random,
        {.blocks = 2,
         .repeats = 3,
         .rows = 20,
         .width = 40,
         .from = {.block = 2400, .repeat = 800, .row = 40},
         .to = {.block = 40, .repeat = 0, .row = 200}});
  check(emulator, random,
        {.blocks = 4,
         .repeats = 3,
         .rows = 7,
         .width = 16,
         .from = {.block = 336, .repeat = 112, .row = 16},
         .to = {.block = 0, .repeat = 16, .row = 48}});
  check(emulator, random,
        {.blocks = 4,
         .repeats = 3,
         .rows = 7,
         .width = 10,
         .from = {.block = 210, .repeat = 70, .row = 10},
         .to = {.row = 10}});
}

TEST_CASE("random runs on a GPU end where their definition says") {
  constexpr unsigned seed = 479;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  const auto number = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  for (int repeat = 0; repeat < 25; ++repeat) {
    const std::int64_t unit = number(2) == 1 ? 8 : 1;
    Runs runs{.blocks = number(4), .repeats = number(4), .rows = number(6), .width = unit * number(12)};
    runs.from = {unit * number(50), unit * number(50), unit * number(50)};
    // The three directions in any order, with gaps.
    std::vector<std::pair<std::int64_t, std::int64_t*>> directions{
        {runs.blocks, &runs.to.block}, {runs.repeats, &runs.to.repeat}, {runs.rows, &runs.to.row}};
    std::shuffle(directions.begin(), directions.end(), random);
    std::int64_t distance = runs.width + unit * (number(3) - 1);
    for (const auto& [count, to] : directions) {
      const bool in_turn = to != &runs.to.row && number(4) == 1;
      *to = in_turn ? 0 : distance;
      if (!in_turn) distance = distance * count + unit * (number(3) - 1);
    }
    check(emulator, random, runs);
  }
}
