// Biases by distance, run by the emulator, against the host device.
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/attention_bias.hpp>

#include "few_blocks.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

template <class T>
void check(Emulator& emulator, std::mt19937& random, const device::RelativePositions& relative, std::int64_t heads) {
  CAPTURE(relative.tokens);
  CAPTURE(relative.buckets);
  CAPTURE(relative.causal);
  CAPTURE(heads);
  FewBlocks few(emulator, 3);
  TestHost host(1);
  const auto table = random_tensor<T>(random, relative.buckets * heads);
  auto bias = random_tensor<float>(random, relative.distances() * heads);
  auto expected = bias;
  cuda::relative_bias_forward(few, relative, heads, table.data(), bias.data());
  host->relative_bias_forward(relative, heads, view(table), view(expected));
  CHECK(same_bits(bias, expected));

  auto gradient = random_tensor<float>(random, relative.buckets * heads);
  auto sums = doubles(gradient);
  cuda::relative_bias_backward(few, relative, heads, bias.data(), gradient.data());
  for (std::int64_t i = 0; i < relative.distances(); ++i) {
    const std::int64_t bucket = device::kernels::relative_bucket(i + 1 - relative.tokens, relative.buckets,
                                                                 device::RelativePositions::far, relative.causal);
    for (std::int64_t a = 0; a < heads; ++a)
      sums[static_cast<std::size_t>(bucket * heads + a)] +=
          static_cast<double>(bias[static_cast<std::size_t>(a * relative.distances() + i)]);
  }
  CHECK(error_of(gradient, sums) < 1e-6);
}

}  // namespace

TEST_CASE("biases by distance on a GPU are the host's, and so are the gradients of their table") {
  constexpr unsigned seed = 487;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  for (const bool causal : {false, true})
    for (const std::int64_t buckets : {1, 2, 3, 8, 32, 33})
      for (const std::int64_t tokens : {1, 9, 129, 400}) {
        check<float>(emulator, random, {.tokens = tokens, .buckets = buckets, .causal = causal}, 2);
        if (buckets == 8)
          check<bfloat16>(emulator, random, {.tokens = tokens, .buckets = buckets, .causal = causal}, 3);
      }
  check<float>(emulator, random, {.tokens = 200, .buckets = 300, .causal = false}, 1);
  check<bfloat16>(emulator, random, {.tokens = 3000, .buckets = 32, .causal = false}, 1);
}

TEST_CASE("every distance is in the range of its bucket and of no other") {
  for (const bool causal : {false, true})
    for (const std::int64_t buckets : {1, 2, 3, 7, 32, 128, 129, 255, 256, 257, 510, 700})
      for (const std::int64_t tokens : {1, 5, 127, 128, 130, 600}) {
        CAPTURE(causal);
        CAPTURE(buckets);
        CAPTURE(tokens);
        const cuda::Buckets all({.tokens = tokens, .buckets = buckets, .causal = causal});
        std::vector<std::int64_t> found(static_cast<std::size_t>(2 * tokens - 1), -1);
        std::int64_t covered = 0;
        for (std::int64_t bucket = 0; bucket < buckets; ++bucket) {
          const auto range = all.of(bucket);
          for (std::int64_t i = range.first; i < range.last; ++i, ++covered)
            found[static_cast<std::size_t>(i)] = bucket;
        }
        CHECK(covered == 2 * tokens - 1);
        int wrong = 0;
        for (std::int64_t i = 0; i < 2 * tokens - 1; ++i) {
          const std::int64_t expected =
              device::kernels::relative_bucket(i + 1 - tokens, buckets, device::RelativePositions::far, causal);
          if (found[static_cast<std::size_t>(i)] != expected || all.at(i) != expected) ++wrong;
        }
        CHECK(wrong == 0);
      }
}
