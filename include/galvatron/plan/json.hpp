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
// "shards": "by_ratio" of a layer cuts samples over ranks as the "sample_ratios" of its stage say, what ZeRO shards as
// its "state_ratios", attention heads, hidden units, the vocabulary and tokens as its "head_ratios", "width_ratios",
// "vocabulary_ratios" and "token_ratios", lists with a number for each rank; all are left out where shards are equal.
// "chunk_layers" of a stage has the lengths of its virtual stages, where they are not as even as possible, and
// "rank_groups", such a list too, has the groups of a mixed cluster that its ranks are on, where these are
// several.
// "lora": { "rank": 16, "alpha": 32, "targets": "q,v" } gives these linear layers of all blocks adapters and freezes
// the rest (model/adapters.hpp). "moments": "bf16" keeps those of the optimizer in 2 bytes each, not 4. A stage on
// another group of devices of a mixed cluster than the first one says "group", its number. Layers count from 0;
// last_layer is inclusive; ranks are [first, count]. What is under "predicted" informs people and `explain`; plans
// written by hand leave it out or empty. "model" and "cluster" are presets' names or paths; a relative path begins at
// the folder of the plan file, or, in files of before, at the current folder (core/file.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/lsh_options.hpp>

namespace galvatron {

namespace detail {

using nlohmann::json;
using nlohmann::ordered_json;

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

// What the files have, for JsonObject, which reads it into a value, and for JsonWriter, which writes a value's.

template <class Fields, class E, class Values>
void name_field(Fields& fields, const char* key, E& value, const Values& values) {
  fields.word(key, value, values, [](E e) { return std::string(name_of(e)); });
}

inline void ranks_field(JsonObject& fields, const char* key, int& first, int& count) {
  const json& pair = fields.required_array(key);
  const auto small = [](const json& n) {
    return n.is_number_integer() && n >= 0 && n <= static_cast<std::int64_t>(most_ranks);
  };
  if (fields.failed()) return;
  if (pair.size() != 2 || !std::ranges::all_of(pair, small))
    return fields.fail(fields.name(key) + ": expected [first, count], two integers from 0 to " +
                       std::to_string(most_ranks) + ", found " + one_line(pair.dump(), 60));
  first = pair[0].get<int>();
  count = pair[1].get<int>();
}
inline void ranks_field(JsonWriter<ordered_json>& fields, const char* key, int first, int count) {
  fields.field(key, std::pair(first, count));
}

/// Ratios or groups of the ranks of a stage; left out where there are none.
inline void ratios_field(JsonObject& fields, const char* key, std::vector<int>& ratios) {
  if (fields.has(key, false)) ratios = fields.numbers<int>(key, 0, most_ratio);
}
inline void ratios_field(JsonWriter<ordered_json>& fields, const char* key, const std::vector<int>& ratios) {
  if (!ratios.empty()) fields.field(key, ratios);
}

/// @param version  of the file
template <class Fields>
void strategy_fields(Fields& fields, StrategySpec& spec, int version) {
  fields.field("tensor", spec.tensor, 1);
  name_field(fields, "sequence", spec.sequence, sequence_kinds);
  fields.field("context", spec.context, 1);
  fields.field("data", spec.data, 1);
  fields.field("zero", spec.zero, 0, 3);
  fields.field("expert", spec.expert, 1);
  constexpr std::array kinds{RecomputeKind::none, RecomputeKind::cheap, RecomputeKind::selective, RecomputeKind::full};
  if (version == 1) {
    bool keeps = spec.recompute == RecomputeKind::none;
    if (spec.recompute == RecomputeKind::cheap) spec.recompute = RecomputeKind::none;
    name_field(fields, "recompute", spec.recompute, std::array{kinds[0], kinds[2], kinds[3]});
    if (fields.has("keep_outputs", keeps)) fields.field("keep_outputs", keeps);
    fields.check("keep_outputs", !keeps || spec.recompute == RecomputeKind::none,
                 std::string("true contradicts \"recompute\": \"") + name_of(spec.recompute) +
                     "\", which recomputes them; leave it out or write \"recompute\": \"none\"");
    if (!keeps && spec.recompute == RecomputeKind::none) spec.recompute = RecomputeKind::cheap;
  } else {
    name_field(fields, "recompute", spec.recompute, kinds);
  }
  if (fields.has("strided", spec.strided)) fields.field("strided", spec.strided);
  if (fields.has("expert_tensor", spec.expert_tensor != 0)) fields.field("expert_tensor", spec.expert_tensor, 1);
  if (fields.has("expert_nodes", spec.expert_nodes != 1)) fields.field("expert_nodes", spec.expert_nodes, 1);
  if (fields.has("dispatch", spec.dispatch != DispatchKind::plain))
    name_field(fields, "dispatch", spec.dispatch, dispatch_kinds);
  if (fields.has("groups", spec.groups != SequenceGroupKind::fixed))
    name_field(fields, "groups", spec.groups, sequence_group_kinds);
  if (fields.has("shards", spec.shard_kind != ShardKind::even))
    name_field(fields, "shards", spec.shard_kind, shard_kinds);
}

inline constexpr auto prediction_fields = [](auto& fields, Prediction& prediction) {
  const auto seconds = [](auto& object, const char* key, Seconds& value) {
    object.field(key, value.value, -1e-6, 1e30);
  };
  seconds(fields, "iteration_seconds", prediction.iteration);
  fields.field("samples_per_second", prediction.samples_per_second, 0, 1e30);
  fields.field("tokens_per_second", prediction.tokens_per_second, 0, 1e30);
  fields.field("mfu", prediction.mfu, 0, 1e30);
  fields.field("budget_bytes", prediction.budget.count, 0);
  fields.list("stages", prediction.stages, [&](auto& item, PredictedStage& stage) {
    item.field("peak_bytes", stage.peak.count, 0);
    seconds(item, "forward_seconds", stage.forward);
    seconds(item, "backward_seconds", stage.backward);
  });
  fields.list("alternatives", prediction.alternatives, [&](auto& item, PredictedAlternative& alternative) {
    item.field("name", alternative.name);
    item.field("strategy", alternative.strategy);
    item.field("exists", alternative.exists);
    item.field("fits", alternative.fits);
    seconds(item, "iteration_seconds", alternative.iteration);
    seconds(item, "compute_seconds", alternative.compute);
    seconds(item, "communication_seconds", alternative.communication);
    seconds(item, "idle_seconds", alternative.idle);
    seconds(item, "update_seconds", alternative.update);
    item.field("peak_bytes", alternative.peak.count, 0);
  });
};

inline constexpr auto lsh_fields = [](auto& fields, LshOptions& lsh) {
  fields.field("hashes", lsh.hashes, 1, most_hashes);
  fields.field("width", lsh.width, 1, most_hash_width);
  name_field(fields, "residual", lsh.residual, residual_kinds);
  fields.field("rate", lsh.rate, 0, 1);
  fields.field("most_rate", lsh.most_rate, 0, 1);
  fields.field("seed", lsh.seed, 0);
};

/// Adapters; left out where there are none.
inline void adapters_field(JsonObject& fields, AdapterSpec& adapters) {
  if (!fields.has("lora", false)) return;
  fields.object("lora", adapters, [](JsonObject& own, AdapterSpec& out) {
    own.field("rank", out.rank, 1, most_adapter_rank);
    own.field("alpha", out.alpha, 1e-9, 1e9);
    const auto named = with_adapter_targets(out, own.required<std::string>("targets"));
    if (named)
      out = *named;
    else
      own.fail(own.name("targets") + ": " + named.error().message);
  });
}
inline void adapters_field(JsonWriter<ordered_json>& fields, AdapterSpec& adapters) {
  if (adapters.rank == 0) return;
  fields.object("lora", adapters, [](auto& own, AdapterSpec& out) {
    own.field("rank", out.rank);
    own.field("alpha", out.alpha);
    own.field("targets", adapter_target_names(out));
  });
}

/// In bytes; left out where the trainer says it.
inline void reserve_field(JsonObject& fields, std::optional<Bytes>& reserve) {
  if (fields.has("reserve", false)) fields.field("reserve", reserve.emplace().count, 0);
}
inline void reserve_field(JsonWriter<ordered_json>& fields, const std::optional<Bytes>& reserve) {
  if (reserve) fields.field("reserve", reserve->count);
}

/// All but the version and what was predicted.
template <class Fields>
void plan_fields(Fields& fields, Plan& plan) {
  fields.field("model", plan.model);
  fields.field("cluster", plan.cluster);
  fields.field("global_batch", plan.global_batch, 1, 1 << 30);
  fields.field("sequence_length", plan.sequence_length, 1, 1 << 24);
  if (fields.has("packed", plan.packed)) fields.field("packed", plan.packed);
  name_field(fields, "precision", plan.precision, precisions);
  Fp8Recipe& recipe = plan.trainer.traits.fp8_recipe;
  if (fields.has("fp8_recipe", plan.precision == Precision::fp8 && recipe != Fp8Recipe::tensorwise))
    name_field(fields, "fp8_recipe", recipe, fp8_recipes);
  fields.check("fp8_recipe", plan.precision == Precision::fp8 || recipe == Fp8Recipe::tensorwise,
               "a recipe is of \"precision\": \"fp8\"");
  fields.field("microbatches", plan.microbatches, 1);
  name_field(fields, "schedule", plan.schedule, schedule_kinds);
  fields.field("virtual_stages", plan.virtual_stages, 1, 1 << 12);
  if (fields.has("trainer", !plan.trainer.is_own())) fields.field("trainer", plan.trainer.name);
  reserve_field(fields, plan.reserve);
  if (fields.has("moments", plan.moments != Precision::fp32))
    name_field(fields, "moments", plan.moments, std::span(precisions).first(2));
  if (fields.has("overlap", !plan.overlap)) fields.field("overlap", plan.overlap);
  if (fields.has("expert_imbalance", plan.expert_imbalance != program::default_expert_imbalance))
    fields.field("expert_imbalance", plan.expert_imbalance, 1, 1e6);
  if (fields.has("lsh", plan.lsh != LshOptions{})) fields.object("lsh", plan.lsh, lsh_fields);
  adapters_field(fields, plan.adapters);
  fields.list("stages", plan.stages, [](auto& item, PlanStage& stage) {
    item.field("first_layer", stage.first_layer, 0, std::numeric_limits<int>::max() - 1);
    item.field("last_layer", stage.last_layer, 0, std::numeric_limits<int>::max() - 1);
    ranks_field(item, "ranks", stage.first_rank, stage.rank_count);
    if (item.has("group", stage.group != 0)) item.field("group", stage.group, 0, most_groups - 1);
    for (const RatioList& each : ratio_lists) ratios_field(item, each.key, stage.*each.list);
    ratios_field(item, "rank_groups", stage.rank_groups);
    ratios_field(item, "chunk_layers", stage.chunk_layers);
  });
  const auto strategy = [&plan](auto& item, StrategySpec& spec) { strategy_fields(item, spec, plan.version); };
  fields.list("layers", plan.layers, strategy);
  fields.object("embedding", plan.embedding, strategy);
  fields.object("head", plan.head, strategy);
}

}  // namespace detail

/// The text of a plan file, keys in the order of the head of this file, a line for each layer.
template <class = void>
std::string plan_text(Plan plan) {
  nlohmann::ordered_json file;
  JsonWriter fields(file);
  fields.field("version", plan.version);
  detail::plan_fields(fields, plan);
  fields.object("predicted", plan.predicted, detail::prediction_fields);
  std::string out;
  detail::append_json(out, file, true);
  return out + "\n";
}
GALVATRON_IN_PLANNER(std::string plan_text<>(Plan))

/// The JSON value of a plan, keys in their order.
inline nlohmann::ordered_json to_json(const Plan& plan) { return nlohmann::ordered_json::parse(plan_text(plan)); }

/// The plan in a JSON value; `where` opens the messages. Errors (usage): a missing or unknown key, a wrong type, an
/// unknown version or name, everything of why_inconsistent(const Plan&), and those of load_trainer.
/// @param plan_file  from whose folder the path of a trainer begins; empty: the current one
template <class = void>
Result<Plan> plan_from_json(const nlohmann::json& value, const std::string& where,
                            const std::filesystem::path& plan_file = {}) {
  Plan plan;
  JsonObject fields(value, where);
  // A file of another version may look quite different: say so before anything else.
  plan.version = fields.required<int>("version");
  fields.check("version", plan.version >= 1 && plan.version <= newest_plan_version,
               "version " + std::to_string(plan.version) + " is unknown: this program reads versions 1 and " +
                   std::to_string(newest_plan_version));
  fields.check("split_layers", !fields.optional<bool>("split_layers", false),
               "plans with attention and MLP as layers of their own are no longer read: make the plan again with "
               "`galvatron plan`");
  detail::plan_fields(fields, plan);
  if (fields.contains("predicted"))
    fields.object("predicted", plan.predicted, [](JsonObject& object, Prediction& prediction) {
      object.only_informs();
      detail::prediction_fields(object, prediction);
    });
  for (PredictedAlternative& alternative : plan.predicted.alternatives) {
    alternative.name = detail::one_line(alternative.name, 80);
    alternative.strategy = detail::one_line(alternative.strategy, 200);
  }
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (plan.trainer.name != cost::Trainer{}.name) {
    const bool is_file = !plan_file.empty() && !cost::find_trainer(plan.trainer.name);
    auto trainer = cost::load_trainer(is_file ? path_from_file(plan.trainer.name, plan_file) : plan.trainer.name);
    if (!trainer) return usage_error(where + ": \"trainer\": " + trainer.error().message);
    const Fp8Recipe recipe = plan.trainer.traits.fp8_recipe;
    plan.trainer = std::move(*trainer);
    if (plan.precision == Precision::fp8) plan.trainer.traits.fp8_recipe = recipe;
  }
  if (std::string why = why_inconsistent(plan); !why.empty()) {
    if (why.ends_with('.')) why.pop_back();
    return usage_error(where + ": not a plan: " + why + "; mend the file or make a new one with `galvatron plan`");
  }
  return plan;
}
GALVATRON_IN_PLANNER(Result<Plan> plan_from_json<>(const nlohmann::json&, const std::string&,
                                                   const std::filesystem::path&))

namespace detail {

/// The plan with the paths of its model and its cluster as convert(path) has them; presets are no paths.
template <class Convert>
Plan with_paths(Plan plan, const Convert& convert) {
  if (!find_model(plan.model)) plan.model = convert(plan.model);
  if (!plan.trainer.is_own() && !cost::find_trainer(plan.trainer.name)) plan.trainer.name = convert(plan.trainer.name);
  if (is_mixed_name(plan.cluster)) return plan;
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
  auto plan = plan_from_json(*value, path.string(), path);
  if (!plan) return plan;
  cost::Trainer trainer = plan->trainer;  // whose path has been found
  plan = detail::with_paths(std::move(*plan), [&](const std::string& name) { return path_from_file(name, path); });
  plan->trainer = std::move(trainer);
  return plan;
}

/// Writes the file whole or not at all, its paths from its own folder. Errors (usage): an unwritable path, a full disk.
inline Result<void> save_plan(const Plan& plan, const std::filesystem::path& path) {
  return write_file_atomically(
      path, plan_text(detail::with_paths(plan, [&](const std::string& name) { return path_for_file(name, path); })));
}

}  // namespace galvatron
