// Trainers as JSON: of the library by name, of users by path.
//
//     { "format": "galvatron-trainer", "version": 1, "name": "ours", "like": "megatron-2026",
//       "overlap": { "tensor_pieces": 0 },
//       "sources": { "overlap": "we train without --tp-comm-overlap" } }
//
// A file has the facts that differ from the trainer that it is `like`, in sections, and of every section that it has a
// source: a text, or texts that are one. docs/trainers.md lists the keys.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/json.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/cost/trainer_files.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// The names of the trainers that come with the library, the newest Megatron-LM as `megatron` too.
inline std::vector<std::string> trainer_names() {
  std::vector<std::string> out{Trainer{}.name};
  for (const TrainerAlias& alias : trainer_aliases) out.emplace_back(alias.name);
  for (const TrainerFile& file : trainer_files) out.emplace_back(file.name);
  return out;
}

namespace detail {

using galvatron::detail::bytes_field;
using galvatron::detail::names_field;
using galvatron::detail::one_line;

inline constexpr std::array expressible_targets{OneForAll::no,         OneForAll::uniform,   OneForAll::megatron,
                                                OneForAll::torchtitan, OneForAll::deepspeed, OneForAll::accelerate,
                                                OneForAll::hetu};

inline void expressible_fields(JsonObject& fields, Expressible& e) {
  if (fields.has("target", false))
    fields.word("target", e.target, expressible_targets, [](OneForAll t) { return std::string(name_of(t)); });
  names_field(fields, "schedules", e.schedules, schedule_kinds);
  names_field(fields, "sequence", e.sequence, named_sequence_kinds);
  names_field(fields, "recompute", e.recompute, recompute_kinds);
  names_field(fields, "fp8_recipes", e.fp8_recipes, fp8_recipes);
  if (fields.has("zero", false)) {
    e.zero = {};
    for (const int stage : fields.numbers<int>("zero", 0, 3)) e.zero[static_cast<std::size_t>(stage)] = true;
    fields.check("zero", std::ranges::find(e.zero, true) != e.zero.end(), "at least one stage is needed");
  }
  fields.field_or("tensor", e.tensor, e.tensor);
  fields.field_or("context", e.context, e.context);
  fields.field_or("pipeline", e.pipeline, e.pipeline);
  fields.field_or("experts", e.experts, e.experts);
}
inline void attention_fields(JsonObject& fields, RuntimeTraits& t) {
  if (fields.has("kernel", false))
    fields.word("kernel", t.attention, op::attention_kernels,
                [](op::AttentionKernel kernel) { return std::string(op::word_of(kernel)); });
  t.passes.fused_attention = t.attention != op::AttentionKernel::unfused;
  fields.field_or("dropout", t.passes.dropout, t.passes.dropout);
}
inline void pass_fields(JsonObject& fields, RuntimeTraits& t) {
  constexpr int most = 100;
  fields.field_or("keeps_outputs", t.passes.keeps_outputs, t.passes.keeps_outputs);
  fields.field_or("fused", t.passes.fuses, t.passes.fuses);
  fields.field_or("whole_logits", t.passes.whole_logits, t.passes.whole_logits);
  if (fields.has("fp8_recipe", false))
    fields.word("fp8_recipe", t.fp8_recipe, fp8_recipes, [](Fp8Recipe r) { return std::string(name_of(r)); });
  fields.field_or("rms_norm", t.norm_passes, t.norm_passes, 1, most);
  fields.field_or("gated_activation", t.activation_passes, t.activation_passes, 1, most);
  fields.field_or("rotary", t.rotary_passes, t.rotary_passes, 1, most);
}
inline void overlap_fields(JsonObject& fields, RuntimeTraits& t) {
  fields.field_or("tensor_pieces", t.tensor_pieces, t.tensor_pieces, 0, 1024);
  fields.field_or("gradients", t.overlaps_gradients, t.overlaps_gradients);
  fields.field_or("parameters", t.overlaps_parameters, t.overlaps_parameters);
  fields.field_or("prefetch", t.prefetches, t.prefetches);
  fields.field_or("scatters_sends", t.scatters_sends, t.scatters_sends);
}
inline void state_fields(JsonObject& fields, RuntimeTraits& t) {
  fields.field_or("keeps_parameters", t.keeps_parameters, t.keeps_parameters);
  fields.field_or("gradient_bytes", t.gradient_bytes, t.gradient_bytes, 1, 8);
  fields.field_or("message_bytes", t.message_bytes, t.message_bytes, 1, 8);
}
inline void logit_fields(JsonObject& fields, RuntimeTraits& t) {
  fields.field_or("bytes", t.logit_bytes, t.logit_bytes, 0, 256);
}
inline void memory_fields(JsonObject& fields, RuntimeTraits& t) {
  bytes_field(fields, "context", t.context, false);
  bytes_field(fields, "collectives", t.collectives, false);
  constexpr Bytes most{std::int64_t{1} << 40};
  fields.check("context", t.context <= most && t.collectives <= most, "more than 1024GiB is no device's");
  fields.field_or("fragmentation", t.fragmentation, t.fragmentation, 0, 0.9);
  fields.field_or("shares_slots", t.shares_slots, t.shares_slots);
}
inline void host_fields(JsonObject& fields, RuntimeTraits& t) {
  fields.field_or("operation_seconds", t.host.value, t.host.value, 0, 1);
}
inline void device_fields(JsonObject& fields, RuntimeTraits& t) {
  fields.field_or("spread", t.device_spread, t.device_spread, 0, 1);
}
inline void spread_fields(JsonObject& fields, RuntimeTraits& t) {
  fields.field_or("time", t.time_spread, t.time_spread, 0, 1);
  fields.field_or("memory", t.memory_spread, t.memory_spread, 0, 1);
}

/// The sources of the sections that a file has, which replace those of the trainer that it is like.
inline void read_sources(JsonObject& fields, const std::vector<std::string>& sections,
                         std::vector<FactSource>& sources) {
  JsonObject given = fields.required_object("sources");
  for (const std::string& section : sections) {
    const nlohmann::json* value = given.any(section);
    std::string text;
    if (value != nullptr && value->is_string()) {
      text = value->get<std::string>();
    } else if (value != nullptr && value->is_array()) {
      for (const nlohmann::json& line : *value)
        if (line.is_string()) text += (text.empty() ? "" : " ") + line.get<std::string>();
    }
    if (text.empty()) {
      fields.fail(given.where() + ": the section \"" + section + "\" has no source: say where its facts come from");
      return;
    }
    const auto at = std::ranges::find(sources, section, &FactSource::section);
    if (at == sources.end())
      sources.push_back({section, one_line(text, 2000)});
    else
      at->text = one_line(text, 2000);
  }
  if (auto done = given.finish(); !done) fields.fail(done.error().message);
}

}  // namespace detail

inline Result<Trainer> load_trainer(const std::string& name_or_path);

/// The trainer that a JSON value describes; `source_name` opens every message. Errors (usage): another format or
/// version, unknown keys, values out of range, sections without a source, an unknown trainer that it is like.
template <class = void>
Result<Trainer> trainer_from_json(const nlohmann::json& value, const std::string& source_name) {
  JsonObject fields(value, source_name);
  const auto format = fields.required<std::string>("format");
  fields.check(
      "format", format == "galvatron-trainer",
      "this is a \"" + detail::one_line(format, 40) + "\" file; a trainer file has \"format\": \"galvatron-trainer\"");
  const int version = fields.required<int>("version");
  fields.check("version", version == 1,
               "trainer format version " + std::to_string(version) + " is not known; this program reads version 1");
  const auto name = fields.required<std::string>("name");
  fields.check("name", !name.empty(), "a trainer has a name");
  Trainer trainer;
  if (const auto like = fields.optional<std::string>("like", ""); !like.empty() && !fields.failed()) {
    const auto known = trainer_names();
    fields.check("like", std::ranges::find(known, like) != known.end(),
                 "unknown trainer \"" + detail::one_line(like, 60) + "\"; known are " + joined(known));
    if (!fields.failed()) trainer = value_or_throw(load_trainer(like));
  }
  trainer.name = detail::one_line(name, 80);
  // What is not said is as in the trainer that the file is like, or else as in this library; but its runtime it is not.
  trainer.traits.own = false;
  trainer.traits.writes_gradients = false;
  std::vector<std::string> sections;
  const auto section = [&](const char* key, auto& of, auto read) {
    if (fields.failed() || !fields.has(key, false)) return;
    sections.emplace_back(key);
    fields.object(key, of, read);
  };
  section("expresses", trainer.expressible, detail::expressible_fields);
  section("attention", trainer.traits, detail::attention_fields);
  section("passes", trainer.traits, detail::pass_fields);
  section("overlap", trainer.traits, detail::overlap_fields);
  section("states", trainer.traits, detail::state_fields);
  section("logits", trainer.traits, detail::logit_fields);
  section("memory", trainer.traits, detail::memory_fields);
  section("host", trainer.traits, detail::host_fields);
  section("devices", trainer.traits, detail::device_fields);
  section("spread", trainer.traits, detail::spread_fields);
  fields.check("passes",
               trainer.traits.passes.keeps_outputs || trainer.traits.attention != op::AttentionKernel::unfused,
               "attention that is not fused keeps outputs: write \"keeps_outputs\": true");
  detail::read_sources(fields, sections, trainer.sources);
  return fields.finish().map([&] { return std::move(trainer); });
}
GALVATRON_IN_PLANNER(Result<Trainer> trainer_from_json<>(const nlohmann::json&, const std::string&))

/// A trainer of the library by name. None: there is no such name.
inline std::optional<Trainer> find_trainer(std::string_view name) {
  if (name == Trainer{}.name) return Trainer{};
  std::string_view file_name = name;
  for (const TrainerAlias& alias : trainer_aliases)
    if (alias.name == name) file_name = alias.stands_for;
  for (const TrainerFile& file : trainer_files)
    if (file.name == file_name) {
      Trainer out =
          value_or_throw(trainer_from_json(value_or_throw(parse_json(file.text, file.name)), std::string(file.name)));
      out.name = name;
      return out;
    }
  return std::nullopt;
}

/// A trainer of the library by name, or else that of the file at this path, which is then its name. Errors (usage):
/// neither exists, or the file is bad.
inline Result<Trainer> load_trainer(const std::string& name_or_path) {
  if (auto known = find_trainer(name_or_path)) return std::move(*known);
  std::error_code ignored;
  if (!std::filesystem::exists(name_or_path, ignored))
    return usage_error("unknown trainer \"" + detail::one_line(name_or_path, 120) +
                       "\": no trainer and no file has this name; known are " + joined(trainer_names()));
  return read_json_file(name_or_path)
      .and_then([&](const nlohmann::json& value) { return trainer_from_json(value, name_or_path); })
      .map([&](Trainer trainer) {
        trainer.name = name_or_path;
        return trainer;
      });
}

}  // namespace galvatron::cost
