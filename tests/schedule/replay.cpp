#include <galvatron/schedule/replay.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <galvatron/schedule/schedule.hpp>

#include "instructions.hpp"

using namespace galvatron;
using schedule::make_program;
using schedule::Op;
using schedule::replay;
using schedule::StageTimes;

namespace {

const ScheduleKind kinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b};

StageTimes times_of(double forward, double backward) {
  StageTimes times;
  times[Op::forward] = {forward};
  times[Op::backward] = {backward};
  return times;
}
std::vector<StageTimes> equal_stages(int stages, double forward, double backward) {
  return std::vector<StageTimes>(static_cast<std::size_t>(stages), times_of(forward, backward));
}

schedule::Program gpipe(int stages, int microbatches) {
  return value_or_throw(make_program(ScheduleKind::gpipe, stages, microbatches));
}

}  // namespace

TEST_CASE("equal stages take (m + P - 1)(f + b) with GPipe and with 1F1B") {
  for (const ScheduleKind kind : kinds)
    for (int stages = 1; stages <= 8; ++stages)
      for (const int m : {1, 2, 3, 8, 16}) {
        CAPTURE(name_of(kind));
        CAPTURE(stages);
        CAPTURE(m);
        const auto result = replay(*make_program(kind, stages, m), equal_stages(stages, 0.3, 0.7));
        REQUIRE(result.makespan.value == doctest::Approx((m + stages - 1) * 1.0));
        for (const Seconds work : result.work) REQUIRE(work.value == doctest::Approx(m * 1.0));
      }
}

TEST_CASE("equal stages of interleaved 1F1B idle for (P - 1)(f + b) / v") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> some(0.1, 2);
  for (int stages = 2; stages <= 8; ++stages)
    for (int chunks = 1; chunks <= 4; ++chunks)
      for (int group = 1; group <= 4; ++group) {
        const int m = stages * group;
        const double f = some(random), b = some(random);
        CAPTURE(stages);
        CAPTURE(chunks);
        CAPTURE(m);
        const auto program = *make_program(ScheduleKind::interleaved, stages, m, chunks);
        const auto result = replay(program, equal_stages(stages, f / chunks, b / chunks));
        REQUIRE(result.makespan.value == doctest::Approx(m * (f + b) + (stages - 1) * (f + b) / chunks));
      }
}

TEST_CASE("equal stages of ZB-H1 idle for (P - 1)(f + b - w)") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> some(0.1, 2);
  for (int stages = 1; stages <= 8; ++stages)
    for (int m = 1; m <= 20; ++m) {
      const double f = some(random), b = some(random), w = std::min(f, b) * std::min(1.0, some(random));
      CAPTURE(stages);
      CAPTURE(m);
      StageTimes times;
      times[Op::forward] = {f};
      times[Op::backward_input] = {b};
      times[Op::backward_weight] = {w};
      const std::vector<StageTimes> all(static_cast<std::size_t>(stages), times);
      const auto result = replay(*make_program(ScheduleKind::zb_h1, stages, m), all);
      if (m >= stages) REQUIRE(result.makespan.value == doctest::Approx(m * (f + b + w) + (stages - 1) * (f + b - w)));
    }
}

TEST_CASE("the slowest stage of a GPipe pipeline bounds it") {
  // Forwards: the slow stage (2 s) is fed after 1 s, runs 4 times and passes the last on for 1 s; backwards alike.
  std::vector<StageTimes> times = equal_stages(3, 1, 1);
  times[1] = times_of(2, 2);
  CHECK(replay(gpipe(3, 4), times).makespan.value == doctest::Approx(2 * (1 + 4 * 2 + 1)));
}

TEST_CASE("messages take their time, and what a receiver does is its work") {
  std::vector<StageTimes> times = equal_stages(2, 1, 2);
  times[0][Op::send_activation] = {0.25};
  times[1][Op::send_gradient] = {0.5};
  CHECK(replay(gpipe(2, 1), times).makespan.value == doctest::Approx(6.75));
  times[1][Op::receive_activation] = {0.125};
  times[0][Op::receive_gradient] = {0.0625};
  const auto result = replay(gpipe(2, 1), times);
  CHECK(result.makespan.value == doctest::Approx(6.75 + 0.1875));
  CHECK(result.work[1].value == doctest::Approx(3.125));
  const auto recorded = replay(gpipe(2, 1), times, {.record = true});
  REQUIRE(recorded.spans.size() == 2);
  const auto& spans = recorded.spans[1];  // receive, forward, backward, send, reduce, step
  REQUIRE(spans.size() == 6);
  CHECK(spans[0].begin.value == doctest::Approx(1.25));
  CHECK(spans[4].end.value == doctest::Approx(1 + 0.25 + 0.125 + 3));
  CHECK(spans[5].begin.value == doctest::Approx(result.makespan.value));  // when the first stage has come to its own
  times[0][Op::reduce_gradients] = {1};
  times[0][Op::step] = {0.5};
  CHECK(replay(gpipe(2, 1), times).makespan.value == doctest::Approx(6.75 + 0.1875 + 1.5));
}

TEST_CASE("no stage steps before all have reduced their gradients") {
  for (const int cores : {0, 2}) {
    auto times = equal_stages(3, 1, 2);
    times[0][Op::reduce_gradients] = {0.5};
    times[2][Op::reduce_gradients] = {9};
    for (auto& t : times) t[Op::step] = {0.25};
    const auto result = replay(*make_program(ScheduleKind::one_f_one_b, 3, 4), times, {{.cores = cores}, true});
    double reduced = 0;
    for (const auto& stage : result.spans) reduced = std::max(reduced, stage[stage.size() - 2].end.value);
    for (const auto& stage : result.spans) CHECK(stage.back().begin.value == doctest::Approx(reduced));
  }
}

TEST_CASE("chunks may take times of their own") {
  // Two stages of two chunks, one micro-batch each way at a time: everything lies on one path but for the overlap of
  // the two micro-batches.
  std::vector<StageTimes> times;
  for (const double forward : {1.0, 2.0, 3.0, 4.0}) times.push_back(times_of(forward, 0));
  const auto program = *make_program(ScheduleKind::interleaved, 2, 2, 2);
  const auto result = replay(program, times, {.record = true});
  for (std::size_t stage = 0; stage < 2; ++stage)
    for (const auto& span : result.spans[stage])
      if (span.instruction.op == Op::forward)
        CHECK((span.end - span.begin).value ==
              doctest::Approx(times[static_cast<std::size_t>(span.instruction.chunk) * 2 + stage][Op::forward].value));
  times.pop_back();
  CHECK_THROWS_AS(replay(program, times), Failure);
}

TEST_CASE("a message under way keeps its sender's buffer, so the next forward begins when it is there") {
  auto times = equal_stages(2, 1, 1);
  times[0][Op::send_activation] = {0.5};
  // Forwards of stage 0 every 1.5 s, the last ends at 11.5; stage 1 has it at 12, ends at 13, eight backwards, one
  // more.
  CHECK(replay(gpipe(2, 8), times).makespan.value == doctest::Approx(22));
}

TEST_CASE("a sender waits for its buffer") {
  // Stage 1 is slow: the second message lies in the buffer of stage 0 until stage 1 has ended its first forward, so the
  // third forward of stage 0 begins at 11 and not at 2.
  auto times = equal_stages(2, 1, 0);
  times[1][Op::forward] = {10};
  const auto forwards = instructions::program(
      {{{Op::forward, 0}, {Op::send_activation, 0}, {Op::forward, 1}, {Op::send_activation, 1}, {Op::forward, 2}},
       {{Op::receive_activation, 0}, {Op::forward, 0}, {Op::receive_activation, 1}, {Op::forward, 1}}});
  const auto result = replay(forwards, times);
  CHECK(result.finish[0].value == doctest::Approx(12));
  CHECK(result.finish[1].value == doctest::Approx(21));
}

TEST_CASE("one core does all the work of all stages, one thing after another") {
  for (const ScheduleKind kind : kinds)
    for (const int stages : {1, 2, 4, 8})
      for (const int m : {1, 4, 9}) {
        const auto program = *make_program(kind, stages, m);
        const auto times = equal_stages(stages, 0.25, 0.5);
        REQUIRE(replay(program, times, {{.cores = 1}}).makespan.value == doctest::Approx(stages * m * 0.75));
        // As many cores as ranks: nobody slows anybody down.
        REQUIRE(replay(program, times,
                       {{.cores = 4 * stages, .stage_ranks = std::vector<int>(static_cast<std::size_t>(stages), 4)}})
                    .makespan.value == doctest::Approx(replay(program, times).makespan.value));
        // Half the cores that one stage alone wants.
        REQUIRE(
            replay(program, times, {{.cores = 1, .stage_ranks = std::vector<int>(static_cast<std::size_t>(stages), 2)}})
                .makespan.value == doctest::Approx(2 * stages * m * 0.75));
      }
}

TEST_CASE("shared cores take at least the work over the cores and at least the time of cores enough") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> some(0.1, 2);
  for (int round = 0; round < 100; ++round) {
    const int stages = 1 + static_cast<int>(random() % 6), m = 1 + static_cast<int>(random() % 8);
    const int cores = 1 + static_cast<int>(random() % 4);
    std::vector<StageTimes> times;
    double work = 0;
    for (int s = 0; s < stages; ++s) {
      times.push_back(times_of(some(random), some(random)));
      times.back()[Op::send_activation] = {some(random) / 10};
      work += m * (times.back()[Op::forward] + times.back()[Op::backward]).value;
    }
    for (const ScheduleKind kind : kinds) {
      const auto program = *make_program(kind, stages, m);
      const double alone = replay(program, times).makespan.value;
      const auto result = replay(program, times, {{.cores = cores}});
      const double shared = result.makespan.value;
      REQUIRE(shared >= alone * (1 - 1e-9));
      REQUIRE(shared >= work / cores * (1 - 1e-9));
      REQUIRE(shared <= alone * ((stages + cores - 1) / cores) * (1 + 1e-9));
      double done = 0;
      for (const Seconds w : result.work) done += w.value;
      REQUIRE(done == doctest::Approx(work));
    }
  }
}

TEST_CASE("one clock for all and a clock for each give the same times") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> some(0.0, 1);
  for (int round = 0; round < 200; ++round) {
    const int stages = 1 + static_cast<int>(random() % 7), m = 1 + static_cast<int>(random() % 12);
    std::vector<StageTimes> times;
    for (int s = 0; s < stages; ++s) {
      times.push_back(times_of(some(random), some(random)));
      for (Seconds* t :
           {&times.back()[Op::send_activation], &times.back()[Op::send_gradient], &times.back()[Op::receive_activation],
            &times.back()[Op::receive_gradient], &times.back()[Op::reduce_gradients], &times.back()[Op::step]})
        if (random() % 2 == 0) t->value = some(random) / (round % 2 == 0 ? 1 : 20);
    }
    for (const ScheduleKind kind : kinds) {
      const auto program = *make_program(kind, stages, m);
      const auto each = replay(program, times);
      // A stage that never works shares the core of the first: one clock, and yet nobody waits for a core.
      schedule::Program with_idle = program;
      with_idle.stages.emplace_back();
      std::vector<StageTimes> their_times = times;
      their_times.emplace_back();
      const auto together = replay(with_idle, their_times, {{.cores = stages}});
      for (std::size_t s = 0; s < times.size(); ++s)
        REQUIRE(together.finish[s].value == doctest::Approx(each.finish[s].value).epsilon(1e-9));
    }
  }
}

TEST_CASE("stages tied to one core wait for each other though another core has nothing to do") {
  // Stages 0 and 2 are on core 0, stage 1 on core 1.
  const auto forwards = instructions::program({{{Op::forward, 0}}, {}, {{Op::forward, 0}}});
  const std::vector<StageTimes> times{times_of(1, 1), times_of(1, 1), times_of(3, 1)};
  const auto result = replay(forwards, times, {{.cores = 2}});
  CHECK(result.finish[0].value == doctest::Approx(2));
  CHECK(result.makespan.value == doctest::Approx(4));
}

TEST_CASE("a program that cannot end is refused") {
  std::vector<instructions::List> lists = instructions::of(gpipe(2, 2));
  lists[0].pop_back();
  std::erase_if(lists[0], [](const auto& i) { return i.op == Op::send_activation && i.microbatch == 1; });
  const auto times = equal_stages(2, 1, 1);
  for (const int cores : {1, 2})
    CHECK_THROWS_WITH_AS(replay(instructions::program(lists), times, {{.cores = cores}}),
                         "schedule: receive_gradient 0 of stage 0 waits for ever", Failure);
  lists = instructions::of(gpipe(2, 2));
  for (auto& instruction : lists[0])
    if (instruction.op == Op::send_activation) instruction.microbatch = 1 - instruction.microbatch;
  const schedule::Program program = instructions::program(lists);
  CHECK_THROWS_WITH_AS(replay(program, times), "schedule: receive_activation 0 of stage 1 meets micro-batch 1",
                       Failure);
  CHECK_THROWS_AS(replay(program, std::vector<StageTimes>(3)), Failure);
}

TEST_CASE("a span begins when its cause ends") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> some(0.1, 2);
  for (int round = 0; round < 100; ++round) {
    const ScheduleKind kind = schedule_kinds[random() % schedule_kinds.size()];
    const int stages = 2 + static_cast<int>(random() % 5);
    const int chunks =
        kind == ScheduleKind::interleaved ? 1 + static_cast<int>(random() % 3) : usual_virtual_stages(kind);
    const int m = stages * (1 + static_cast<int>(random() % 4));
    std::vector<StageTimes> times(static_cast<std::size_t>(stages * chunks));
    for (StageTimes& t : times)
      for (std::size_t op = 0; op < schedule::ops; ++op)
        if (static_cast<Op>(op) != Op::send_activation && static_cast<Op>(op) != Op::send_gradient)
          t.by_op[op] = {some(random)};
    CAPTURE(name_of(kind));
    const int cores = static_cast<int>(random() % 3);
    const auto result = replay(*make_program(kind, stages, m, chunks), times, {{.cores = cores}, true});
    for (std::size_t s = 0; s < result.spans.size(); ++s)
      for (std::size_t i = 0; i < result.spans[s].size(); ++i) {
        const schedule::SpanIndex cause = result.causes[s][i];
        REQUIRE(cause.exists() == (s > 0 || i > 0));
        if (cause.exists()) REQUIRE(result.spans[cause.stage][cause.span].end == result.spans[s][i].begin);
      }
  }
}
