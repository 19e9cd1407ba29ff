#include <galvatron/train/recorder.hpp>

#include <doctest/doctest.h>

#include <thread>
#include <vector>

using namespace galvatron;
using schedule::Instruction;
using schedule::Op;

namespace {

void do_step(train::InstructionObserver& observer, std::int64_t step, int forwards) {
  observer.step_begins(step);
  for (int i = 0; i < forwards; ++i) {
    observer.begins();
    observer.ended({Op::forward, i});
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
  const simulate::MeasuredStep last = recorder.last_step();
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
  const simulate::MeasuredStep nothing = train::Recorder(2).last_step();
  CHECK(nothing.ranks.size() == 2);
  CHECK(nothing.ranks[0].empty());
  CHECK(nothing.seconds.value == 0);
}
