// Plan files: JSON, version 1; version 2 is read, too, and written for plans that came in it.
//
//   { "version": 1, "model": "llama-tiny", "cluster": "host", "global_batch": 8, "sequence_length": 128,
//     "precision": "fp32", "microbatches": 2, "schedule": "1f1b", "virtual_stages": 1,
//     "stages": [ { "first_layer": 0, "last_layer": 3, "ranks": [0, 4] } ],
//     "layers": [ { "tensor": 2, "sequence": "megatron", "context": 1, "data": 2, "zero": 3, "expert": 1,
//                   "recompute": "none" }, ... ],
//     "embedding": { ... }, "head": { ... }, "predicted": { ... } }
//
// In version 1 "recompute": "none" recomputes what norms and activations give; with "keep_outputs": true, which is left
// out where it is false, everything is kept. In version 2 these are "cheap" and "none" as elsewhere, without that key.
// "trainer", beside virtual_stages, names whose code the plan is for where it is not this library's (cost/trainer.hpp).
// "moments": "bf16" keeps those of the optimizer in 2 bytes each, not 4.
// Layers count from 0; last_layer is inclusive; ranks are [first, count]. What is under "predicted" informs people and
// `explain`; plans written by hand leave it out or empty. "model" and "cluster" are presets' names or paths; a relative
// path begins at the folder of the plan file, or, in files of before, at the current folder (core/file.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/detail/plan_writer.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

using nlohmann::json;

inline void write(PlanWriter& out, const StrategySpec& spec, int version) {
  out.open('{', false);
  out.field("tensor", spec.tensor);
  out.field("sequence", name_of(spec.sequence));
  out.field("context", spec.context);
  out.field("data", spec.data);
  out.field("zero", spec.zero);
  out.field("expert", spec.expert);
  const bool old_word = version == 1 && spec.recompute == RecomputeKind::cheap;
  out.field("recompute", name_of(old_word ? RecomputeKind::none : spec.recompute));
  if (version == 1 && spec.recompute == RecomputeKind::none) out.field("keep_outputs", true);
  if (spec.strided) out.field("strided", true);
  out.close();
}

/// The enumerator of `values` whose name is the field's text.
template <class E, std::size_t N>
E required_name(JsonObject& fields, std::string_view key, const std::array<E, N>& values) {
  const auto text = fields.required<std::string>(key);
  if (fields.failed()) return values[0];
  std::string known;
  for (const E value : values) {
    if (text == name_of(value)) return value;
    known += (known.empty() ? "" : ", ") + std::string(name_of(value));
  }
  fields.fail(fields.name(key) + ": \"" + one_line(text, 40) + "\" is unknown; known are " + known);
  return values[0];
}

/// @param version  of the file
inline Result<StrategySpec> strategy_from_json(const json& value, const std::string& where, int version) {
  constexpr int most = std::numeric_limits<int>::max();
  JsonObject fields(value, where);
  StrategySpec spec;
  spec.tensor = fields.required<int>("tensor", 1, most);
  spec.sequence = required_name(fields, "sequence", sequence_kinds);
  spec.context = fields.required<int>("context", 1, most);
  spec.data = fields.required<int>("data", 1, most);
  spec.zero = fields.required<int>("zero", 0, 3);
  spec.expert = fields.required<int>("expert", 1, most);
  if (version == 1) {
    spec.recompute = required_name(fields, "recompute",
                                   std::array{RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full});
    const bool keeps = fields.optional<bool>("keep_outputs", false);
    if (keeps && !fields.failed() && spec.recompute != RecomputeKind::none)
      fields.fail(fields.name("keep_outputs") + ": true contradicts \"recompute\": \"" + name_of(spec.recompute) +
                  "\", which recomputes them; leave it out or write \"recompute\": \"none\"");
    if (!keeps && spec.recompute == RecomputeKind::none) spec.recompute = RecomputeKind::cheap;
  } else {
    spec.recompute = required_name(
        fields, "recompute",
        std::array{RecomputeKind::none, RecomputeKind::cheap, RecomputeKind::selective, RecomputeKind::full});
  }
  spec.strided = fields.optional<bool>("strided", false);
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return spec;
}

inline Result<PlanStage> stage_from_json(const json& value, const std::string& where) {
  constexpr int most = std::numeric_limits<int>::max();
  JsonObject fields(value, where);
  PlanStage stage;
  stage.first_layer = fields.required<int>("first_layer", 0, most - 1);
  stage.last_layer = fields.required<int>("last_layer", 0, most - 1);
  const json& ranks = fields.required_array("ranks");
  const auto small = [&](std::size_t i) {
    if (!ranks[i].is_number_integer()) return false;
    if (!ranks[i].is_number_unsigned() && ranks[i].get<std::int64_t>() < 0) return false;
    return ranks[i].get<std::uint64_t>() <= static_cast<std::uint64_t>(most_ranks);
  };
  if (!fields.failed() && (ranks.size() != 2 || !small(0) || !small(1)))
    fields.fail(fields.name("ranks") + ": expected [first, count], two integers from 0 to " +
                std::to_string(most_ranks) + ", found " + one_line(ranks.dump(), 60));
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  stage.first_rank = ranks[0].get<int>();
  stage.rank_count = ranks[1].get<int>();
  return stage;
}

inline void write(PlanWriter& out, const Prediction& p) {
  out.open('{', true);
  out.field("iteration_seconds", p.iteration.value);
  out.field("samples_per_second", p.samples_per_second);
  out.field("tokens_per_second", p.tokens_per_second);
  out.field("mfu", p.mfu);
  out.field("budget_bytes", p.budget.count);
  out.key("stages");
  out.open('[', true);
  for (const PredictedStage& s : p.stages) {
    out.open('{', false);
    out.field("peak_bytes", s.peak.count);
    out.field("forward_seconds", s.forward.value);
    out.field("backward_seconds", s.backward.value);
    out.close();
  }
  out.close();
  out.key("alternatives");
  out.open('[', true);
  for (const PredictedAlternative& a : p.alternatives) {
    out.open('{', false);
    out.field("name", std::string_view(a.name));
    out.field("strategy", std::string_view(a.strategy));
    out.field("exists", a.exists);
    out.field("fits", a.fits);
    out.field("iteration_seconds", a.iteration.value);
    out.field("compute_seconds", a.compute.value);
    out.field("communication_seconds", a.communication.value);
    out.field("idle_seconds", a.idle.value);
    out.field("update_seconds", a.update.value);
    out.field("peak_bytes", a.peak.count);
    out.close();
  }
  out.close();
  out.close();
}

inline Result<Prediction> prediction_from_json(const json& value, const std::string& where) {
  JsonObject fields(value, where);
  Prediction p;
  const auto seconds = [](JsonObject& from, std::string_view key) {
    return Seconds{from.optional<double>(key, 0.0, -1e-6, 1e30)};
  };
  const auto bytes = [](JsonObject& from, std::string_view key) {
    return Bytes{from.optional<std::int64_t>(key, 0, 0)};
  };
  const auto list = [&fields](std::string_view key) -> const json& {
    static const json nothing = json::array();
    return fields.contains(key) ? fields.required_array(key) : nothing;
  };
  p.iteration = seconds(fields, "iteration_seconds");
  p.samples_per_second = fields.optional<double>("samples_per_second", 0.0, 0.0, 1e30);
  p.tokens_per_second = fields.optional<double>("tokens_per_second", 0.0, 0.0, 1e30);
  p.mfu = fields.optional<double>("mfu", 0.0, 0.0, 1e30);
  p.budget = bytes(fields, "budget_bytes");
  for (const json& item : list("stages")) {
    JsonObject from(item, where + ": stages[" + std::to_string(p.stages.size()) + "]");
    p.stages.push_back(
        {bytes(from, "peak_bytes"), seconds(from, "forward_seconds"), seconds(from, "backward_seconds")});
    if (auto done = from.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  }
  for (const json& item : list("alternatives")) {
    JsonObject from(item, where + ": alternatives[" + std::to_string(p.alternatives.size()) + "]");
    PredictedAlternative a;
    a.name = one_line(from.optional<std::string>("name", ""), 80);
    a.strategy = one_line(from.optional<std::string>("strategy", ""), 200);
    a.exists = from.optional<bool>("exists", false);
    a.fits = from.optional<bool>("fits", false);
    a.iteration = seconds(from, "iteration_seconds");
    a.compute = seconds(from, "compute_seconds");
    a.communication = seconds(from, "communication_seconds");
    a.idle = seconds(from, "idle_seconds");
    a.update = seconds(from, "update_seconds");
    a.peak = bytes(from, "peak_bytes");
    p.alternatives.push_back(std::move(a));
    if (auto done = from.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  }
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return p;
}

}  // namespace detail

/// The text of a plan file, keys in the order of the head of this file, a line for each layer.
inline std::string plan_text(const Plan& plan) {
  detail::PlanWriter out;
  out.open('{', true);
  out.field("version", plan.version);
  out.field("model", std::string_view(plan.model));
  out.field("cluster", std::string_view(plan.cluster));
  out.field("global_batch", plan.global_batch);
  out.field("sequence_length", plan.sequence_length);
  out.field("precision", name_of(plan.precision));
  out.field("microbatches", plan.microbatches);
  out.field("schedule", name_of(plan.schedule));
  out.field("virtual_stages", plan.virtual_stages);
  if (plan.trainer != cost::Trainer::galvatron) out.field("trainer", name_of(plan.trainer));
  if (plan.moments != Precision::fp32) out.field("moments", name_of(plan.moments));
  if (!plan.overlap) out.field("overlap", false);
  out.key("stages");
  out.open('[', true);
  for (const PlanStage& stage : plan.stages) {
    out.open('{', false);
    out.field("first_layer", stage.first_layer);
    out.field("last_layer", stage.last_layer);
    out.key("ranks");
    out.open('[', false);
    out.value(stage.first_rank);
    out.value(stage.rank_count);
    out.close();
    out.close();
  }
  out.close();
  out.key("layers");
  out.open('[', true);
  for (const StrategySpec& spec : plan.layers) detail::write(out, spec, plan.version);
  out.close();
  out.key("embedding");
  detail::write(out, plan.embedding, plan.version);
  out.key("head");
  detail::write(out, plan.head, plan.version);
  out.key("predicted");
  detail::write(out, plan.predicted);
  out.close();
  return out.take() + "\n";
}

/// The JSON value of a plan.
inline nlohmann::json to_json(const Plan& plan) { return nlohmann::json::parse(plan_text(plan)); }

/// The plan in a JSON value; `where` opens the messages. Errors (usage): a missing or unknown key, a wrong type, an
/// unknown version or name, and everything of why_inconsistent(const Plan&).
inline Result<Plan> plan_from_json(const nlohmann::json& value, const std::string& where) {
  constexpr int most = std::numeric_limits<int>::max();
  JsonObject fields(value, where);
  Plan plan;
  // A file of another version may look quite different: say so before anything else.
  plan.version = fields.required<int>("version");
  if (!fields.failed() && (plan.version < 1 || plan.version > newest_plan_version))
    fields.fail(fields.name("version") + ": version " + std::to_string(plan.version) +
                " is unknown: this program reads versions 1 and " + std::to_string(newest_plan_version));
  plan.model = fields.required<std::string>("model");
  plan.cluster = fields.required<std::string>("cluster");
  plan.global_batch = fields.required<std::int64_t>("global_batch", 1, std::int64_t{1} << 30);
  plan.sequence_length = fields.required<std::int64_t>("sequence_length", 1, std::int64_t{1} << 24);
  plan.precision =
      detail::required_name(fields, "precision", std::array{Precision::fp32, Precision::bf16, Precision::fp8});
  plan.microbatches = fields.required<int>("microbatches", 1, most);
  plan.schedule = detail::required_name(fields, "schedule", schedule_kinds);
  plan.virtual_stages = fields.required<int>("virtual_stages", 1, 1 << 12);
  if (fields.contains("trainer")) plan.trainer = detail::required_name(fields, "trainer", cost::trainers);
  if (fields.contains("moments"))
    plan.moments = detail::required_name(fields, "moments", std::array{Precision::fp32, Precision::bf16});
  plan.overlap = fields.optional<bool>("overlap", true);
  if (fields.optional<bool>("split_layers", false))
    fields.fail(fields.name("split_layers") +
                ": plans with attention and MLP as layers of their own are no longer read: make the plan again with "
                "`galvatron plan`");
  const nlohmann::json& stages = fields.required_array("stages");
  const nlohmann::json& layers = fields.required_array("layers");
  const nlohmann::json* embedding = fields.any("embedding");
  const nlohmann::json* head = fields.any("head");
  const nlohmann::json* predicted = fields.any("predicted");
  for (const auto& [key, field] : {std::pair{"embedding", embedding}, {"head", head}})
    if (field == nullptr) fields.fail(where + ": the key \"" + key + "\" is missing");
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));

  for (const nlohmann::json& item : stages) {
    auto stage = detail::stage_from_json(item, where + ": stages[" + std::to_string(plan.stages.size()) + "]");
    if (!stage) return tl::unexpected<Error>(std::move(stage.error()));
    plan.stages.push_back(*stage);
  }
  const auto read = [&](const nlohmann::json& from, const std::string& name, StrategySpec& to) -> Result<void> {
    auto spec = detail::strategy_from_json(from, where + ": " + name, plan.version);
    if (!spec) return tl::unexpected<Error>(std::move(spec.error()));
    to = *spec;
    return {};
  };
  for (const nlohmann::json& item : layers) {
    const std::string name = "layers[" + std::to_string(plan.layers.size()) + "]";
    plan.layers.emplace_back();
    if (auto done = read(item, name, plan.layers.back()); !done) return tl::unexpected<Error>(std::move(done.error()));
  }
  if (auto done = read(*embedding, "embedding", plan.embedding); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  if (auto done = read(*head, "head", plan.head); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (predicted != nullptr) {
    auto prediction = detail::prediction_from_json(*predicted, where + ": predicted");
    if (!prediction) return tl::unexpected<Error>(std::move(prediction.error()));
    plan.predicted = std::move(*prediction);
  }
  if (const std::string why = why_inconsistent(plan); !why.empty())
    return usage_error(where + ": not a plan: " + why + "; mend the file or make a new one with `galvatron plan`");
  return plan;
}

namespace detail {

/// The plan with the paths of its model and its cluster as convert(path) has them; presets are no paths.
template <class Convert>
Plan with_paths(Plan plan, const Convert& convert) {
  if (!find_model(plan.model)) plan.model = convert(plan.model);
  if (const auto preset = galvatron::preset_cluster(plan.cluster); preset && !preset->has_value())
    plan.cluster = convert(plan.cluster);
  return plan;
}

}  // namespace detail

/// The plan of a file, its paths from the current folder. Errors (usage): an unreadable file, bad JSON, and those of
/// plan_from_json.
inline Result<Plan> read_plan(const std::filesystem::path& path) {
  auto value = read_json_file(path);
  if (!value) return tl::unexpected<Error>(std::move(value.error()));
  auto plan = plan_from_json(*value, path.string());
  if (!plan) return plan;
  return detail::with_paths(std::move(*plan), [&](const std::string& name) { return path_from_file(name, path); });
}

/// Writes the file whole or not at all, its paths from its own folder. Errors (usage): an unwritable path, a full disk.
inline Result<void> save_plan(const Plan& plan, const std::filesystem::path& path) {
  return write_file_atomically(
      path, plan_text(detail::with_paths(plan, [&](const std::string& name) { return path_for_file(name, path); })));
}

}  // namespace galvatron
