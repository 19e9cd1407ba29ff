// Reads what Hetu-Galvatron's model profiler wrote: a file of computation times,
//
//   { "layertype_0_bsz8_seq2048": 3.94, "layertype_other_bsz8_seq2048": 2.96, ... }      forward ms of a sample
//
// and a file of memory, in MB, by sequence length ("_sp" with Megatron's sequence parallelism):
//
//   { "layertype_0_sp":            { "2048": { "parameter_size": 778.2, "tp_activation_per_bsz_dict":
//                                              { "1": 514.6, "2": 273.3, ..., "checkpoint": 32 } } },
//     "other_memory_pp_off_sp":      { "2048": { "model_states": { "1": 4130, ... }, "activation": { "1": 842, ... } }
//     }, "other_memory_pp_on_first_sp": { ... }, "other_memory_pp_on_last_sp": { ... } }
//
// Keys of other forms, such as the raw measurements, are ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/compat/hetu/files/text.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron {

/// Which rows of the profiles hold for a job.
struct HetuProfileOptions {
  std::int64_t sequence = 1;
  cost::hetu::TimeMode time = cost::hetu::TimeMode::batch;
  /// Memory at the wanted sequence is scaled from the largest profiled one; otherwise it is the profile's own row.
  bool memory_over_sequence = false;
  bool sequence_parallel = true;
};

namespace detail {

/// The rows of a part of the model: of layers, or of the ends.
inline std::vector<cost::hetu::TimePoint> hetu_times(const nlohmann::json& value, const std::string& where,
                                                     bool of_layer) {
  std::vector<cost::hetu::TimePoint> out;
  const char* pattern = of_layer ? "layertype_#_bsz#_seq#" : "layertype_other_bsz#_seq#";
  for_figures(value, where, pattern, [&](const auto& n, const nlohmann::json& field, const std::string& name) {
    if (of_layer && n[0] != 0)
      throw Failure(ErrorKind::usage,
                    name + ": a model with several kinds of layers; profiles of one kind, layertype_0, are read");
    const double ms = measured_number(field, name, of_layer ? above_zero : 0);
    const cost::hetu::TimePoint point{n[n.size() - 2], n.back(), ms};
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (point.batch < 1 || point.batch > most || point.sequence < 1 || point.sequence > most)
      throw Failure(ErrorKind::usage, name + ": not a batch size and a sequence length");
    out.push_back(point);
  });
  return out;
}

/// The entry of a table by sequence length: `row` is that of the memory mode, `least` of the shortest sequence, and
/// activations of `row` are to be multiplied by `scale`.
struct HetuRow {
  const nlohmann::json* row = nullptr;
  const nlohmann::json* least = nullptr;
  double scale = 1;
  std::string name;  // of row, for messages

  /// A table of MB by degree, times `factor`; other keys are ignored.
  [[nodiscard]] std::map<int, double> degrees(const char* key, double factor) const {
    std::map<int, double> out;
    JsonObject fields(*row, name);
    const nlohmann::json* table = fields.any(key);
    if (!fields.failed() && (table == nullptr || !table->is_object()))
      fields.fail(fields.name(key) + ": expected a JSON object with a figure for each tensor-parallel degree");
    value_or_throw(fields.finish_allowing_unknown_keys());
    for_figures(*table, fields.name(key), "#", [&](const auto& n, const nlohmann::json& figure, const std::string& of) {
      if (is_degree(n[0])) out[static_cast<int>(n[0])] = measured_number(figure, of, 0) * factor;
    });
    return out;
  }
};

inline HetuRow hetu_row(const nlohmann::json& value, const std::string& where, const std::string& key,
                        const HetuProfileOptions& options) {
  const std::string full = key + (options.sequence_parallel ? "_sp" : "");
  const std::string other = key + (options.sequence_parallel ? "" : "_sp");
  require_object(value, where);
  const auto table = value.find(full);
  if (table == value.end())
    throw Failure(ErrorKind::usage, where + ": the key \"" + full + "\" is missing" +
                                        (!value.contains(other) ? "; profile the memory of the model"
                                                                : ", but \"" + other + "\" is there; " +
                                                                      (options.sequence_parallel ? "add" : "drop") +
                                                                      " --no-sequence-parallel"));
  const std::string name = where + ": \"" + full + "\"";
  std::map<std::int64_t, const nlohmann::json*> rows;
  std::string known;
  for_figures(*table, name, "#", [&](const auto& n, const nlohmann::json& row, const std::string&) {
    if (n[0] < 1) return;
    rows[n[0]] = &row;
    if (known.size() < 80) known += (known.empty() ? "" : ", ") + std::to_string(n[0]);
  });
  if (rows.empty())
    throw Failure(ErrorKind::usage, name + ": no sequence length in it; profile the memory of the model");
  const auto wanted = options.memory_over_sequence ? std::prev(rows.end()) : rows.find(options.sequence);
  if (wanted == rows.end())
    throw Failure(ErrorKind::usage, name + ": no sequence length " + std::to_string(options.sequence) + " but " +
                                        known + "; profile it, or choose --memory-mode sequence");
  const double scale = static_cast<double>(options.sequence) / static_cast<double>(wanted->first);
  return {wanted->second, rows.begin()->second, options.memory_over_sequence ? scale : 1,
          name + ": \"" + std::to_string(wanted->first) + "\""};
}

}  // namespace detail

/// The model of a computation and a memory profile; the names open the messages. Errors (usage): what is missing or no
/// positive number, and several kinds of layers.
inline Result<cost::hetu::ModelProfile> hetu_model_from_json(const nlohmann::json& computation,
                                                             const std::string& computation_name,
                                                             const nlohmann::json& memory,
                                                             const std::string& memory_name,
                                                             const HetuProfileOptions& options) try {
  cost::hetu::ModelProfile out;
  const auto layer = detail::hetu_times(computation, computation_name, true);
  const auto ends = detail::hetu_times(computation, computation_name, false);
  out.layer = value_or_throw(cost::hetu::time_line(layer, options.time, options.sequence, true, computation_name));
  out.ends = value_or_throw(cost::hetu::time_line(ends, options.time, options.sequence, false, computation_name));

  const detail::HetuRow row = detail::hetu_row(memory, memory_name, "layertype_0", options);
  constexpr const char* by_degree = "tp_activation_per_bsz_dict";
  out.activation = row.degrees(by_degree, row.scale);
  out.parameters = detail::required_number(options.memory_over_sequence ? *row.least : *row.row, row.name,
                                           "parameter_size", detail::above_zero, 1e12);
  out.checkpoint = row.scale * detail::required_number((*row.row)[by_degree], row.name + ": \"" + by_degree + "\"",
                                                       "checkpoint", 0, 1e12);
  for (const auto& [key, end] : {std::pair{"other_memory_pp_off", &out.whole},
                                 {"other_memory_pp_on_first", &out.first},
                                 {"other_memory_pp_on_last", &out.last}}) {
    const detail::HetuRow of_end = detail::hetu_row(memory, memory_name, key, options);
    *end = {of_end.degrees("model_states", 1), of_end.degrees("activation", of_end.scale)};
  }
  return out;
} catch (const Failure& failure) {
  return error_of(failure);
}

/// The same from two files. Errors (usage): unreadable files, bad JSON, and those of hetu_model_from_json.
inline Result<cost::hetu::ModelProfile> load_hetu_model(const std::filesystem::path& computation,
                                                        const std::filesystem::path& memory,
                                                        const HetuProfileOptions& options) try {
  const auto times = value_or_throw(read_json_file(computation));
  return hetu_model_from_json(times, computation.string(), value_or_throw(read_json_file(memory)), memory.string(),
                              options);
} catch (const Failure& failure) {
  return error_of(failure);
}

}  // namespace galvatron
