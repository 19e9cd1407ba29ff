// Multi-task models on one rank: losses and gradients against double precision, sums of tasks, memory, data.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <galvatron/model/components.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/train/task_metrics.hpp>

#include "../folder.hpp"
#include "../says.hpp"
#include "run_tasks.hpp"
#include "task_reference.hpp"

using namespace galvatron;

namespace {

constexpr unsigned sequence_seed = 20261127;

MultiTaskModel toy_tasks(const char* name) { return value_or_throw(find_multi_task_model(name)); }

// A language task and two classification tasks, one with another tower, over a shared encoder.
MultiTaskModel classifying_toy() {
  using K = ComponentKind;
  MultiTaskModel out{"classes-toy", {}, {}};
  out.components = {
      component("vision", {.kind = K::patches,
                           .layers = 1,
                           .hidden = 24,
                           .heads = 2,
                           .tokens = 9,
                           .patch = 12,
                           .output = 32,
                           .pools = false}),
      component("text", {.kind = K::text, .layers = 1, .hidden = 32, .heads = 4, .vocabulary = 50, .tokens = 8}),
      component("encoder", {.kind = K::encoder, .layers = 2, .hidden = 32, .heads = 4, .tokens = 20},
                {"vision", "text"}),
      component("classes", {.kind = K::classifier, .hidden = 32, .vocabulary = 11, .tokens = 20}, {"encoder"}),
      component("words", {.kind = K::llama, .layers = 1, .hidden = 32, .heads = 4, .vocabulary = 50, .tokens = 8},
                {"text"})};
  out.tasks = {{"both", {{"vision"}, {"text", 5}}, "classes", 5, 0.5},
               {"image", {{"vision"}}, "classes", 3, 1},
               {"language", {{"text"}}, "words", 4, 2}};
  return out;
}

std::vector<MultiTaskModel> all_toys() {
  return {toy_tasks("clip-toy"), toy_tasks("ofasys-toy"), toy_tasks("qwen-toy"), classifying_toy()};
}

WavePlan plan_alone(const MultiTaskModel& model) {
  return plan_in_sequence(model, value_or_throw(task_graphs(model)), {});
}

double worst_derivative(const MultiTaskModel& model, const test::TaskRun& run, std::mt19937& random) {
  test::TaskReference reference(model);
  double worst = 0;
  for (int layer = 0; layer < static_cast<int>(reference.parameters.size()); ++layer)
    for (auto& [name, values] : reference.parameters[static_cast<std::size_t>(layer)]) {
      const auto found = run.gradients.find({layer, name});
      if (found == run.gradients.end()) return INFINITY;
      const std::vector<double>& gradient = found->second;
      if (gradient.size() != values.size()) {
        MESSAGE("layer ", layer, ", ", std::string(name_of(name)), ": ", gradient.size(), " and not ", values.size());
        return INFINITY;
      }
      std::vector<double> direction(values.size());
      double along = 0, norm = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        direction[i] = random() % 2 == 0 ? 1.0 : -1.0;
        along += direction[i] * gradient[i];
        norm += gradient[i] * gradient[i];
      }
      const std::vector<double> before = values;
      const auto moved = [&](double distance) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = before[i] + distance * direction[i];
        return reference.loss();
      };
      const double step = 1e-7;  // no hidden unit may pass the kink of ReLU
      const double wanted = (moved(step) - moved(-step)) / (2 * step);
      values = before;
      const double error = std::abs(along - wanted) / std::max(std::sqrt(norm), 1e-4);
      if (!(error < 1e-5)) MESSAGE("layer ", layer, ", ", std::string(name_of(name)), ": ", along, " and not ", wanted);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  return worst;
}

}  // namespace

TEST_CASE("losses and gradients of multi-task models are those of double precision") {
  MESSAGE("seed ", sequence_seed);
  std::mt19937 random(sequence_seed);
  for (const MultiTaskModel& model : all_toys()) {
    CAPTURE(model.name);
    const test::TaskRun run = test::run_tasks(model, plan_alone(model), TaskOrder::in_sequence);
    test::TaskReference reference(model);
    for (int task = 0; task < static_cast<int>(model.tasks.size()); ++task)
      CHECK(run.losses[0][static_cast<std::size_t>(task)] == doctest::Approx(reference.loss(task)).epsilon(1e-5));
    CHECK(run.loss[0] == doctest::Approx(reference.loss()).epsilon(1e-5));
    CHECK(worst_derivative(model, run, random) < 1e-5);
  }
}

TEST_CASE("a step of several tasks has the weighted sum of the gradients of each task alone") {
  for (MultiTaskModel model : all_toys()) {
    CAPTURE(model.name);
    for (std::size_t i = 0; i < model.tasks.size(); ++i) model.tasks[i].weight = 0.5 + static_cast<double>(i);
    const test::TaskRun all = test::run_tasks(model, plan_alone(model), TaskOrder::in_sequence);
    // Of a task alone: the others weigh next to nothing, and their part is taken away again.
    test::WholeTensors sum;
    for (std::size_t i = 0; i < model.tasks.size(); ++i) {
      MultiTaskModel one = model;
      for (std::size_t j = 0; j < model.tasks.size(); ++j) one.tasks[j].weight = j == i ? 1.0 : 1e-12;
      const test::TaskRun run = test::run_tasks(one, plan_alone(one), TaskOrder::in_sequence);
      CHECK(run.losses[0] == all.losses[0]);
      for (const auto& [key, values] : run.gradients) {
        auto& to = sum[key];
        to.resize(values.size(), 0.0);
        for (std::size_t k = 0; k < values.size(); ++k) to[k] += model.tasks[i].weight * values[k];
      }
    }
    CHECK(test::difference(all.gradients, sum) < 1e-5);
  }
}

TEST_CASE("tasks in waves on one rank have the bits of their losses, and the gradients, of tasks in sequence") {
  for (const MultiTaskModel& model : all_toys()) {
    CAPTURE(model.name);
    const test::TaskRun sequence = test::run_tasks(model, plan_alone(model), TaskOrder::in_sequence, {.steps = 3});
    const test::TaskRun waves = test::run_tasks(model, plan_alone(model), TaskOrder::in_waves, {.steps = 3});
    CHECK(sequence.losses[0] == waves.losses[0]);
    CHECK(test::difference(sequence.gradients, waves.gradients) < 1e-5);
    CHECK(waves.planned[0].stash > sequence.planned[0].stash);
  }
}

TEST_CASE("a rank of several tasks takes the memory that its plan has for it") {
  for (const MultiTaskModel& model : all_toys())
    for (const TaskOrder order : {TaskOrder::in_sequence, TaskOrder::in_waves}) {
      CAPTURE(model.name);
      const test::TaskRun run = test::run_tasks(model, plan_alone(model), order);
      CHECK(run.planned[0].states == run.measured[0].states);
      CHECK(run.planned[0].stash == run.measured[0].stash);
      CHECK(run.planned[0].workspace >= run.measured[0].workspace);
    }
}

TEST_CASE("a task whose loss is not a number is named") {
  const MultiTaskModel model = toy_tasks("clip-toy");
  const int depth = model.first_layer(model.find("depth"));
  for (const TaskOrder order : {in_sequence, in_waves}) {
    std::string said;
    try {
      test::run_tasks(model, plan_alone(model), order, {.broken = depth + 1});
    } catch (const Failure& failure) {
      CHECK(failure.kind() == ErrorKind::machine);
      said = failure.what();
    }
    CHECK(says(said, "step 1"));
    CHECK(says(said, "\"vision-depth\" a loss of nan"));
    CHECK_FALSE(says(said, "text-vision"));
    const test::TaskRun skipping = test::run_tasks(model, plan_alone(model), order,
                                                   {.steps = 2, .on_nan = train::OnNan::skip, .broken = depth + 1});
    CHECK(skipping.losses.size() == 2);
    CHECK(skipping.losses[1][0] > 0);
  }
}

TEST_CASE("metrics have the loss of each task") {
  const MultiTaskModel model = toy_tasks("clip-toy");
  const train::TaskStepReport report{.step = 4,
                                     .losses = {1.5, 0, std::nan(""), 0.5},
                                     .batches = {8, 0, 4, 2},
                                     .loss = 4.5,
                                     .gradient_norm = 2,
                                     .learning_rate = 0.25,
                                     .seconds = 3,
                                     .mix = train::MixCosts{0.25, 1280, 0.5}};
  const auto line = nlohmann::json::parse(train::metrics_line(report, model.tasks));
  CHECK(line.at("step") == 5);
  CHECK(line.at("tasks").at("text-vision") == 1.5);
  CHECK(line.at("tasks").at("vision-depth").is_null());
  CHECK_FALSE(line.at("tasks").contains("vision-audio"));  // it pauses
  CHECK(line.at("mix").at("tasks").at("vision-depth") == 4);
  CHECK(line.at("mix").at("moved_bytes") == 1280);
  CHECK(train::metrics_scalars(report, model.tasks).back().tag == "tasks/text-audio");
  const test::Folder folder;
  auto file = value_or_throw(train::MetricsFile::resume(folder.path / "metrics.jsonl"));
  for (int i = 0; i < 2; ++i) CHECK(file.append_line(train::metrics_line(report, model.tasks)).has_value());
  CHECK(train::MetricsFile::check(folder.path / "metrics.jsonl").has_value());
}

TEST_CASE("toy tasks are learned") {
  for (const char* name : {"clip-toy", "ofasys-toy", "qwen-toy"}) {
    CAPTURE(name);
    const MultiTaskModel model = toy_tasks(name);
    const test::TaskRun run = test::run_tasks(model, plan_alone(model), TaskOrder::in_sequence, {.steps = 2});
    CHECK(run.losses.size() == 2);
    for (const double loss : run.losses[1]) CHECK(std::isfinite(loss));
    CHECK(run.losses[0] != run.losses[1]);
  }
}
