// Held-out data of several tasks: retrieval by hand and by ranks, and that measuring changes no bit of training.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/train/task_metrics.hpp>

#include "../folder.hpp"
#include "run_tasks.hpp"

using namespace galvatron;

namespace {

MultiTaskModel held_out_toy() { return value_or_throw(find_multi_task_model("clip-toy")); }

train::TaskTrainReport trained_toy(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order,
                                   const train::HeldOut* held_out) {
  const test::ToyData data(model);
  train::TaskTrainOptions options;
  options.steps = 6;
  options.held_out = held_out;
  options.threads_per_rank = 1;
  train::TaskRecorder recorder(plan.ranks);
  options.recorder = &recorder;
  auto out = order == TaskOrder::in_waves
                 ? train::train_tasks<Tasks<in_waves>>(model, plan, data.sources(), options)
                 : train::train_tasks<Tasks<in_sequence>>(model, plan, data.sources(), options);
  // Every rank has recorded its parts twice, the reduction and the update, one behind the other.
  const schedule::MeasuredSpans<TaskSpan> step = recorder.last_step();
  REQUIRE(step.ranks.size() == static_cast<std::size_t>(plan.ranks));
  CHECK(step.step == out.steps.back().step);
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    std::size_t parts = 0;
    for (const WavePart& part : parts_of(plan))
      parts += static_cast<std::size_t>(std::ranges::count(part.ranks, static_cast<int>(rank)));
    CHECK(step.ranks[rank].size() == 2 * parts + 2);
    Seconds last;
    for (const TaskSpan& span : step.ranks[rank]) {
      CHECK(span.begin >= last);
      CHECK(span.moved >= span.begin);
      CHECK(span.end >= span.moved);
      last = span.end;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("retrieval: the share of rows whose own row is the nearest, in both directions") {
  const std::vector<float> a{1, 0, 0, 2, -3, 0};  // 3 rows of 2
  CHECK(train::retrieval_accuracy(a, a, 2) == 1);
  const std::vector<float> turned{0, 5, 7, 0, -1, 0};  // rows 0 and 1 the other way round
  CHECK(train::retrieval_accuracy(a, turned, 2) == doctest::Approx(1.0 / 3));
  // First of row 1 finds row 0 alone: a0 (1, 0) has b0 and b1 both nearest.
  const std::vector<float> doubled{2, 0, 4, 0, -1, 0};
  // a0: ties of two, a1: all zero cosines with b0 and b1, b2: a tie of three; a2: found.
  // b0: a0 found; b1: a0 is nearer than its own; b2: found.
  CHECK(train::retrieval_accuracy(a, doubled, 2) == doctest::Approx((0.5 + 1.0 / 3 + 1 + 1 + 0 + 1) / 6));
  const std::vector<float> same(6, 1);  // a collapsed tower finds by chance
  CHECK(train::retrieval_accuracy(same, same, 2) == doctest::Approx(1.0 / 3));
  const std::vector<float> broken{NAN, 0, 0, 2, -3, 0};
  CHECK(train::retrieval_accuracy(broken, broken, 2) < 1);
}

TEST_CASE("held-out losses and retrieval are those of one rank under any plan, and measuring changes no bit") {
  const MultiTaskModel model = held_out_toy();
  const auto graphs = value_or_throw(task_graphs(model));
  const test::ToyData data(model, 99);
  // A batch that is filled up, and more than one: 11 samples of batches of 8 and 4.
  const train::HeldOut held_out{.sources = data.sources(), .samples = {11, 11, 8, 3}, .every = 4};
  const train::TaskTrainReport one = trained_toy(model, plan_in_sequence(model, graphs, {}), in_sequence, &held_out);
  REQUIRE(one.steps.size() == 6);
  for (const train::TaskStepReport& step : one.steps)
    CHECK(step.held_out.empty() == (step.step != 3 && step.step != 5));
  const std::string line = train::metrics_line(one.steps[3], model.tasks);
  CHECK(line.find("\"held_out\":{\"text-vision\":{\"loss\":") != std::string::npos);
  const WavePlan waves = plan_by_levels(model, graphs, 4);
  const train::TaskTrainReport four = trained_toy(model, waves, in_waves, &held_out);
  const train::TaskTrainReport bare = trained_toy(model, waves, in_waves, nullptr);
  for (std::size_t i = 0; i < 6; ++i) CHECK(four.steps[i].losses == bare.steps[i].losses);
  for (const std::size_t i : {3, 5})
    for (std::size_t task = 0; task < model.tasks.size(); ++task) {
      CHECK(four.steps[i].held_out[task].loss == doctest::Approx(one.steps[i].held_out[task].loss).epsilon(1e-4));
      CHECK(four.steps[i].held_out[task].retrieves);
      CHECK(four.steps[i].held_out[task].retrieval == doctest::Approx(one.steps[i].held_out[task].retrieval));
      CHECK(one.steps[i].held_out[task].retrieval > 0);
    }
}

TEST_CASE("a run of several tasks that is asked to stop ends after a step, with a checkpoint") {
  const MultiTaskModel model = held_out_toy();
  const WavePlan plan = plan_by_levels(model, value_or_throw(task_graphs(model)), 2);
  const test::ToyData data(model);
  train::TaskTrainOptions options;
  options.steps = 1000;
  std::atomic<int> asked{0};
  options.stop = &asked;
  options.threads_per_rank = 1;
  const test::Folder folder;
  options.checkpoint.folder = folder.path;
  options.on_step = [&](const train::TaskStepReport& step) {
    if (step.step == 2) asked = 15;
  };
  const auto report = train::train_tasks<Tasks<in_waves>>(model, plan, data.sources(), options);
  CHECK(report.stopped == 15);
  CHECK(report.steps.size() < 200);
  const auto saved = value_or_throw(train::Checkpoint::open(folder.path, model));
  CHECK(saved.training().step == std::ssize(report.steps));
  // What on_step throws ends the run with a checkpoint too.
  const test::Folder other;
  options.stop = nullptr;
  options.checkpoint.folder = other.path;
  options.on_step = [](const train::TaskStepReport&) { throw Failure(ErrorKind::usage, "no more space"); };
  CHECK_THROWS_WITH_AS(train::train_tasks<Tasks<in_waves>>(model, plan, data.sources(), options), "no more space",
                       Failure);
  CHECK(train::Checkpoint::open(other.path, model).has_value());
}
