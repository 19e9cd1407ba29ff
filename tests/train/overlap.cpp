// labels: timing
// Overlap over a slow link: gradients travel beside the rest of backward, parameters beside the next forward pass, or
// with ZeRO-2/3 those of a layer beside the work of its neighbours. The layers are real; each pass also sleeps, so that
// computing takes a time that is known whatever the machine does.
#include <algorithm>
#include <chrono>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/comm/thread/world.hpp>

#include "../comm/slow.hpp"
#include "toy.hpp"

namespace {

using namespace toy;
using Clock = std::chrono::steady_clock;
using SlowWorld = comm::slow::World;

constexpr Milliseconds forward_time(8);
constexpr Milliseconds backward_time(16);
constexpr int depth = 8;
constexpr int microbatch_count = 2;

struct Timed {
  double milliseconds = 0;  ///< of the fastest step but the first
  std::vector<double> losses;
};

/// Two data-parallel ranks behind a link.
Timed run_over(const comm::slow::Link& link, int zero, bool overlap) {
  const ModelSpec model = toy::model(true, depth);
  Plan plan = uniform(model, 1, {.data = 2, .zero = zero}, microbatch_count, ScheduleKind::one_f_one_b);
  plan.overlap = overlap;
  Timed out;
  out.milliseconds = 1e9;
  comm::thread::run(plan.ranks(), [&](comm::thread::World& inner) {
    SlowWorld world(inner, link);
    Clock::time_point begin;
    RunOptions options{.steps = 4, .sleeps = {.forward = forward_time, .backward_input = backward_time}};
    options.before_step = [&](int) {
      inner.everybody().barrier();
      begin = Clock::now();
    };
    options.after_step = [&](int step) {
      inner.everybody().barrier();
      if (world.rank() == 0 && step > 0)
        out.milliseconds = std::min(out.milliseconds, Milliseconds(Clock::now() - begin).count());
    };
    Outcome outcome;
    run_on(world, plan, model, options, outcome);
    CHECK(outcome.memory_as_planned);
    if (world.rank() == 0) out.losses = outcome.losses;
  });
  return out;
}

// Halves of a block's parameters that travel beside a pass of a micro-batch. ZeRO-0 sends gradients twice as far at the
// end, ZeRO-1 parameters at the beginning and gradients at the end, ZeRO-2 gradients of every micro-batch, ZeRO-3 all
// of it for every micro-batch.
int halves_forward(int zero, int microbatch) { return zero == 3 || (zero > 0 && microbatch == 0) ? 1 : 0; }
int halves_backward(int zero, int microbatch) {
  if (zero >= 2) return zero - 1;  // ZeRO-3 gathers parameters and reduces gradients
  return microbatch + 1 == microbatch_count ? 2 - zero : 0;
}

/// Milliseconds of a step in which every pass takes the longer of its computing and its messages, but for a first or
/// last block, whose messages nothing is beside.
double least_time(int zero, double computing, double half) {
  const double unit = computing / (depth * microbatch_count * (forward_time + backward_time).count());
  const auto pass = [&](double compute, int halves) {
    const double message = halves * half;
    return (depth - 1) * std::max(compute, message) + compute + message;
  };
  double sum = 0;
  for (int i = 0; i < microbatch_count; ++i)
    sum += pass(unit * forward_time.count(), halves_forward(zero, i)) +
           pass(unit * backward_time.count(), halves_backward(zero, i));
  return sum;
}

}  // namespace

TEST_CASE("with overlap a step over a slow link takes what its computing takes, and the same bits") {
  const std::int64_t parameters =
      parameter_layout(toy::model(true, depth).blocks[0], ParameterPart::rest, 1, 2).elements;
  for (const int zero : {0, 1, 2, 3}) {
    // Seconds that half a block's parameters take: all its messages together take less than the passes beside them.
    const double half = zero < 2 ? 6e-3 : 3e-3;
    const comm::slow::Link link{.latency = 1e-4, .bytes_per_second = static_cast<double>(parameters) * 2 / half};
    const double computing = run_over({.latency = 0, .bytes_per_second = 1e15}, zero, false).milliseconds;
    int halves = 0;
    for (int i = 0; i < microbatch_count; ++i) halves += halves_forward(zero, i) + halves_backward(zero, i);
    const double messages = depth * halves * half * 1e3;
    const Timed with = run_over(link, zero, true);
    const Timed without = run_over(link, zero, false);
    MESSAGE("ZeRO-" << zero << ": computing " << computing << " ms, messages " << messages << " ms, with overlap "
                    << with.milliseconds << " ms, without " << without.milliseconds << " ms");
    CHECK(with.milliseconds < 1.1 * std::max(computing, messages));
    CHECK(without.milliseconds > computing + 0.9 * messages);
    CHECK(with.losses == without.losses);
  }
}

TEST_CASE("over a link that is slower than the computing, a step takes what its messages take") {
  const std::int64_t parameters =
      parameter_layout(toy::model(true, depth).blocks[0], ParameterPart::rest, 1, 2).elements;
  for (const int zero : {0, 1, 2, 3}) {
    const double computing = run_over({.latency = 0, .bytes_per_second = 1e15}, zero, false).milliseconds;
    const double half = zero < 3 ? 24 : 14;  // milliseconds
    const comm::slow::Link link{.latency = 1e-4,
                                .bytes_per_second = static_cast<double>(parameters) * 2 / (half * 1e-3)};
    int halves = 0;
    for (int i = 0; i < microbatch_count; ++i) halves += halves_forward(zero, i) + halves_backward(zero, i);
    const double messages = depth * halves * half;
    const double least = least_time(zero, computing, half);
    const Timed with = run_over(link, zero, true);
    const Timed without = run_over(link, zero, false);
    MESSAGE("ZeRO-" << zero << ": computing " << computing << " ms, messages " << messages << " ms, at least " << least
                    << " ms, with overlap " << with.milliseconds << " ms, without " << without.milliseconds << " ms");
    CHECK(with.milliseconds < 1.1 * least);
    if (zero == 3) CHECK(with.milliseconds < 1.1 * std::max(computing, messages));  // messages beside every pass
    CHECK(without.milliseconds > computing + 0.9 * messages);
    CHECK(with.losses == without.losses);
  }
}
