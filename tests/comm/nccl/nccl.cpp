// comm::nccl over libraries that are only played (fake_libraries.hpp), against rank threads.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "fake_libraries.hpp"

#include <galvatron/comm/comm.hpp>
#include <galvatron/comm/nccl/world.hpp>
#include <galvatron/comm/tcp/world.hpp>

namespace {

using namespace galvatron;
using comm::Piece;
using comm::ReduceOp;
using Threads = comm::thread::World;
using World = comm::nccl::World;
using Stream = device::cuda::Stream;

void shuffle_streams() {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  const std::scoped_lock lock(fake::mutex);
  fake::random.seed(seed);
}

// A rank: its world, its compute stream.
struct Rank {
  World& world;
  Stream& compute;
  void run(std::function<void()> work) const {
    const std::scoped_lock lock(fake::mutex);
    fake::give(*fake::queue_of(compute.get()), std::move(work));
  }
};
void run(int ranks, const std::function<void(Rank&)>& body,
         std::chrono::nanoseconds timeout = std::chrono::seconds(20)) {
  comm::thread::run(ranks, [&](Threads& control) {
    Stream compute;
    World world(control, compute, timeout);
    Rank rank{world, compute};
    body(rank);
  });
}

template <class T>
std::vector<T> values(int rank, std::int64_t n) {
  std::vector<T> out(static_cast<std::size_t>(n));
  std::mt19937 random(static_cast<unsigned>(rank) * 7919U + static_cast<unsigned>(n));
  for (T& x : out) x = static_cast<T>(static_cast<float>(random() % 20001) / 97.0F - 100.0F);
  return out;
}
template <class T>
View<T> view(std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Every collective, some started and finished later.
template <class T, class G>
void all_collectives(G& group, std::vector<T>& data, std::vector<T>& other, std::vector<T>& third) {
  const std::int64_t n = static_cast<std::int64_t>(data.size()) / group.size();
  const auto own = [&](std::vector<T>& v) { return view(v).slice(group.rank() * n, n); };
  auto gather = group.start_all_gather(own(third), view(third));
  group.template all_to_all<T>(view(data), view(other));
  group.all_reduce(view(other));
  auto reduce = group.start_all_reduce(view(data), ReduceOp::max);
  group.finish(gather);
  group.finish(reduce);
  group.finish(gather);
  group.template start_shift<T>(view(other).slice(0, n), own(third));
  group.finish_shifts();
  group.broadcast(own(data).slice(0, n / 2), group.size() - 1);
  auto scatter = group.start_reduce_scatter(view(third), own(third));
  group.finish(scatter);
  group.template all_gather<T>(own(third), view(third));
  // Member i has i times as many as member 1 has, and the last one the rest.
  std::vector<std::int64_t> ends;
  for (int i = 0; i < group.size(); ++i) ends.push_back(n * i * (i + 1) / (2 * group.size()));
  ends.back() = n * group.size();
  const std::int64_t first = group.rank() == 0 ? 0 : ends[static_cast<std::size_t>(group.rank() - 1)];
  const auto part = [&](std::vector<T>& v) {
    return view(v).slice(first, ends[static_cast<std::size_t>(group.rank())] - first);
  };
  auto uneven = group.start_reduce_scatter(view(data), part(data), ends);
  group.finish(uneven);
  group.template all_gather<T>(part(data), view(data), ends);
  // Member i has i + 1 rows, and all have i columns of them afterwards; a block goes around.
  std::vector<std::int64_t> rows, columns;
  for (std::int64_t i = 0; i < group.size() && n >= 32; ++i) {
    rows.push_back((i + 1) * (i + 2) / 2);
    columns.push_back(i * (i + 1) / 2);
  }
  if (n >= 32) {
    const std::int64_t me = group.rank();
    const View<T> given = view(data).slice(0, (me + 1) * columns.back());
    group.template all_to_all<T>(given, view(other).slice(0, rows.back() * me), rows, columns);
    group.template start_shift<T>(view(data).slice(0, me),
                                  view(third).slice(0, (me + group.size() - 1) % group.size()));
    group.finish_shifts();
  }
  group.barrier();
}

template <class T>
void check_collectives(int ranks, std::int64_t n) {
  std::vector<std::vector<T>> right(static_cast<std::size_t>(ranks)), found = right;
  const auto all = [&](std::vector<T>& out, std::vector<T>& a, std::vector<T>& b, std::vector<T>& c) {
    out = a;
    out.insert(out.end(), b.begin(), b.end());
    out.insert(out.end(), c.begin(), c.end());
  };
  comm::thread::run(ranks, [&](Threads& world) {
    auto a = values<T>(world.rank(), n * ranks), b = a, c = a;
    all_collectives(world.everybody(), a, b, c);
    all(right[static_cast<std::size_t>(world.rank())], a, b, c);
  });
  run(ranks, [&](Rank& rank) {
    const auto source = values<T>(rank.world.rank(), n * ranks);
    std::vector<T> a(source.size()), b = a, c = a;
    const comm::SendGuard guard(rank.world);
    rank.run([&] { a = b = c = source; });
    all_collectives(rank.world.everybody(), a, b, c);
    rank.run([&] { all(found[static_cast<std::size_t>(rank.world.rank())], a, b, c); });
    rank.compute.wait();
  });
  for (std::size_t r = 0; r < right.size(); ++r) CHECK(same_bits(found[r], right[r]));
}

}  // namespace

TEST_CASE("collectives in all types, blocking and started, find and leave what the stream computes") {
  shuffle_streams();
  for (const int ranks : {1, 2, 3, 5})
    for (const std::int64_t n : {2, 64, 1000}) {
      check_collectives<float>(ranks, n);
      check_collectives<bfloat16>(ranks, n);
      check_collectives<double>(ranks, n);
    }
}

TEST_CASE("groups that overlap") {
  shuffle_streams();
  run(4, [](Rank& rank) {
    const int me = rank.world.rank();
    const std::vector<int> row = me < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3};
    const std::vector<int> column = {me % 2, me % 2 + 2};
    std::vector<double> data(1);
    const comm::SendGuard guard(rank.world);
    rank.run([&] { data[0] = 1 << me; });
    for (int repeat = 0; repeat < 3; ++repeat) {
      rank.world.group(row).all_reduce(view(data));
      rank.world.group(column).all_reduce(view(data));
    }
    rank.compute.wait();
    REQUIRE(data[0] == 15 * 16);
  });
}

TEST_CASE("blocks of rows that are cut differently, in lanes taken in another order, between all ranks at once") {
  shuffle_streams();
  for (int round = 0; round < 6; ++round)
    run(4, [&](Rank& rank) {
      constexpr int lanes = 3;
      const int me = rank.world.rank(), ranks = rank.world.size();
      constexpr std::int64_t rows = 6, width = 8, stride = 12;
      const auto blocks = static_cast<std::size_t>(lanes * ranks);
      std::vector<std::vector<std::byte>> out(blocks, std::vector<std::byte>(rows * stride)),
          in(blocks, std::vector<std::byte>(rows * width + 20));
      const comm::SendGuard guard(rank.world);
      for (int step = 0; step < 3; ++step) {
        rank.run([&out, me, step] {
          for (std::size_t b = 0; b < out.size(); ++b)
            for (std::size_t i = 0; i < out[b].size(); ++i)
              out[b][i] = static_cast<std::byte>(i + 31 * b + 7 * static_cast<std::size_t>(me + step));
        });
        for (int lane = 0; lane < lanes; ++lane) {
          std::vector<Piece> sends;
          for (int peer = 0; peer < ranks; ++peer)
            sends.push_back({peer, out[static_cast<std::size_t>(lane * ranks + peer)].data(), rows, width,
                             lane == 1 ? width : stride, lane});
          rank.world.post(sends);
        }
        for (int lane = lanes - 1; lane >= 0; --lane) {
          std::vector<Piece> receives;
          for (int peer = 0; peer < ranks; ++peer) {
            std::byte* const to = in[static_cast<std::size_t>(lane * ranks + peer)].data();
            receives.push_back(lane == 1 ? Piece{peer, to, 1, rows * width, rows * width, lane}
                                         : Piece{peer, to, rows / 2, width * 2, width * 2 + 4, lane});
          }
          rank.world.receive(receives);
          rank.world.wait_sent(lane);
        }
        rank.world.wait_sent();
        std::vector<std::vector<std::byte>> found;
        rank.run([&] {
          for (auto& block : out) std::ranges::fill(block, std::byte{255});
          found = in;
        });
        rank.compute.wait();
        for (int lane = 0; lane < lanes; ++lane)
          for (int peer = 0; peer < ranks; ++peer)
            for (std::int64_t i = 0; i < rows * width; ++i) {
              const auto at =
                  static_cast<std::size_t>(lane == 1 ? i : i / (2 * width) * (2 * width + 4) + i % (2 * width));
              const auto from = static_cast<std::size_t>(lane == 1 ? i : i / width * stride + i % width);
              const auto block = static_cast<std::size_t>(lane * ranks + me);
              REQUIRE(found[static_cast<std::size_t>(lane * ranks + peer)][at] ==
                      static_cast<std::byte>(from + 31 * block + 7 * static_cast<std::size_t>(peer + step)));
            }
      }
    });
}

TEST_CASE("a pipeline of posts and receives, several under way") {
  shuffle_streams();
  run(3, [](Rank& rank) {
    const int me = rank.world.rank();
    std::vector<float> activation(50), gradient(50), a(50), g(50);
    const auto piece = [](int peer, std::vector<float>& v, int lane) {
      return Piece{peer, reinterpret_cast<std::byte*>(v.data()), 1, 200, 200, lane};
    };
    const comm::SendGuard guard(rank.world);
    for (int microbatch = 0; microbatch < 6; ++microbatch) {
      if (me > 0) {
        const Piece in = piece(me - 1, a, 1);
        rank.world.receive({&in, 1});
      }
      rank.world.wait_sent(1);
      rank.run([&activation, &a, me, microbatch] {
        for (std::size_t i = 0; i < a.size(); ++i)
          activation[i] = me == 0 ? static_cast<float>(microbatch) : a[i] * 2 + 1;
      });
      if (me < 2) {
        const Piece out = piece(me + 1, activation, 1), in = piece(me + 1, g, 2);
        rank.world.post({&out, 1});
        rank.world.receive({&in, 1});
      }
      rank.world.wait_sent(2);
      rank.run([&gradient, &g, &activation, me] {
        for (std::size_t i = 0; i < g.size(); ++i) gradient[i] = me == 2 ? activation[i] : g[i] + 100;
      });
      if (me > 0) {
        const Piece out = piece(me - 1, gradient, 2);
        rank.world.post({&out, 1});
      }
      rank.world.wait_sent(2);
      if (me == 0) {
        rank.compute.wait();
        REQUIRE(gradient[49] == static_cast<float>(microbatch) * 4 + 3 + 200);
      }
    }
    rank.world.wait_sent();
  });
}

TEST_CASE("a rank that dies ends kernels that wait for it, and the others say why") {
  shuffle_streams();
  for (const bool in_stream : {true, false}) {
    std::vector<std::string> said(3);
    const auto begin = std::chrono::steady_clock::now();
    std::string failure;
    try {
      run(3, [&](Rank& rank) {
        std::vector<float> data(100, 1.0F);
        const comm::SendGuard guard(rank.world);
        rank.world.everybody().all_reduce(view(data));
        rank.compute.wait();
        if (rank.world.rank() == 1) throw std::runtime_error("disk on fire");
        try {
          rank.world.everybody().all_reduce(view(data));  // in its stream, and waits there
          if (in_stream) rank.compute.wait();
          for (int i = 0; i < 100; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            rank.world.everybody().all_reduce(view(data));
          }
        } catch (const PeerFailure& e) {
          said[static_cast<std::size_t>(rank.world.rank())] = e.what();
          throw;
        }
      });
    } catch (const std::exception& e) {
      failure = e.what();
    }
    CHECK(failure == "disk on fire");
    CHECK(said[0] == "rank 1 has failed");
    CHECK(said[2] == said[0]);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  }
}

TEST_CASE("a collective to which a rank does not come ends after the time limit") {
  shuffle_streams();
  std::atomic<bool> told{false};
  std::string failure;
  try {
    run(
        2,
        [&](Rank& rank) {
          std::vector<float> data(10, 1.0F);
          const comm::SendGuard guard(rank.world);
          rank.world.everybody().all_reduce(view(data));
          rank.compute.wait();
          if (rank.world.rank() == 1) {
            for (int i = 0; i < 500 && !told; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            return;
          }
          rank.world.everybody().all_reduce(view(data));
          rank.compute.wait();
          told = true;
          rank.world.everybody().all_reduce(view(data));
        },
        std::chrono::milliseconds(400));
  } catch (const std::exception& e) {
    failure = e.what();
  }
  CHECK(failure == "rank 0 gave up after 0.4 s: the all_reduce of 10 float of ranks 0 and 1 did not end");
}

TEST_CASE("sizes that do not match are named") {
  shuffle_streams();
  std::string failure;
  try {
    run(2, [](Rank& rank) {
      std::vector<std::byte> data(16);
      const comm::SendGuard guard(rank.world);
      const Piece piece{1 - rank.world.rank(), data.data(), 1, rank.world.rank() == 0 ? 16 : 8, 16};
      if (rank.world.rank() == 0) rank.world.post({&piece, 1});
      if (rank.world.rank() == 1) rank.world.receive({&piece, 1});
      rank.world.wait_sent();
    });
  } catch (const std::exception& e) {
    failure = e.what();
  }
  CHECK(failure == "rank 1 receives a block of 8 bytes, but rank 0 sent one of 16 bytes");
}
