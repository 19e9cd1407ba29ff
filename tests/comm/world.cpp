// Blocks between pairs of rank threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <galvatron/comm/comm.hpp>

using namespace galvatron;
using comm::Piece;
using comm::thread::run;
using comm::thread::World;

namespace {

template <class T>
Piece flat(int peer, std::vector<T>& data) {
  const auto bytes = static_cast<std::int64_t>(data.size() * sizeof(T));
  return {peer, reinterpret_cast<std::byte*>(data.data()), 1, bytes, bytes};
}

void post(World& world, const Piece& piece) { world.post({&piece, 1}); }
void receive(World& world, const Piece& piece) { world.receive({&piece, 1}); }

}  // namespace

TEST_CASE("a block travels from one rank to another, whoever comes first") {
  for (const bool sender_first : {true, false})
    run(2, [&](World& world) {
      std::vector<int> data(1000, world.rank() == 0 ? 7 : 0);
      if ((world.rank() == 0) != sender_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (world.rank() == 0) {
        post(world, flat(1, data));
        world.wait_sent();
      } else {
        receive(world, flat(0, data));
        REQUIRE(data == std::vector<int>(1000, 7));
      }
    });
}

TEST_CASE("a block to oneself is a copy") {
  run(3, [](World& world) {
    std::vector<int> from(100, world.rank()), to(100, -1);
    post(world, flat(world.rank(), from));
    receive(world, flat(world.rank(), to));
    world.wait_sent();
    REQUIRE(to == from);
    post(world, flat(world.rank(), from));  // onto itself: nothing moves
    receive(world, flat(world.rank(), from));
    REQUIRE(to == from);
  });
}

TEST_CASE("rows of a block may be cut differently on both sides") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t total = std::array{0, 1, 12, 60, 360}[random() % 5];
    const auto cut = [&](std::vector<std::byte>& memory) {
      std::int64_t rows = 1;
      do rows = total == 0 ? 1 : 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(total));
      while (total % rows != 0);
      const std::int64_t width = total / rows, stride = width + static_cast<std::int64_t>(random() % 9);
      memory.assign(static_cast<std::size_t>(rows * stride + 1), std::byte{0xEE});
      return Piece{0, memory.data(), rows, width, stride};
    };
    std::vector<std::byte> source, target;
    const Piece from = cut(source), to = cut(target);
    for (auto& byte : source) byte = static_cast<std::byte>(random() % 200);
    comm::copy_piece(from, to);
    const auto at = [](const Piece& p, std::int64_t i) {
      return p.data[i / p.row_bytes * p.stride_bytes + i % p.row_bytes];
    };
    for (std::int64_t i = 0; i < total; ++i) REQUIRE(at(from, i) == at(to, i));
    std::int64_t untouched = 0;
    for (const auto byte : target) untouched += byte == std::byte{0xEE};
    REQUIRE(untouched == static_cast<std::int64_t>(target.size()) - total);
  }
}

TEST_CASE("blocks of one pair arrive in the order in which they were posted, many under way at once") {
  constexpr int blocks = 300;
  run(2, [](World& world) {
    const int peer = 1 - world.rank();
    std::vector<std::vector<int>> out, in;
    std::vector<Piece> sends, receives;
    for (int i = 0; i < blocks; ++i) {
      out.emplace_back(static_cast<std::size_t>(i % 7), 1000 * world.rank() + i);
      in.emplace_back(static_cast<std::size_t>(i % 7), -1);
    }
    for (int i = 0; i < blocks; ++i) {
      sends.push_back(flat(peer, out[static_cast<std::size_t>(i)]));
      receives.push_back(flat(peer, in[static_cast<std::size_t>(i)]));
    }
    world.post(sends);
    world.receive(receives);
    world.wait_sent();
    for (int i = 0; i < blocks; ++i)
      REQUIRE(in[static_cast<std::size_t>(i)] == std::vector<int>(static_cast<std::size_t>(i % 7), 1000 * peer + i));
  });
}

TEST_CASE("blocks overtake each other in lanes, and a lane is waited for alone") {
  run(2, [](World& world) {
    const int peer = 1 - world.rank();
    const auto in_lane = [&](int lane, std::vector<int>& memory) {
      Piece piece = flat(peer, memory);
      piece.lane = lane;
      return piece;
    };
    for (int round = 0; round < 50; ++round) {
      std::vector<std::vector<int>> out, in(3, std::vector<int>(4, -1));
      for (const int lane : {0, 1, 2}) out.emplace_back(4, 100 * round + 10 * lane + world.rank());
      for (const int lane : {0, 1, 2}) post(world, in_lane(lane, out[static_cast<std::size_t>(lane)]));
      const auto take = [&](int lane) {
        auto& words = in[static_cast<std::size_t>(lane)];
        receive(world, in_lane(lane, words));
        REQUIRE(words == std::vector<int>(4, 100 * round + 10 * lane + peer));
      };
      take(2);
      world.wait_sent(2);  // the peer has taken nothing else yet, and may not before this returns
      world.everybody().barrier();
      take(0);
      take(1);
      world.wait_sent();
    }
  });
}

TEST_CASE("random exchanges between all ranks end with every byte where it belongs") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  for (const int n : {2, 3, 5, 8}) {
    run(n, [&](World& world) {
      std::mt19937 random(seed);  // all ranks know who sends what to whom
      std::vector<std::vector<std::uint32_t>> out(static_cast<std::size_t>(n)), in = out;
      for (int round = 0; round < 40; ++round) {
        std::vector<Piece> sends, receives;
        for (int from = 0; from < n; ++from)
          for (int to = 0; to < n; ++to) {
            const bool used = random() % 3 != 0;
            const std::size_t words = random() % (random() % 8 == 0 ? 20000 : 100);
            if (!used) continue;
            const auto tag = static_cast<std::uint32_t>(round * 10000 + from * 100 + to);
            if (from == world.rank()) {
              out[static_cast<std::size_t>(to)].assign(words, tag);
              sends.push_back(flat(to, out[static_cast<std::size_t>(to)]));
            }
            if (to == world.rank()) {
              in[static_cast<std::size_t>(from)].assign(words, 0);
              receives.push_back(flat(from, in[static_cast<std::size_t>(from)]));
            }
          }
        world.post(sends);
        world.receive(receives);
        for (const Piece& piece : receives) {
          const auto tag = static_cast<std::uint32_t>(round * 10000 + piece.peer * 100 + world.rank());
          const auto& words = in[static_cast<std::size_t>(piece.peer)];
          REQUIRE(std::ranges::count(words, tag) == static_cast<std::int64_t>(words.size()));
        }
        world.wait_sent();
      }
    });
  }
}

TEST_CASE("a pipeline of ranks passes blocks on while new ones come") {
  constexpr int microbatches = 200;
  run(8, [](World& world) {
    std::vector<std::int64_t> out(64), in(64);
    for (int m = 0; m < microbatches; ++m) {
      if (world.rank() > 0) receive(world, flat(world.rank() - 1, in));
      world.wait_sent();  // one send buffer
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = (world.rank() > 0 ? in[i] : m) + 1;
      if (world.rank() + 1 < world.size()) post(world, flat(world.rank() + 1, out));
      if (world.rank() + 1 == world.size()) REQUIRE(out[63] == m + 8);
    }
    world.wait_sent();
  });
}

TEST_CASE("a run gives back what the body computes and works again and again") {
  for (int i = 0; i < 50; ++i) {
    std::vector<int> seen(4, -1);
    run(4, [&](World& world) {
      seen[static_cast<std::size_t>(world.rank())] = world.rank() * 10 + world.size();
      REQUIRE(world.everybody().rank() == world.rank());
    });
    REQUIRE(seen == std::vector<int>{4, 14, 24, 34});
  }
}

TEST_CASE("a thread whose yields take long does without them for a while") {
  using comm::thread::YieldBackoff;
  const auto skipped = [](YieldBackoff& backoff) {
    int waits = 0;
    while (!backoff.may_yield()) ++waits;
    return waits;
  };
  YieldBackoff backoff;
  CHECK(skipped(backoff) == 0);
  for (int expected = YieldBackoff::least; expected < 10 * YieldBackoff::most; expected *= 4) {
    REQUIRE_FALSE(backoff.note(YieldBackoff::slow));
    REQUIRE(skipped(backoff) == std::min(expected, YieldBackoff::most));
    REQUIRE(backoff.note(std::chrono::microseconds(1)));
  }
  for (int i = 0; i < 16 * 10; ++i) REQUIRE(backoff.note(std::chrono::microseconds(1)));
  CHECK(skipped(backoff) == 0);
  CHECK_FALSE(backoff.note(std::chrono::seconds(1)));
  CHECK(skipped(backoff) == YieldBackoff::least);
}

TEST_CASE("waiting is a matter of cores") {
  using comm::thread::WaitPolicy;
  static_assert(WaitPolicy::of(2, 2).pauses > 0);
  static_assert(WaitPolicy::of(3, 2).pauses == 0);
  CHECK(usable_cores() >= 1);
  for (const int cores : {1, 64}) {  // both ways of waiting, on any machine
    comm::thread::Options options;
    options.cores = cores;
    run(
        3,
        [](World& world) {
          for (int i = 0; i < 50; ++i) {
            if (i % 10 == world.rank()) std::this_thread::sleep_for(std::chrono::microseconds(500));
            world.everybody().barrier();
          }
        },
        options);
  }
}
