// MultiTaskPlan: a plan of waves with all that a file of it says, so that it can be priced, simulated and trained:
//
//   { "format": "galvatron-waves", "version": 1, "model": "clip-tiny", "cluster": "4xa100-80g", "global_batch": 96,
//     "precision": "bf16", "order": "waves", "ranks": 4, "zero": 1, "waves": [ .. ],
//     "predicted": { "iteration_seconds": 0.1, .. } }
//
// A plan for some of the model's tasks, or for other batches, has them too: "tasks": { "text-vision": 48, .. }.
//
// A plan of several pipelines over a model of one task (model/pipelines.hpp) says the samples of each, which add up to
// the global batch: "pipelines": [12, 4], "sequence_length": 1024. Its tasks are "pipeline-0", "pipeline-1", .., and
// the component of all is "model".
//
// Waves are those of plan/wave_plan_json.hpp. Paths in the file begin at its folder, as those of other plans do.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/multi_task_json.hpp>
#include <galvatron/model/pipelines.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/task_mix.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/plan/wave_plan_json.hpp>

namespace galvatron {

/// What was predicted of a plan when it was made; 0: nothing.
struct WavePrediction {
  Seconds iteration;
  Seconds bound;        ///< no schedule takes less
  Seconds in_sequence;  ///< tasks one after the other
  Seconds by_task;      ///< one group of devices for each task
  Bytes peak;           ///< of the fullest rank
  Seconds pipelined;    ///< micro-batches through stages
  Seconds one_chain;    ///< of several pipelines of a model of one task: the fastest plan of one chain of stages
};

struct MultiTaskPlan {
  std::string model;                      ///< a preset's name, or a path
  std::string cluster;                    ///< the same
  std::int64_t global_batch = 0;          ///< samples of all tasks in a step
  std::vector<TaskBatch> tasks;           ///< of a mix; empty: all tasks, with batches in the model's proportions
  std::vector<std::int64_t> pipelines{};  ///< samples of each, of a model of one task; empty: of several tasks
  std::int64_t sequence_length = 0;       ///< of pipelines: tokens of a sample
  Precision precision = Precision::bf16;
  TaskOrder order = TaskOrder::in_waves;
  WavePlan waves;
  WavePrediction predicted{};
};

constexpr const char* name_of(TaskOrder order) { return order == TaskOrder::in_waves ? "waves" : "sequence"; }

/// Samples of all tasks in a step.
inline std::int64_t global_batch_of(const MultiTaskModel& model) {
  std::int64_t out = 0;
  for (const TaskSpec& task : model.tasks) out += task.batch;
  return out;
}

/// The model with batches in the same proportions that add up to so many samples; 0: as it is. Errors (usage): fewer
/// samples than tasks.
inline Result<MultiTaskModel> with_global_batch(MultiTaskModel model, std::int64_t samples) {
  const std::int64_t all = global_batch_of(model);
  if (samples == 0 || samples == all) return model;
  const auto tasks = static_cast<std::int64_t>(model.tasks.size());
  if (samples < tasks || samples > model_limits::positions)
    return usage_error(text_of("a global batch of ", samples, " for ", tasks, " tasks: each has at least one sample, ",
                               "and all together at most ", model_limits::positions));
  // One sample for each; the others by largest remainders, the first task first.
  std::vector<std::pair<std::int64_t, std::size_t>> remainders;
  std::int64_t left = samples - tasks;
  const std::int64_t shared = left;
  for (std::size_t i = 0; i < model.tasks.size(); ++i) {
    const std::int64_t share = shared * model.tasks[i].batch;
    model.tasks[i].batch = 1 + share / all;
    left -= share / all;
    remainders.emplace_back(-(share % all), i);
  }
  std::ranges::sort(remainders);
  for (std::int64_t i = 0; i < left; ++i) ++model.tasks[remainders[static_cast<std::size_t>(i)].second].batch;
  return model;
}

/// The JSON value of a plan for its model.
template <class = void>
nlohmann::ordered_json to_json(const MultiTaskPlan& plan, const MultiTaskModel& model,
                               const std::vector<TaskGraph>& graphs) {
  const nlohmann::ordered_json waves = to_json(plan.waves, model, graphs);
  nlohmann::ordered_json out{{"format", waves.at("format")}, {"version", waves.at("version")}};
  out["model"] = plan.model;
  out["cluster"] = plan.cluster;
  out["global_batch"] = plan.global_batch;
  for (const TaskBatch& task : plan.tasks) out["tasks"][task.task] = task.batch;
  if (!plan.pipelines.empty()) {
    out["pipelines"] = plan.pipelines;
    out["sequence_length"] = plan.sequence_length;
  }
  out["precision"] = name_of(plan.precision);
  out["order"] = name_of(plan.order);
  for (const char* key : {"ranks", "zero", "microbatches", "in_flight", "waves"})
    if (waves.contains(key)) out[key] = waves.at(key);
  const WavePrediction& p = plan.predicted;
  out["predicted"] = {{"iteration_seconds", p.iteration.value},
                      {"bound_seconds", p.bound.value},
                      {"in_sequence_seconds", p.in_sequence.value},
                      {"by_task_seconds", p.by_task.value},
                      {"peak_bytes", p.peak.count},
                      {"pipelined_seconds", p.pipelined.value}};
  if (!plan.pipelines.empty()) out["predicted"]["one_chain_seconds"] = p.one_chain.value;
  return out;
}
GALVATRON_IN_PLANNER(nlohmann::ordered_json to_json<>(const MultiTaskPlan&, const MultiTaskModel&,
                                                      const std::vector<TaskGraph>&))

/// A plan that was read, with its model.
struct ReadMultiTaskPlan {
  MultiTaskPlan plan;
  MultiTaskModel model;  ///< with the plan's tasks
  std::vector<TaskGraph> graphs;
  MultiTaskModel whole;               ///< with all tasks
  std::optional<ModelSpec> single{};  ///< that all tasks are pipelines of
};

/// True for a JSON value that calls itself a plan of waves, right or not.
inline bool is_waves_json(const nlohmann::json& value) {
  return value.is_object() && value.contains("format") && value.at("format") == waves_format;
}

namespace detail {

/// The keys of several pipelines over a model of one task.
inline void read_pipelines(JsonObject& fields, MultiTaskPlan& plan) {
  plan.pipelines = fields.numbers<std::int64_t>("pipelines", 1, model_limits::positions);
  fields.field_or("sequence_length", plan.sequence_length, std::int64_t{0}, std::int64_t{1}, model_limits::positions);
  fields.check("tasks", plan.tasks.empty(), "a plan of pipelines is of a model of one task; leave the key out");
  fields.check("pipelines", !plan.pipelines.empty() && plan.pipelines.size() <= most_pipelines,
               "expected the samples of 1 to " + std::to_string(most_pipelines) + " pipelines");
  if (fields.failed()) return;
  const auto sum = std::accumulate(plan.pipelines.begin(), plan.pipelines.end(), std::int64_t{0});
  fields.check("pipelines", sum == plan.global_batch,
               "the pipelines have " + std::to_string(sum) + " samples together, and \"global_batch\" says " +
                   std::to_string(plan.global_batch));
}

}  // namespace detail

/// The plan in a JSON value. Errors (usage): those of the model and of waves_from_json(), and bad keys.
/// @param path   of its file, from whose folder paths begin; it opens the messages
/// @param model  instead of the plan's; empty: the plan's
template <class = void>
Result<ReadMultiTaskPlan> multi_task_plan_from_json(const nlohmann::json& value, const std::filesystem::path& path,
                                                    const std::string& model = {}) {
  ReadMultiTaskPlan out;
  nlohmann::json waves = value;
  nlohmann::json own{{"format", waves_format}};
  for (const char* key :
       {"model", "cluster", "global_batch", "tasks", "pipelines", "sequence_length", "precision", "order", "predicted"})
    if (value.contains(key)) {
      own[key] = value.at(key);
      waves.erase(key);
    }
  JsonObject fields(own, path.string());
  static_cast<void>(fields.required<std::string>("format"));
  fields.field("model", out.plan.model);
  fields.field("cluster", out.plan.cluster);
  fields.field("global_batch", out.plan.global_batch, std::int64_t{1}, model_limits::positions);
  if (own.contains("tasks")) {
    const nlohmann::json& tasks = own.at("tasks");
    fields.check("tasks", tasks.is_object() && !tasks.empty(), "expected tasks with their batches");
    JsonObject batches = fields.required_object("tasks");
    if (!fields.failed())
      for (const auto& [task, unused] : tasks.items())
        out.plan.tasks.push_back({task, batches.required<std::int64_t>(task, 1, model_limits::positions)});
    if (auto done = batches.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  }
  if (own.contains("pipelines")) detail::read_pipelines(fields, out.plan);
  detail::name_field(fields, "precision", out.plan.precision, std::array{Precision::bf16, Precision::fp32});
  detail::name_field(fields, "order", out.plan.order, std::array{TaskOrder::in_waves, TaskOrder::in_sequence});
  if (own.contains("predicted")) {
    JsonObject predicted = fields.required_object("predicted");
    constexpr double most = 1e12;
    out.plan.predicted = {{predicted.optional<double>("iteration_seconds", 0, 0, most)},
                          {predicted.optional<double>("bound_seconds", 0, 0, most)},
                          {predicted.optional<double>("in_sequence_seconds", 0, 0, most)},
                          {predicted.optional<double>("by_task_seconds", 0, 0, most)},
                          {predicted.optional<std::int64_t>("peak_bytes", 0, 0, std::int64_t{1} << 60)},
                          {predicted.optional<double>("pipelined_seconds", 0, 0, most)},
                          {predicted.optional<double>("one_chain_seconds", 0, 0, most)}};
    if (auto done = predicted.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  }
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  for (std::string* name : {&out.plan.model, &out.plan.cluster}) *name = path_from_file(*name, path);
  const bool mixed = !out.plan.tasks.empty();
  const std::string& name = model.empty() ? out.plan.model : model;
  auto loaded = [&]() -> Result<MultiTaskModel> {
    if (out.plan.pipelines.empty())
      return load_multi_task_model(name).and_then(
          [&](MultiTaskModel found) { return with_global_batch(std::move(found), mixed ? 0 : out.plan.global_batch); });
    return load_model(name).and_then([&](ModelSpec found) {
      if (out.plan.sequence_length == 0) out.plan.sequence_length = found.positions();
      out.single = std::move(found);
      return pipelines_of(*out.single, out.plan.pipelines, out.plan.sequence_length);
    });
  }();
  if (!loaded) return tl::unexpected<Error>(std::move(loaded.error()));
  out.whole = std::move(*loaded);
  auto with_tasks = mixed ? with_mix(out.whole, out.plan.tasks) : Result<MultiTaskModel>(out.whole);
  if (!with_tasks) return usage_error(path.string() + ": " + std::move(with_tasks.error().message));
  out.model = std::move(*with_tasks);
  auto graphs = task_graphs(out.model);
  if (!graphs) return tl::unexpected<Error>(std::move(graphs.error()));
  out.graphs = std::move(*graphs);
  auto read = waves_from_json(waves, path.string(), out.model, out.graphs);
  if (!read) return tl::unexpected<Error>(std::move(read.error()));
  out.plan.waves = std::move(*read);
  return out;
}
GALVATRON_IN_PLANNER(Result<ReadMultiTaskPlan> multi_task_plan_from_json<>(const nlohmann::json&,
                                                                           const std::filesystem::path&,
                                                                           const std::string&))

/// Writes the file whole or not at all. Errors (usage): an unwritable path, a full disk.
inline Result<void> save_multi_task_plan(MultiTaskPlan plan, const MultiTaskModel& model,
                                         const std::vector<TaskGraph>& graphs, const std::filesystem::path& path) {
  for (std::string* name : {&plan.model, &plan.cluster}) *name = path_for_file(*name, path);
  return write_file_atomically(path, to_json(plan, model, graphs).dump(2) + "\n");
}

}  // namespace galvatron
