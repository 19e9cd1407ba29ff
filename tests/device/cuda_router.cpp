// Routers of the GPU against their formulas in double.
#include <algorithm>
#include <array>
#include <numeric>

#include <doctest/doctest.h>

#include <galvatron/core/rng.hpp>
#include <galvatron/device/cuda/experts.hpp>
#include <galvatron/device/cuda/router.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::RouterLoss;
using device::kernels::Router;

/// A row in double: what kernels/router.hpp says, by sorting.
struct RowReference {
  std::vector<double> parts;  ///< exponentials, or sigmoids
  std::vector<std::int64_t> chosen;
  std::vector<double> weights;
  double log_sum = 0;
  double sum = 0;  ///< of the parts

  RowReference(const Router& r, const float* logits, const std::vector<double>& bias) {
    double greatest = -INFINITY;
    for (std::int64_t e = 0; e < r.experts; ++e) greatest = std::max(greatest, double{logits[e]});
    double exponentials = 0;
    std::vector<double> scores;
    for (std::int64_t e = 0; e < r.experts; ++e) {
      const double exponential = std::exp(double{logits[e]} - greatest);
      exponentials += exponential;
      const double sigmoid = 1 / (1 + std::exp(-double{logits[e]}));
      const bool softmax = r.kind == RouterKind::softmax;
      parts.push_back(softmax ? exponential : sigmoid);
      scores.push_back(softmax ? double{logits[e]} : sigmoid + (bias.empty() ? 0.0 : bias[at(e)]));
    }
    log_sum = greatest + std::log(exponentials);
    sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    const auto first = [](const std::vector<double>& of, std::int64_t count) {
      std::vector<std::int64_t> all(of.size());
      std::iota(all.begin(), all.end(), 0);
      std::ranges::stable_sort(all, [&](std::int64_t a, std::int64_t b) { return of[at(a)] > of[at(b)]; });
      all.resize(at(count));
      return all;
    };
    if (r.groups > r.top_groups) {
      const std::int64_t members = r.experts / r.groups;
      std::vector<double> of_groups;
      for (std::int64_t g = 0; g < r.groups; ++g) {
        std::vector<double> own(scores.begin() + g * members, scores.begin() + (g + 1) * members);
        std::ranges::sort(own, std::greater<>{});
        of_groups.push_back(r.kind == RouterKind::softmax || members == 1 ? own[0] : own[0] + own[1]);
      }
      std::vector<bool> open(at(r.groups));
      for (const std::int64_t g : first(of_groups, r.top_groups)) open[at(g)] = true;
      for (std::int64_t e = 0; e < r.experts; ++e)
        if (!open[at(e / members)]) scores[at(e)] = -INFINITY;
    }
    chosen = first(scores, r.active);
    double divisor = r.kind == RouterKind::softmax ? sum : 1;
    if (r.renormalise) {
      divisor = 1e-20;
      for (const std::int64_t e : chosen) divisor += parts[at(e)];
    }
    for (const std::int64_t e : chosen) weights.push_back(double{r.scale} * parts[at(e)] / divisor);
  }
};

/// The loss whose gradient route_backward computes, of one row with the choices of `at`.
double loss_of(const Router& r, const std::vector<float>& logits, const std::vector<std::int64_t>& chosen,
               const float* d_weights, const float* counts, RouterLoss loss) {
  const RowReference row(r, logits.data(), {});
  double divisor = r.kind == RouterKind::softmax ? row.sum : 1;
  if (r.renormalise) {
    divisor = 0;
    for (const std::int64_t e : chosen) divisor += row.parts[at(e)];
  }
  double out = double{loss.z} * row.log_sum * row.log_sum;
  for (std::size_t j = 0; j < chosen.size(); ++j)
    out += double{d_weights[j]} * double{r.scale} * row.parts[at(chosen[j])] / divisor;
  if (counts != nullptr)
    for (std::int64_t e = 0; e < r.experts; ++e)
      out += double{loss.balance} * double{counts[e]} * row.parts[at(e)] / row.sum;
  return out;
}

void check_router(std::mt19937& random, const Router& router, std::int64_t rows, std::int64_t samples) {
  CAPTURE(router.experts);
  CAPTURE(router.active);
  CAPTURE(static_cast<int>(router.kind));
  CAPTURE(router.renormalise);
  CAPTURE(router.groups);
  const std::int64_t e = router.experts;
  const std::int64_t k = router.active;
  const bool sigmoid = router.kind == RouterKind::sigmoid;
  auto logits = random_tensor<float>(random, rows * e, 3.0F);
  for (std::size_t i = 0; i < logits.size(); i += 7) logits[i] = std::round(logits[i]);  // some are equal
  const auto bias = random_tensor<bfloat16>(random, e, 0.3F);
  std::vector<float> weights(at(rows * k), NAN);
  std::vector<std::int32_t> chosen(at(rows * k), -9);
  Emulator emulator(random());
  cuda::route(emulator, router, rows, logits.data(), sigmoid ? bias.data() : nullptr, weights.data(), chosen.data());

  const RouterLoss loss{.balance = 0.3F, .z = 0.02F};
  std::vector<double> scratch(4096, NAN);
  const View<std::byte> bytes{reinterpret_cast<std::byte*>(scratch.data()), 4096 * 8};
  std::uint32_t ticket = 0;
  std::vector<float> counts(at(samples * e), NAN);
  cuda::count_choices(emulator, bytes, &ticket, router, rows, samples, logits.data(), chosen.data(), counts.data());
  double balance = 1;
  double z = 2;
  cuda::router_losses(emulator, bytes, &ticket, router, rows, samples, logits.data(), counts.data(), loss, &balance,
                      &z);
  CHECK(ticket == 0);
  const auto d_weights = random_tensor<float>(random, rows * k);
  std::vector<float> gradient(logits.size(), NAN), without_losses(logits.size(), NAN);
  cuda::route_backward(emulator, router, rows, samples, logits.data(), chosen.data(), d_weights.data(), counts.data(),
                       loss, gradient.data());
  cuda::route_backward(emulator, router, rows, samples, logits.data(), chosen.data(), d_weights.data(), nullptr,
                       RouterLoss{}, without_losses.data());

  std::vector<double> expected_weights, expected_counts(counts.size());
  std::vector<std::int32_t> expected_chosen;
  std::vector<RowReference> references;
  Router plain = router;
  plain.groups = plain.top_groups = 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    const RowReference own(router, logits.data() + row * e, sigmoid ? doubles(bias) : std::vector<double>{});
    for (const std::int64_t expert : own.chosen) expected_chosen.push_back(static_cast<std::int32_t>(expert));
    expected_weights.insert(expected_weights.end(), own.weights.begin(), own.weights.end());
    references.push_back(own);
    const RowReference counted = sigmoid ? RowReference(plain, logits.data() + row * e, {}) : own;
    for (const std::int64_t expert : counted.chosen) expected_counts[at(row % samples * e + expert)] += 1;
  }
  CHECK(chosen == expected_chosen);
  CHECK(error_of(weights, expected_weights) < 2e-6);
  CHECK(error_of(counts, expected_counts) == 0);
  double expected_balance = 0;
  double expected_z = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const RowReference& own = references[at(row)];
    for (std::int64_t i = 0; i < e; ++i)
      expected_balance += expected_counts[at(row % samples * e + i)] * own.parts[at(i)] / own.sum;
    expected_z += own.log_sum * own.log_sum;
  }
  CHECK(balance == doctest::Approx(1 + double{loss.balance} * expected_balance).epsilon(1e-6));
  CHECK(z == doctest::Approx(2 + double{loss.z} * expected_z).epsilon(1e-6));

  std::vector<double> slopes, slopes_alone;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < e; ++i) {
      std::vector<float> moved(logits.begin() + row * e, logits.begin() + (row + 1) * e);
      const auto slope = [&](const float* of_sample, RouterLoss with) {
        const float logit = logits[at(row * e + i)];
        std::array<double, 2> side{};
        std::array<float, 2> where{logit - 0.01F, logit + 0.01F};
        for (std::size_t s = 0; s < 2; ++s) {
          moved[at(i)] = where[s];
          side[s] = loss_of(router, moved, references[at(row)].chosen, d_weights.data() + row * k, of_sample, with);
        }
        return (side[1] - side[0]) / (double{where[1]} - double{where[0]});
      };
      slopes.push_back(slope(counts.data() + row % samples * e, loss));
      slopes_alone.push_back(slope(nullptr, {}));
    }
  CHECK(error_of(gradient, slopes) < 1e-4);  // of the differences
  CHECK(error_of(without_losses, slopes_alone) < 1e-4);
}

TEST_CASE("choices, weights, losses and gradients of routers are those of their formulas") {
  constexpr unsigned seed = 831;
  CAPTURE(seed);
  std::mt19937 random(seed);
  check_router(random, {.experts = 8, .active = 2}, 70, 1);
  check_router(random, {.experts = 33, .active = 4, .renormalise = false, .scale = 16}, 9, 3);
  check_router(random, {.experts = 64, .active = 6, .renormalise = false, .groups = 8, .top_groups = 3}, 9, 2);
  check_router(random, {.experts = 5, .active = 5}, 3, 1);
  check_router(random,
               {.experts = 128, .active = 8, .kind = RouterKind::sigmoid, .scale = 2.5F, .groups = 8, .top_groups = 4},
               9, 3);
  check_router(random, {.experts = 40, .active = 3, .kind = RouterKind::sigmoid, .renormalise = false}, 9, 1);
  check_router(random, {.experts = 6, .active = 2, .kind = RouterKind::sigmoid, .groups = 6, .top_groups = 3}, 9, 1);
}

TEST_CASE("equal scores go to the lower number, and logits that are no numbers come last") {
  constexpr float inf = INFINITY;
  const std::vector<std::array<float, 4>> rows{
      {1, 1, 1, 1}, {0.0F, -0.0F, -1, 0}, {NAN, -inf, NAN, 2}, {-inf, -inf, -inf, -inf}, {NAN, NAN, NAN, NAN}};
  const std::vector<std::array<std::int32_t, 3>> expected{{0, 1, 2}, {0, 1, 3}, {3, 1, 0}, {0, 1, 2}, {0, 1, 2}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Emulator emulator;
    std::array<std::int32_t, 3> chosen{};
    cuda::route<float>(emulator, {.experts = 4, .active = 3}, 1, rows[i].data(), nullptr, nullptr, chosen.data());
    CHECK(chosen == expected[i]);
  }
}

TEST_CASE("a row without numbers still chooses different experts, in groups as well") {
  Emulator emulator;
  const std::vector<float> logits(64, NAN);
  std::vector<std::int32_t> chosen(6);
  cuda::route<float>(emulator, {.experts = 64, .active = 6, .groups = 8, .top_groups = 3}, 1, logits.data(), nullptr,
                     nullptr, chosen.data());
  std::ranges::sort(chosen);
  CHECK(chosen.front() >= 0);
  CHECK(chosen.back() < 64);
  CHECK(std::ranges::adjacent_find(chosen) == chosen.end());
}

TEST_CASE("several blocks add the losses of routers in a fixed order") {
  constexpr unsigned seed = 832;
  CAPTURE(seed);
  std::mt19937 random(seed);
  constexpr std::int64_t rows = 500;
  const Router router{.experts = 4, .active = 1};
  const auto logits = random_tensor<float>(random, rows * 4, 2.0F);
  const auto counts = random_tensor<float>(random, 4);
  std::array<std::array<double, 2>, 3> sums{};
  for (auto& [balance, z] : sums) {
    Emulator emulator(random());
    std::vector<double> scratch(40, NAN);  // fewer blocks than the rows would like
    std::uint32_t ticket = 0;
    cuda::router_losses(emulator, View<std::byte>{reinterpret_cast<std::byte*>(scratch.data()), 320}, &ticket, router,
                        rows, 1, logits.data(), counts.data(), {.balance = 1, .z = 1}, &balance, &z);
  }
  CHECK(sums[0] == sums[1]);
  CHECK(sums[0] == sums[2]);
  TestHost host(1);
  double balance = 0;
  double z = 0;
  host->router_losses(router, rows, 1, view(logits), view(counts), RouterLoss{.balance = 1, .z = 1},
                      View<double>{&balance, 1}, View<double>{&z, 1});
  CHECK(sums[0][0] == doctest::Approx(balance).epsilon(1e-6));
  CHECK(sums[0][1] == doctest::Approx(z).epsilon(1e-6));
}

TEST_CASE("noise belongs to sample, token and column, on GPUs as on the host, wherever the rows are") {
  constexpr unsigned seed = 839;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto check = [&]<class T>(std::int64_t tokens, std::int64_t samples, std::int64_t columns, T) {
    CAPTURE(columns);
    const SampleStream stream{.seed = 5, .stream = (std::uint64_t{1} << 63) + 2, .first_sample = 1000};
    std::vector<std::int32_t> words(SampleStream::words);
    stream.write(words.data());
    const device::kernels::Jitter noise{.samples = samples, .tokens = tokens, .columns = columns, .amount = 0.5F};
    const std::int64_t rows = tokens * samples;
    const auto x = random_tensor<T>(random, rows * columns);
    std::vector<T> expected(x.size()), out(x.size());
    TestHost host(1);
    host->jitter(noise, rows, view(words), view(x), view(expected));
    Emulator emulator(random());
    cuda::jitter(emulator, noise, rows, words.data(), x.data(), out.data());
    CHECK(error_of(out, doubles(expected)) < (sizeof(T) == 4 ? 1e-6 : 1e-2));
    std::vector<double> exact;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < columns; ++i) {
        const std::int64_t token = (1000 + row % samples) * tokens + row / samples;
        const auto index = static_cast<std::uint64_t>(token * ((columns + 3) / 4 * 4) + i);
        const double u = uniform_of(bits_at(stream.seed, stream.stream, index));
        exact.push_back(static_cast<double>(static_cast<float>(x[at(row * columns + i)])) * (0.5 + u));
      }
    CHECK(error_of(expected, exact) < (sizeof(T) == 4 ? 1e-6 : 1e-2));
    // The last half of the tokens of the second sample alone: a rank that shares samples and tokens.
    if (samples < 2) return;
    SampleStream second = stream;
    second.first_sample += 1;
    second.write(words.data());
    const std::int64_t half = tokens / 2;
    std::vector<T> own, wanted, got;
    for (std::int64_t token = half; token < tokens; ++token)
      for (std::int64_t i = 0; i < columns; ++i) {
        own.push_back(x[at((token * samples + 1) * columns + i)]);
        wanted.push_back(expected[at((token * samples + 1) * columns + i)]);
      }
    got.resize(own.size());
    host->jitter(device::kernels::Jitter{.tokens = tokens, .first_token = half, .columns = columns, .amount = 0.5F},
                 tokens - half, view(words), view(own), view(got));
    CHECK(same_bits(got, wanted));
  };
  check(6, 3, 8, float{});
  check(5, 1, 700, float{});
  check(4, 2, 37, float{});
  check(6, 2, 64, bfloat16{});
  check(3, 2, 9, bfloat16{});
}

}  // namespace
