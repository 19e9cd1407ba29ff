#include <galvatron/cost/pipeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include <galvatron/schedule/replay.hpp>
#include <galvatron/schedule/schedule.hpp>

using namespace galvatron;
using cost::StageSeconds;

namespace {

std::vector<StageSeconds> random_stages(std::mt19937& random, int count) {
  std::uniform_real_distribution<double> seconds(0.1, 2.0);
  std::vector<StageSeconds> stages;
  for (int i = 0; i < count; ++i)
    stages.push_back({{seconds(random)}, {seconds(random)}, {seconds(random)}, {seconds(random)}});
  return stages;
}

// The replay of the schedule's program, for stages of one rank.
double replayed(ScheduleKind kind, const std::vector<StageSeconds>& stages, int microbatches,
                const schedule::CoreSharing& sharing, int virtual_stages = 1) {
  using schedule::Op;
  const double parts = virtual_stages * sharing.crowding();
  std::vector<schedule::StageTimes> times;
  for (const StageSeconds& stage : stages) {
    schedule::StageTimes t;
    t[Op::forward] = {stage.forward.value / parts};
    t[Op::backward] = {stage.backward.value / parts};
    t[Op::backward_input] = {(stage.backward - stage.weights).value / parts};
    t[Op::backward_weight] = {stage.weights.value / parts};
    t[Op::reduce_gradients] = {stage.synchronise.value * virtual_stages / parts};
    t[Op::step] = {stage.update.value * virtual_stages / parts};
    times.push_back(t);
  }
  const auto program =
      value_or_throw(schedule::make_program(kind, static_cast<int>(stages.size()), microbatches, virtual_stages));
  return schedule::replay(program, times, {sharing}).makespan.value;
}

}  // namespace

TEST_CASE("equal stages take (m + P - 1) turns and the largest update") {
  std::vector<StageSeconds> stages(4, StageSeconds{{1.0}, {2.0}, {0.5}, {0.25}});
  stages[2].update = {0.75};
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
    CHECK(cost::pipeline_seconds(kind, stages, 8).value == doctest::Approx((8 + 4 - 1) * 3.0 + 1.25));
}

TEST_CASE("GPipe's formula is the replay of its program but for waits for the single buffers") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int count = 1 + static_cast<int>(random() % 5);
    const int microbatches = 1 + static_cast<int>(random() % 9);
    auto stages = random_stages(random, count);
    // Backward twice the forward on every stage, the once-parts apart: the formula is exact for GPipe then.
    for (StageSeconds& stage : stages) {
      stage.backward = stage.forward * 2.0;
      stage.synchronise = stage.update = {};
    }
    INFO("seed " << seed);
    const double formula = cost::pipeline_seconds(ScheduleKind::gpipe, stages, microbatches).value;
    const double replay = replayed(ScheduleKind::gpipe, stages, microbatches, {});
    CHECK(replay >= formula * (1 - 1e-9));
    CHECK(replay <= formula * 1.35);  // the single buffers may stall stages
  }
}

TEST_CASE("the formulas are the replay of the schedules on equal stages") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const ScheduleKind kind = schedule_kinds[random() % schedule_kinds.size()];
    const bool interleaved = kind == ScheduleKind::interleaved;
    const int count = (usual_virtual_stages(kind) > 1 ? 2 : 1) + static_cast<int>(random() % 8);
    const int chunks = interleaved ? 1 + static_cast<int>(random() % 4) : usual_virtual_stages(kind);
    const int microbatches = (interleaved ? count : 1) * (1 + static_cast<int>(random() % 40));
    StageSeconds stage = random_stages(random, 1).front();
    if (splits_backward(kind))
      stage.weights = cost::deferrable(kind, stage.forward, stage.backward, {1e9}) * (0.25 * (random() % 5));
    CAPTURE(round);
    CAPTURE(name_of(kind));
    CAPTURE(count);
    CAPTURE(microbatches);
    CAPTURE(chunks);
    const std::vector<StageSeconds> stages(static_cast<std::size_t>(count), stage);
    REQUIRE(cost::pipeline_seconds(kind, stages, microbatches, chunks).value ==
            doctest::Approx(replayed(kind, stages, microbatches, {}, chunks)).epsilon(1e-9));
  }
}

TEST_CASE("the idle time of zero-bubble schedules is the paper's up to the common end of a step") {
  constexpr int p = 8;
  const auto idle = [](ScheduleKind kind, double f, double b, double w, int m) {
    const StageSeconds stage{{f}, {b + w}, {}, {}, cost::deferrable(kind, {f}, {b + w}, {w})};
    const std::vector<StageSeconds> stages(p, stage);
    return cost::pipeline_seconds(kind, stages, m, usual_virtual_stages(kind)).value - m * (f + b + w);
  };
  // Qi et al. 2024 (arXiv 2401.10241), sections 3 and 6. The last stage's first forward waits for those before it.
  for (const int m : {2 * p, 3 * p, 100 * p}) {
    CHECK(idle(ScheduleKind::zb_h1, 1, 1, 1, m) == doctest::Approx((p - 1) * 1.0));
    CHECK(idle(ScheduleKind::zb_2p, 1, 1, 1, m) == doctest::Approx((p - 1) * 1.0));
    CHECK(idle(ScheduleKind::zb_v, 1, 1, 1, m) == doctest::Approx((p - 1) * 0.5));
    // Long sequences: the gradient of the input has more work.
    CHECK(idle(ScheduleKind::zb_h1, 1, 2, 1, m) == doctest::Approx((p - 1) * 2.0));
    CHECK(idle(ScheduleKind::zb_2p, 1, 2, 1, m) == doctest::Approx((p - 1) * 1.0));
    CHECK(idle(ScheduleKind::zb_v, 1, 2, 1, m) == doctest::Approx((p - 1) * 1.0));
  }
  // Without weight gradients to defer all wait as 1F1B does, zb-v for half a stage.
  CHECK(idle(ScheduleKind::zb_2p, 1, 2, 0, 2 * p) == doctest::Approx((p - 1) * 3.0));
  CHECK(idle(ScheduleKind::zb_v, 1, 2, 0, 2 * p) == doctest::Approx((p - 1) * 2.0));
}

TEST_CASE("a V of very many micro-batches takes what it takes followed") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    const int count = 2 + static_cast<int>(random() % 6);
    auto stages = random_stages(random, count);
    for (StageSeconds& stage : stages) {
      stage.synchronise = stage.update = {};
      stage.weights = cost::deferrable(ScheduleKind::zb_v, stage.forward, stage.backward, {1e9}) * 0.5;
    }
    const int m = 8 * count + 1 + static_cast<int>(random() % 200);
    REQUIRE(cost::pipeline_seconds(ScheduleKind::zb_v, stages, m, 2).value ==
            doctest::Approx(replayed(ScheduleKind::zb_v, stages, m, {}, 2)).epsilon(2e-2));
  }
}

TEST_CASE("the formulas of GPipe and 1F1B are the replay of one micro-batch on any stages") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    auto stages = random_stages(random, 1 + static_cast<int>(random() % 8));
    for (StageSeconds& stage : stages) stage.synchronise = {};  // later stages reduce while earlier ones run backward
    CAPTURE(round);
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
      REQUIRE(cost::pipeline_seconds(kind, stages, 1).value ==
              doctest::Approx(replayed(kind, stages, 1, {})).epsilon(1e-9));
  }
}

// What an iteration of GPipe or 1F1B takes on shared cores, written without programs, messages and events: in small
// steps of time, every stage whose next pass may begin or has begun goes on, by as much as its cores allow.
double stepped(ScheduleKind kind, const std::vector<StageSeconds>& stages, int microbatches, int cores, double step) {
  const int count = static_cast<int>(stages.size());
  struct Stage {
    int forwards = 0, backwards = 0;  // that have ended
    bool working = false, forward = false;
    double left = 0;
    int inputs = 0, gradients = 0;  // that were taken from the neighbours
  };
  std::vector<Stage> all(stages.size());
  const double crowding = std::max(1.0, static_cast<double>(count) / cores);
  double now = 0;
  while (all.front().backwards < microbatches) {
    for (int again = 0; again < 2 * count; ++again)
      for (int i = 0; i < count; ++i) {
        Stage& s = all[static_cast<std::size_t>(i)];
        if (s.working || s.backwards == microbatches) continue;
        const int ahead = kind == ScheduleKind::gpipe ? microbatches : count - i;
        const bool forward = s.forwards < std::min(microbatches, s.backwards + ahead);
        const Stage* before = i > 0 ? &all[static_cast<std::size_t>(i) - 1] : nullptr;
        const Stage* behind = i + 1 < count ? &all[static_cast<std::size_t>(i) + 1] : nullptr;
        if (forward) {
          if (before != nullptr && before->forwards == s.forwards) continue;
          s.inputs = s.forwards + 1;
          if (behind != nullptr && behind->inputs < s.forwards) continue;
        } else {
          if (behind != nullptr && behind->backwards == s.backwards) continue;
          s.gradients = s.backwards + 1;
          if (before != nullptr && before->gradients < s.backwards) continue;
        }
        s.working = true;
        s.forward = forward;
        s.left = (forward ? stages[static_cast<std::size_t>(i)].forward : stages[static_cast<std::size_t>(i)].backward)
                     .value /
                 crowding;
      }
    std::vector<int> loads(static_cast<std::size_t>(cores), 0);
    for (std::size_t i = 0; i < all.size(); ++i) loads[i % loads.size()] += all[i].working ? 1 : 0;
    now += step;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].working) continue;
      all[i].left -= step / loads[i % loads.size()];
      if (all[i].left > 0) continue;
      all[i].working = false;
      ++(all[i].forward ? all[i].forwards : all[i].backwards);
    }
  }
  return now;
}

TEST_CASE("stages that share cores take what small steps of time take") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const int count = 1 + static_cast<int>(random() % 5);
    const int microbatches = 1 + static_cast<int>(random() % 8);
    const int cores = 1 + static_cast<int>(random() % static_cast<unsigned>(count));
    const schedule::CoreSharing sharing{.cores = cores,
                                        .stage_ranks = std::vector<int>(static_cast<std::size_t>(count), 1)};
    auto stages = random_stages(random, count);
    for (StageSeconds& stage : stages) stage.synchronise = stage.update = {};
    CAPTURE(round);
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
      const double replay = cost::shared_pipeline_seconds(kind, stages, microbatches, sharing).value;
      REQUIRE(replay == doctest::Approx(replayed(kind, stages, microbatches, sharing)).epsilon(1e-12));
      REQUIRE(replay == doctest::Approx(stepped(kind, stages, microbatches, cores, 1e-4)).epsilon(5e-3));
    }
  }
}

TEST_CASE("of very many micro-batches on shared cores some are followed, and all take what they take followed") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int count = 2 + static_cast<int>(random() % 4);
    const int microbatches = 300 + static_cast<int>(random() % 700);
    const schedule::CoreSharing sharing{.cores = 1 + static_cast<int>(random() % static_cast<unsigned>(count)),
                                        .stage_ranks = std::vector<int>(static_cast<std::size_t>(count), 1)};
    const auto stages = random_stages(random, count);
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
      INFO("seed " << seed << ", " << name_of(kind) << ", " << microbatches << " micro-batches");
      const double whole = replayed(kind, stages, microbatches, sharing);
      CHECK(cost::shared_pipeline_seconds(kind, stages, microbatches, sharing).value ==
            doctest::Approx(whole).epsilon(5e-3));
      CHECK(cost::shared_pipeline_seconds(kind, stages, 256, sharing).value == replayed(kind, stages, 256, sharing));
    }
  }
  // A billion takes no longer to price.
  std::mt19937 random(1);
  const auto stages = random_stages(random, 4);
  const double billion =
      cost::shared_pipeline_seconds(ScheduleKind::one_f_one_b, stages, 1'000'000'000, {.cores = 2}).value;
  CHECK(billion == doctest::Approx(
                       1e6 * cost::shared_pipeline_seconds(ScheduleKind::one_f_one_b, stages, 1000, {.cores = 2}).value)
                       .epsilon(0.02));
}

TEST_CASE("with a core for each of equal stages the shared pipeline is the formula") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const int count = 1 + static_cast<int>(random() % 5);
    const int microbatches = 1 + static_cast<int>(random() % 8);
    const std::vector<StageSeconds> stages(static_cast<std::size_t>(count), random_stages(random, 1).front());
    INFO("seed " << seed);
    const double shared =
        cost::shared_pipeline_seconds(ScheduleKind::gpipe, stages, microbatches, {.cores = count}).value;
    // The synchronisations of later stages hide behind the backwards of earlier ones.
    const double formula = cost::pipeline_seconds(ScheduleKind::gpipe, stages, microbatches).value;
    CHECK(shared <= formula * (1 + 1e-9));
    CHECK(shared >= formula - stages.front().synchronise.value - 1e-9);
  }
}

TEST_CASE("the passes of one micro-batch follow each other and the updates run side by side") {
  const std::vector<StageSeconds> stages{{{1.0}, {2.0}, {0.0}, {4.0}}, {{3.0}, {4.0}, {0.0}, {2.0}}};
  // One core: while one stage works alone it is twice as fast as with both at work.
  const double seconds = cost::shared_pipeline_seconds(ScheduleKind::one_f_one_b, stages, 1, {.cores = 1}).value;
  // (1 + 3 + 4 + 2) / 2, then updates: both for 2 seconds, the rest of the first alone at double speed.
  CHECK(seconds == doctest::Approx(5.0 + 2.0 + 1.0));
}
