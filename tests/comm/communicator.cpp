// labels: tsan
// One function that takes comm::World& serves ranks of every kind, with the same results.
#include <doctest/doctest.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <galvatron/comm/comm.hpp>

#include "slow.hpp"
#include "socket_threads.hpp"

using namespace galvatron;

namespace {

constexpr int ranks = 3;

template <class T>
View<T> view(std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}

// What a rank has after every kind of call, with every kind of element.
std::vector<double> everything(comm::World& world) {
  comm::Group& group = world.everybody();
  const int me = world.rank();
  std::vector<double> out;
  const auto keep = [&](const auto& values) {
    for (const auto& value : values) out.push_back(static_cast<double>(value));
  };
  const auto reduced = [&]<class T>(T first) {
    std::vector<T> sum, most;
    for (int i = 0; i < 6; ++i) sum.push_back(T(static_cast<float>(first) / static_cast<float>(3 + i + me)));
    most = sum;
    std::vector<T> part = sum;
    group.all_reduce(view(sum));
    comm::Pending pending = group.start_all_reduce(view(most), comm::ReduceOp::max);
    group.reduce_scatter(view(part), view(part).slice(2 * me, 2));
    group.finish(pending);
    CHECK(!pending.what);
    keep(sum);
    keep(most);
    keep(std::vector<T>(part.begin() + 2 * me, part.begin() + 2 * me + 2));
  };
  reduced(100.0F);
  reduced(100.0);
  reduced(bfloat16(100.0F));
  reduced(std::int32_t{1000});
  std::vector<std::int64_t> wide(ranks, me);
  wide[static_cast<std::size_t>(me)] = std::int64_t{1} << (40 + me);
  group.all_gather(view(wide).slice(me, 1), view(wide));
  keep(wide);
  std::vector<char> from{'a', 'b', 'c'}, to(ranks);
  for (char& letter : from) letter = static_cast<char>(letter + 3 * me);
  group.all_to_all<char>(view(from), view(to));
  keep(to);
  group.start_shift<char>(view(from), view(to));
  group.finish_shifts();
  keep(to);
  group.broadcast(view(from), 1);
  keep(from);
  const std::vector<int> two{0, 2};
  if (me != 1) {
    float one = 1;
    world.group(two).all_reduce(View<float>(&one, 1));
    out.push_back(one);
  }
  std::int64_t sent = me, received = -1;
  const comm::Piece to_next{(me + 1) % ranks, reinterpret_cast<std::byte*>(&sent), 1, 8, 8, 2};
  const comm::Piece from_last{(me + 2) % ranks, reinterpret_cast<std::byte*>(&received), 1, 8, 8, 2};
  world.post({&to_next, 1});
  world.receive({&from_last, 1});
  world.wait_sent(2);
  world.check();
  world.control().everybody().barrier();
  out.push_back(static_cast<double>(received));
  return out;
}

using Results = std::vector<std::vector<double>>;

}  // namespace

TEST_CASE("one function serves rank threads, processes over TCP and ranks behind a slow link") {
  std::mutex mutex;
  const auto into = [&](Results& results) {
    results.resize(ranks);
    return [&](comm::World& world) {
      const std::vector<double> own = everything(world);
      const std::scoped_lock lock(mutex);
      results[static_cast<std::size_t>(world.rank())] = own;
    };
  };
  Results threads, sockets, slow;
  comm::thread::run(ranks, into(threads));
  comm::tcp::run_threads(ranks, into(sockets));
  comm::thread::run(ranks, [&, body = into(slow)](comm::World& inner) {
    comm::slow::World world(inner, {.latency = 1e-6, .bytes_per_second = 1e9});
    const comm::SendGuard guard(world);
    body(world);
  });
  CHECK(threads[0].size() == 70);
  CHECK(sockets == threads);
  CHECK(slow == threads);
}

TEST_CASE("errors name the elements as their type does") {
  const auto said = [](auto&& call) -> std::string {
    try {
      comm::thread::run(2, [&](comm::World& world) {
        if (world.rank() == 0)
          world.everybody().barrier();
        else
          call(world.everybody());
      });
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  struct Odd {
    std::int16_t a[3];
  };
  const std::string before = "the members of a group disagree: rank 0 called barrier, rank 1 called ";
  std::vector<float> floats(12);
  std::vector<std::int64_t> wide(12);
  std::vector<bfloat16> halves(12);
  std::vector<Odd> odd(4);
  CHECK(said([&](comm::Group& g) { g.all_reduce(view(floats)); }) == before + "all_reduce of 12 float");
  CHECK(said([&](comm::Group& g) { g.all_reduce(view(halves), comm::ReduceOp::max); }) ==
        before + "all_reduce of 12 bfloat16 (max)");
  CHECK(said([&](comm::Group& g) { g.broadcast(view(wide), 1); }) == before + "broadcast of 12 integer from member 1");
  CHECK(said([&](comm::Group& g) { g.all_to_all<Odd>(view(odd), view(odd)); }) == before + "all_to_all of 4 element");
}
