// Grouped products of the GPU against sums in double.
#include <algorithm>
#include <array>
#include <numeric>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/grouped_product.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

/// Experts with that many rows each, then rows of nobody, which hold no numbers and stay as they are.
struct Groups {
  std::vector<std::int32_t> offsets{0};
  std::int64_t rows;  ///< of the buffers

  explicit Groups(const std::vector<std::int32_t>& counts, std::int64_t behind = 3) : rows(behind) {
    for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
    rows += offsets.back();
  }
  [[nodiscard]] std::int64_t experts() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[nodiscard]] std::int64_t first(std::int64_t e) const { return offsets[static_cast<std::size_t>(e)]; }
};

/// c of one expert's rows [first, last), from operands in double; `was` is added.
void add_products(op::Kind kind, std::int64_t e, std::int64_t first, std::int64_t last, std::int64_t n, std::int64_t k,
                  const std::vector<double>& a, const std::vector<double>& b, std::vector<double>& c) {
  const auto at = [](const std::vector<double>& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
  for (std::int64_t row = first; row < last; ++row)
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        if (kind == op::Kind::gemm_tn)
          c[static_cast<std::size_t>((e * n + i) * k + j)] += at(a, row * n + i) * at(b, row * k + j);
        else
          c[static_cast<std::size_t>(row * n + i)] +=
              at(a, row * k + j) * at(b, e * n * k + (kind == op::Kind::gemm_nt ? i * k + j : j * n + i));
      }
}

/// @param offset  elements between a 16-byte boundary and the operands
template <class T, class C>
void check_kind(std::mt19937& random, op::Kind kind, const Groups& groups, std::int64_t n, std::int64_t k,
                bool accumulate, std::int64_t offset = 0, bool warp_groups = false) {
  CAPTURE(name_of(kind));
  CAPTURE(groups.offsets);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(accumulate);
  CAPTURE(offset);
  const bool sums_rows = kind == op::Kind::gemm_tn;
  const std::int64_t of_a = groups.rows * (sums_rows ? n : k);
  const std::int64_t of_b = sums_rows ? groups.rows * k : groups.experts() * n * k;
  const std::int64_t of_c = sums_rows ? groups.experts() * n * k : groups.rows * n;
  auto a = random_tensor<T>(random, offset + of_a);
  auto b = random_tensor<T>(random, offset + of_b);
  const auto without_numbers = [&](std::vector<T>& x, std::int64_t width) {
    std::fill(x.begin() + offset + groups.offsets.back() * width, x.end(), T(NAN));
  };
  without_numbers(a, sums_rows ? n : k);
  if (sums_rows) without_numbers(b, k);
  auto c = random_tensor<C>(random, offset + of_c);
  const auto before = c;
  std::vector<double> expected = doubles(std::vector<C>(c.begin() + offset, c.end()));
  if (!accumulate) std::fill_n(expected.begin(), sums_rows ? of_c : groups.offsets.back() * n, 0.0);
  const auto left = doubles(std::vector<T>(a.begin() + offset, a.end()));
  const auto right = doubles(std::vector<T>(b.begin() + offset, b.end()));
  for (std::int64_t e = 0; e < groups.experts(); ++e)
    add_products(kind, e, groups.first(e), groups.first(e + 1), n, k, left, right, expected);
  Emulator emulator(random());
  cuda::gemm_grouped<T>(emulator, warp_groups, kind, groups.experts(), groups.rows, n, k, groups.offsets.data(),
                        a.data() + offset, b.data() + offset, c.data() + offset, accumulate);
  CHECK(error_of(std::vector<C>(c.begin() + offset, c.end()), expected) < (sizeof(C) == 2 ? 5e-3 : 2e-6));
  if (!sums_rows)
    CHECK(std::equal(c.end() - 3 * n, c.end(), before.end() - 3 * n,
                     [](C x, C y) { return std::memcmp(&x, &y, sizeof x) == 0; }));
}

template <class T, class C>
void check_all(std::mt19937& random, const Groups& groups, std::int64_t n, std::int64_t k, std::int64_t offset = 0) {
  for (const bool accumulate : {false, true}) {
    check_kind<T, C>(random, op::Kind::gemm_nt, groups, n, k, accumulate, offset);
    check_kind<T, C>(random, op::Kind::gemm_nn, groups, n, k, accumulate, offset);
    check_kind<T, float>(random, op::Kind::gemm_tn, groups, n, k, accumulate, offset);
  }
}

/// The expert and the tile of every block.
struct FindTiles {
  static constexpr int most_threads = 32;
  const std::int32_t* offsets;
  int experts;
  cuda::TileOfExpert* found;
  void operator()(auto& block) const {
    found[block.index()] = cuda::tile_of_expert(block, offsets, experts, static_cast<int>(block.index()), 4);
  }
};

TEST_CASE("grouped products of experts with any number of rows equal sums in double") {
  constexpr unsigned seed = 811;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Groups groups({0, 5, 130, 0, 0, 16, 1, 0});
  check_all<float, float>(random, groups, 24, 40);
  check_all<bfloat16, bfloat16>(random, groups, 24, 40);
  check_all<bfloat16, float>(random, groups, 40, 200);  // more steps than shared memory has at once
  check_all<float, float>(random, Groups({3, 9}), 132, 100);
  check_all<bfloat16, bfloat16>(random, Groups({3, 9}), 136, 8);
  check_kind<bfloat16, float>(random, op::Kind::gemm_nt, groups, 8, 0, false);
}

TEST_CASE("grouped products whose rows are no whole packs, or begin between two") {
  constexpr unsigned seed = 812;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Groups groups({7, 0, 20});
  check_all<float, float>(random, groups, 13, 7);
  check_all<bfloat16, bfloat16>(random, groups, 13, 35);
  check_all<bfloat16, bfloat16>(random, groups, 16, 24, 1);
  check_all<float, float>(random, groups, 16, 24, 3);
  check_all<bfloat16, float>(random, groups, 10, 16);
}

TEST_CASE("products of warp groups equal sums in double") {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto check = [&](const Groups& groups, std::int64_t n, std::int64_t k, bool accumulate) {
    check_kind<bfloat16, bfloat16>(random, op::Kind::gemm_nt, groups, n, k, accumulate, 0, true);
    check_kind<bfloat16, bfloat16>(random, op::Kind::gemm_nn, groups, n, k, accumulate, 0, true);
    check_kind<bfloat16, float>(random, op::Kind::gemm_tn, groups, n, k, accumulate, 0, true);
  };
  check(Groups({0, 5, 130, 0, 1}), 256, 200, false);  // more steps than shared memory has at once
  check(Groups({0, 5, 130, 0, 1}), 256, 200, true);
  check(Groups({300}), 456, 328, true);  // more rows, and columns, than a tile
  check(Groups({3, 9}), 192, 8, false);
  check_kind<bfloat16, bfloat16>(random, op::Kind::gemm_nt, Groups({3, 9}), 256, 0, false, 0, true);
}

TEST_CASE("experts of random numbers of rows") {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](unsigned end) { return static_cast<std::int32_t>(random() % end); };
  for (int i = 0; i < 6; ++i) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(1 + below(80)));
    for (std::int32_t& count : counts) count = below(3) == 0 ? 0 : below(12);
    counts[static_cast<std::size_t>(below(static_cast<unsigned>(counts.size())))] += 120 + below(20);
    const Groups groups(counts);
    check_kind<bfloat16, bfloat16>(random, op::Kind::gemm_nt, groups, 8 + below(20), 8 * (1 + below(6)), false);
    check_kind<float, float>(random, op::gemms[static_cast<std::size_t>(i % 3)], groups, 1 + below(20), 1 + below(20),
                             true);
  }
}

TEST_CASE("tiles are those of all experts' rows, in order") {
  constexpr unsigned seed = 813;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const int experts : {1, 3, 31, 32, 33, 100, 257}) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(experts));
    for (std::int32_t& count : counts) count = static_cast<std::int32_t>(random() % 2 * (random() % 11));
    const Groups groups(counts);
    std::vector<std::array<int, 2>> expected;
    for (int e = 0; e < experts; ++e)
      for (int tile = 0; 4 * tile < counts[static_cast<std::size_t>(e)]; ++tile) expected.push_back({e, tile});
    expected.push_back({-1, -1});
    std::vector<cuda::TileOfExpert> found(expected.size());
    Emulator emulator(random());
    emulator.launch({.blocks = static_cast<std::int64_t>(found.size()), .threads = 32},
                    FindTiles{groups.offsets.data(), experts, found.data()});
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::array{found[i].expert, found[i].tile} == expected[i]);
  }
}

TEST_CASE("no experts, no rows or no columns: nothing is launched, but sums over no rows are zero") {
  Emulator emulator;
  const std::vector<std::int32_t> offsets(4);
  float* none = nullptr;
  cuda::gemm_grouped<float>(emulator, true, op::Kind::gemm_nt, 0, 4, 8, 8, offsets.data(), none, none, none, false);
  cuda::gemm_grouped<float>(emulator, true, op::Kind::gemm_nt, 3, 0, 8, 8, offsets.data(), none, none, none, false);
  cuda::gemm_grouped<float>(emulator, true, op::Kind::gemm_nn, 3, 4, 0, 8, offsets.data(), none, none, none, false);
  cuda::gemm_grouped<float>(emulator, true, op::Kind::gemm_tn, 3, 4, 8, 0, offsets.data(), none, none, none, false);
  CHECK(emulator.launches() == 0);
  std::vector<float> c(3 * 8, NAN);
  cuda::gemm_grouped<float>(emulator, true, op::Kind::gemm_tn, 3, 0, 2, 4, offsets.data(), none, none, c.data(), false);
  CHECK(std::all_of(c.begin(), c.end(), [](float x) { return x == 0; }));
}

}  // namespace
