// The emulator of CUDA blocks, on kernels whose results are known.
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "emulator.hpp"

namespace {

using namespace galvatron;
namespace cuda = device::cuda;

struct SumOfIndices {
  static constexpr int most_threads = 256;
  double* out;  // one a block
  template <class B>
  void operator()(B& block) const {
    const double sum = cuda::block_sum(block, static_cast<double>(block.thread()));
    if (block.thread() == 0) out[block.index()] = sum;
  }
};

struct SumByTheLast {
  static constexpr int most_threads = 64;
  std::int64_t blocks;
  int* values;  // one a thread
  std::uint32_t* ticket;
  int* sums;  // one a thread of a block
  template <class B>
  void operator()(B& block) const {
    values[block.index() * block.threads() + block.thread()] = static_cast<int>(block.index()) + 1;
    if (!cuda::is_last_block(block, ticket, blocks)) return;
    for (std::int64_t i = 0; i < blocks; ++i) sums[block.thread()] += values[i * block.threads() + block.thread()];
  }
};

struct Reverse {
  static constexpr int most_threads = 64;
  bool waits;
  int* values;
  template <class B>
  void operator()(B& block) const {
    auto* shared = reinterpret_cast<int*>(block.shared());
    shared[block.thread()] = values[block.thread()];
    if (waits) block.sync();
    values[block.thread()] = shared[block.threads() - 1 - block.thread()];
  }
};

struct LeavesBehind {
  static constexpr int most_threads = 64;
  template <class B>
  void operator()(B& block) const {
    if (block.thread() != 5) block.sync();
  }
};

struct Product {
  static constexpr int most_threads = 32;
  const bfloat16* a;  // (16, 16)
  const bfloat16* b;  // (16, 8)
  float* c;           // (16, 8)
  template <class B>
  void operator()(B& block) const {
    const int g = block.thread() / 4;
    const int t = block.thread() % 4 * 2;
    const auto two = [](const bfloat16& first, const bfloat16& second) {
      return static_cast<std::uint32_t>(first.bits) | static_cast<std::uint32_t>(second.bits) << 16;
    };
    const auto of_a = [&](int row, int column) { return two(a[row * 16 + column], a[row * 16 + column + 1]); };
    const auto of_b = [&](int row) { return two(b[row * 8 + g], b[(row + 1) * 8 + g]); };
    const std::uint32_t left[4] = {of_a(g, t), of_a(g + 8, t), of_a(g, t + 8), of_a(g + 8, t + 8)};
    const std::uint32_t right[2] = {of_b(t), of_b(t + 8)};
    float sums[4] = {};
    block.multiply(sums, left, right);
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + t + i % 2] = sums[i];
  }
};

}  // namespace

TEST_CASE("sums over blocks of any number of warps") {
  test::Emulator emulator;
  for (const int threads : {32, 64, 256}) {
    std::vector<double> out(3);
    emulator.launch({.blocks = 3, .threads = threads}, SumOfIndices{out.data()});
    for (const double sum : out) CHECK(sum == threads * (threads - 1) / 2);
  }
}

TEST_CASE("the last block of a launch, and only that, sees what all have left, launch by launch") {
  test::Emulator emulator;
  std::uint32_t ticket = 0;
  std::vector<int> values(5 * 64), sums(64);
  for (const int launch : {1, 2}) {
    emulator.launch({.blocks = 5, .threads = 64}, SumByTheLast{5, values.data(), &ticket, sums.data()});
    CHECK(ticket == 0);
    CHECK(sums == std::vector<int>(64, 15 * launch));
  }
}

TEST_CASE("a missing barrier shows") {
  test::Emulator emulator;
  int wrong = 0;
  for (const bool waits : {true, false})
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::vector<int> values(64), expected(64);
      std::iota(values.begin(), values.end(), 0);
      std::iota(expected.rbegin(), expected.rend(), 0);
      emulator.launch({.blocks = 1, .threads = 64, .shared_bytes = 256}, Reverse{waits, values.data()});
      if (waits)
        CHECK(values == expected);
      else
        wrong += values != expected ? 1 : 0;
    }
  CHECK(wrong > 0);
}

TEST_CASE("a barrier that a thread leaves out is an error, and so are launches that no GPU takes") {
  test::Emulator emulator;
  CHECK_THROWS_AS(emulator.launch({.blocks = 1, .threads = 64}, LeavesBehind{}), std::logic_error);
  CHECK_THROWS_AS(emulator.launch({.blocks = 1, .threads = 128}, LeavesBehind{}), std::logic_error);
  CHECK_THROWS_AS(emulator.launch({.blocks = 0, .threads = 64}, LeavesBehind{}), std::logic_error);
}

TEST_CASE("the product of a warp is that of its matrices") {
  test::Emulator emulator;
  std::vector<bfloat16> a(256), b(128);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = bfloat16(static_cast<float>(i % 7) - 3);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = bfloat16(static_cast<float>(i % 5) - 2);
  std::vector<float> c(128);
  emulator.launch({.blocks = 1, .threads = 32}, Product{a.data(), b.data(), c.data()});
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      float expected = 0;
      for (std::size_t k = 0; k < 16; ++k)
        expected += static_cast<float>(a[i * 16 + k]) * static_cast<float>(b[k * 8 + j]);
      CHECK(c[i * 8 + j] == expected);
    }
}
