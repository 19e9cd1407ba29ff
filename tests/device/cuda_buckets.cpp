// Rows that go into a table of buckets all at once: threads of this machine race for its places, as a GPU's would.
// labels: tsan
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/buckets.hpp>

#include "buckets.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

// What InsertRows needs of a block: one thread, on a grid of such blocks that run side by side.
class RacingBlock {
 public:
  RacingBlock(std::int64_t index, std::int64_t blocks) : index_(index), blocks_(blocks) {}
  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] std::int64_t blocks() const { return blocks_; }
  [[nodiscard]] static int thread() { return 0; }
  [[nodiscard]] static int threads() { return 1; }
  static std::int32_t claim(std::int32_t* number, std::int32_t value) {
    std::int32_t before = 0;
    std::atomic_ref(*number).compare_exchange_strong(before, value);
    return before;
  }
  static std::int32_t raise(std::int32_t* number, std::int32_t value) {
    const std::atomic_ref all(*number);
    std::int32_t before = all.load();
    while (before < value && !all.compare_exchange_weak(before, value)) {
    }
    return before;
  }

 private:
  std::int64_t index_, blocks_;
};

}  // namespace

TEST_CASE("leaders of buckets are the first rows, however rows race for places of the table") {
  constexpr unsigned seed = 921;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    RoutedTokens expected(random, 2000, 1 + round % 4, 1, 1 + round % 3, 0.1);
    RoutedTokens routed = expected;
    expected.number_by_definition();
    std::vector<std::int32_t> table(static_cast<std::size_t>(routed.table_places()));
    const device::TokenBuckets buckets = routed.buckets();
    const device::cuda::InsertRows insert{routed.hashing, buckets, routed.table_places(), routed.codes.data(),
                                          table.data()};
    constexpr int threads = 4;
    std::atomic<int> ready = 0;
    std::vector<std::thread> grid;
    for (int i = 0; i < threads; ++i)
      grid.emplace_back([&, i] {
        ++ready;
        while (ready < threads) std::this_thread::yield();
        RacingBlock block(i, threads);
        insert(block);
      });
    for (std::thread& thread : grid) thread.join();
    const device::cuda::FindLeaders find{buckets, table.data()};
    for (std::int64_t row = 0; row < buckets.rows; ++row) find(row);
    for (std::int32_t row = 0; row < expected.rows(); ++row) {
      const std::int32_t bucket = expected.bucket[static_cast<std::size_t>(row)];
      const std::int32_t begin = expected.begins[static_cast<std::size_t>(bucket)];
      CHECK(routed.bucket[static_cast<std::size_t>(row)] == expected.members[static_cast<std::size_t>(begin)]);
    }
  }
}
