// Launch geometry: every piece of work is done once, by a grid that a GPU takes.
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/rows.hpp>

#include "few_blocks.hpp"

namespace {

using namespace galvatron;
namespace cuda = device::cuda;

constexpr std::int64_t largest_grid = std::numeric_limits<std::int32_t>::max();

bool can_launch(const cuda::Geometry& g, int most_threads) {
  return g.blocks >= 1 && g.blocks <= largest_grid && g.threads >= cuda::warp_threads && g.threads <= most_threads &&
         g.threads % cuda::warp_threads == 0;
}

struct Count {
  int* visits;
  void operator()(std::int64_t i) const { ++visits[i]; }
};

struct CountElements {
  static constexpr int width = 4;
  int* visits;
  int* by_pack;
  template <int size>
  void at(std::int64_t i) const {
    for (int j = 0; j < size; ++j) ++visits[i + j];
    if (size == width) by_pack[i] += i % width == 0 ? 1 : 1000;
  }
};

struct CountCells {
  std::int64_t width;
  int* visits;
  void operator()(std::int64_t row, std::int64_t i) const { ++visits[row * width + i]; }
};

std::vector<int> visits_of(std::int64_t count) { return std::vector<int>(static_cast<std::size_t>(count)); }
bool each_is(const std::vector<int>& visits, int times) {
  for (const int v : visits)
    if (v != times) return false;
  return true;
}

}  // namespace

TEST_CASE("a GPU takes the grids for any amount of work, and no thread of a small one has nothing to do") {
  constexpr unsigned seed = 401;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const auto items = static_cast<std::int64_t>(random() >> (1 + random() % 63));
    const auto packs = static_cast<std::int64_t>(random() >> (1 + random() % 63));
    const int threads = cuda::warp_threads << random() % 6;
    CAPTURE(items);
    CAPTURE(packs);
    CAPTURE(threads);
    const cuda::Geometry flat = cuda::over_items(items, threads);
    CHECK(can_launch(flat, threads));
    CHECK(flat.blocks <= cuda::most_blocks);
    CHECK((flat.blocks == 1 || (flat.blocks - 1) * threads < items));
    const cuda::Geometry steps = cuda::over_steps(items, threads);
    CHECK(can_launch(steps, threads));
    CHECK((steps.blocks == 1 || (steps.blocks - 1) * threads < items));
    if (items <= 16 * cuda::most_blocks * threads) CHECK(steps.blocks * threads >= items);
    const cuda::Geometry rows = cuda::over_rows(items, packs, threads);
    CHECK(can_launch(rows, threads));
    CHECK((rows.threads == cuda::warp_threads || rows.threads - cuda::warp_threads < packs));
    CHECK((rows.blocks == 1 || rows.blocks <= items));
  }
}

TEST_CASE("loops in steps of the grid take every item once") {
  constexpr unsigned seed = 409;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  test::Emulator emulator;
  for (int repeat = 0; repeat < 40; ++repeat) {
    test::FewBlocks few(emulator, 1 + static_cast<std::int64_t>(random() % 5));
    const auto count = static_cast<std::int64_t>(random() % 6000 >> random() % 12);
    CAPTURE(count);
    auto visits = visits_of(count);
    cuda::for_each(few, count, Count{visits.data()});
    CHECK(each_is(visits, 1));
    for (const bool aligned : {false, true}) {
      auto elements = visits_of(count);
      auto by_pack = visits_of(count);
      cuda::for_elements(few, count, aligned, CountElements{elements.data(), by_pack.data()});
      CHECK(each_is(elements, 1));
      for (std::int64_t i = 0; i < count; ++i) {
        const bool begins_pack = aligned && i % 4 == 0 && i + 4 <= count;
        CHECK(by_pack[static_cast<std::size_t>(i)] == (begins_pack ? 1 : 0));
      }
    }
    for (const std::uint64_t widest : {600, 20}) {  // of the narrow ones a block has several rows
      const auto rows = static_cast<std::int64_t>(random() % (12000 / widest));
      const auto width = static_cast<std::int64_t>(random() % widest);
      CAPTURE(rows);
      CAPTURE(width);
      auto cells = visits_of(rows * width);
      cuda::for_rows(few, rows, width, CountCells{width, cells.data()});
      CHECK(each_is(cells, 1));
    }
  }
  // Beyond the grid that is really launched.
  const std::int64_t many = cuda::most_blocks * 256 + 77;
  auto visits = visits_of(many);
  cuda::for_each(emulator, many, Count{visits.data()});
  CHECK(each_is(visits, 1));
}

TEST_CASE("a divisor divides as the operators do") {
  constexpr unsigned seed = 419;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  constexpr std::int64_t limit = std::int64_t{1} << 31;
  std::vector<std::int64_t> numbers{1, 2, 3, 7, 255, 256, 257, limit - 1, limit, limit + 1, limit / 2, limit / 2 + 1};
  for (int i = 0; i < 300; ++i) numbers.push_back(static_cast<std::int64_t>(random() >> (1 + random() % 63)) + 1);
  int wrong = 0;
  const auto check = [&](std::int64_t n, std::int64_t d) {
    const auto parts = cuda::Divisor(d)(n);
    if (parts.quotient != n / d || parts.remainder != n % d) ++wrong;
  };
  for (const std::int64_t d : numbers) {
    check(0, d);
    for (const std::int64_t n : numbers) check(n, d);
    // Where a quotient begins and ends is where a multiplication goes wrong.
    for (std::int64_t q = limit / d; q > 0 && q > limit / d - 3; --q) {
      check(q * d - 1, d);
      check(q * d, d);
    }
  }
  CHECK(wrong == 0);
}
