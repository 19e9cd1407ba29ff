// labels: timing
// The bubbles of the pipeline schedules: a stage whose layers sleep takes the time that the simulator says.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/schedule/schedule.hpp>

#include "toy.hpp"

namespace {

using namespace toy;
using Clock = std::chrono::steady_clock;

/// What a block of a stage takes.
struct BlockTimes {
  Milliseconds forward{};
  Milliseconds backward_input{};
  Milliseconds backward_weight{};
};

constexpr int stages = 4;
constexpr int blocks = 8;
constexpr int microbatches = 8;

/// Milliseconds that a stage waits in a step, as a mean over the stages: of the calmest of some steps.
/// @param times  of the blocks of each stage
double measured_idle(ScheduleKind kind, int virtual_stages, const std::vector<BlockTimes>& times) {
  const ModelSpec model = toy::model(false, blocks);
  const Plan plan = uniform(model, stages, {}, microbatches, kind, virtual_stages);
  constexpr int steps = 5;
  std::vector<double> idle(steps, 0.0);
  std::mutex mutex;
  comm::thread::run(stages, [&](comm::thread::World& world) {
    Milliseconds slept{};
    Clock::time_point begin;
    const BlockTimes& mine = times[static_cast<std::size_t>(world.rank())];
    RunOptions options{.steps = steps,
                       .clip = 0,
                       .sleeps = {.forward = mine.forward,
                                  .backward_input = mine.backward_input,
                                  .backward_weight = mine.backward_weight,
                                  .computes = false,
                                  .slept = &slept}};
    options.before_step = [&](int) {
      slept = {};
      world.everybody().barrier();
      begin = Clock::now();
    };
    options.after_step = [&](int step) {
      const Milliseconds whole = Clock::now() - begin;
      const std::lock_guard lock(mutex);
      idle[static_cast<std::size_t>(step)] += (whole - slept).count() / stages;
    };
    Outcome outcome;
    run_on(world, plan, model, options, outcome);
  });
  return *std::min_element(idle.begin(), idle.end());
}

/// The same as the simulator has it.
double simulated_idle(ScheduleKind kind, int virtual_stages, const std::vector<BlockTimes>& times) {
  const int each = blocks / stages / virtual_stages;  // blocks of a chunk
  std::vector<schedule::StageTimes> of_chunks;
  double work = 0;
  for (const BlockTimes& t : times) {
    const auto seconds = [&](Milliseconds of_block) { return Seconds{each * of_block.count()}; };
    schedule::StageTimes chunk;
    chunk[schedule::Op::forward] = seconds(t.forward);
    chunk[schedule::Op::backward] = seconds(t.backward_input + t.backward_weight);
    chunk[schedule::Op::backward_input] = seconds(t.backward_input);
    chunk[schedule::Op::backward_weight] = seconds(t.backward_weight);
    of_chunks.push_back(chunk);
    work += blocks / stages * microbatches * (t.forward + t.backward_input + t.backward_weight).count() / stages;
  }
  const auto program = value_or_throw(schedule::make_program(kind, stages, microbatches, virtual_stages));
  return schedule::replay(program, of_chunks).makespan.value - work;
}

struct Idle {
  double measured;
  double simulated;
};
Idle idle_of(ScheduleKind kind, int virtual_stages, const std::vector<BlockTimes>& times) {
  const Idle out{measured_idle(kind, virtual_stages, times), simulated_idle(kind, virtual_stages, times)};
  MESSAGE(std::string(name_of(kind)) << ": idle " << out.measured << " ms measured, " << out.simulated
                                     << " ms simulated");
  CHECK(out.measured == doctest::Approx(out.simulated).epsilon(0.1));
  return out;
}

}  // namespace

TEST_CASE("the bubbles of four equal stages are those of the simulator, and those of zero-bubble ones the smallest") {
  const std::vector<BlockTimes> times(
      stages, {.forward = Milliseconds(10), .backward_input = Milliseconds(10), .backward_weight = Milliseconds(10)});
  const Idle gpipe = idle_of(ScheduleKind::gpipe, 1, times);
  const Idle plain = idle_of(ScheduleKind::one_f_one_b, 1, times);
  const Idle interleaved = idle_of(ScheduleKind::interleaved, 2, times);
  const Idle zero_bubble = idle_of(ScheduleKind::zb_h1, 1, times);
  CHECK(gpipe.simulated == doctest::Approx(plain.simulated));  // 1F1B saves memory, not time, on equal stages
  CHECK(interleaved.measured < 0.6 * plain.measured);          // 1 / v of it
  CHECK(zero_bubble.measured < 0.8 * interleaved.measured);
  const Idle vee = idle_of(ScheduleKind::zb_v, 2, times);
  CHECK(vee.measured < 0.7 * zero_bubble.measured);  // half of it
}

TEST_CASE("where gradients of inputs take longer ZB-2p idles less than ZB-H1, as the simulator says") {
  const std::vector<BlockTimes> times(
      stages, {.forward = Milliseconds(10), .backward_input = Milliseconds(20), .backward_weight = Milliseconds(10)});
  const Idle zero_bubble = idle_of(ScheduleKind::zb_h1, 1, times);
  const Idle twice = idle_of(ScheduleKind::zb_2p, 1, times);
  CHECK(twice.measured < 0.7 * zero_bubble.measured);  // half of it
}

TEST_CASE("on stages whose passes differ 1F1B idles less than GPipe, as the simulator says") {
  std::vector<BlockTimes> times(
      stages, {.forward = Milliseconds(6), .backward_input = Milliseconds(6), .backward_weight = Milliseconds(6)});
  times.front().forward = Milliseconds(18);
  times.back().backward_input = Milliseconds(18);
  const Idle gpipe = idle_of(ScheduleKind::gpipe, 1, times);
  const Idle plain = idle_of(ScheduleKind::one_f_one_b, 1, times);
  CHECK(plain.measured < 0.9 * gpipe.measured);
}
