// Plan files of Hetu-Galvatron: JSON, with a list for every property of the layers,
//
//   { "pp_deg": 2, "tp_sizes_enc": "4,4", "tp_consecutive_flags": "1,1", "dp_types_enc": "0,1", "use_sp": "0,0",
//     "checkpoint": "1,0", "world_size": 8, "global_bsz": 64, "chunks": 16, "pp_division": "1,1",
//     "pipeline_type": "pipedream_flush", "default_dp_type": "zero2", "vtp": 1, "vsp": 0, "embed_sdp": 0 }
//
// dp_types_enc 1 is ZeRO-3, 0 the default; use_sp 1 makes a tensor-parallel degree one of Ulysses.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron {

/// A plan file: the plan, and what it says about the job it was made for.
struct HetuPlanFile {
  cost::hetu::Plan plan;
  std::optional<int> devices;
  std::optional<std::int64_t> global_batch;
  std::optional<bool> gpipe;
  std::optional<cost::hetu::DataKind> data;
  bool has_microbatches = false;  ///< otherwise plan.microbatches is 1
};

namespace detail {

/// The integers of "1,2,4" under a key, at most `longest` of them in [least, most]; none after an error.
inline std::vector<int> integer_list(JsonObject& fields, const char* key, int least, int most, std::size_t longest) {
  const auto text = fields.required<std::string>(key);
  std::vector<int> out;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    const auto [next, failure] = std::from_chars(at, end, out.emplace_back());
    if (failure != std::errc{} || out.back() < least || out.back() > most || (next != end && *next != ',') ||
        out.size() > longest) {
      fields.fail(text_of(fields.name(key), ": expected at most ", longest, " integers from ", least, " to ", most,
                          ", separated by commas, found \"", one_line(text, 60), "\""));
      return {};
    }
    if (next == end) return out;
    at = next;
  }
}

}  // namespace detail

/// Errors (usage): missing keys, wrong types, lists that are no lists or not one figure a layer. Keys of other names
/// are ignored. Whether the plan suits a job is for cost::hetu::price to say.
inline Result<HetuPlanFile> hetu_plan_from_json(const nlohmann::json& value, const std::string& where) {
  using cost::hetu::DataKind;
  constexpr int most = 1 << 20;
  constexpr int most_layers = 100'000;
  constexpr std::int64_t most_samples = 1 << 30;
  JsonObject fields(value, where);
  HetuPlanFile out;
  out.plan.pipeline = fields.required<int>("pp_deg", 1, most);
  if (fields.contains("world_size")) out.devices = fields.required<int>("world_size", 1, most);
  if (fields.contains("global_bsz")) out.global_batch = fields.required<std::int64_t>("global_bsz", 1, most_samples);
  out.has_microbatches = fields.contains("chunks");
  if (out.has_microbatches) out.plan.microbatches = fields.required<std::int64_t>("chunks", 1, most_samples);
  const auto type = fields.optional<std::string>("pipeline_type", "");
  const auto data = fields.optional<std::string>("default_dp_type", "");
  out.plan.ends.degree = fields.optional<int>("vtp", 1, 1, most);
  out.plan.ends.ulysses = fields.optional<int>("vsp", 0, 0, 1) == 1;
  out.plan.ends.zero3 = fields.optional<int>("embed_sdp", 0, 0, 1) == 1;
  if (type == "gpipe" || type == "pipedream_flush")
    out.gpipe = type == "gpipe";
  else if (!type.empty())
    fields.fail(text_of(fields.name("pipeline_type"), ": \"", detail::one_line(type, 40),
                        "\" is unknown; known are gpipe, pipedream_flush"));
  for (const DataKind kind : {DataKind::ddp, DataKind::zero2, DataKind::zero3})
    if (data == name_of(kind)) out.data = kind;
  if (!data.empty() && !out.data)
    fields.fail(text_of(fields.name("default_dp_type"), ": \"", detail::one_line(data, 40),
                        "\" is unknown; known are ddp, zero2, zero3"));

  const auto degrees = detail::integer_list(fields, "tp_sizes_enc", 1, most, most_layers);
  const std::size_t layers = degrees.size();
  // A figure for each layer, 0 or 1; `otherwise` for all where there is no such list.
  const auto flags = [&](const char* key, int otherwise) {
    if (!fields.contains(key)) return std::vector<int>(layers, otherwise);
    auto list = detail::integer_list(fields, key, 0, 1, layers);
    fields.check(key, list.size() == layers, text_of(list.size(), " figures for ", layers, " layers"));
    return list;
  };
  const auto consecutive = flags("tp_consecutive_flags", 1);
  const auto sharded = flags("dp_types_enc", 0);
  const auto ulysses = flags("use_sp", 0);
  const auto recompute = flags("checkpoint", 0);
  if (fields.contains("pp_division"))
    out.plan.division = detail::integer_list(fields, "pp_division", 1, most_layers, most_layers);
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(done.error());
  for (std::size_t i = 0; i < layers; ++i) {
    const int degree = degrees[i];
    if (consecutive[i] == 0 && degree > 1)
      return usage_error(text_of(fields.name("tp_consecutive_flags"), ": layer ", i,
                                 " has tensor-parallel ranks that are not consecutive, which this cost model has no "
                                 "times for"));
    const bool split = ulysses[i] == 1;
    out.plan.layers.push_back({split ? 1 : degree, split ? degree : 1, sharded[i] == 1, recompute[i] == 1});
  }
  if (!out.plan.division.empty()) return out;
  if (static_cast<std::size_t>(out.plan.pipeline) > layers)
    return usage_error(text_of(fields.name("pp_deg"), ": ", out.plan.pipeline, " stages for ", layers, " layers"));
  out.plan.division = cost::hetu::even_division(static_cast<int>(layers), out.plan.pipeline);
  return out;
}

/// Errors (usage): an unreadable file, bad JSON, and those of hetu_plan_from_json.
inline Result<HetuPlanFile> read_hetu_plan(const std::filesystem::path& path) {
  return read_json_file(path).and_then(
      [&](const nlohmann::json& value) { return hetu_plan_from_json(value, path.string()); });
}

/// The content of a plan file, keys in the order of the head of this file.
inline nlohmann::ordered_json hetu_plan_json(const cost::hetu::Plan& plan, const cost::hetu::Job& job) {
  const auto list = [&](auto figure) { return joined(plan.layers, ",", figure); };
  using Layer = cost::hetu::LayerStrategy;
  return {{"pp_deg", plan.pipeline},
          {"tp_sizes_enc", list([](const Layer& s) { return s.degree(); })},
          {"tp_consecutive_flags", list([](const Layer&) { return 1; })},
          {"dp_types_enc", list([](const Layer& s) { return s.zero3; })},
          {"use_sp", list([](const Layer& s) { return s.ulysses > 1; })},
          {"checkpoint", list([](const Layer& s) { return s.recompute; })},
          {"world_size", job.devices},
          {"global_bsz", job.global_batch},
          {"chunks", plan.microbatches},
          {"pp_division", joined(plan.division, ",")},
          {"pipeline_type", job.gpipe ? "gpipe" : "pipedream_flush"},
          {"default_dp_type", name_of(job.data)},
          {"vtp", plan.ends.degree},
          {"vsp", plan.ends.ulysses ? 1 : 0},
          {"embed_sdp", plan.ends.zero3 ? 1 : 0}};
}

/// Writes a plan file, whole or not at all. Errors (usage): see write_file_atomically.
inline Result<void> save_hetu_plan(const cost::hetu::Plan& plan, const cost::hetu::Job& job,
                                   const std::filesystem::path& path) {
  return write_file_atomically(path, hetu_plan_json(plan, job).dump(4) + "\n");
}

}  // namespace galvatron
