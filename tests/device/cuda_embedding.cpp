// Token and position tables and means of the GPU, against those of the host.
#include <array>
#include <numeric>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/embedding.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

/// A shard with tokens [first, first + count) of the table, whose rows begin `offset` elements behind a boundary.
template <class T>
void check_tokens(std::mt19937& random, const std::vector<std::int32_t>& tokens, std::int64_t hidden,
                  std::int64_t first, std::int64_t count, std::int64_t offset = 0, std::int64_t scratch_bytes = 1 << 20,
                  float scale = 1) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  CAPTURE(rows);
  CAPTURE(hidden);
  CAPTURE(offset);
  CAPTURE(scratch_bytes);
  TestHost host(1);
  Emulator emulator(random());
  const auto table = random_tensor<T>(random, offset + count * hidden);
  const View<const T> entries = view(table).slice(offset, count * hidden);
  std::vector<T> expected_out(at(rows * hidden)), out(expected_out.size(), T(9.0F));
  host->embedding_forward(rows, hidden, view(tokens), first, count, scale, entries, view(expected_out));
  cuda::embedding_forward(emulator, rows, hidden, tokens.data(), first, count, scale, entries.data, out.data());
  CHECK(same_bits(out, expected_out));

  const auto dout = random_tensor<T>(random, offset + rows * hidden);
  const auto before = random_tensor<float>(random, count * hidden);
  auto expected = doubles(before);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t entry = tokens[at(row)] - first;
    if (entry < 0 || entry >= count) continue;
    for (std::int64_t i = 0; i < hidden; ++i)
      expected[at(entry * hidden + i)] +=
          static_cast<double>(scale * static_cast<float>(dout[at(offset + row * hidden + i)]));
  }
  std::vector<std::vector<float>> results;
  for (const unsigned order : {1U, 2U}) {
    Emulator other(order);
    std::vector<std::byte> scratch(at(scratch_bytes), std::byte{0xff});
    auto dtable = before;
    cuda::embedding_backward(other, view(scratch), rows, hidden, tokens.data(), first, count, scale,
                             dout.data() + offset, dtable.data());
    CHECK(error_of(dtable, expected) < 2e-6);
    results.push_back(dtable);
  }
  CHECK(same_bits(results[0], results[1]));
}

}  // namespace

TEST_CASE("a shard of the token table answers for its own tokens and gathers their gradients") {
  constexpr unsigned seed = 701;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const auto& [rows, hidden] : {std::pair<std::int64_t, std::int64_t>{1, 3}, {40, 1000}, {300, 130}, {33, 8}}) {
    check_tokens<float>(random, random_tokens(random, rows, 50), hidden, 10, 30);
    check_tokens<bfloat16>(random, random_tokens(random, rows, 50), hidden, 10, 30);
    check_tokens<float>(random, random_tokens(random, rows, 50), hidden, 0, 50, 1);
    check_tokens<float>(random, random_tokens(random, rows, 50), hidden, 10, 30, 0, 1 << 20, 2.5F);
  }
}

TEST_CASE("gradients of a token that goes on over many blocks, alone and between others") {
  std::mt19937 random(703);
  std::vector<std::int32_t> tokens(333, 7);
  check_tokens<float>(random, tokens, 16, 0, 9);
  check_tokens<bfloat16>(random, tokens, 12, 5, 4);
  check_tokens<float>(random, tokens, 16, 8, 9);  // not of this shard
  for (std::size_t i = 0; i < tokens.size(); i += 3) tokens[i] = static_cast<std::int32_t>(i / 3 % 5) + 5;
  check_tokens<float>(random, tokens, 16, 0, 12);
  std::iota(tokens.begin(), tokens.end(), 0);
  check_tokens<float>(random, tokens, 4, 100, 200);
}

TEST_CASE("little scratch memory takes more rows a chunk, and then several runs of rows") {
  std::mt19937 random(705);
  const auto tokens = random_tokens(random, 300, 6);
  for (const std::int64_t bytes : {300 * 32, 2000, 32}) check_tokens<float>(random, tokens, 16, 0, 6, 0, bytes);
  check_tokens<float>(random, tokens, 256, 0, 6, 0, 300 * 32);  // sums of four chunks can be kept
  Emulator emulator;
  std::vector<std::byte> scratch(31);
  std::vector<float> values(16);
  CHECK_THROWS_AS(
      cuda::embedding_backward(emulator, view(scratch), 1, 16, tokens.data(), 0, 6, 1.0F, values.data(), values.data()),
      DeviceFailure);
}

TEST_CASE("rows are in the order of their tokens, within a tile and over several") {
  std::mt19937 random(707);
  for (const std::int64_t rows : {1, 2, 63, 64, 65, 4096, 4097, 9000}) {
    CAPTURE(rows);
    const auto tokens = random_tokens(random, rows, rows == 9000 ? 3 : 1000);
    std::vector<std::int64_t> expected(at(rows));
    std::iota(expected.begin(), expected.end(), 0);
    const auto entry = [&](std::int64_t row) {
      const std::int32_t token = tokens[at(row)];
      return token >= 1 && token < 901 ? token - 1 : 900;
    };
    std::stable_sort(expected.begin(), expected.end(), [&](auto a, auto b) { return entry(a) < entry(b); });
    std::vector<cuda::TokenKey> keys(at(rows)), sorted(at(rows));
    Emulator emulator;
    cuda::sort_tokens(emulator, rows, tokens.data(), 1, 900, keys.data(), sorted.data());
    bool same = true;
    for (std::int64_t i = 0; i < rows; ++i)
      same = same && sorted[at(i)].row() == expected[at(i)] && sorted[at(i)].entry() == entry(expected[at(i)]);
    CHECK(same);
  }
}

TEST_CASE("learned positions add their row to every sample and gather its gradient") {
  std::mt19937 random(709);
  const auto check = [&]<class T>(std::int64_t rows, std::int64_t b, std::int64_t hidden, T) {
    CAPTURE(rows);
    CAPTURE(b);
    CAPTURE(hidden);
    const std::int64_t first = 4;
    TestHost host(1);
    Emulator emulator(random());
    const auto table = random_tensor<T>(random, (first + rows) * hidden);
    auto out = random_tensor<T>(random, rows * hidden);
    auto expected_out = out;
    const auto dout = random_tensor<T>(random, rows * hidden);
    auto dtable = random_tensor<float>(random, (first + rows) * hidden);
    auto expected_gradient = dtable;
    host->position_forward(rows, b, hidden, first, view(table), view(expected_out));
    host->position_backward(rows, b, hidden, first, view(dout), view(expected_gradient));
    cuda::position_forward(emulator, rows, b, hidden, first, table.data(), out.data());
    cuda::position_backward(emulator, rows, b, hidden, first, dout.data(), dtable.data());
    CHECK(same_bits(out, expected_out));
    CHECK(error_of(dtable, doubles(expected_gradient)) < 1e-6);
  };
  check(6, 3, 5, float{});
  check(40, 2, 1400, float{});
  check(7, 2, 9, float{});
  check(24, 4, 64, bfloat16{});
  check(5, 1, 2500, bfloat16{});
}

TEST_CASE("means over tokens and their gradient") {
  std::mt19937 random(711);
  const auto check = [&]<class T>(std::int64_t tokens, std::int64_t b, std::int64_t hidden, T) {
    CAPTURE(tokens);
    CAPTURE(b);
    CAPTURE(hidden);
    TestHost host(1);
    Emulator emulator(random());
    const float scale = 1.0F / static_cast<float>(tokens);
    const auto x = random_tensor<T>(random, tokens * b * hidden);
    std::vector<T> expected(at(b * hidden)), out(expected.size());
    host->pool_forward(tokens, b, hidden, scale, view(x), view(expected));
    cuda::pool_forward(emulator, tokens, b, hidden, scale, x.data(), out.data());
    CHECK(error_of(out, doubles(expected)) < tolerance<T>);
    std::vector<T> expected_dx(x.size()), dx(x.size());
    host->pool_backward(tokens, b, hidden, scale, view(std::as_const(out)), view(expected_dx));
    cuda::pool_backward(emulator, tokens, b, hidden, scale, out.data(), dx.data());
    CHECK(same_bits(dx, expected_dx));
  };
  check(1, 1, 3, float{});
  check(197, 2, 65, float{});
  check(49, 3, 96, bfloat16{});
  check(300, 1, 40, bfloat16{});
}

TEST_CASE("no rows: nothing is launched") {
  Emulator emulator;
  std::vector<std::byte> scratch(64);
  float* none = nullptr;
  cuda::embedding_forward<float>(emulator, 0, 8, nullptr, 0, 4, 1.0F, none, none);
  cuda::embedding_backward<float>(emulator, view(scratch), 0, 8, nullptr, 0, 4, 1.0F, none, none);
  cuda::position_forward<float>(emulator, 0, 1, 8, 0, none, none);
  cuda::position_backward<float>(emulator, 0, 1, 8, 0, none, none);
  cuda::pool_backward<float>(emulator, 0, 1, 8, 1.0F, none, none);
  CHECK(emulator.launches() == 0);
}
