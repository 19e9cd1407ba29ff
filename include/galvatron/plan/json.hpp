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

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

using nlohmann::json;
using nlohmann::ordered_json;

/// The shortest text that reads back as the same number; infinities and NaN become 0, which JSON can say.
inline std::string shortest_text(double x) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::isfinite(x) ? x : 0.0).ptr;
  return {digits.data(), end};
}

/// Appends a value as plan files have it: with `lines`, each of its items begins a line, and so do those of the lists
/// in it and of the objects in it that have lists; all else stays on one line.
inline void append_json(std::string& out, const ordered_json& value, bool lines, std::size_t depth = 0) {
  if (!value.is_structured()) {
    out += value.is_number_float() ? shortest_text(value.get<double>())
                                   : value.dump(-1, ' ', false, json::error_handler_t::replace);
    return;
  }
  const std::string line = "\n" + std::string(depth, ' ');
  const char* comma = "";
  out += value.is_object() ? '{' : '[';
  for (const auto& [key, item] : value.items()) {
    out += comma + (lines ? line + ' ' : "");
    comma = lines ? "," : ", ";
    if (value.is_object()) out += "\"" + key + "\": ";
    const bool lists = item.is_array() || std::ranges::any_of(item, [](const auto& inner) { return inner.is_array(); });
    append_json(out, item, lines && value.is_object() && lists, depth + 1);
  }
  if (lines && !value.empty()) out += line;
  out += value.is_object() ? '}' : ']';
}

// What the files have, described once: describe(file, value) names the fields in their order, and `file` is a
// PlanReader or a PlanWriter.

/// Reads the fields of an object. Errors stick, as those of JsonObject.
class PlanReader {
 public:
  /// @param of_version  of the file
  PlanReader(const json& value, std::string where, int of_version)
      : fields(value, std::move(where)), version(of_version) {}

  void field(std::string_view key, std::string& value) { value = fields.required<std::string>(key); }
  template <std::integral T>
  void field(std::string_view key, T& value, std::type_identity_t<T> least,
             std::type_identity_t<T> most = std::numeric_limits<int>::max()) {
    value = fields.required<T>(key, least, most);
  }
  /// The enumerator of `values` whose name is the field's text.
  template <class E>
  void field(std::string_view key, E& value, std::span<const std::type_identity_t<E>> values) {
    const auto text = fields.required<std::string>(key);
    if (fields.failed()) return;
    const auto named = std::ranges::find_if(values, [&](E e) { return text == name_of(e); });
    if (named != values.end()) {
      value = *named;
      return;
    }
    std::string known;
    for (const E e : values) known += (known.empty() ? "" : ", ") + std::string(name_of(e));
    fields.fail(fields.name(key) + ": \"" + one_line(text, 40) + "\" is unknown; known are " + known);
  }
  void field(std::string_view key, std::pair<int&, int&> ranks) {
    const json& pair = fields.required_array(key);
    const auto small = [](const json& n) {
      return n.is_number_integer() && n >= 0 && n <= static_cast<std::int64_t>(most_ranks);
    };
    if (!fields.failed() && (pair.size() != 2 || !std::ranges::all_of(pair, small)))
      fields.fail(fields.name(key) + ": expected [first, count], two integers from 0 to " + std::to_string(most_ranks) +
                  ", found " + one_line(pair.dump(), 60));
    if (!fields.failed()) ranks = std::pair(pair[0].get<int>(), pair[1].get<int>());
  }
  /// A field that is left out where its value is `otherwise`.
  void optional(std::string_view key, bool& value, bool otherwise) { value = fields.optional<bool>(key, otherwise); }
  template <class E>
  void optional(std::string_view key, E& value, E otherwise, std::span<const std::type_identity_t<E>> values) {
    value = otherwise;
    if (fields.contains(key)) field(key, value, values);
  }

  // What informs people may be missing.
  void field(std::string_view key, Seconds& value) { value = {fields.optional<double>(key, 0.0, -1e-6, 1e30)}; }
  void field(std::string_view key, Bytes& value) { value = {fields.optional<std::int64_t>(key, 0, 0)}; }
  void field(std::string_view key, double& value) { value = fields.optional<double>(key, 0.0, 0.0, 1e30); }
  void field(std::string_view key, bool& value) { value = fields.optional<bool>(key, false); }
  void field(std::string_view key, std::string& value, std::size_t longest) {
    value = one_line(fields.optional<std::string>(key, ""), longest);
  }
  template <class T>
  void field(std::string_view key, std::vector<T>& values) {
    if (fields.contains(key)) read_list(fields.required_array(key), key, values, false);
  }

  /// The object `from`, which this file has under `key`; with `strict` it has known keys only.
  template <class T>
  void read(const json& from, const std::string& key, T& value, bool strict) const {
    PlanReader in(from, fields.where() + ": " + key, version);
    describe(in, value);
    value_or_throw(strict ? in.fields.finish() : in.fields.finish_allowing_unknown_keys());
  }
  template <class T>
  void read_list(const json& list, std::string_view key, std::vector<T>& values, bool strict) const {
    for (const json& item : list) {
      const std::string name = std::string(key) + "[" + std::to_string(values.size()) + "]";
      read(item, name, values.emplace_back(), strict);
    }
  }

  JsonObject fields;
  int version;
};

/// Makes the object with the fields.
class PlanWriter {
 public:
  explicit PlanWriter(int of_version) : version(of_version) {}

  template <class T, class... Limits>
  void field(std::string_view key, T& value, const Limits&...) {
    ordered_json& to = fields[std::string(key)];
    if constexpr (std::is_enum_v<T>)
      to = name_of(value);
    else if constexpr (std::is_same_v<T, Seconds>)
      to = value.value;
    else if constexpr (std::is_same_v<T, Bytes>)
      to = value.count;
    else if constexpr (requires { describe(*this, value); })
      to = described(value);
    else
      to = value;
  }
  void field(std::string_view key, std::pair<int&, int&> ranks) { fields[std::string(key)] = ranks; }
  template <class T>
  void field(std::string_view key, std::vector<T>& values) {
    ordered_json& list = fields[std::string(key)] = json::array();
    for (T& value : values) list.push_back(described(value));
  }
  template <class T, class... Limits>
  void optional(std::string_view key, T& value, T otherwise, const Limits&...) {
    if (value != otherwise) field(key, value);
  }

  ordered_json fields = ordered_json::object();
  int version;

 private:
  template <class T>
  ordered_json described(T& value) const {
    PlanWriter in(version);
    describe(in, value);
    return std::move(in.fields);
  }
};

template <class File>
void describe(File& file, StrategySpec& spec) {
  file.field("tensor", spec.tensor, 1);
  file.field("sequence", spec.sequence, sequence_kinds);
  file.field("context", spec.context, 1);
  file.field("data", spec.data, 1);
  file.field("zero", spec.zero, 0, 3);
  file.field("expert", spec.expert, 1);
  constexpr std::array kinds{RecomputeKind::none, RecomputeKind::cheap, RecomputeKind::selective, RecomputeKind::full};
  if (file.version == 1) {
    bool keeps = spec.recompute == RecomputeKind::none;
    if (spec.recompute == RecomputeKind::cheap) spec.recompute = RecomputeKind::none;
    file.field("recompute", spec.recompute, std::array{kinds[0], kinds[2], kinds[3]});
    file.optional("keep_outputs", keeps, false);
    if constexpr (std::is_same_v<File, PlanReader>)
      if (keeps && !file.fields.failed() && spec.recompute != RecomputeKind::none)
        file.fields.fail(file.fields.name("keep_outputs") + ": true contradicts \"recompute\": \"" +
                         name_of(spec.recompute) +
                         "\", which recomputes them; leave it out or write \"recompute\": \"none\"");
    if (!keeps && spec.recompute == RecomputeKind::none) spec.recompute = RecomputeKind::cheap;
  } else {
    file.field("recompute", spec.recompute, kinds);
  }
  file.optional("strided", spec.strided, false);
}

template <class File>
void describe(File& file, PlanStage& stage) {
  file.field("first_layer", stage.first_layer, 0, std::numeric_limits<int>::max() - 1);
  file.field("last_layer", stage.last_layer, 0, std::numeric_limits<int>::max() - 1);
  file.field("ranks", std::pair<int&, int&>(stage.first_rank, stage.rank_count));
}

template <class File>
void describe(File& file, PredictedStage& stage) {
  file.field("peak_bytes", stage.peak);
  file.field("forward_seconds", stage.forward);
  file.field("backward_seconds", stage.backward);
}

template <class File>
void describe(File& file, PredictedAlternative& alternative) {
  file.field("name", alternative.name, 80);
  file.field("strategy", alternative.strategy, 200);
  file.field("exists", alternative.exists);
  file.field("fits", alternative.fits);
  file.field("iteration_seconds", alternative.iteration);
  file.field("compute_seconds", alternative.compute);
  file.field("communication_seconds", alternative.communication);
  file.field("idle_seconds", alternative.idle);
  file.field("update_seconds", alternative.update);
  file.field("peak_bytes", alternative.peak);
}

template <class File>
void describe(File& file, Prediction& prediction) {
  file.field("iteration_seconds", prediction.iteration);
  file.field("samples_per_second", prediction.samples_per_second);
  file.field("tokens_per_second", prediction.tokens_per_second);
  file.field("mfu", prediction.mfu);
  file.field("budget_bytes", prediction.budget);
  file.field("stages", prediction.stages);
  file.field("alternatives", prediction.alternatives);
}

/// What comes before the stages, but for the version.
template <class File>
void describe(File& file, Plan& plan) {
  file.field("model", plan.model);
  file.field("cluster", plan.cluster);
  file.field("global_batch", plan.global_batch, 1, 1 << 30);
  file.field("sequence_length", plan.sequence_length, 1, 1 << 24);
  file.field("precision", plan.precision, std::array{Precision::fp32, Precision::bf16, Precision::fp8});
  file.field("microbatches", plan.microbatches, 1);
  file.field("schedule", plan.schedule, schedule_kinds);
  file.field("virtual_stages", plan.virtual_stages, 1, 1 << 12);
  file.optional("trainer", plan.trainer, cost::Trainer::galvatron, cost::trainers);
  file.optional("moments", plan.moments, Precision::fp32, std::array{Precision::fp32, Precision::bf16});
  file.optional("overlap", plan.overlap, true);
}

}  // namespace detail

/// The text of a plan file, keys in the order of the head of this file, a line for each layer.
inline std::string plan_text(Plan plan) {
  detail::PlanWriter file(plan.version);
  file.field("version", plan.version);
  describe(file, plan);
  file.field("stages", plan.stages);
  file.field("layers", plan.layers);
  file.field("embedding", plan.embedding);
  file.field("head", plan.head);
  file.field("predicted", plan.predicted);
  std::string out;
  detail::append_json(out, file.fields, true);
  return out + "\n";
}

/// The JSON value of a plan, keys in their order.
inline nlohmann::ordered_json to_json(const Plan& plan) { return nlohmann::ordered_json::parse(plan_text(plan)); }

/// The plan in a JSON value; `where` opens the messages. Errors (usage): a missing or unknown key, a wrong type, an
/// unknown version or name, and everything of why_inconsistent(const Plan&).
inline Result<Plan> plan_from_json(const nlohmann::json& value, const std::string& where) try {
  Plan plan;
  detail::PlanReader file(value, where, plan_version);
  JsonObject& fields = file.fields;
  // A file of another version may look quite different: say so before anything else.
  file.version = plan.version = fields.required<int>("version");
  if (!fields.failed() && (plan.version < 1 || plan.version > newest_plan_version))
    fields.fail(fields.name("version") + ": version " + std::to_string(plan.version) +
                " is unknown: this program reads versions 1 and " + std::to_string(newest_plan_version));
  describe(file, plan);
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
  value_or_throw(fields.finish());
  file.read_list(stages, "stages", plan.stages, true);
  file.read_list(layers, "layers", plan.layers, true);
  file.read(*embedding, "embedding", plan.embedding, true);
  file.read(*head, "head", plan.head, true);
  if (predicted != nullptr) file.read(*predicted, "predicted", plan.predicted, false);
  if (const std::string why = why_inconsistent(plan); !why.empty())
    return usage_error(where + ": not a plan: " + why + "; mend the file or make a new one with `galvatron plan`");
  return plan;
} catch (const Failure& failure) {
  return error_of(failure);
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
