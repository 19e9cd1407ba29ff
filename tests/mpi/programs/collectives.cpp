// Collectives and messages of processes; started by mpirun, every process runs every case. What rank threads give is
// the measure: the same bits.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <galvatron/comm/mpi/world.hpp>
#include <galvatron/comm/thread/world.hpp>

#include "run_tests.hpp"

using namespace galvatron;
using comm::Piece;

namespace {

comm::mpi::Runtime* runtime = nullptr;
unsigned seed = 0;

template <class T>
std::vector<T> random_data(std::int64_t count, unsigned number) {
  std::mt19937 random(number);
  std::vector<T> out(static_cast<std::size_t>(count));
  for (T& x : out) {
    const int i = static_cast<int>(random() % 200001) - 100000;
    if constexpr (std::is_same_v<T, bfloat16>)
      x = bfloat16(static_cast<float>(i) / 7);
    else
      x = static_cast<T>(i) / static_cast<T>(7);
  }
  return out;
}

template <class T>
View<T> view(std::vector<T>& data) {
  return {data.data(), static_cast<std::int64_t>(data.size())};
}

/// One random collective; all that it gave to this rank.
template <class T, class G>
std::vector<T> collective(G& group, int kind, std::int64_t count, bool other, unsigned number) {
  const std::int64_t n = count / group.size();
  std::vector<T> data = random_data<T>(count, number);
  std::vector<T> shard = random_data<T>(n, number + 1);
  std::vector<T> all = random_data<T>(n * group.size(), number + 2);
  switch (kind) {
    case 0:
      group.all_reduce(view(data), other ? comm::ReduceOp::max : comm::ReduceOp::sum);
      return data;
    case 1:
      if (other)
        group.all_gather(view(all).slice(n * group.rank(), n), view(all));
      else
        group.all_gather(view(shard), view(all));
      return all;
    case 2:
      if (!other) {
        group.reduce_scatter(view(all), view(shard));
        return shard;
      }
      group.reduce_scatter(view(all), view(all).slice(n * group.rank(), n));
      return {all.begin() + n * group.rank(), all.begin() + n * (group.rank() + 1)};
    case 3: {
      std::mt19937 random(static_cast<unsigned>(count + group.size()));  // the same on all members
      std::vector<std::int64_t> ends;
      for (int i = 1; i < group.size(); ++i)
        ends.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(count + 1)));
      std::ranges::sort(ends);
      ends.push_back(count);
      const auto rank = static_cast<std::size_t>(group.rank());
      const std::int64_t first = rank == 0 ? 0 : ends[rank - 1];
      const View<T> own = view(data).slice(first, ends[rank] - first);
      if (other) group.reduce_scatter(view(data), own, ends);
      group.all_gather(own, view(data), ends);
      return data;
    }
    case 4:
      group.broadcast(view(data), other ? group.size() - 1 : 0);
      return data;
    default:
      group.barrier();
      return {};
  }
}

/// A random program of collectives in random groups; what it gave to this rank.
template <class W>
std::vector<std::byte> random_program(W& world) {
  constexpr std::array<std::int64_t, 10> counts{0, 1, 7, 250, 768, 769, 5000, 100003, 700000, 3000001};
  std::vector<std::byte> out;
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    const int block = random() % 2 == 0 ? world.size() : 1 + static_cast<int>(random() % 8);
    std::vector<int> ranks;
    for (int r = 0; r < world.size(); ++r)
      if (r / block == world.rank() / block) ranks.push_back(r);
    if (random() % 2 == 0) std::ranges::reverse(ranks);
    auto& group = world.group(ranks);
    const int kind = static_cast<int>(random() % 6);
    const std::int64_t count = counts[random() % counts.size()];
    const bool other = random() % 2 == 0;
    const unsigned number = static_cast<unsigned>(random()) + 1000U * static_cast<unsigned>(world.rank());
    const auto keep = [&](const auto& given) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(given.data());
      out.insert(out.end(), bytes, bytes + given.size() * sizeof given[0]);
    };
    switch (random() % 4) {
      case 0:
        keep(collective<float>(group, kind, count, other, number));
        break;
      case 1:
        keep(collective<double>(group, kind, count, other, number));
        break;
      case 2:
        keep(collective<bfloat16>(group, kind, count, other, number));
        break;
      default:
        keep(collective<std::int32_t>(group, kind, count, other, number));
        break;
    }
  }
  return out;
}

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

TEST_CASE("collectives give the bits that rank threads give") {
  std::vector<std::byte> given;
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) { given = random_program(world); });
  std::vector<std::byte> expected;
  comm::thread::run(runtime->size(), [&](comm::thread::World& world) {
    const auto own = random_program(world);
    if (world.rank() == runtime->rank()) expected = own;
  });
  CHECK(given.size() == expected.size());
  CHECK((given == expected));
}

TEST_CASE("all_to_all and shifts move every block where it belongs") {
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    auto& group = world.everybody();
    const auto value = [](int from, int to, std::int64_t i) {
      return static_cast<std::int32_t>(1'000'000 * from + 10'000 * to + i % 9973);
    };
    for (const std::int64_t n : {0, 1, 60, 20000}) {
      std::vector<std::int32_t> from, to(static_cast<std::size_t>(n * group.size()), -1);
      for (int peer = 0; peer < group.size(); ++peer)
        for (std::int64_t i = 0; i < n; ++i) from.push_back(value(group.rank(), peer, i));
      group.all_to_all(view(from), view(to));
      std::vector<std::int32_t> expected;
      for (int peer = 0; peer < group.size(); ++peer)
        for (std::int64_t i = 0; i < n; ++i) expected.push_back(value(peer, group.rank(), i));
      REQUIRE((to == expected));
    }
    // Unequal blocks: rank i has i rows, and gets i + 1 columns; small and large ones.
    for (const std::int64_t unit : {1, 90}) {
      std::vector<std::int64_t> rows, columns;
      for (std::int64_t i = 0; i < group.size(); ++i) {
        rows.push_back(unit * i * (i + 1) / 2);
        columns.push_back(unit * (i + 1) * (i + 2) / 2);
      }
      std::vector<std::int32_t> from, expected;
      const auto block = [&](int giver, int taker, std::vector<std::int32_t>& to) {
        for (std::int64_t i = 0; i < unit * giver * unit * (taker + 1); ++i) to.push_back(value(giver, taker, i));
      };
      for (int peer = 0; peer < group.size(); ++peer) block(group.rank(), peer, from);
      for (int peer = 0; peer < group.size(); ++peer) block(peer, group.rank(), expected);
      std::vector<std::int32_t> to(expected.size(), -1);
      group.all_to_all(view(from), view(to), rows, columns);
      REQUIRE((to == expected));
    }
    // A block of each rank's own size.
    std::vector<double> mine(static_cast<std::size_t>(2000 * group.rank()), group.rank());
    const int left = (group.rank() + group.size() - 1) % group.size();
    std::vector<double> theirs(static_cast<std::size_t>(2000 * left), -1);
    group.start_shift(view(mine), view(theirs));
    group.finish_shifts();
    REQUIRE(theirs == std::vector<double>(theirs.size(), left));
    std::vector<double> a(5000, group.rank()), b(5000, -1), small(3, 100 + group.rank()), next(3, -1);
    group.start_shift(view(a), view(b));
    group.start_shift(view(small), view(next));
    group.finish_shifts();
    const int before = (group.rank() + group.size() - 1) % group.size();
    REQUIRE(b == std::vector<double>(5000, before));
    REQUIRE(next == std::vector<double>(3, 100 + before));
  });
}

TEST_CASE("random exchanges of strided blocks end with every byte where it belongs") {
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    std::mt19937 random(seed);  // all ranks know who sends what to whom
    const auto n = static_cast<unsigned>(world.size());
    for (int round = 0; round < 60; ++round) {
      std::vector<Piece> sends, receives;
      std::vector<std::vector<std::byte>> memory;
      std::vector<std::byte> expected;
      memory.reserve(64);
      for (int block = 0; block < 24; ++block) {
        const int from = static_cast<int>(random() % n), to = static_cast<int>(random() % n);
        const std::int64_t total = std::array{0, 12, 360, 5040, 221760}[random() % 5];
        const auto fill = static_cast<std::byte>(random() % 200);
        const auto place = [&](int peer) {  // rows of a length of this side's own
          const std::int64_t rows = std::array{1, 2, 3, 4, 6, 12}[random() % 6];
          const std::int64_t width = total / rows, stride = width + static_cast<std::int64_t>(random() % 9);
          memory.emplace_back(static_cast<std::size_t>(rows * stride + 1), std::byte{0xEE});
          return Piece{peer, memory.back().data(), rows, width, stride};
        };
        const Piece source = place(to), target = place(from);
        for (std::int64_t i = 0; i < source.rows * source.row_bytes; ++i)
          source.data[i / source.row_bytes * source.stride_bytes + i % source.row_bytes] = fill;
        if (from == world.rank()) sends.push_back(source);
        if (to != world.rank()) continue;
        receives.push_back(target);
        expected.push_back(fill);
      }
      world.post(sends);
      world.receive(receives);
      world.wait_sent();
      for (std::size_t b = 0; b < receives.size(); ++b) {
        const Piece& piece = receives[b];
        std::int64_t wrong = 0;
        for (std::int64_t row = 0; row < piece.rows; ++row)
          for (std::int64_t i = 0; i < piece.stride_bytes; ++i)
            wrong += piece.data[row * piece.stride_bytes + i] != (i < piece.row_bytes ? expected[b] : std::byte{0xEE});
        REQUIRE(wrong == 0);
      }
    }
  });
}

TEST_CASE("a lane does not wait for another") {
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    const int next = (world.rank() + 1) % world.size();
    const int before = (world.rank() + world.size() - 1) % world.size();
    std::vector<int> large(1'000'000, world.rank()), small(10, -world.rank()), taken(1'000'000), few(10);
    const auto block = [](int peer, std::vector<int>& data, int lane) {
      const auto bytes = static_cast<std::int64_t>(data.size() * sizeof(int));
      return Piece{peer, reinterpret_cast<std::byte*>(data.data()), 1, bytes, bytes, lane};
    };
    const Piece first = block(next, large, 3), second = block(next, small, 5);
    world.post({&first, 1});
    world.post({&second, 1});
    const Piece from_second = block(before, few, 5), from_first = block(before, taken, 3);
    world.receive({&from_second, 1});
    world.wait_sent(5);
    world.receive({&from_first, 1});
    world.wait_sent(3);
    REQUIRE(few == std::vector<int>(10, -before));
    REQUIRE(taken == std::vector<int>(1'000'000, before));
  });
}

TEST_CASE("waiting leaves the cores to others") {
  constexpr double seconds = 1.5;
  double used = 0;
  double all = 0;
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    world.everybody().barrier();
    const double before = processor_seconds();
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    world.everybody().barrier();
    used = all = processor_seconds() - before;
    world.everybody().all_reduce(View<double>(&all, 1));
  });
  if (runtime->rank() == 0)
    MESSAGE(runtime->size() << " ranks wait " << seconds << " s and use " << all << " s of processor time");
  CHECK(used < 0.15 * seconds);
  CHECK(all < 0.5 * seconds);
}

int main(int count, char** values) {
  return programs::run_tests(count, values, [](comm::mpi::Runtime& mine, unsigned number) {
    runtime = &mine;
    seed = number;
  });
}
