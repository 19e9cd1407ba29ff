// Ranks that fail, that do not come, that come for something else: every run ends, quickly, and says why.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <galvatron/comm/comm.hpp>

using namespace galvatron;
using comm::Piece;
using comm::thread::Options;
using comm::thread::run;
using comm::thread::World;

namespace {

using WallTime = std::chrono::duration<double>;

struct OwnError : std::logic_error {
  using std::logic_error::logic_error;
  int number = 17;
};

Options within(std::chrono::milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

// What run() threw: "" for nothing.
std::string outcome_of(int ranks, const std::function<void(World&)>& body, const Options& options = {}) {
  try {
    run(ranks, body, options);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

Piece piece_of(int peer, std::vector<float>& data) {
  const auto bytes = static_cast<std::int64_t>(data.size() * sizeof(float));
  return {peer, reinterpret_cast<std::byte*>(data.data()), 1, bytes, bytes};
}

// Every kind of wait, by name: what a rank does that will never be answered by rank 1.
struct Wait {
  const char* name;
  std::function<void(World&)> call;
};
std::vector<Wait> all_waits() {
  const auto collective = [](auto call) {
    return [call](World& world) {
      std::vector<float> data(12000, 1.0F), part(12000 / static_cast<std::size_t>(world.size()));
      call(world.everybody(), View<float>(data.data(), 12000),
           View<float>(part.data(), static_cast<std::int64_t>(part.size())));
    };
  };
  return {
      {"barrier", [](World& world) { world.everybody().barrier(); }},
      {"small all_reduce",
       [](World& world) {
         float x = 1;
         world.everybody().all_reduce(View<float>(&x, 1));
       }},
      {"all_reduce", collective([](auto& group, auto all, auto) { group.all_reduce(all); })},
      {"all_gather", collective([](auto& group, auto all, auto part) { group.all_gather(part, all); })},
      {"reduce_scatter", collective([](auto& group, auto all, auto part) { group.reduce_scatter(all, part); })},
      {"broadcast", collective([](auto& group, auto all, auto) { group.broadcast(all, 1); })},
      {"all_to_all",
       [](World& world) {
         std::vector<float> from(12000, 1.0F), to(12000);
         world.everybody().all_to_all({from.data(), 12000}, View<float>(to.data(), 12000));
       }},
      {"shift",
       [](World& world) {
         std::vector<float> from(12000, 1.0F), to(12000);
         const comm::SendGuard guard(world);
         for (int step = 0; step < world.size(); ++step) {  // until everybody has waited for everybody
           world.everybody().start_shift({from.data(), 12000}, View<float>(to.data(), 12000));
           world.everybody().finish_shifts();
         }
       }},
      {"receive",
       [](World& world) {
         std::vector<float> data(10);
         const Piece piece = piece_of(1, data);
         world.receive({&piece, 1});
       }},
      {"wait_sent",
       [](World& world) {
         std::vector<float> data(10);
         const comm::SendGuard guard(world);
         const Piece piece = piece_of(1, data);
         world.post({&piece, 1});
         world.wait_sent();
       }},
  };
}

}  // namespace

TEST_CASE("an exception of one rank ends every kind of wait of the others and comes out of run() as it was") {
  for (const Wait& wait : all_waits())
    for (const bool late : {false, true}) {
      CAPTURE(wait.name);
      CAPTURE(late);
      std::vector<std::string> said(4);
      const auto start = std::chrono::steady_clock::now();
      try {
        run(4, [&](World& world) {
          if (world.rank() == 1) {
            if (late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            throw OwnError("disk on fire");
          }
          try {
            wait.call(world);
          } catch (const PeerFailure& e) {
            said[static_cast<std::size_t>(world.rank())] = e.what();
            throw;
          }
        });
        FAIL("no exception");
      } catch (const OwnError& e) {
        CHECK(e.number == 17);
        CHECK(e.what() == std::string("disk on fire"));
      }
      CHECK(WallTime(std::chrono::steady_clock::now() - start).count() < 10.0);  // the timeout is 10 minutes
      for (const int rank : {0, 2, 3}) CHECK(said[static_cast<std::size_t>(rank)] == "rank 1 failed: disk on fire");
    }
}

TEST_CASE("after a failure every later call fails too") {
  std::atomic<int> failures{0};
  CHECK(outcome_of(2, [&](World& world) {
          if (world.rank() == 1) throw std::runtime_error("gone");
          for (int i = 0; i < 2; ++i)
            for (const Wait& wait : all_waits()) try {
                wait.call(world);
              } catch (const PeerFailure& e) {
                failures += std::string(e.what()) == "rank 1 failed: gone";
              }
          const std::vector<int> fresh = {1, 0};
          try {
            world.group(fresh).barrier();  // a group that did not exist when the failure came
          } catch (const PeerFailure&) {
            ++failures;
          }
        }) == "gone");
  CHECK(failures == 2 * static_cast<int>(all_waits().size()) + 1);
}

TEST_CASE("something that is not a std::exception comes out as it was") {
  std::string said;
  try {
    run(2, [&](World& world) {
      if (world.rank() == 0) throw 42;
      try {
        world.everybody().barrier();
      } catch (const PeerFailure& e) {
        said = e.what();
      }
    });
    FAIL("no exception");
  } catch (int number) {
    CHECK(number == 42);
  }
  CHECK(said == "rank 0 failed: an exception that is not a std::exception");
}

TEST_CASE("a rank that does not come in time is named") {
  for (const Wait& wait : all_waits()) {
    CAPTURE(wait.name);
    std::atomic<int> here{0};
    std::atomic<bool> done{false};
    const std::string said = outcome_of(
        3,
        [&](World& world) {
          ++here;
          while (here < 3) std::this_thread::yield();
          if (world.rank() != 1) {
            try {
              wait.call(world);
            } catch (...) {
              done = true;
              throw;
            }
          }
          while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // neither comes nor ends
        },
        within(std::chrono::milliseconds(100)));
    CAPTURE(said);
    CHECK(said.find("gave up after 0.1 s: rank 1 did not ") != std::string::npos);
  }
}

TEST_CASE("a rank that has returned is not waited for") {
  for (const Wait& wait : all_waits()) {
    CAPTURE(wait.name);
    const std::string said = outcome_of(3, [&](World& world) {
      if (world.rank() != 1) wait.call(world);
    });
    CAPTURE(said);
    CHECK(said.find("waits in vain: rank 1 did not ") != std::string::npos);
  }
}

TEST_CASE("only what is missing is named") {
  std::atomic<int> here{0};
  std::atomic<int> done{0};
  const std::string said = outcome_of(
      4,
      [&](World& world) {
        ++here;
        while (here < 4) std::this_thread::yield();
        if (world.rank() == 0 || world.rank() == 3) {
          try {
            world.everybody().barrier();
          } catch (const PeerFailure&) {
            ++done;
            throw;
          }
        }
        while (done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      within(std::chrono::milliseconds(200)));
  CAPTURE(said);
  CHECK(said.find("ranks 1 and 2 did not come to the barrier of ranks 0, 1, 2 and 3") != std::string::npos);
}

TEST_CASE("members that disagree about size, operation, root or reduction are told who called what") {
  const auto said_by = [](auto call) {
    std::vector<int> failed(2, 0);
    const std::string text = outcome_of(2, [&](World& world) {
      std::vector<float> data(9000, 1.0F);
      try {
        call(world.everybody(), data.data(), world.rank());
      } catch (const Failure&) {
        failed[static_cast<std::size_t>(world.rank())] = 1;
        throw;
      }
    });
    CHECK(failed == std::vector<int>{1, 1});
    return text;
  };
  CHECK(said_by([](auto& group, float* data, int rank) { group.all_reduce(View<float>(data, rank == 0 ? 10 : 12)); }) ==
        "the members of a group disagree: rank 0 called all_reduce of 10 float, rank 1 called all_reduce of 12 "
        "float");
  CHECK(said_by([](auto& group, float* data, int rank) {  // one small, one large
          group.all_reduce(View<float>(data, rank == 0 ? 9000 : 12));
        })
            .find("all_reduce of 9000 float") != std::string::npos);
  CHECK(said_by([](auto& group, float* data, int rank) {
          if (rank == 0)
            group.barrier();
          else
            group.broadcast(View<float>(data, 5), 0);
        }).find("rank 0 called barrier, rank 1 called broadcast of 5 float") != std::string::npos);
  CHECK(said_by([](auto& group, float* data, int rank) {
          group.broadcast(View<float>(data, 5), rank);
        }).find("from member 1") != std::string::npos);
  CHECK(said_by([](auto& group, float* data, int rank) {
          group.all_reduce(View<float>(data, 9000), rank == 0 ? comm::ReduceOp::sum : comm::ReduceOp::max);
        }).find("(max)") != std::string::npos);
}

TEST_CASE("calls that make no sense are refused where they are made") {
  const auto said_by = [](auto call) { return outcome_of(2, [&](World& world) { call(world); }); };
  const auto group_of = [](std::vector<int> ranks) { return [ranks](World& world) { world.group(ranks); }; };
  CHECK(said_by(group_of({0, 2})) == "a group names rank 2 of a world of 2 ranks");
  CHECK(said_by(group_of({0, 1, 0})) == "a group names rank 0 twice");
  CHECK(said_by([](World& world) {
          if (world.rank() == 1) world.group(std::vector<int>{0});
        }) == "rank 1 asks for a group of rank 0, to which it does not belong");
  CHECK(said_by([](World& world) {
          std::vector<float> data(7);
          world.everybody().all_gather(View<const float>(data.data(), 3), View<float>(data.data(), 7));
        }).find("the whole has 7 elements, but 2 members with a shard of 3 make 6") != std::string::npos);
  CHECK(said_by([](World& world) {
          float x = 0;
          world.everybody().broadcast(View<float>(&x, 1), 2);
        }) == "broadcast from member 2 of a group of 2; members are numbered from 0");
  CHECK(said_by([](World& world) {
          std::vector<float> data(7);
          const Piece piece = piece_of(world.rank(), data);
          world.receive({&piece, 1});
        }).find("receives a block from itself that it has not posted before") != std::string::npos);
  CHECK(said_by([](World& world) {
          std::vector<float> data(7);
          const Piece piece = piece_of(5, data);
          world.post({&piece, 1});
        }).find("for rank 5 in a world of 2 ranks") != std::string::npos);
  CHECK_THROWS_AS(run(0, [](World&) {}), Failure);
}

TEST_CASE("a block of another size than the one sent names both sizes") {
  std::vector<float> data(100);
  CHECK(outcome_of(2, [&](World& world) {
          std::vector<float> part(world.rank() == 0 ? 10 : 11);
          const comm::SendGuard guard(world);
          const Piece piece = piece_of(1 - world.rank(), part);
          if (world.rank() == 0) {
            world.post({&piece, 1});
            world.wait_sent();
          } else {
            world.receive({&piece, 1});
          }
        }) == "rank 1 receives a block of 44 bytes, but rank 0 sent one of 40 bytes");
}

TEST_CASE("a member whose call fails does not go on before the others have stopped reading its memory") {
  constexpr std::size_t n = 8 << 20;
  std::atomic<bool> reading{false};
  std::vector<std::byte> source(n, std::byte{1}), target(n, std::byte{0});
  const View<std::byte> from(source.data(), n), to(target.data(), n);
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::ranges::fill(source, std::byte{1});
    reading = false;
    const std::string said = outcome_of(3, [&](World& world) {
      if (world.rank() == 2) {
        while (!reading) std::this_thread::yield();
        throw OwnError("while they read");
      }
      auto& group = world.group(std::vector<int>{0, 1});
      group.barrier();
      if (world.rank() == 1) reading = true;
      try {
        group.broadcast(world.rank() == 0 ? from : to, 0);  // the root has nothing to do but to wait
      } catch (const PeerFailure&) {
        if (world.rank() == 0) std::ranges::fill(source, std::byte{2});
      }
    });
    CHECK(said == "while they read");
    CHECK(std::ranges::count(target, std::byte{2}) == 0);
  }
}

TEST_CASE("withdrawing a block waits until it is copied") {
  constexpr std::size_t n = 8 << 20;
  std::vector<std::byte> source(n), target(n);
  int copied = 0;
  for (int attempt = 0; attempt < 50 && copied < 3; ++attempt) {
    std::ranges::fill(source, std::byte{1});
    comm::thread::Channel channel;
    const auto piece = [](std::vector<std::byte>& memory) {
      return Piece{0, memory.data(), 1, static_cast<std::int64_t>(memory.size()), 0};
    };
    channel.push(piece(source));
    std::atomic<bool> started{false};
    std::thread receiver([&] {
      started = true;
      if (channel.take(piece(target), comm::copy_piece)) ++copied;
    });
    while (!started) std::this_thread::yield();
    for (int i = 0; i < attempt; ++i) std::this_thread::yield();
    channel.withdraw();
    std::ranges::fill(source, std::byte{2});
    receiver.join();
    CHECK(std::ranges::count(target, std::byte{2}) == 0);
    CHECK_FALSE(channel.ready());
  }
  CHECK(copied >= 3);
}

TEST_CASE("a guard takes back what was posted before the memory goes away") {
  std::atomic<bool> guarded{false};
  const std::string said = outcome_of(2, [&](World& world) {
    std::vector<float> data(100, 3.0F);
    const Piece piece = piece_of(1 - world.rank(), data);
    if (world.rank() == 0) {
      {
        const comm::SendGuard guard(world);
        world.post({&piece, 1});
      }
      guarded = true;
      world.wait_sent();  // nothing is under way any more
    } else {
      while (!guarded) std::this_thread::yield();
      world.receive({&piece, 1});
    }
  });
  CHECK(said == "rank 1 waits in vain: rank 0 did not send a block of 400 bytes before the end");
}

TEST_CASE("memory of a failing rank is not touched once it is free") {
  // Ranks work on memory of their own, one of them fails somewhere; AddressSanitizer and ThreadSanitizer see the rest.
  for (int round = 0; round < 20; ++round) {
    const int culprit = round % 4;
    const std::string said = outcome_of(4, [&](World& world) {
      auto data = std::make_unique<std::vector<float>>(30000, 1.0F);
      auto other = std::make_unique<std::vector<float>>(30000, 2.0F);
      const comm::SendGuard guard(world);
      const std::vector<int> half = world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
      for (int i = 0;; ++i) {
        if (world.rank() == culprit && i == 3 + round % 5) throw OwnError("out of paper");
        world.group(half).all_reduce(View<float>(data->data(), 30000));
        const Piece send = piece_of((world.rank() + 1) % 4, *data);
        const Piece take = piece_of((world.rank() + 3) % 4, *other);
        world.post({&send, 1});
        if (world.rank() == culprit && i == 5) throw OwnError("out of paper");
        world.receive({&take, 1});
        world.wait_sent();
        for (float& x : *data) x = 1.0F;
        world.everybody().broadcast(View<float>(other->data(), 30000), i % 4);
      }
    });
    CHECK(said == "out of paper");
  }
}
