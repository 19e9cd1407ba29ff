// Collectives of rank threads against serial references.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/sharding.hpp>

using namespace galvatron;
using comm::ReduceOp;
using comm::thread::run;
using comm::thread::World;

namespace {

// Sizes around every path: nothing, less than a member each, the small path, its border, several blocks.
const std::vector<std::int64_t> sizes = {0, 1, 3, 7, 64, 1000, 1025, 2048, 2049, 5000, 20001};

template <class T>
T value_of(int rank, std::int64_t i) {
  auto bits = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 40503U;
  bits ^= bits >> 15;
  const auto whole = static_cast<std::int32_t>(bits % 2000003U) - 1000001;
  if constexpr (std::is_same_v<T, std::int32_t>)
    return whole;
  else
    return static_cast<T>(static_cast<float>(whole) * 0x1p-10F);  // exact, so that a contraction changes nothing
}

template <class T>
std::vector<T> buffer_of(int rank, std::int64_t n) {
  std::vector<T> data(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) data[static_cast<std::size_t>(i)] = value_of<T>(rank, i);
  return data;
}

template <class T>
View<T> view(std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}

// In rank order, in the type in which sums are kept, rounded once.
template <class T>
std::vector<T> serial_reduction(const std::vector<int>& ranks, std::int64_t n, ReduceOp op) {
  std::vector<T> out(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    comm::Sum<T> sum = value_of<T>(ranks[0], i);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      const comm::Sum<T> next = value_of<T>(ranks[r], i);
      sum = op == ReduceOp::sum ? sum + next : std::max(sum, next);
    }
    out[static_cast<std::size_t>(i)] = static_cast<T>(sum);
  }
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::vector<int> ranks_up_to(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

template <class T>
void check_all_reduce(ReduceOp op) {
  for (int n = 1; n <= 8; ++n) {
    std::vector<int> wrong(static_cast<std::size_t>(n), 0);
    run(n, [&](World& world) {
      for (const std::int64_t size : sizes) {
        auto data = buffer_of<T>(world.rank(), size);
        world.everybody().all_reduce(view(data), op);
        wrong[static_cast<std::size_t>(world.rank())] +=
            !same_bits(data, serial_reduction<T>(ranks_up_to(n), size, op));
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

}  // namespace

TEST_CASE("all_reduce gives every member the sum in rank order, bit for bit") {
  check_all_reduce<float>(ReduceOp::sum);
  check_all_reduce<double>(ReduceOp::sum);
  check_all_reduce<std::int32_t>(ReduceOp::sum);
  check_all_reduce<bfloat16>(ReduceOp::sum);
}

TEST_CASE("all_reduce gives every member the maximum") {
  check_all_reduce<float>(ReduceOp::max);
  check_all_reduce<std::int32_t>(ReduceOp::max);
}

TEST_CASE("a NaN of any member is everybody's maximum and sum") {
  for (int culprit = 0; culprit < 5; ++culprit)
    for (const std::int64_t size : {3, 3000}) {
      std::vector<int> found(5, 0);
      run(5, [&](World& world) {
        for (const ReduceOp op : {ReduceOp::max, ReduceOp::sum}) {
          std::vector<float> data(static_cast<std::size_t>(size), 1.0F);
          if (world.rank() == culprit) data[1] = NAN;
          world.everybody().all_reduce(view(data), op);
          found[static_cast<std::size_t>(world.rank())] += std::isnan(data[1]) && !std::isnan(data[0]);
        }
      });
      CHECK(found == std::vector<int>(5, 2));
    }
}

TEST_CASE("bfloat16 is summed in float and rounded once") {
  // 256 + 1 + 1 in bfloat16 steps stays 256, in float it is 258.
  run(3, [](World& world) {
    std::vector<bfloat16> data(3000, bfloat16(world.rank() == 0 ? 256.0F : 1.0F));
    world.everybody().all_reduce(view(data));
    REQUIRE(static_cast<float>(data[2999]) == 258.0F);
  });
}

TEST_CASE("all_gather puts the shards in rank order, from elsewhere and in place") {
  for (int n = 1; n <= 8; ++n) {
    std::vector<int> wrong(static_cast<std::size_t>(n), 0);
    run(n, [&](World& world) {
      for (const std::int64_t size : sizes) {
        std::vector<float> expected;
        for (int r = 0; r < n; ++r) {
          const auto shard = buffer_of<float>(r, size);
          expected.insert(expected.end(), shard.begin(), shard.end());
        }
        auto shard = buffer_of<float>(world.rank(), size);
        std::vector<float> all(static_cast<std::size_t>(size * n), -1.0F);
        world.everybody().all_gather(View<const float>(shard.data(), size), view(all));
        const bool elsewhere = same_bits(all, expected);
        std::fill(all.begin(), all.end(), -1.0F);
        std::copy(shard.begin(), shard.end(), all.begin() + size * world.rank());
        world.everybody().all_gather(view(all).slice(size * world.rank(), size), view(all));
        wrong[static_cast<std::size_t>(world.rank())] += !elsewhere || !same_bits(all, expected);
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST_CASE("reduce_scatter gives every member its part of the sum, elsewhere and in place") {
  for (int n = 1; n <= 8; ++n) {
    std::vector<int> wrong(static_cast<std::size_t>(n), 0);
    run(n, [&](World& world) {
      for (const std::int64_t size : sizes) {
        const auto sum = serial_reduction<float>(ranks_up_to(n), size * n, ReduceOp::sum);
        const std::vector<float> expected(sum.begin() + size * world.rank(), sum.begin() + size * (world.rank() + 1));
        auto all = buffer_of<float>(world.rank(), size * n);
        std::vector<float> shard(static_cast<std::size_t>(size), -1.0F);
        world.everybody().reduce_scatter(view(all), view(shard));
        const bool elsewhere = same_bits(shard, expected) && same_bits(all, buffer_of<float>(world.rank(), size * n));
        world.everybody().reduce_scatter(view(all), view(all).slice(size * world.rank(), size));
        std::copy_n(all.begin() + size * world.rank(), size, shard.begin());
        wrong[static_cast<std::size_t>(world.rank())] += !elsewhere || !same_bits(shard, expected);
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST_CASE("shards of any sizes, some empty, are gathered and scattered as equal ones are") {
  for (int n = 1; n <= 8; ++n) {
    std::vector<int> wrong(static_cast<std::size_t>(n), 0);
    run(n, [&](World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      std::mt19937 random(static_cast<unsigned>(n));  // the same on all ranks
      for (const std::int64_t size : sizes) {
        const std::int64_t whole = size * n;
        std::vector<std::int64_t> ends;
        for (int i = 1; i < n; ++i)
          ends.push_back(random() % 3 == 0 && !ends.empty()
                             ? ends.back()
                             : static_cast<std::int64_t>(random() % static_cast<unsigned>(whole + 1)));
        std::ranges::sort(ends);
        ends.push_back(whole);
        const std::int64_t first = rank == 0 ? 0 : ends[rank - 1];
        const std::int64_t count = ends[rank] - first;
        const auto sum = serial_reduction<float>(ranks_up_to(n), whole, ReduceOp::sum);
        auto all = buffer_of<float>(world.rank(), whole);
        std::vector<float> shard(static_cast<std::size_t>(count), -1.0F);
        world.everybody().reduce_scatter(view(all), view(shard), ends);
        const auto is_sum = [&](const float* data) {
          const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
          return bytes == 0 || std::memcmp(data, sum.data() + first, bytes) == 0;
        };
        bool right = is_sum(shard.data());
        world.everybody().reduce_scatter(view(all), view(all).slice(first, count), ends);
        right = right && is_sum(all.data() + first);
        world.everybody().all_gather(view(all).slice(first, count), view(all), ends);
        right = right && same_bits(all, sum);
        std::ranges::fill(all, -1.0F);
        auto pending = world.everybody().start_all_gather(View<const float>(shard.data(), count), view(all), ends);
        world.everybody().finish(pending);
        wrong[rank] += !right || !same_bits(all, sum);
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST_CASE("members whose shards end elsewhere, and ends that are none, are refused") {
  const auto refused = [](const std::function<std::vector<std::int64_t>(int)>& ends_of) {
    std::string out;
    try {
      run(2, [&](World& world) {
        std::vector<float> all(8);
        const std::vector<std::int64_t> ends = ends_of(world.rank());
        const std::int64_t first = world.rank() == 0 ? 0 : ends[0];
        world.everybody().all_gather(view(all).slice(first, ends[static_cast<std::size_t>(world.rank())] - first),
                                     view(all), ends);
      });
    } catch (const Failure& failure) {
      out = failure.what();
    }
    return out;
  };
  CHECK(refused([](int rank) { return std::vector<std::int64_t>{rank == 0 ? 3 : 4, 8}; }).find("disagree") !=
        std::string::npos);
  CHECK(refused([](int) { return std::vector<std::int64_t>{3, 7}; }).find("end at 3, 7 for 2 members") !=
        std::string::npos);
  CHECK(refused([](int) { return std::vector<std::int64_t>{3, 8}; }).empty());
}

TEST_CASE("bfloat16 and double reduce_scatter agree with all_reduce") {
  run(4, [](World& world) {
    const auto check = [&]<class T>(T) {
      for (const std::int64_t size : {5, 3000}) {
        auto whole = buffer_of<T>(world.rank(), 4 * size);
        auto all = whole;
        std::vector<T> shard(static_cast<std::size_t>(size));
        world.everybody().all_reduce(view(whole));
        world.everybody().reduce_scatter(view(all), view(shard));
        REQUIRE(std::memcmp(shard.data(), whole.data() + size * world.rank(), shard.size() * sizeof(T)) == 0);
      }
    };
    check(bfloat16{});
    check(double{});
  });
}

TEST_CASE("all_to_all gives every member its block of everybody's") {
  for (int n = 1; n <= 8; ++n) {
    std::vector<int> wrong(static_cast<std::size_t>(n), 0);
    run(n, [&](World& world) {
      for (const std::int64_t size : sizes) {
        const auto own = buffer_of<float>(world.rank(), size * n);
        std::vector<float> got(own.size(), -1.0F), expected;
        for (int r = 0; r < n; ++r) {
          const auto other = buffer_of<float>(r, size * n);
          expected.insert(expected.end(), other.begin() + size * world.rank(),
                          other.begin() + size * (world.rank() + 1));
        }
        world.everybody().all_to_all({own.data(), size * n}, view(got));
        wrong[static_cast<std::size_t>(world.rank())] += !same_bits(got, expected);
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST_CASE("all_to_all in unequal blocks gives every member its columns of everybody's rows") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int n = 1; n <= 8; ++n)
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int64_t> rows, columns;  // ends
      const unsigned most = std::array{2U, 7U, 60U}[random() % 3];
      for (auto* ends : {&rows, &columns})
        for (int i = 0; i < n; ++i) ends->push_back((i == 0 ? 0 : ends->back()) + random() % most);
      const auto part = [](const std::vector<std::int64_t>& ends, int i) {
        const auto at = static_cast<std::size_t>(i);
        return Sharding::Range{i == 0 ? 0 : ends[at - 1], ends[at]};
      };
      const auto value = [](std::int64_t row, std::int64_t column) { return static_cast<float>(1000 * row + column); };
      std::vector<int> wrong(static_cast<std::size_t>(n), 0);
      run(n, [&](World& world) {
        const Sharding::Range own = part(rows, world.rank());
        const Sharding::Range taken = part(columns, world.rank());
        std::vector<float> from, expected;
        for (int i = 0; i < n; ++i)
          for (std::int64_t row = own.begin; row < own.end; ++row)
            for (std::int64_t c = part(columns, i).begin; c < part(columns, i).end; ++c) from.push_back(value(row, c));
        for (std::int64_t row = 0; row < rows.back(); ++row)
          for (std::int64_t c = taken.begin; c < taken.end; ++c) expected.push_back(value(row, c));
        std::vector<float> got(expected.size(), -1.0F);
        world.everybody().all_to_all(View<const float>(view(from)), view(got), rows, columns);
        wrong[static_cast<std::size_t>(world.rank())] += !same_bits(got, expected);
        // Back: before it has columns of all rows, and afterwards blocks of its rows as they were.
        std::vector<float> back(from.size(), -1.0F);
        world.everybody().all_to_all(View<const float>(view(got)), view(back), columns, rows);
        wrong[static_cast<std::size_t>(world.rank())] += !same_bits(back, from);
      });
      CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
    }
}

TEST_CASE("members that cut unequal blocks otherwise end with a failure") {
  CHECK_THROWS_WITH_AS(run(2,
                           [&](World& world) {
                             const std::vector<std::int64_t> rows{1, 3}, other{2, 3};
                             const std::vector<std::int64_t> columns{1, 2};
                             const auto& own = world.rank() == 0 ? rows : other;
                             std::vector<float> from(2), to(3);
                             world.everybody().all_to_all(View<const float>(view(from)), view(to), own, columns);
                           }),
                       doctest::Contains("all_to_all of 2 float in unequal blocks"), Failure);
}

TEST_CASE("shifts of blocks of other sizes arrive as they were sent") {
  for (int n = 2; n <= 5; ++n)
    run(n, [&](World& world) {
      auto& group = world.everybody();
      const auto size = [&](int member) { return std::int64_t{700} * ((member + n) % n % 3); };
      auto here = buffer_of<float>(world.rank(), size(world.rank()));
      for (int step = 1; step <= n; ++step) {
        const int from = (world.rank() - step + n) % n;
        std::vector<float> next(static_cast<std::size_t>(size(from)));
        group.start_shift(view(here), view(next));
        group.finish_shifts();
        REQUIRE(same_bits(next, buffer_of<float>(from, size(from))));
        here = next;
      }
    });
}

TEST_CASE("shifts go around the ring, several at a time and in order") {
  for (int n = 1; n <= 8; ++n) {
    std::vector<int> wrong(static_cast<std::size_t>(n), 0);
    run(n, [&](World& world) {
      auto& group = world.everybody();
      for (const std::int64_t size : {1, 64, 5000}) {
        auto here = buffer_of<float>(world.rank(), size);
        auto other = buffer_of<bfloat16>(world.rank(), size);
        std::vector<float> next(here.size());
        std::vector<bfloat16> other_next(other.size());
        for (int step = 1; step <= n; ++step) {
          group.start_shift(view(here), view(next));
          group.start_shift(view(other), view(other_next));
          group.finish_shifts();
          std::swap(here, next);
          std::swap(other, other_next);
          const int from = (world.rank() - step + 2 * n) % n;
          wrong[static_cast<std::size_t>(world.rank())] +=
              !same_bits(here, buffer_of<float>(from, size)) || !same_bits(other, buffer_of<bfloat16>(from, size));
        }
        group.finish_shifts();  // nothing is left to do
      }
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST_CASE("a shift does not wait for messages to others") {
  run(3, [](World& world) {
    std::vector<float> block(100, static_cast<float>(world.rank()));
    std::vector<float> got(100);
    const auto bytes = static_cast<std::int64_t>(block.size() * sizeof(float));
    const comm::Piece to_last{2, reinterpret_cast<std::byte*>(block.data()), 1, bytes, bytes};
    if (world.rank() == 0) world.post({&to_last, 1});
    if (world.rank() < 2) {
      auto& pair = world.group(std::vector<int>{0, 1});
      std::vector<float> other(100);
      pair.start_shift(view(block), view(other));
      pair.finish_shifts();
      REQUIRE(other[99] == static_cast<float>(1 - world.rank()));
      float go = 1;
      if (world.rank() == 1) world.group(std::vector<int>{1, 2}).broadcast(View<float>(&go, 1), 0);
    } else {
      float go = 0;
      world.group(std::vector<int>{1, 2}).broadcast(View<float>(&go, 1), 0);
      const comm::Piece from_first{0, reinterpret_cast<std::byte*>(got.data()), 1, bytes, bytes};
      world.receive({&from_first, 1});
      REQUIRE(got[99] == 0.0F);
    }
    world.wait_sent();
  });
}

TEST_CASE("broadcast copies the root's data to every member, from any root") {
  for (int n = 1; n <= 8; ++n)
    run(n, [&](World& world) {
      for (const std::int64_t size : {0, 3, 2048, 2049, 5000})
        for (int root = 0; root < n; ++root) {
          auto data = buffer_of<float>(world.rank(), size);
          world.everybody().broadcast(view(data), root);
          REQUIRE(same_bits(data, buffer_of<float>(root, size)));
        }
    });
}

TEST_CASE("groups are the same for the same ranks, and ranks keep their order in the group") {
  run(4, [](World& world) {
    const std::vector<int> order = {2, 0, 3};
    if (world.rank() != 1) {
      auto& group = world.group(order);
      REQUIRE(&group == &world.group(std::vector<int>{2, 0, 3}));
      REQUIRE(group.size() == 3);
      REQUIRE(order[static_cast<std::size_t>(group.rank())] == world.rank());
      std::vector<std::int32_t> all(3);
      const std::int32_t own = world.rank();
      group.all_gather({&own, 1}, view(all));
      REQUIRE(all == std::vector<std::int32_t>{2, 0, 3});
      std::int32_t value = world.rank();
      group.broadcast(View<std::int32_t>(&value, 1), /*root=*/2);
      REQUIRE(value == 3);
    }
    world.everybody().barrier();
  });
}

TEST_CASE("disjoint and crossing groups work at the same time") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  for (const int tensor : {2, 4}) {
    run(8, [&](World& world) {
      std::vector<int> row, column;  // a grid of tensor x data ranks
      for (int r = 0; r < 8; ++r) {
        if (r / tensor == world.rank() / tensor) row.push_back(r);
        if (r % tensor == world.rank() % tensor) column.push_back(r);
      }
      std::mt19937 random(seed);  // the same sizes on all ranks
      for (int round = 0; round < 60; ++round) {
        const auto size = static_cast<std::int64_t>(random() % (round % 3 == 0 ? 9000 : 300));
        auto data = buffer_of<float>(world.rank(), size);
        const auto& ranks = random() % 2 == 0 ? row : column;
        world.group(ranks).all_reduce(view(data));
        REQUIRE(same_bits(data, serial_reduction<float>(ranks, size, ReduceOp::sum)));
      }
    });
  }
}

TEST_CASE("a barrier holds everybody until the last has come") {
  for (const int n : {2, 3, 8}) {
    std::atomic<int> arrived{0};
    run(n, [&](World& world) {
      for (int round = 1; round <= 100; ++round) {
        arrived.fetch_add(1, std::memory_order_relaxed);
        world.everybody().barrier();
        REQUIRE(arrived.load(std::memory_order_relaxed) >= round * n);
        world.everybody().barrier();
      }
    });
    CHECK(arrived == 100 * n);
  }
}

TEST_CASE("a mixture of small and large collectives in a row is right every time") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  run(4, [&](World& world) {
    auto& group = world.everybody();
    std::mt19937 random(seed);
    for (int round = 0; round < 300; ++round) {
      const auto n = static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 8000 : 40));
      std::vector<std::int32_t> data(static_cast<std::size_t>(n), world.rank() + round);
      std::vector<std::int32_t> all(static_cast<std::size_t>(n * 4));
      switch (random() % 4) {
        case 0:
          group.all_reduce(view(data));
          REQUIRE(data == std::vector<std::int32_t>(data.size(), 6 + 4 * round));
          break;
        case 1:
          group.all_gather(view(data), view(all));
          for (int r = 0; r < 4; ++r) REQUIRE(all[static_cast<std::size_t>(n * r)] == r + round);
          break;
        case 2:
          group.broadcast(view(data), static_cast<int>(n % 4));
          REQUIRE(data.back() == static_cast<int>(n % 4) + round);
          break;
        default:
          std::fill(all.begin(), all.end(), world.rank() + round);
          group.reduce_scatter(view(all), view(data));
          REQUIRE(data.front() == 6 + 4 * round);
      }
    }
  });
}
