#include <doctest/doctest.h>

#include <tuple>

#include <galvatron/device/host/embedding.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

}  // namespace

TEST_CASE("a shard of the token table answers for its own tokens and gives zero for the others") {
  std::mt19937 random(307);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const auto& [rows, hidden, scale] :
         {std::tuple<std::int64_t, std::int64_t, float>{1, 3, 1.0F}, {40, 1000, 1.0F}, {300, 130, 2.5F}}) {
      const auto tokens = random_tokens(random, rows, 50);
      const std::int64_t first = 10;
      const std::int64_t count = 30;
      const auto table = random_tensor<bfloat16>(random, count * hidden);
      std::vector<bfloat16> out(at(rows * hidden), bfloat16(9.0F));
      host->embedding_forward(rows, hidden, view(tokens), first, count, scale, view(table), view(out));
      const auto dout = random_tensor<float>(random, rows * hidden);
      auto dtable = random_tensor<float>(random, count * hidden);
      auto expected = doubles(dtable);
      host->embedding_backward(rows, hidden, view(tokens), first, count, scale, view(dout), view(dtable));
      bool equal = true;
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t entry = tokens[at(row)] - first;
        for (std::int64_t i = 0; i < hidden; ++i) {
          const bool mine = entry >= 0 && entry < count;
          const float value = mine ? static_cast<float>(table[at(entry * hidden + i)]) : 0.0F;
          const float want = static_cast<float>(bfloat16(scale * value));
          equal = equal && static_cast<float>(out[at(row * hidden + i)]) == want;
          if (mine) expected[at(entry * hidden + i)] += static_cast<double>(scale * dout[at(row * hidden + i)]);
        }
      }
      CHECK(equal);
      CHECK(error_of(dtable, expected) < 1e-6);
    }
  }
}

TEST_CASE("learned positions add their row to every sample and gather its gradient") {
  std::mt19937 random(311);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const auto& [rows, b, hidden] : {std::array<std::int64_t, 3>{6, 3, 5}, std::array<std::int64_t, 3>{90, 2, 700},
                                          std::array<std::int64_t, 3>{7, 2, 9}}) {
      const std::int64_t first = 4;
      const auto table = random_tensor<float>(random, (first + rows) * hidden);
      auto out = random_tensor<float>(random, rows * hidden);
      auto expected = doubles(out);
      const auto dout = random_tensor<float>(random, rows * hidden);
      auto dtable = random_tensor<float>(random, (first + rows) * hidden);
      auto expected_gradient = doubles(dtable);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < hidden; ++i) {
          expected[at(row * hidden + i)] += static_cast<double>(table[at((first + row / b) * hidden + i)]);
          expected_gradient[at((first + row / b) * hidden + i)] += static_cast<double>(dout[at(row * hidden + i)]);
        }
      host->position_forward(rows, b, hidden, first, view(table), view(out));
      host->position_backward(rows, b, hidden, first, view(dout), view(dtable));
      CHECK(error_of(out, expected) < 1e-6);
      CHECK(error_of(dtable, expected_gradient) < 1e-6);
    }
  }
}

TEST_CASE("rotary embedding turns pairs by their position and its inverse turns them back") {
  std::mt19937 random(313);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const std::int64_t head_dim : {2, 6, 64, 300}) {
      const std::int64_t rows = 201;
      const std::int64_t b = 2;
      const std::int64_t heads = 3;
      const std::int64_t stride = heads * head_dim + 11;
      const std::int64_t first = 1000;
      const double theta = 500000.0;
      const auto x = random_tensor<float>(random, rows * stride);
      auto expected = doubles(x);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t head = 0; head < heads; ++head)
          for (std::int64_t j = 0; j < head_dim / 2; ++j) {
            const double angle = static_cast<double>(first + row / b) *
                                 std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
            double& p = expected[at(row * stride + head * head_dim + j)];
            double& q = expected[at(row * stride + head * head_dim + head_dim / 2 + j)];
            const double old = p;
            p = old * std::cos(angle) - q * std::sin(angle);
            q = q * std::cos(angle) + old * std::sin(angle);
          }
      auto turned = x;
      host->rotary(rows, b, first, heads, head_dim, stride, theta, false, view(turned));
      CHECK(error_of(turned, expected) < 1e-6);
      // A part of the sequence turns as it does in the whole.
      auto part = std::vector<float>(x.begin() + 70 * stride, x.end());
      host->rotary(rows - 70, b, first + 35, heads, head_dim, stride, theta, false, view(part));
      CHECK(same_bits(part, std::vector<float>(turned.begin() + 70 * stride, turned.end())));
      // So it does in one of several runs.
      const std::vector<std::int32_t> tokens{0, 35}, positions{0, static_cast<std::int32_t>(first) + 35};
      part = x;
      host->rotary(rows, b, device::TokenPositions(tokens, positions), heads, head_dim, stride, theta, false,
                   view(part));
      CHECK(same_bits(std::vector<float>(part.begin() + 70 * stride, part.end()),
                      std::vector<float>(turned.begin() + 70 * stride, turned.end())));
      host->rotary(rows, b, first, heads, head_dim, stride, theta, true, view(turned));
      CHECK(error_of(turned, doubles(x)) < 1e-6);
    }
  }
}
