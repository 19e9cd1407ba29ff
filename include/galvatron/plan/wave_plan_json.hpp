// Files of plans of waves:
//
//   { "format": "galvatron-waves", "version": 1, "ranks": 4, "zero": 0,
//     "waves": [ { "parts": [ { "task": "text-vision", "component": "vision", "layers": [0, 1], "ranks": [2, 1],
//                               "tensor": 1, "sequence": "none", "data": 2, "recompute": "cheap" } ] } ] }
//
// Where tasks are done in micro-batches there are also "microbatches": { "caption": 4, .. } and "in_flight".
// Tasks and components are named as in the model; layers are the first and the last of the component.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/wave_plan.hpp>

namespace galvatron {

inline constexpr const char* waves_format = "galvatron-waves";
inline constexpr int waves_format_version = 1;

namespace detail {

/// A part by its names.
struct NamedPart {
  std::string task, component;
  WavePart part;
};

template <class Fields>
void part_fields(Fields& fields, NamedPart& named) {
  fields.field("task", named.task);
  fields.field("component", named.component);
  StrategySpec& spec = named.part.strategy;
  fields.field("tensor", spec.tensor, 1);
  name_field(fields, "sequence", spec.sequence, std::array{SequenceKind::none, SequenceKind::megatron});
  fields.field("data", spec.data, 1);
  name_field(fields, "recompute", spec.recompute, recompute_kinds);
}

/// The numbers of the names. An unknown one is an error of `fields`.
inline void find_part(JsonObject& fields, const MultiTaskModel& model, const std::vector<TaskGraph>& graphs,
                      NamedPart& named) {
  for (std::size_t task = 0; task < graphs.size(); ++task) {
    if (model.tasks[task].name != named.task) continue;
    named.part.task = static_cast<int>(task);
    for (std::size_t pass = 0; pass < graphs[task].passes.size(); ++pass) {
      if (model.component(graphs[task].passes[pass].component).name != named.component) continue;
      named.part.pass = static_cast<int>(pass);
      return;
    }
    return fields.fail(fields.name("component") + ": the task \"" + one_line(named.task, 60) +
                       "\" uses no component \"" + one_line(named.component, 60) + "\"");
  }
  fields.fail(fields.name("task") + ": the model has no task \"" + one_line(named.task, 60) + "\"");
}

}  // namespace detail

/// The JSON value of a plan of waves for a model.
template <class = void>
nlohmann::ordered_json to_json(const WavePlan& plan, const MultiTaskModel& model,
                               const std::vector<TaskGraph>& graphs) {
  nlohmann::ordered_json out{{"format", waves_format}, {"version", waves_format_version}};
  out["ranks"] = plan.ranks;
  out["zero"] = plan.zero;
  for (int task = 0; task < static_cast<int>(graphs.size()); ++task)
    if (plan.microbatches_of(task) > 1) out["microbatches"][model.task(task).name] = plan.microbatches_of(task);
  if (plan.in_flight > 1) out["in_flight"] = plan.in_flight;
  auto& waves = out["waves"] = nlohmann::ordered_json::array();
  for (const Wave& wave : plan.waves) {
    auto& parts = waves.emplace_back()["parts"] = nlohmann::ordered_json::array();
    for (const WavePart& part : wave.parts) {
      const TaskPass& pass = graphs[static_cast<std::size_t>(part.task)].pass(part.pass);
      detail::NamedPart named{model.task(part.task).name, model.component(pass.component).name, part};
      JsonWriter fields(parts.emplace_back());
      detail::part_fields(fields, named);
      fields.field("layers", std::pair(part.first, part.last));
      fields.field("ranks", part.ranks);
    }
  }
  return out;
}
GALVATRON_IN_PLANNER(nlohmann::ordered_json to_json<>(const WavePlan&, const MultiTaskModel&,
                                                      const std::vector<TaskGraph>&))

/// The plan of waves in a JSON value; `where` opens the messages. Errors (usage): another format or version, missing
/// and unknown keys, names that the model does not have, values out of range, and those of check_waves() and
/// layer_ranks().
inline Result<WavePlan> waves_from_json(const nlohmann::json& value, const std::string& where,
                                        const MultiTaskModel& model, const std::vector<TaskGraph>& graphs) {
  JsonObject fields(value, where);
  const auto format = fields.required<std::string>("format");
  fields.check("format", format == waves_format,
               std::string("a file of a plan of waves has \"format\": \"") + waves_format + "\"");
  const int version = fields.required<int>("version");
  fields.check("version", version == waves_format_version,
               "version " + std::to_string(version) + " is not known; this program reads version " +
                   std::to_string(waves_format_version));
  WavePlan plan;
  fields.field("ranks", plan.ranks, 1, 1 << 20);
  fields.field("zero", plan.zero, 0, 3);
  if (fields.contains("microbatches")) {
    JsonObject counts = fields.required_object("microbatches");
    for (const TaskSpec& task : model.tasks)
      plan.microbatches.push_back(counts.optional<int>(task.name, 1, 1, 1 << 20));
    if (auto done = counts.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  }
  plan.in_flight = fields.optional<int>("in_flight", 1, 1, 1 << 20);
  fields.list("waves", plan.waves, [&](JsonObject& of_wave, Wave& wave) {
    std::vector<detail::NamedPart> named;
    of_wave.list("parts", named, [&](JsonObject& own, detail::NamedPart& part) {
      detail::part_fields(own, part);
      const auto layers = own.numbers<int>("layers", 0);
      own.check("layers", layers.size() == 2, "expected the first and the last layer");
      if (layers.size() == 2) std::tie(part.part.first, part.part.last) = std::pair(layers[0], layers[1]);
      part.part.ranks = own.numbers<int>("ranks", 0, plan.ranks - 1);
      if (!own.failed()) detail::find_part(own, model, graphs, part);
    });
    for (detail::NamedPart& part : named) wave.parts.push_back(std::move(part.part));
  });
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (auto right = check_waves(model, graphs, plan); !right)
    return usage_error(where + ": " + std::move(right.error().message));
  if (auto places = layer_ranks(model, graphs, plan); !places)
    return usage_error(where + ": " + std::move(places.error().message));
  return plan;
}

}  // namespace galvatron
