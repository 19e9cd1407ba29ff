#include <galvatron/train/recorder.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/train/gather_report.hpp>

using namespace galvatron;
using schedule::Instruction;
using schedule::Op;

namespace {

void do_step(train::RecordedStep& observer, std::int64_t step, int forwards) {
  observer.step_begins(step);
  for (int i = 0; i < forwards; ++i) {
    observer.ended({Op::forward, i}, steady_seconds());
  }
}

}  // namespace

TEST_CASE("the last step of every rank is kept, on one clock that begins with the first of them") {
  train::Recorder recorder(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&recorder, rank] {
      for (std::int64_t step = 0; step < 5; ++step) do_step(recorder.rank(rank), step, 10 - static_cast<int>(step));
    });
  for (std::thread& rank : ranks) rank.join();
  const schedule::MeasuredStep last = recorder.last_step();
  CHECK(last.step == 4);
  REQUIRE(last.ranks.size() == 3);
  Seconds end;
  for (const auto& spans : last.ranks) {
    REQUIRE(spans.size() == 6);
    Seconds now;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      CHECK(spans[i].instruction == Instruction{Op::forward, static_cast<int>(i)});
      CHECK(spans[i].begin >= now);
      CHECK(spans[i].end >= spans[i].begin);
      now = spans[i].end;
    }
    end = max(end, now);
  }
  CHECK(last.seconds == end);
}

TEST_CASE("a run without a step has nothing") {
  const schedule::MeasuredStep nothing = train::Recorder(2).last_step();
  CHECK(nothing.ranks.size() == 2);
  CHECK(nothing.ranks[0].empty());
  CHECK(nothing.seconds.value == 0);
}

TEST_CASE("rank 0 collects what the others recorded, each on its own") {
  for (const bool one_clock : {true, false}) {
    std::vector<train::Recorder> recorders(3, train::Recorder(3));
    comm::thread::run(3, [&](comm::thread::World& world) {
      train::Recorder& own = recorders[static_cast<std::size_t>(world.rank())];
      do_step(own.rank(world.rank()), 7, 4 + world.rank());
      train::gather_records(world, own, [&](int) { return one_clock; });
    });
    const schedule::MeasuredStep all = recorders[0].last_step();
    CHECK(all.step == 7);
    REQUIRE(all.ranks.size() == 3);
    const double shift = recorders[0].rank(2).began - recorders[2].rank(2).began;
    CHECK(std::abs(shift) < (one_clock ? 1e-9 : 1e-2));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      REQUIRE(all.ranks[rank].size() == 4 + rank);
      const auto& recorded = recorders[rank].rank(static_cast<int>(rank)).spans;
      for (std::size_t i = 0; i < recorded.size(); ++i) {
        CHECK(all.ranks[rank][i].instruction == recorded[i].instruction);
        const Seconds length = all.ranks[rank][i].end - all.ranks[rank][i].begin;
        CHECK(length.value == doctest::Approx((recorded[i].end - recorded[i].begin).value));
      }
    }
  }
}

TEST_CASE("a clock that is ahead is found to be") {
  comm::thread::run(2, [](comm::thread::World& world) {
    const double ahead = world.rank() == 1 ? 1234.5 : 0;
    const double offset = train::clock_offset(world, 1 - world.rank(), [&] { return steady_seconds() + ahead; });
    if (world.rank() == 0)
      CHECK(std::abs(offset - 1234.5) < 1e-2);
    else
      CHECK(offset == 0);
  });
}
