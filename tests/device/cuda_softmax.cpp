// Softmax cross-entropy of the GPU, against that of the host.
#include <utility>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/softmax.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

/// Logits (rows, vocabulary) in `shards` shards of padded columns, which begin `offset` elements behind a boundary.
template <class T>
void check(std::mt19937& random, std::int64_t rows, std::int64_t vocabulary, std::int64_t shards, std::int64_t columns,
           float range, std::int64_t offset = 0, float cap = 0) {
  CAPTURE(rows);
  CAPTURE(vocabulary);
  CAPTURE(shards);
  CAPTURE(columns);
  CAPTURE(offset);
  CAPTURE(cap);
  TestHost host(1);
  Emulator emulator(random());
  const float scale = 0.25F;
  auto targets = random_tokens(random, rows, static_cast<std::int32_t>(vocabulary));
  for (std::int64_t row = 2; row < rows; row += 4) targets[at(row)] = -1;  // has none
  std::vector<std::vector<T>> logits;
  std::vector<float> expected_stats(at(shards * rows * 3)), stats(expected_stats.size(), NAN);
  const auto valid_of = [&](std::int64_t s) { return std::clamp<std::int64_t>(vocabulary - s * columns, 0, columns); };
  for (std::int64_t s = 0; s < shards; ++s) {
    auto shard = random_tensor<T>(random, offset + rows * columns, range);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = valid_of(s); i < columns; ++i) shard[at(offset + row * columns + i)] = T(NAN);  // not read
    const View<const T> x = view(std::as_const(shard)).slice(offset, rows * columns);
    host->softmax_statistics(rows, columns, valid_of(s), s * columns, x, view(targets),
                             view(expected_stats).slice(s * rows * 3, rows * 3), cap);
    cuda::softmax_statistics(emulator, rows, columns, valid_of(s), s * columns, x.data, targets.data(),
                             stats.data() + s * rows * 3, cap);
    logits.push_back(shard);
  }
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (i % 3 == 1 || (cap > 0 && std::isfinite(expected_stats[i])))
      CHECK(stats[i] == doctest::Approx(expected_stats[i]).epsilon(1e-5));
    else
      CHECK(stats[i] == expected_stats[i]);
  }

  std::vector<float> expected_lse(at(rows)), lse(at(rows));
  double expected_loss = 1.5;
  double loss = 1.5;
  host->softmax_merge(rows, shards, view(stats), view(expected_lse), View<double>{&expected_loss, 1});
  std::vector<double> scratch(2048, NAN);
  std::uint32_t ticket = 0;
  const View<std::byte> bytes{reinterpret_cast<std::byte*>(scratch.data()), 2048 * 8};
  cuda::softmax_merge(emulator, bytes, &ticket, rows, shards, stats.data(), lse.data(), &loss);
  CHECK(same_bits(lse, expected_lse));
  CHECK(loss == doctest::Approx(expected_loss).epsilon(1e-12));
  double again = 1.5;
  cuda::softmax_merge(emulator, bytes, &ticket, rows, shards, stats.data(), lse.data(), &again);
  CHECK(again == loss);
  CHECK(ticket == 0);
  std::fill(lse.begin(), lse.end(), NAN);
  cuda::softmax_merge(emulator, {}, nullptr, rows, shards, stats.data(), lse.data(), nullptr);
  CHECK(same_bits(lse, expected_lse));

  for (std::int64_t s = 0; s < shards; ++s) {
    auto expected = logits[at(s)];
    host->softmax_backward(rows, columns, valid_of(s), s * columns, view(lse), view(targets), scale,
                           shards == 1 && cap == 0, view(expected).slice(offset, rows * columns), cap);
    cuda::softmax_backward(emulator, rows, columns, valid_of(s), s * columns, lse.data(), targets.data(), scale,
                           shards == 1 && cap == 0, logits[at(s)].data() + offset, cap);
    // The same arithmetic, element by element; vector instructions of the host may contract it.
    bool zeros = true;
    float difference = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto got = static_cast<float>(logits[at(s)][i]);
      const auto wanted = static_cast<float>(expected[i]);
      zeros = zeros && (got == 0) == (wanted == 0);
      difference = std::max(difference, std::abs(got - wanted) / (std::abs(wanted) + 1e-30F));
    }
    CHECK(zeros);
    CHECK(difference < static_cast<float>(tolerance<T>));
  }
}

/// Statistics of one row and what follows from them: (lse, loss).
std::pair<float, double> cross_entropy(const std::vector<float>& logits, std::int32_t target) {
  Emulator emulator;
  const auto n = static_cast<std::int64_t>(logits.size());
  std::vector<float> stats(3);
  std::vector<double> scratch(1);
  std::uint32_t ticket = 0;
  float lse = 0;
  double loss = 0;
  cuda::softmax_statistics(emulator, 1, n, n, 0, logits.data(), &target, stats.data());
  cuda::softmax_merge(emulator, {reinterpret_cast<std::byte*>(scratch.data()), 8}, &ticket, 1, 1, stats.data(), &lse,
                      &loss);
  return {lse, loss};
}

}  // namespace

TEST_CASE("statistics, loss and gradient of soft-capped logits equal the host's") {
  constexpr unsigned seed = 605;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const float cap : {1.0F, 30.0F}) {
    check<float>(random, 3, 7, 1, 7, 4.0F, 0, cap);
    check<float>(random, 5, 5003, 2, 2560, 40.0F, 0, cap);
    check<float>(random, 5, 130, 4, 64, 90.0F, 3, cap);
    check<bfloat16>(random, 5, 3001, 2, 1504, 8.0F, 0, cap);
  }
}

TEST_CASE("statistics, loss and gradient of cross-entropy equal the host's, over shards of the vocabulary") {
  constexpr unsigned seed = 601;
  CAPTURE(seed);
  std::mt19937 random(seed);
  check<float>(random, 3, 7, 1, 7, 4.0F);
  check<float>(random, 7, 9000, 1, 9000, 8.0F);  // beyond what a block reads at once
  check<float>(random, 9, 5003, 2, 2560, 8.0F);
  check<float>(random, 5, 130, 4, 64, 30.0F);  // the third shard has two columns, the fourth none
  check<float>(random, 4, 500, 1, 512, 8.0F, 3);
  check<bfloat16>(random, 9, 3001, 2, 1504, 8.0F);
  check<bfloat16>(random, 3, 17000, 1, 17008, 8.0F);
  check<bfloat16>(random, 5, 1001, 1, 1001, 8.0F);
  check<float>(random, 1100, 4, 2, 3, 3.0F);  // several blocks merge
}

TEST_CASE("more rows than the grid merges at once") {
  const std::int64_t rows = cuda::most_blocks * 256 + 700;
  std::vector<float> stats(at(rows * 3));
  for (std::int64_t row = 0; row < rows; ++row) {
    stats[at(3 * row)] = 1.0F;
    stats[at(3 * row + 1)] = 1.0F;
    stats[at(3 * row + 2)] = row % 2 == 0 ? 0.5F : device::kernels::no_target;
  }
  std::vector<double> scratch(40);  // fewer blocks than the rows would like
  std::vector<float> lse(at(rows));
  std::uint32_t ticket = 0;
  double loss = 0;
  Emulator emulator;
  cuda::softmax_merge(emulator, {reinterpret_cast<std::byte*>(scratch.data()), 320}, &ticket, rows, 1, stats.data(),
                      lse.data(), &loss);
  CHECK(std::all_of(lse.begin(), lse.end(), [](float x) { return x == 1.0F; }));
  CHECK(loss == 0.25 * static_cast<double>(rows));
}

TEST_CASE("logits far apart neither overflow nor vanish") {
  const auto [lse, loss] = cross_entropy({-1e4F, 1e4F, 9.999e3F, -INFINITY}, 1);
  CHECK(lse == doctest::Approx(1e4 + std::log(1.0 + std::exp(-1.0))));
  CHECK(loss == doctest::Approx(std::log(1.0 + std::exp(-1.0))).epsilon(1e-2));
  // Threads that see nothing but -inf count for nothing.
  std::vector<float> logits(3000, -INFINITY);
  logits[2999] = 3.0F;
  CHECK(cross_entropy(logits, 2999) == std::pair(3.0F, 0.0));
}

TEST_CASE("a row without a target has no loss, but numbers that are none do not go unseen") {
  for (const std::int64_t place : {0, 77, 2999})
    for (const float logit : {1.0F, INFINITY, NAN}) {
      CAPTURE(place);
      CAPTURE(logit);
      std::vector<float> logits(3000, 0.5F);
      logits[1500] = 2.0F;
      logits[at(place)] = logit;
      const double loss = cross_entropy(logits, -1).second;
      if (std::isfinite(logit))
        CHECK(loss == 0.0);
      else
        CHECK_FALSE(std::isfinite(loss));
    }
}

TEST_CASE("no rows: nothing is launched") {
  Emulator emulator;
  double loss = 2;
  float* none = nullptr;
  cuda::softmax_statistics<float>(emulator, 0, 8, 8, 0, none, nullptr, none);
  cuda::softmax_merge(emulator, {}, nullptr, 0, 1, none, none, &loss);
  cuda::softmax_backward<float>(emulator, 0, 8, 8, 0, none, nullptr, 1.0F, true, none);
  CHECK(emulator.launches() == 0);
  CHECK(loss == 2);
}
