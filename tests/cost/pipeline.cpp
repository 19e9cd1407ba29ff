#include <galvatron/cost/pipeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include <galvatron/schedule/schedule.hpp>
#include <galvatron/simulate/replay.hpp>

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

// The replay of the schedule's program, for stages of one rank; without the update.
double replayed(ScheduleKind kind, const std::vector<StageSeconds>& stages, int microbatches,
                const cost::CoreSharing& sharing) {
  const double slower = sharing.crowding(static_cast<int>(stages.size()));
  std::vector<simulate::StageTimes> times;
  for (const StageSeconds& stage : stages) {
    simulate::StageTimes t;
    t.forward = {stage.forward.value / slower};
    t.backward = {stage.backward.value / slower};
    t.reduce_gradients = {stage.synchronise.value / slower};
    times.push_back(t);
  }
  const auto program = schedule::make_program(kind, static_cast<int>(stages.size()), microbatches);
  REQUIRE(program);
  return simulate::replay(*program, times, {sharing}).makespan.value;
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

TEST_CASE("stages that share cores take what the replay of their program takes") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const int count = 1 + static_cast<int>(random() % 5);
    const int microbatches = 1 + static_cast<int>(random() % 8);
    const int cores = 1 + static_cast<int>(random() % static_cast<unsigned>(count));
    auto stages = random_stages(random, count);
    for (StageSeconds& stage : stages) stage.update = {};
    const cost::CoreSharing sharing{.cores = cores};
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
      INFO("seed " << seed << ", " << name_of(kind) << ", " << count << " stages, " << microbatches
                   << " micro-batches, " << cores << " cores");
      const double here = cost::shared_pipeline_seconds(kind, stages, microbatches, sharing).value;
      CHECK(here == doctest::Approx(replayed(kind, stages, microbatches, sharing)).epsilon(1e-6));
    }
  }
}

TEST_CASE("of very many micro-batches on shared cores some are followed, and all take what they take followed") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int count = 2 + static_cast<int>(random() % 4);
    const int microbatches = 300 + static_cast<int>(random() % 700);
    const cost::CoreSharing sharing{.cores = 1 + static_cast<int>(random() % static_cast<unsigned>(count))};
    const auto stages = random_stages(random, count);
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
      INFO("seed " << seed << ", " << name_of(kind) << ", " << microbatches << " micro-batches");
      const double followed = cost::detail::followed_pipeline_seconds(kind, stages, microbatches, sharing).value;
      CHECK(cost::shared_pipeline_seconds(kind, stages, microbatches, sharing).value ==
            doctest::Approx(followed).epsilon(5e-3));
      CHECK(cost::shared_pipeline_seconds(kind, stages, 256, sharing).value ==
            cost::detail::followed_pipeline_seconds(kind, stages, 256, sharing).value);
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
