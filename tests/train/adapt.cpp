// Runs whose ranks are slowed down and lost at random train as undisturbed ones do: the same samples, the same losses.
//
// GALVATRON_DISTURBANCES=200 disturbs so many runs; GALVATRON_RANDOM_SEED=N repeats one.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "random_plan.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;
using namespace galvatron::train;

namespace {

constexpr std::int64_t disturbed_steps = 16;

/// Speeds of ranks instead of measured ones, which other programs disturb: a rank takes as long as its samples and
/// layers say, times its slowness. The job goes on with the plan that it was told last.
class Speeds {
 public:
  Speeds(Plan plan, std::function<double(int rank, std::int64_t step)> slowness)
      : plan_(std::move(plan)), slowness_(std::move(slowness)) {}

  void apply_to(AdaptOptions& options) {
    options.on = true;
    options.pause = 0;
    options.measured = [this](int rank, std::int64_t step, StepSeconds& measured) {
      const std::lock_guard lock(mutex_);
      measured.own = {seconds(rank, step), 0};
      measured.all = 1e-3;
      for (int r = 0; r < plan_.ranks(); ++r) measured.all = std::max(measured.all, seconds(r, step));
    };
    options.on_adaptation = [this](const Adaptation& adaptation) {
      const std::lock_guard lock(mutex_);
      plan_ = adaptation.plan;
      told.push_back(adaptation);
    };
  }
  std::vector<Adaptation> told;

 private:
  [[nodiscard]] double seconds(int rank, std::int64_t step) const {
    const auto stage =
        std::ranges::find_if(plan_.stages, [=](const PlanStage& s) { return rank < s.first_rank + s.rank_count; });
    const auto layers = static_cast<double>(stage->last_layer + 1 - stage->first_layer);
    const ActivationLayout layout =
        activation_layout(plan_.layers[static_cast<std::size_t>(stage->first_layer)], stage->first_rank,
                          plan_.microbatch(), plan_.sequence_length, stage->ratios());
    const auto samples = static_cast<double>(layout.samples().count(layout.place(rank).data));
    return samples * plan_.microbatches * layers * 1e-3 * slowness_(rank, step);
  }
  std::mutex mutex_;
  Plan plan_;
  std::function<double(int, std::int64_t)> slowness_;
};

TrainOptions disturbed_options() {
  TrainOptions options;
  options.steps = disturbed_steps;
  options.learning_rate = {.peak = 1e-3, .floor = 3e-4, .warmup_steps = 3, .steps = disturbed_steps};
  options.seed = 5;
  options.threads_per_rank = 1;
  options.world.timeout = std::chrono::seconds(120);
  return options;
}

/// Data parallelism over so many ranks, of which nothing has to divide the batch.
Plan any_ranks(const ModelSpec& model, int ranks, int microbatches = 1) {
  Plan plan = toy::single_rank(model);
  plan.microbatches = microbatches;
  const StrategySpec spec{.data = ranks, .zero = ranks > 2 ? 1 : 0, .shard_kind = ShardKind::by_ratio};
  plan.stages.front().rank_count = ranks;
  plan.stages.front().sample_ratios.assign(static_cast<std::size_t>(ranks), 1);
  std::ranges::fill(plan.layers, spec);
  plan.embedding = plan.head = spec;
  return plan;
}

std::vector<double> losses_by_step(const TrainReport& report) {
  std::vector<double> out;
  for (const StepReport& step : report.steps) {
    CHECK(step.step == std::ssize(out));  // none left out, none twice
    out.push_back(step.loss);
  }
  return out;
}

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(a[i])));
  return most;
}

}  // namespace

TEST_CASE("disturbed runs train as undisturbed ones") {
  const int wanted = static_cast<int>(toy::setting("GALVATRON_DISTURBANCES", 8));
  const auto seed = static_cast<unsigned>(toy::setting("GALVATRON_RANDOM_SEED", std::random_device{}() % 1'000'000));
  MESSAGE("GALVATRON_RANDOM_SEED=" << seed);
  std::mt19937 random(seed);
  const std::vector<ModelSpec> models = toy::random_plan_models();
  int done = 0, adapted = 0, lost = 0, from_checkpoint = 0, from_memory = 0;
  double worst = 0;
  for (int number = 0; done < wanted; ++number) {
    const ModelSpec& model = models[static_cast<std::size_t>(number) % models.size()];
    const auto plan = toy::random_plan(random, model);
    if (!plan || plan->ranks() < 2 || plan->precision != Precision::fp32) continue;
    ++done;
    const auto source = toy::source_of(model, plan->sequence_length);
    TrainOptions options = disturbed_options();
    const std::vector<double> expected = losses_by_step(train::train(*plan, model, *source, options));

    const test::Folder folder;
    const int ranks = plan->ranks();
    const int slow = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const std::int64_t from = static_cast<std::int64_t>(random() % 8);
    const std::int64_t until = from + 6 + static_cast<std::int64_t>(random() % 8);
    const double factor = toy::one_of(random, std::array{2.0, 5.0, 20.0});
    const bool dies = random() % 2 == 0;
    const int dying = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const std::int64_t dies_at = static_cast<std::int64_t>(random() % disturbed_steps);
    if (random() % 2 == 0) options.checkpoint = {.folder = folder.path / "saved", .every = 4};
    std::atomic<bool> alive = true;
    Speeds speeds(*plan, [=](int rank, std::int64_t step) {
      return rank == slow && step >= from && step < until ? factor : 1.0;
    });
    speeds.apply_to(options.adapt);
    options.adapt.margin = 0.02;
    options.adapt.window = 2;
    options.adapt.windows = 1 + static_cast<int>(random() % 2);
    options.adapt.spare_ranks = static_cast<int>(random() % 2);
    options.adapt.plan_for = [&](const Plan& before, int left) -> Result<Plan> {
      return any_ranks(model, left, before.microbatches);
    };
    options.adapt.before_step = [&](int rank, std::int64_t step) {
      if (dies && rank == dying && step == dies_at && alive.exchange(false)) throw DeviceFailure("its core is broken");
    };
    CAPTURE(seed);
    CAPTURE(done);
    CAPTURE(model.name);
    CAPTURE(ranks);
    CAPTURE(dies);
    CAPTURE(dies_at);
    const TrainReport report = train::train(*plan, model, *source, options);
    const double difference = worst_difference(expected, losses_by_step(report));
    worst = std::max(worst, difference);
    CHECK(difference < 1e-5);
    const bool was_lost =
        std::ranges::any_of(report.adaptations, [](const Adaptation& a) { return a.reason.starts_with("was lost: "); });
    CHECK(was_lost == (dies && ranks > 1));
    for (const Adaptation& a : report.adaptations) {
      CHECK(a.seconds >= 0);
      if (!a.reason.starts_with("was lost: ")) continue;
      CHECK(a.rank == dying);
      CHECK(a.step <= dies_at);
      (a.step == dies_at ? from_memory : from_checkpoint) += 1;
    }
    lost += was_lost ? 1 : 0;
    adapted += static_cast<int>(report.adaptations.size()) - (was_lost ? 1 : 0);
  }
  MESSAGE(done << " runs, " << adapted << " adaptations to slow ranks, " << lost << " lost ranks: " << from_memory
               << " from memory, " << from_checkpoint << " from before; losses differ by at most " << worst);
  if (wanted >= 100) {
    CHECK(adapted > 0);
    CHECK(from_memory > 0);
    CHECK(from_checkpoint > 0);
  }
}

TEST_CASE("a slow rank gets less to do, and as much as before when it is fast again") {
  const ModelSpec model = toy::model(false, 2);
  Plan plan = any_ranks(model, 2);
  for (StrategySpec* spec : {&plan.embedding, &plan.head, &plan.layers[0], &plan.layers[1]})
    spec->shard_kind = ShardKind::even;
  plan.stages.front().sample_ratios.clear();
  const auto source = toy::source_of(model, plan.sequence_length);
  TrainOptions options = disturbed_options();
  options.steps = 40;
  const std::vector<double> expected = losses_by_step(train::train(plan, model, *source, options));
  Speeds speeds(plan, [](int rank, std::int64_t step) { return rank == 1 && step < 20 ? 3.0 : 1.0; });
  speeds.apply_to(options.adapt);
  const TrainReport report = train::train(plan, model, *source, options);
  CHECK(worst_difference(expected, losses_by_step(report)) < 1e-5);
  REQUIRE(report.adaptations.size() == 2);
  CHECK(speeds.told.size() == 2);
  const Adaptation& less = report.adaptations.front();
  CHECK(less.step == 10);  // two windows of five steps ask for it
  CHECK(less.rank == 1);
  CHECK(less.reason == "its share of a step takes 3.00 times as long as the others'");
  CHECK(less.plan.stages.front().sample_ratios == std::vector<int>{6, 2});
  const Adaptation& back = report.adaptations.back();
  CHECK(back.step > 20);
  CHECK(back.step <= 35);
  CHECK(back.plan == plan);
  // Every window tells what all ranks did.
  CHECK(std::ranges::any_of(report.steps, [](const StepReport& step) { return step.ranks.size() == 2; }));
}

TEST_CASE("a rank that is lost with a part of the states leaves the last checkpoint, or the beginning") {
  const ModelSpec model = toy::model(true, 2);
  Plan plan = any_ranks(model, 2);
  for (StrategySpec* spec : {&plan.embedding, &plan.head, &plan.layers[0], &plan.layers[1]}) spec->zero = 3;
  const auto source = toy::source_of(model, plan.sequence_length);
  TrainOptions options = disturbed_options();
  const std::vector<double> expected = losses_by_step(train::train(plan, model, *source, options));
  options.adapt.plan_for = [&](const Plan&, int left) -> Result<Plan> { return any_ranks(model, left); };
  for (const bool saves : {false, true}) {
    const test::Folder folder;
    std::atomic<bool> alive = true;
    std::int64_t saved = 0;  // of the last checkpoint when the rank is lost
    options.adapt.before_step = [&](int rank, std::int64_t step) {
      if (rank != 0 || step < 11 || !alive) return;
      if (saves) {  // checkpoints are written beside training, and complete behind a step
        const auto complete = list_checkpoints(folder.path / "saved");
        if (complete.empty() || complete.back().step < 8) return;
        saved = complete.back().step;
      }
      alive = false;
      throw DeviceFailure("its core is broken");
    };
    options.checkpoint = {};
    if (saves) options.checkpoint = {.folder = folder.path / "saved", .every = 4};
    const TrainReport report = train::train(plan, model, *source, options);
    CHECK(worst_difference(expected, losses_by_step(report)) < 1e-5);
    REQUIRE(report.adaptations.size() == 1);
    CHECK(report.adaptations.front().step >= saved);
    CHECK(report.adaptations.front().step % 4 == 0);
    CHECK((report.adaptations.front().step > 0) == saves);
    CHECK(report.adaptations.front().rank == 0);
    CHECK(report.adaptations.front().reason == "was lost: its core is broken");
    CHECK(report.planned_memory.size() == 1);
  }
}

TEST_CASE("without a plan for the others, or without others, a lost rank ends the run") {
  const ModelSpec model = toy::model(false, 2);
  const auto source = toy::source_of(model, toy::sequence);
  for (const int ranks : {1, 2}) {
    TrainOptions options = disturbed_options();
    options.adapt.on = true;
    if (ranks == 1)
      options.adapt.plan_for = [&](const Plan&, int left) -> Result<Plan> { return any_ranks(model, left); };
    options.adapt.before_step = [](int rank, std::int64_t step) {
      if (rank == 0 && step == 3) throw DeviceFailure("its core is broken");
    };
    CHECK_THROWS_WITH_AS(train::train(any_ranks(model, ranks), model, *source, options), "its core is broken",
                         DeviceFailure);
  }
}

TEST_CASE("a step that a lost rank 0 has not reported any more is reported by the others") {
  const ModelSpec model = toy::model(false, 2);
  const Plan plan = any_ranks(model, 2);
  const auto source = toy::source_of(model, plan.sequence_length);
  TrainOptions options = disturbed_options();
  const TrainReport expected = train::train(plan, model, *source, options);
  std::atomic<bool> alive = true;
  std::vector<std::int64_t> told;
  options.on_step = [&](const StepReport& step) { told.push_back(step.step); };
  options.adapt.plan_for = [&](const Plan&, int left) -> Result<Plan> { return any_ranks(model, left); };
  options.adapt.measured = [&](int rank, std::int64_t step, StepSeconds&) {  // behind the update, before the report
    if (rank == 0 && step == 7 && alive.exchange(false)) throw DeviceFailure("its core is broken");
  };
  const TrainReport report = train::train(plan, model, *source, options);
  CHECK(worst_difference(losses_by_step(expected), losses_by_step(report)) < 1e-5);
  REQUIRE(report.adaptations.size() == 1);
  CHECK(report.adaptations.front().step == 8);
  for (std::size_t i = 0; i < told.size(); ++i) CHECK(told[i] == static_cast<std::int64_t>(i));
  CHECK(std::ssize(told) == disturbed_steps);
  CHECK(report.steps[7].learning_rate == doctest::Approx(expected.steps[7].learning_rate));
  CHECK(report.steps[7].gradient_norm == doctest::Approx(expected.steps[7].gradient_norm).epsilon(1e-4));
  CHECK(report.steps[7].tokens == expected.steps[7].tokens);
}
