// labels: tsan
// Collectives that are started and finished later, and worlds behind a slow link.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include <galvatron/comm/comm.hpp>
#include "../counting_world.hpp"

#include "slow.hpp"

using namespace galvatron;

namespace {

using Slow = comm::slow::World;

// Values that tell ranks and places apart, and sums that depend on the order of addition.
std::vector<float> values(int rank, std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = 1.0F / static_cast<float>(3 + i * 7 % 11 + static_cast<std::size_t>(rank));
  return out;
}
View<float> view(std::vector<float>& v) { return {v.data(), static_cast<std::int64_t>(v.size())}; }

double seconds_of(auto&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("what is started and finished gives the bits of the blocking call, other calls in between") {
  for (const std::size_t n : {std::size_t{4}, std::size_t{30000}})
    comm::thread::run(3, [&](comm::thread::World& world) {
      auto& group = world.everybody();
      const auto at_once = [&](auto call) {
        auto data = values(world.rank(), 3 * n);
        call(data);
        return data;
      };
      const auto mine = static_cast<std::size_t>(world.rank()) * n;
      const auto slice = [&](std::vector<float>& v) {
        return view(v).slice(static_cast<std::int64_t>(mine), static_cast<std::int64_t>(n));
      };
      const auto reduced = at_once([&](auto& v) { group.all_reduce(view(v), comm::ReduceOp::sum); });
      const auto largest = at_once([&](auto& v) { group.all_reduce(view(v), comm::ReduceOp::max); });
      const auto gathered = at_once([&](auto& v) { group.all_gather(slice(v), view(v)); });
      auto scattered = at_once([&](auto& v) { group.reduce_scatter(view(v), slice(v)); });

      auto a = values(world.rank(), 3 * n), b = a, c = a, d = a;
      auto first = group.start_all_reduce(view(a), comm::ReduceOp::sum);
      auto second = group.start_all_reduce(view(b), comm::ReduceOp::max);
      auto third = group.start_all_gather(slice(c), view(c));
      auto fourth = group.start_reduce_scatter(view(d), slice(d));
      CHECK(a == values(world.rank(), 3 * n));
      float one = 1;
      group.all_reduce(View<float>{&one, 1}, comm::ReduceOp::sum);
      CHECK(one == 3);
      group.finish(first);
      group.finish(third);
      group.finish(second);
      group.finish(fourth);
      group.finish(first);  // once is enough
      CHECK(a == reduced);
      CHECK(b == largest);
      CHECK(c == gathered);
      const auto own = slice(d), expected = slice(scattered);
      CHECK(std::equal(own.begin(), own.end(), expected.begin()));
    });
}

TEST_CASE("a dry group counts what is started like what is done at once") {
  std::vector<op::Work> log;
  comm::counting::World world(0, 2, &log);
  auto& group = world.everybody();
  const View<float> all(nullptr, 8);
  group.all_reduce(all);
  group.all_gather(all.slice(0, 4), all);
  group.reduce_scatter(all, all.slice(0, 4));
  const std::vector<op::Work> expected = log;
  log.clear();
  auto pending = group.start_all_reduce(all);
  group.finish(pending);
  group.start_all_gather(all.slice(0, 4), all);
  group.start_reduce_scatter(all, all.slice(0, 4));
  CHECK(log == expected);
}

TEST_CASE("over a slow link a collective takes its time, or none if there was work meanwhile") {
  constexpr std::size_t n = 10000;  // an all-reduce of 2 ranks moves 40000 bytes: 40 ms, and 2 ms for its two steps
  comm::thread::run(2, [&](comm::thread::World& inner) {
    Slow world(inner, {.latency = 1e-3, .bytes_per_second = 1e6});
    auto& group = world.everybody();
    auto data = values(world.rank(), n);
    group.barrier();
    const double at_once = seconds_of([&] { group.all_reduce(view(data), comm::ReduceOp::sum); });
    CHECK(at_once >= 0.042);
    CHECK(at_once < 0.08);
    comm::Pending pending;
    group.barrier();
    const double both = seconds_of([&] {
      pending = group.start_all_reduce(view(data), comm::ReduceOp::sum);
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      group.finish(pending);
    });
    CHECK(both >= 0.06);
    CHECK(both < 0.095);
    // Two transfers of one rank go one after the other.
    auto other = data;
    group.barrier();
    CHECK(seconds_of([&] {
            auto first = group.start_all_reduce(view(data), comm::ReduceOp::sum);
            auto second = group.start_all_reduce(view(other), comm::ReduceOp::sum);
            group.finish(first);
            group.finish(second);
          }) >= 0.084);
  });
}

TEST_CASE("a block over a slow link arrives while its receiver works") {
  comm::thread::run(2, [&](comm::thread::World& inner) {
    Slow world(inner, {.latency = 2e-3, .bytes_per_second = 1e6});
    std::vector<std::byte> data(30000);  // 30 ms
    const comm::Piece piece{1 - world.rank(), data.data(), 1, 30000, 30000, 3};
    world.everybody().barrier();
    if (world.rank() == 0) {
      world.post({&piece, 1});
      world.wait_sent(3);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const double waited = seconds_of([&] { world.receive({&piece, 1}); });
      CHECK(waited > 0.005);
      CHECK(waited < 0.03);
    }
  });
}
