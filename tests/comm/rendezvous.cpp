// Processes that find each other by TCP, here as threads of one.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <galvatron/comm/comm.hpp>
#include <galvatron/comm/tcp/world.hpp>

#include "socket_threads.hpp"

using namespace galvatron;
using comm::LaunchEnvironment;
using comm::Piece;
using comm::ReduceOp;
using comm::tcp::Limits;
using comm::tcp::World;

namespace {

using std::chrono::milliseconds;

std::uint16_t free_port() { return comm::tcp::Listener(0).port(); }

double seconds_of(auto&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What run() threw on each rank: "" for nothing.
std::vector<std::string> outcomes(int ranks, const std::function<void(World&)>& body, const Limits& limits = {}) {
  const std::uint16_t port = free_port();
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        comm::tcp::run({r, ranks, r, "localhost", port, "torchrun"}, body, limits);
      } catch (const std::exception& e) {
        said[static_cast<std::size_t>(r)] = e.what();
      }
    });
  threads.clear();
  return said;
}

Piece flat(int peer, std::vector<int>& data, int lane = 0) {
  const auto bytes = static_cast<std::int64_t>(data.size() * sizeof(int));
  return {peer, reinterpret_cast<std::byte*>(data.data()), 1, bytes, bytes, lane};
}

}  // namespace

TEST_CASE("ranks find each other, and their collectives are those of rank threads") {
  for (const int ranks : {1, 2, 5}) {
    std::vector<std::vector<float>> expected(static_cast<std::size_t>(ranks)), found = expected;
    const auto calls = [&](auto& world, std::vector<float>& out) {
      const int me = world.rank();
      std::vector<float> all(static_cast<std::size_t>(ranks * 300)), other(all.size());
      for (std::size_t i = 0; i < all.size(); ++i)
        all[i] = 1.0F / static_cast<float>(3 + i % 17 + 5 * static_cast<std::size_t>(me));
      const View<float> whole(all.data(), static_cast<std::int64_t>(all.size()));
      const View<float> rest(other.data(), whole.count);
      const View<float> own = whole.slice(me * 300, 300);
      auto& group = world.everybody();
      group.all_to_all(View<const float>(whole), rest);
      group.all_reduce(rest);
      group.reduce_scatter(whole, own);
      auto pending = group.start_all_gather(View<const float>(own), whole);
      group.start_shift(View<const float>(rest.slice(0, 7)), rest.slice(7, 7));
      group.finish_shifts();
      group.finish(pending);
      group.broadcast(rest.slice(0, 100), ranks - 1);
      group.all_reduce(rest.slice(100, 100), ReduceOp::max);
      group.barrier();
      out = all;
      out.insert(out.end(), other.begin(), other.end());
    };
    comm::thread::run(
        ranks, [&](comm::thread::World& world) { calls(world, expected[static_cast<std::size_t>(world.rank())]); });
    CHECK(outcomes(ranks, [&](World& world) { calls(world, found[static_cast<std::size_t>(world.rank())]); }) ==
          std::vector<std::string>(static_cast<std::size_t>(ranks)));
    CHECK(found == expected);
  }
}

TEST_CASE("groups that overlap, and blocks in lanes, larger than what a connection holds") {
  const auto said = outcomes(3, [](World& world) {
    const int me = world.rank(), next = (me + 1) % 3, last = (me + 2) % 3;
    std::vector<int> large(3000000, me), small(5, 10 + me), own(4, me), a(large.size()), b(small.size()), c(4);
    const Piece out[] = {flat(next, large, 1), flat(next, small, 0), flat(me, own, 2)};
    const Piece in[] = {flat(last, b, 0), flat(me, c, 2), flat(last, a, 1)};
    world.post(out);
    world.receive(in);
    world.wait_sent();
    if (a != std::vector<int>(3000000, last) || b[4] != 10 + last || c != own) throw std::runtime_error("wrong block");
    const std::vector<int> pair = me == 2 ? std::vector<int>{2, 0} : std::vector<int>{0, 1};
    double sum = me;
    if (me != 0) world.group(pair).all_reduce(View<double>(&sum, 1));
    if (me == 0) {
      double other = me;
      world.group(std::vector<int>{2, 0}).all_reduce(View<double>(&other, 1));
      world.group(pair).all_reduce(View<double>(&sum, 1));
      if (other != 2) throw std::runtime_error("wrong sum");
    }
    if (sum != (me == 2 ? 2 : 1)) throw std::runtime_error("wrong sum");
  });
  CHECK(said == std::vector<std::string>(3));
}

TEST_CASE("a rank that fails ends all, which say who and why") {
  const auto said = outcomes(3, [](World& world) {
    if (world.rank() == 1) throw std::runtime_error("disk on fire");
    world.everybody().barrier();
  });
  CHECK(said == std::vector<std::string>{"rank 1 failed: disk on fire", "disk on fire", "rank 1 failed: disk on fire"});
  CHECK(outcomes(2, [](World& world) {
          if (world.rank() == 0) world.everybody().barrier();
        })[0] == "rank 0 failed: rank 0 waits in vain: rank 1 did not send a block before the end");
  CHECK(outcomes(2,
                 [](World& world) {
                   std::vector<int> data(static_cast<std::size_t>(1 + world.rank()));
                   world.everybody().all_reduce(View<int>(data.data(), static_cast<std::int64_t>(data.size())));
                 })[0]
            .starts_with("the members of a group disagree: rank 0 called all_reduce of 1 integer, rank 1 called "
                         "all_reduce of 2 integer"));
}

TEST_CASE("a process that dies without a word is named, also to who does not wait for it") {
  const std::uint16_t port = free_port();
  std::vector<std::string> said(3);
  std::vector<std::jthread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      const LaunchEnvironment env{r, 3, r, "localhost", port, "torchrun"};
      try {
        if (r == 2) {
          const auto sockets = comm::tcp::rendezvous(env, std::chrono::seconds(10));
          return;
        }
        comm::tcp::run(env, [&](World& world) {
          std::vector<int> data(1);
          const Piece piece = flat(1 - r, data);
          world.receive({&piece, 1});
        });
      } catch (const std::exception& e) {
        said[static_cast<std::size_t>(r)] = e.what();
      }
    });
  threads.clear();
  CHECK(said[0] == "rank 2 failed: its process has ended, or the network to it");
  CHECK(said[1] == said[0]);
}

TEST_CASE("threads of one process that speak by sockets") {
  for (const int ranks : {1, 2, 5}) {
    std::vector<double> sums(static_cast<std::size_t>(ranks));
    comm::tcp::run_threads(ranks, [&](World& world) {
      double& sum = sums[static_cast<std::size_t>(world.rank())];
      sum = 1 + world.rank();
      world.everybody().all_reduce(View<double>(&sum, 1));
      std::vector<int> large(200000, world.rank()), taken(large.size());
      const Piece out = flat((world.rank() + 1) % ranks, large), in = flat((world.rank() + ranks - 1) % ranks, taken);
      world.post({&out, 1});
      world.receive({&in, 1});
      if (taken.back() != (world.rank() + ranks - 1) % ranks) throw std::runtime_error("wrong block");
    });
    CHECK(sums == std::vector<double>(static_cast<std::size_t>(ranks), ranks * (ranks + 1) / 2.0));
  }
  std::vector<std::string> heard(3);
  std::string thrown;
  const double seconds = seconds_of([&] {
    try {
      comm::tcp::run_threads(3, [&](World& world) {
        if (world.rank() == 1) throw std::out_of_range("disk on fire");
        try {
          world.everybody().barrier();
        } catch (const PeerFailure& e) {
          heard[static_cast<std::size_t>(world.rank())] = e.what();
          throw;
        }
      });
    } catch (const std::out_of_range& e) {
      thrown = e.what();
    }
  });
  CHECK(thrown == "disk on fire");
  CHECK(heard == std::vector<std::string>{"rank 1 failed: disk on fire", "", "rank 1 failed: disk on fire"});
  CHECK(seconds < 2);
}

TEST_CASE("however a job fails, all have its exit code and one tells the user") {
  struct Told {
    int code = 0;
    std::string text;
    int reporters = 0;
  };
  const auto job = [](int ranks, const std::function<void(World&)>& body, int dead = -1) {
    auto sockets = comm::tcp::socket_pairs(ranks);
    Told told;
    std::mutex mutex;
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        if (r == dead) {
          std::this_thread::sleep_for(milliseconds(50));
          sockets[static_cast<std::size_t>(r)].clear();
          return;
        }
        const comm::Verdict verdict =
            comm::tcp::outcome_of(r, std::move(sockets[static_cast<std::size_t>(r)]), body, std::chrono::seconds(20));
        const std::scoped_lock lock(mutex);
        const int code = verdict.failure == nullptr ? 0 : static_cast<int>(verdict.error);
        if (told.code != 0) CHECK(told.code == code);
        told.code = code;
        if (!verdict.reports) return;
        ++told.reporters;
        told.text = comm::message_of(verdict.failure);
      });
    threads.clear();
    return told;
  };
  const auto check = [](const Told& told, int code, const std::string& text) {
    CHECK(told.code == code);
    CHECK(told.text == text);
    CHECK(told.reporters == (code == 0 ? 0 : 1));
  };
  check(job(3, [](World& world) { world.everybody().barrier(); }), 0, "");
  check(job(4,
            [](World& world) {
              if (world.rank() == 2) throw DeviceFailure("a card melted");
              world.everybody().barrier();
            }),
        4, "rank 2 failed: a card melted");
  check(job(4, [](World&) { throw Failure(ErrorKind::usage, "no such plan"); }), 2, "no such plan");
  check(job(3,
            [](World& world) {
              if (world.rank() == 0) throw Failure(ErrorKind::infeasible, "it does not fit");
              world.everybody().barrier();
            }),
        3, "it does not fit");
  for (const int dead : {0, 1})
    check(job(
              3, [](World& world) { world.everybody().barrier(); }, dead),
          4, "rank " + std::to_string(dead) + " failed: its process has ended, or the network to it");
}

TEST_CASE("who does not come is named within the time limit") {
  Limits limits;
  limits.rendezvous = milliseconds(300);
  const std::uint16_t port = free_port();
  const auto alone = [&](int rank, int size, const char* address = "localhost") {
    try {
      comm::tcp::run({rank, size, 0, address, port, "srun"}, [](World&) {}, limits);
    } catch (const Failure& e) {
      CHECK(e.kind() == ErrorKind::machine);
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(seconds_of([&] { CHECK(alone(0, 4) == "rank 0 gave up at the rendezvous: ranks 1, 2 and 3 did not come"); }) <
        5);
  CHECK(seconds_of([&] { CHECK(alone(1, 2).starts_with("rank 1 cannot reach rank 0 at localhost:")); }) < 5);
  CHECK(alone(0, 1).empty());
  limits.timeout = milliseconds(200);
  CHECK(outcomes(2,
                 [](World& world) {
                   if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(600));
                   world.everybody().barrier();
                 },
                 {std::chrono::seconds(10), milliseconds(200)})[0] ==
        "rank 0 failed: rank 0 gave up after 0.2 s: rank 1 did not send a block");
}

TEST_CASE("strangers are sent away, and ranks of another job are told so") {
  const std::uint16_t port = free_port();
  std::string said;
  std::jthread zero([&] {
    try {
      comm::tcp::run({0, 2, 0, "localhost", port, "torchrun"}, [](World& world) { world.everybody().barrier(); },
                     {std::chrono::seconds(10), std::chrono::seconds(10)});
    } catch (const std::exception& e) {
      said = e.what();
    }
  });
  std::string why;
  const auto deadline = comm::tcp::Clock::now() + std::chrono::seconds(5);
  {
    const auto stranger = comm::tcp::connect_to("localhost", port, deadline, why);
    REQUIRE(stranger.open());
    const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    CHECK(stranger.send_all(std::as_bytes(std::span(request)), deadline));
  }
  SUBCASE("a rank of the job still comes in") {
    comm::tcp::run({1, 2, 1, "localhost", port, "torchrun"}, [](World& world) { world.everybody().barrier(); });
    zero.join();
    CHECK(said.empty());
  }
  SUBCASE("one of a larger job does not") {
    CHECK_THROWS_AS(comm::tcp::run({2, 3, 2, "localhost", port, "torchrun"}, [](World&) {}), PeerFailure);
    zero.join();
    CHECK(said == "rank 2 is of 3 ranks, but rank 0 of 2: two jobs have one MASTER_ADDR and MASTER_PORT");
  }
  SUBCASE("nor one that is there already") {
    CHECK_THROWS_AS(comm::tcp::run({0, 2, 0, "localhost", port, "torchrun"}, [](World&) {}), DeviceFailure);
    comm::tcp::run({1, 2, 1, "localhost", port, "torchrun"}, [](World& world) { world.everybody().barrier(); });
    zero.join();
  }
}
