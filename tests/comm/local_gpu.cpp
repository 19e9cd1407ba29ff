// Ranks on one GPU against rank threads, bit for bit, over streams that run late and in a random order.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <galvatron/comm/comm.hpp>
#include <galvatron/comm/local_gpu/world.hpp>

#include "fake_gpu.hpp"
#include "slow.hpp"

using namespace galvatron;
using comm::Piece;
using comm::ReduceOp;
using galvatron::test::FakeGpu;

namespace {

namespace local_gpu = comm::local_gpu;
using World = local_gpu::World<FakeGpu::Stream>;
using Group = comm::Group;
using Threads = comm::thread::World;

std::uint64_t fresh_seed() {
  const std::uint64_t seed = std::random_device{}();
  MESSAGE("seed ", seed);
  return seed;
}

// A rank with its streams.
struct Rank {
  World& world;
  FakeGpu::Stream& compute;
};

template <class F>
void run(FakeGpu& gpu, int ranks, F&& body, const comm::thread::Options& options = {}) {
  std::vector<FakeGpu::Fence> fences(static_cast<std::size_t>(ranks));
  comm::thread::run(
      ranks,
      [&](Threads& control) {
        FakeGpu::Stream compute(gpu);
        World world(control, fences, compute);
        Rank rank{world, compute};
        body(rank);
      },
      options);
}

// Values whose sums depend on the order of addition.
template <class T>
std::vector<T> values(int rank, std::int64_t n) {
  std::vector<T> out(static_cast<std::size_t>(n));
  std::mt19937 random(static_cast<unsigned>(rank) * 7919U + static_cast<unsigned>(n));
  for (T& x : out) {
    if constexpr (std::is_same_v<T, std::int32_t>)
      x = static_cast<std::int32_t>(random());
    else
      x = static_cast<T>(static_cast<float>(random() % 20001) / 97.0F - 100.0F);
  }
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

// Device memory of a rank, filled by its stream, late; with room before it so that addresses are odd.
template <class T>
struct Buffer {
  std::vector<T> memory;
  std::int64_t lead;
  std::vector<T> source;
  Buffer(FakeGpu::Stream& stream, std::vector<T> content, std::int64_t room = 0)
      : memory(content.size() + static_cast<std::size_t>(room)), lead(room), source(std::move(content)) {
    stream.run([this] { std::copy(source.begin(), source.end(), memory.begin() + lead); });
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] View<T> all() { return {memory.data() + lead, static_cast<std::int64_t>(memory.size()) - lead}; }
  [[nodiscard]] std::vector<T> content(FakeGpu::Stream& stream) {
    std::vector<T> out;
    stream.run([&] { out.assign(memory.begin() + lead, memory.end()); });
    stream.wait();
    return out;
  }
};

// What rank threads make of the same calls.
template <class T>
using Calls = std::function<void(int rank, std::vector<T>& data, Threads& world)>;
template <class T>
std::vector<std::vector<T>> expected(int ranks, std::int64_t n, const Calls<T>& calls) {
  std::vector<std::vector<T>> out(static_cast<std::size_t>(ranks));
  comm::thread::run(ranks, [&](Threads& world) {
    auto& data = out[static_cast<std::size_t>(world.rank())];
    data = values<T>(world.rank(), n);
    calls(world.rank(), data, world);
  });
  return out;
}

template <class T>
void check_reductions(std::uint64_t seed) {
  FakeGpu gpu(seed);
  for (const int ranks : {1, 2, 3, 5, 16})
    for (const std::int64_t n : {0, 1, 31, 1000, 5003}) {
      if (ranks == 16 && n > 1000) continue;
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        const auto right = expected<T>(
            ranks, n, [&](int, std::vector<T>& data, Threads& world) { world.everybody().all_reduce(view(data), op); });
        std::vector<std::vector<T>> found(static_cast<std::size_t>(ranks));
        run(gpu, ranks, [&](Rank& rank) {
          Buffer<T> data(rank.compute, values<T>(rank.world.rank(), n), n % 3);
          const comm::SendGuard guard(rank.world);
          rank.world.everybody().all_reduce(data.all(), op);
          found[static_cast<std::size_t>(rank.world.rank())] = data.content(rank.compute);
        });
        for (std::size_t r = 0; r < right.size(); ++r) CHECK(same_bits(found[r], right[r]));
      }
      const auto right = expected<T>(ranks, n * ranks, [&](int me, std::vector<T>& data, Threads& world) {
        world.everybody().reduce_scatter(view(data), view(data).slice(me * n, n));
      });
      std::vector<std::vector<T>> in_place(static_cast<std::size_t>(ranks)), elsewhere = in_place;
      run(gpu, ranks, [&](Rank& rank) {
        const int me = rank.world.rank();
        Buffer<T> data(rank.compute, values<T>(me, n * ranks)), shard(rank.compute, std::vector<T>(data.source.size()));
        const comm::SendGuard guard(rank.world);
        rank.world.everybody().reduce_scatter(data.all(), shard.all().slice(0, n));
        rank.world.everybody().reduce_scatter(data.all(), data.all().slice(me * n, n));
        elsewhere[static_cast<std::size_t>(me)] = shard.content(rank.compute);
        in_place[static_cast<std::size_t>(me)] = data.content(rank.compute);
      });
      for (int r = 0; r < ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
        CHECK((n == 0 || std::memcmp(elsewhere[i].data(), right[i].data() + r * n, bytes) == 0));
        CHECK((n == 0 || std::memcmp(in_place[i].data() + r * n, right[i].data() + r * n, bytes) == 0));
      }
    }
}

std::string outcome_of(FakeGpu& gpu, int ranks, const std::function<void(Rank&)>& body,
                       const comm::thread::Options& options = {}) {
  try {
    run(gpu, ranks, body, options);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("reductions give the bits of rank threads, in all types") {
  const auto seed = fresh_seed();
  check_reductions<float>(seed);
  check_reductions<bfloat16>(seed);
  check_reductions<double>(seed);
  check_reductions<std::int32_t>(seed);
}

TEST_CASE("a NaN of any rank is everybody's maximum and sum") {
  FakeGpu gpu(fresh_seed());
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max})
    run(gpu, 3, [&](Rank& rank) {
      std::vector<bfloat16> source(40, bfloat16(1.0F));
      if (rank.world.rank() == 1) source[7] = bfloat16(std::numeric_limits<float>::quiet_NaN());
      Buffer<bfloat16> data(rank.compute, source);
      rank.world.everybody().all_reduce(data.all(), op);
      const auto out = data.content(rank.compute);
      REQUIRE(static_cast<float>(out[7]) != static_cast<float>(out[7]));
      REQUIRE(static_cast<float>(out[8]) == (op == ReduceOp::sum ? 3.0F : 1.0F));
    });
}

namespace {

/// Rows and columns of an all_to_all in unequal blocks within n elements for each of the ranks, and what a rank gives
/// and takes. The first rank has no rows, and the last no columns.
struct UnequalBlocks {
  std::vector<std::int64_t> rows, columns;
  std::int64_t given = 0, taken = 0;
};
UnequalBlocks unequal_blocks(int me, int ranks, std::int64_t n) {
  UnequalBlocks out;
  const auto most = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n)));
  for (std::int64_t i = 0; i < ranks; ++i) {
    out.rows.push_back(most * i / ranks);
    out.columns.push_back(std::min(most * (i + 1) / ranks, most - most / ranks));
  }
  const auto count = [&](const std::vector<std::int64_t>& ends) {
    const auto i = static_cast<std::size_t>(me);
    return ends[i] - (i == 0 ? 0 : ends[i - 1]);
  };
  out.given = count(out.rows) * out.columns.back();
  out.taken = out.rows.back() * count(out.columns);
  return out;
}

}  // namespace

TEST_CASE("gathering, exchanging and broadcasting give what rank threads give") {
  FakeGpu gpu(fresh_seed());
  for (const int ranks : {1, 2, 3, 7})
    for (const std::int64_t n : {0, 1, 13, 2100}) {
      const auto right = expected<float>(ranks, n * ranks, [&](int me, std::vector<float>& data, Threads& world) {
        auto& group = world.everybody();
        std::vector<float> other(data.size());
        group.all_to_all(View<const float>(view(data)), view(other));
        const auto [rows, columns, given, taken] = unequal_blocks(me, ranks, n);
        group.all_to_all(View<const float>(view(data).slice(0, given)), view(other).slice(0, taken), rows, columns);
        group.all_gather(View<const float>(view(other).slice(me * n, n)), view(data));
        group.all_gather(view(data).slice(me * n, n), view(data));
        group.broadcast(view(data).slice(0, n), ranks - 1);
      });
      std::vector<std::vector<float>> found(static_cast<std::size_t>(ranks));
      run(gpu, ranks, [&](Rank& rank) {
        const int me = rank.world.rank();
        Buffer<float> data(rank.compute, values<float>(me, n * ranks)), other(rank.compute, data.source);
        const comm::SendGuard guard(rank.world);
        Group& group = rank.world.everybody();
        group.all_to_all(View<const float>(data.all()), other.all());
        const auto [rows, columns, given, taken] = unequal_blocks(me, ranks, n);
        group.all_to_all(View<const float>(data.all().slice(0, given)), other.all().slice(0, taken), rows, columns);
        group.all_gather(View<const float>(other.all().slice(me * n, n)), data.all());
        group.all_gather(data.all().slice(me * n, n), data.all());
        group.broadcast(data.all().slice(0, n), ranks - 1);
        found[static_cast<std::size_t>(me)] = data.content(rank.compute);
      });
      for (std::size_t r = 0; r < right.size(); ++r) CHECK(same_bits(found[r], right[r]));
    }
}

TEST_CASE("members of groups that overlap, in another order than the world's") {
  FakeGpu gpu(fresh_seed());
  run(gpu, 4, [](Rank& rank) {
    const int me = rank.world.rank();
    const std::vector<int> row = me < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3};
    const std::vector<int> column = {me % 2, me % 2 + 2};
    Buffer<float> data(rank.compute, {static_cast<float>(1 << me), 0.0F});
    const comm::SendGuard guard(rank.world);
    Group& in_row = rank.world.group(row);
    REQUIRE(in_row.rank() == (row[0] == me ? 0 : 1));
    for (int repeat = 0; repeat < 5; ++repeat) {
      in_row.all_reduce(data.all());
      rank.world.group(column).all_reduce(data.all());
    }
    REQUIRE(data.content(rank.compute)[0] == 15.0F * 256.0F);
    REQUIRE(&rank.world.group(row) == &in_row);
  });
}

TEST_CASE("what is started is there when it is finished, with computing and other calls in between") {
  const auto seed = fresh_seed();
  for (unsigned round = 0; round < 10; ++round) {
    FakeGpu gpu(seed + round, round * 10);
    constexpr std::int64_t n = 300;
    constexpr int ranks = 3;
    const auto right = expected<float>(ranks, n * ranks, [&](int me, std::vector<float>& data, Threads& world) {
      auto gathered = data, reduced = data, scattered = data;
      world.everybody().all_gather(view(gathered).slice(me * n, n), view(gathered));
      world.everybody().all_reduce(view(reduced));
      world.everybody().reduce_scatter(view(scattered), view(scattered).slice(me * n, n));
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = gathered[i] + reduced[i];
      for (std::int64_t i = me * n; i < (me + 1) * n; ++i)
        data[static_cast<std::size_t>(i)] += scattered[static_cast<std::size_t>(i)];
    });
    run(gpu, ranks, [&](Rank& rank) {
      const int me = rank.world.rank();
      const auto mine = values<float>(me, n * ranks);
      Buffer<float> gathered(rank.compute, mine), reduced(rank.compute, mine), scattered(rank.compute, mine);
      const comm::SendGuard guard(rank.world);
      Group& group = rank.world.everybody();
      auto first = group.start_all_gather(gathered.all().slice(me * n, n), gathered.all());
      auto second = group.start_all_reduce(reduced.all());
      Buffer<float> meanwhile(rank.compute, {1.0F});
      group.all_reduce(meanwhile.all());
      auto third = group.start_reduce_scatter(scattered.all(), scattered.all().slice(me * n, n));
      group.finish(first);
      group.finish(third);
      group.finish(second);
      group.finish(first);
      comm::Pending nothing;
      group.finish(nothing);
      std::vector<float> sum;
      rank.compute.run([&] {
        for (std::size_t i = 0; i < mine.size(); ++i) sum.push_back(gathered.memory[i] + reduced.memory[i]);
        for (auto i = static_cast<std::size_t>(me * n); i < static_cast<std::size_t>((me + 1) * n); ++i)
          sum[i] += scattered.memory[i];
      });
      rank.compute.wait();
      REQUIRE(same_bits(sum, right[static_cast<std::size_t>(me)]));
      REQUIRE(meanwhile.content(rank.compute)[0] == 3.0F);
    });
  }
}

TEST_CASE("shifts go around the ring while the members compute") {
  FakeGpu gpu(fresh_seed());
  for (const int ranks : {1, 2, 4})
    run(gpu, ranks, [&](Rank& rank) {
      const int me = rank.world.rank();
      Buffer<float> a(rank.compute, values<float>(me, 77)), b(rank.compute, std::vector<float>(77));
      Buffer<double> c(rank.compute, {me + 0.5}), d(rank.compute, {-1.0});
      const comm::SendGuard guard(rank.world);
      Group& group = rank.world.everybody();
      group.finish_shifts();
      for (int step = 0; step < ranks; ++step) {
        Buffer<float>& here = step % 2 == 0 ? a : b;
        Buffer<float>& next = step % 2 == 0 ? b : a;
        group.start_shift(View<const float>(here.all()), next.all());
        group.start_shift(View<const double>(c.all()), d.all());
        group.finish_shifts();
        rank.compute.run([&] { std::ranges::copy(d.memory, c.memory.begin()); });
      }
      Buffer<float>& last = ranks % 2 == 0 ? a : b;
      REQUIRE(same_bits(last.content(rank.compute), values<float>(me, 77)));
      REQUIRE(c.content(rank.compute)[0] == me + 0.5);
    });
}

TEST_CASE("blocks of rows that are cut differently arrive, in lanes, and their memory is free after wait_sent") {
  const auto seed = fresh_seed();
  std::mt19937_64 random(seed);
  for (unsigned round = 0; round < 60; ++round) {
    FakeGpu gpu(seed + round, round % 3 * 40);
    const std::int64_t unit = std::array{1, 2, 4, 16}[random() % 4];
    const std::int64_t total = std::array{0, 1, 12, 60, 360}[random() % 5] * unit;
    struct Cut {
      std::int64_t rows, width, stride, lead;
    };
    const auto cut = [&] {
      std::int64_t rows = 1;
      if (total > 0) do
          rows = 1 + static_cast<std::int64_t>(random() % 12);
        while (total / unit % rows != 0);
      const std::int64_t width = total / rows;
      return Cut{rows, width, width + unit * static_cast<std::int64_t>(random() % 5),
                 unit * static_cast<std::int64_t>(random() % 3)};
    };
    const Cut out = cut(), in = cut();
    run(gpu, 2, [&](Rank& rank) {
      const int me = rank.world.rank();
      const auto bytes_of = [](const Cut& c) { return static_cast<std::size_t>(c.rows * c.stride + c.lead); };
      std::vector<std::byte> source(bytes_of(out)), target(bytes_of(in));
      const comm::SendGuard guard(rank.world);
      for (int step = 0; step < 3; ++step) {
        rank.compute.run([&source, me, step] {
          for (std::size_t i = 0; i < source.size(); ++i)
            source[i] = static_cast<std::byte>(1 + i % 83 + me * 97 + step);
        });
        const auto piece = [](int peer, std::vector<std::byte>& memory, const Cut& c, int lane) {
          return Piece{peer, memory.data() + c.lead, c.rows, c.width, c.stride, lane};
        };
        const Piece sent = piece(1 - me, source, out, step % 2), received = piece(1 - me, target, in, step % 2);
        rank.compute.run([&target] { std::ranges::fill(target, std::byte{0}); });
        rank.world.post({&sent, 1});
        rank.world.receive({&received, 1});
        rank.world.wait_sent(step % 2);
        rank.compute.run([&source] { std::ranges::fill(source, std::byte{255}); });
        std::vector<std::byte> found;
        rank.compute.run([&] { found = target; });
        rank.compute.wait();
        std::int64_t untouched = 0;
        for (const std::byte byte : found) untouched += byte == std::byte{0} ? 1 : 0;
        REQUIRE(untouched == static_cast<std::int64_t>(found.size()) - total);
        for (std::int64_t i = 0; i < total; ++i) {
          const auto at = [&](const Cut& c) {
            return static_cast<std::size_t>(c.lead + i / c.width * c.stride + i % c.width);
          };
          REQUIRE(found[at(in)] ==
                  static_cast<std::byte>(1 + at(out) % 83 + static_cast<std::size_t>((1 - me) * 97 + step)));
        }
      }
    });
  }
}

TEST_CASE("a block to oneself is a copy, and blocks of a lane arrive in order") {
  FakeGpu gpu(fresh_seed());
  run(gpu, 2, [](Rank& rank) {
    const int me = rank.world.rank();
    std::vector<std::unique_ptr<Buffer<int>>> out, in;
    std::vector<Piece> sends, receives;
    const auto piece = [](int peer, Buffer<int>& buffer) {
      const auto bytes = static_cast<std::int64_t>(buffer.memory.size() * sizeof(int));
      return Piece{peer, reinterpret_cast<std::byte*>(buffer.memory.data()), 1, bytes, bytes, 1};
    };
    for (int i = 0; i < 20; ++i) {
      const int peer = i % 3 == 0 ? me : 1 - me;
      out.push_back(std::make_unique<Buffer<int>>(rank.compute, std::vector<int>(5, me * 100 + i)));
      in.push_back(std::make_unique<Buffer<int>>(rank.compute, std::vector<int>(5, -1)));
      sends.push_back(piece(peer, *out.back()));
      receives.push_back(piece(peer, *in.back()));
    }
    const comm::SendGuard guard(rank.world);
    rank.world.post(sends);
    rank.world.receive(receives);
    rank.world.wait_sent();
    for (int i = 0; i < 20; ++i)
      REQUIRE(in[static_cast<std::size_t>(i)]->content(rank.compute) ==
              std::vector<int>(5, (i % 3 == 0 ? me : 1 - me) * 100 + i));
  });
}

TEST_CASE("memory of the program goes through the control world, between calls on memory of the GPU") {
  FakeGpu gpu(fresh_seed());
  run(gpu, 3, [](Rank& rank) {
    Buffer<float> data(rank.compute, {1.0F, 2.0F});
    const comm::SendGuard guard(rank.world);
    double sum = rank.world.rank();
    rank.world.everybody().all_reduce(data.all());
    rank.world.control().everybody().all_reduce(View<double>(&sum, 1));
    REQUIRE(sum == 3.0);
    rank.world.everybody().barrier();
    REQUIRE(data.content(rank.compute)[1] == 6.0F);
  });
}

TEST_CASE("a rank that fails ends all, and its memory is left alone before it goes away") {
  const auto seed = fresh_seed();
  const std::vector<std::function<void(World&, View<float>)>> waits = {
      [](World& world, View<float> data) { world.everybody().all_reduce(data); },
      [](World& world, View<float> data) { world.everybody().all_gather(data.slice(world.rank() * 100, 100), data); },
      [](World& world, View<float> data) { world.everybody().broadcast(data, 1); },
      [](World& world, View<float> data) {
        auto pending = world.everybody().start_all_reduce(data);
        world.everybody().finish(pending);
      },
      [](World& world, View<float> data) {
        const auto bytes = data.count * static_cast<std::int64_t>(sizeof(float));
        const Piece piece{1, reinterpret_cast<std::byte*>(data.data), 1, bytes, bytes};
        world.receive({&piece, 1});
      },
      [](World& world, View<float> data) {
        const auto bytes = data.count * static_cast<std::int64_t>(sizeof(float));
        const Piece piece{1, reinterpret_cast<std::byte*>(data.data), 1, bytes, bytes};
        world.post({&piece, 1});
        world.wait_sent();
      }};
  for (std::size_t wait = 0; wait < waits.size(); ++wait)
    for (unsigned round = 0; round < 4; ++round) {
      FakeGpu gpu(seed + round, round * 25);
      std::vector<std::string> said(3);
      const auto begin = std::chrono::steady_clock::now();
      const std::string failure = outcome_of(gpu, 3, [&](Rank& rank) {
        Buffer<float> data(rank.compute, values<float>(rank.world.rank(), 300));
        const comm::SendGuard guard(rank.world);
        Group& group = rank.world.everybody();
        auto pending = group.start_all_gather(data.all().slice(rank.world.rank() * 100, 100), data.all());
        group.finish(pending);
        if (rank.world.rank() == 1) throw std::runtime_error("disk on fire");
        try {
          waits[wait](rank.world, data.all());
        } catch (const PeerFailure& e) {
          said[static_cast<std::size_t>(rank.world.rank())] = e.what();
          throw;
        }
      });
      CHECK(failure == "disk on fire");
      CHECK(said[0] == "rank 1 failed: disk on fire");
      CHECK(said[2] == said[0]);
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    }
}

TEST_CASE("a GPU that fails in the middle of a collective ends all ranks") {
  const auto seed = fresh_seed();
  for (int launches = 0; launches < 12; ++launches) {
    FakeGpu gpu(seed, 50);
    gpu.fail_after(launches);
    CHECK(outcome_of(gpu, 4, [&](Rank& rank) {
            Buffer<float> data(rank.compute, values<float>(rank.world.rank(), 3000));
            const comm::SendGuard guard(rank.world);
            for (int i = 0; i < 5; ++i) rank.world.everybody().all_reduce(data.all());
          }) == "the GPU has burnt");
  }
}

TEST_CASE("members that come for different things are told, and so is who waits too long") {
  FakeGpu gpu(fresh_seed());
  CHECK(outcome_of(gpu, 2,
                   [](Rank& rank) {
                     Buffer<float> data(rank.compute, std::vector<float>(8));
                     const comm::SendGuard guard(rank.world);
                     rank.world.everybody().all_reduce(data.all().slice(0, rank.world.rank() == 0 ? 8 : 4));
                   }) ==
        "the members of a group disagree: rank 0 called all_reduce of 8 float, rank 1 called all_reduce of 4 float");
  CHECK(outcome_of(gpu, 17, [](Rank& rank) { rank.world.everybody(); }) ==
        "a group of 17 ranks on one GPU; there may be 16");
  comm::thread::Options options;
  options.timeout = std::chrono::milliseconds(100);
  const std::string late = outcome_of(
      gpu, 2,
      [](Rank& rank) {
        Buffer<float> data(rank.compute, std::vector<float>(8));
        const comm::SendGuard guard(rank.world);
        if (rank.world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        rank.world.everybody().all_reduce(data.all());
      },
      options);
  CHECK(late.starts_with("rank 0 gave up after 0.1 s: rank 1 did not come to the all_reduce of 8 float"));
}
