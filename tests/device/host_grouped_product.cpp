// Products of experts on the host: any number of rows for each, with one result whatever runs they are cut into.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

template <class T>
void check_grouped(double bound) {
  constexpr unsigned seed = 23;
  CAPTURE(seed);
  std::mt19937 random(seed);
  TestHost host(2);
  constexpr std::int64_t n = 24;
  constexpr std::int64_t k = 40;
  for (int round = 0; round < 12; ++round) {
    std::vector<std::int64_t> counts;  // of each expert: none, few, and numbers with several runs
    for (int e = 0; e < 5; ++e)
      counts.push_back(static_cast<std::int64_t>(random() % 4 == 0 ? 0 : random() % (round % 2 == 0 ? 20 : 700)));
    std::vector<std::int32_t> offsets{0};
    for (const std::int64_t count : counts) offsets.push_back(offsets.back() + static_cast<std::int32_t>(count));
    const std::int64_t rows = offsets.back();
    const std::int64_t experts = std::ssize(counts);
    CAPTURE(round);
    // u = x W^T, or x W with the other layout.
    for (const op::Kind kind : {op::Kind::gemm_nt, op::Kind::gemm_nn}) {
      const auto x = random_tensor<T>(random, rows * k);
      const auto w = random_tensor<T>(random, experts * n * k);
      auto y = random_tensor<T>(random, rows * n);
      host->gemm_grouped(kind, experts, rows, n, k, view(std::as_const(offsets)), view(x), view(w), view(y));
      std::vector<double> expected(y.size());
      for (std::int64_t e = 0; e < experts; ++e)
        for (std::int64_t i = offsets[static_cast<std::size_t>(e)]; i < offsets[static_cast<std::size_t>(e) + 1]; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            for (std::int64_t p = 0; p < k; ++p)
              expected[static_cast<std::size_t>(i * n + j)] +=
                  static_cast<double>(x[static_cast<std::size_t>(i * k + p)]) *
                  static_cast<double>(
                      w[static_cast<std::size_t>(e * n * k + (kind == op::Kind::gemm_nt ? j * k + p : p * n + j))]);
      CHECK(error_of(y, expected) < bound);
    }
    // dW = d^T x, written or added to.
    for (const bool accumulate : {false, true}) {
      CAPTURE(accumulate);
      const auto d = random_tensor<T>(random, rows * n);
      const auto x = random_tensor<T>(random, rows * k);
      auto dw = random_tensor<float>(random, experts * n * k);
      std::vector<double> expected = accumulate ? doubles(dw) : std::vector<double>(dw.size());
      host->gemm_grouped(op::Kind::gemm_tn, experts, rows, n, k, view(std::as_const(offsets)), view(d), view(x),
                         view(dw), accumulate);
      for (std::int64_t e = 0; e < experts; ++e)
        for (std::int64_t i = offsets[static_cast<std::size_t>(e)]; i < offsets[static_cast<std::size_t>(e) + 1]; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            for (std::int64_t p = 0; p < k; ++p)
              expected[static_cast<std::size_t>(e * n * k + j * k + p)] +=
                  static_cast<double>(d[static_cast<std::size_t>(i * n + j)]) *
                  static_cast<double>(x[static_cast<std::size_t>(i * k + p)]);
      CHECK(error_of(dw, expected) < 1e-3);
    }
  }
}

}  // namespace

TEST_CASE("products of experts equal their definition for any numbers of rows") {
  check_grouped<float>(1e-4);
  if (device::Host::supports(Precision::bf16)) check_grouped<bfloat16>(0.05);
}
