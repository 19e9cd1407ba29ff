// Reads what Hetu-Galvatron's hardware profiler wrote: a folder with
//
//   allreduce_bandwidth_1nodes_8gpus_per_node.json   { "allreduce_size_8_consec_1": 154.2, ... }       GB/s
//   p2p_bandwidth_1nodes_8gpus_per_node.json         { "pp_size_2": 163.7, ... }                       GB/s
//   sp_time_1nodes_8gpus_per_node.json               { "allreduce_size_8_1MB_time": 0.079,
//                                                      "all2all_size_8_1MB_time": 0.112, ... }         ms
//   overlap_coefficient.json                         { "overlap_coe": 1.13 }
//
// or with the four of them in one, hardware_configs.json: { "allreduce": {...}, "p2p": {...}, "sp": {...}, "overlap":
// {...} }.
//
// and what its model profiler wrote: a file of computation times,
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

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/compat/hetu/files/text.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron {

namespace detail {

/// One of the four files; its name opens the messages.
struct HetuTable {
  nlohmann::json value;
  std::string name;

  /// Calls `take(degree, second, figure, name)` for the figures whose keys are of the form `pattern`: the first number
  /// is a degree, the second one is 0 where only one is given.
  template <class F>
  void for_degrees(std::string_view pattern, F&& take) const {
    for_figures(value, name, pattern, [&](const auto& n, const nlohmann::json& field, const std::string& key) {
      const double figure = measured_number(field, key, above_zero);
      if (!is_degree(n[0]))
        throw Failure(ErrorKind::usage, key + ": " + std::to_string(n[0]) + " is no number of ranks");
      take(static_cast<int>(n[0]), n.size() > 1 ? n[1] : 0, figure, key);
    });
  }
};

inline std::map<int, cost::hetu::MessageTimes> message_tables(const HetuTable& table, std::string_view pattern) {
  std::map<int, std::map<double, double>> measured;
  table.for_degrees(pattern, [&](int group, std::int64_t megabytes, double ms, const std::string& name) {
    if (megabytes < 1 || megabytes > (std::int64_t{1} << 30))
      throw Failure(ErrorKind::usage, name + ": not a size in MB");
    measured[group][static_cast<double>(megabytes)] = ms;
  });
  std::map<int, cost::hetu::MessageTimes> out;
  for (auto& [group, times] : measured) out[group] = cost::hetu::message_times(std::move(times));
  return out;
}

/// @param tables  all-reduce, point to point, messages, overlap
inline cost::hetu::Hardware hetu_hardware(const std::array<HetuTable, 4>& tables) {
  cost::hetu::Hardware out;
  tables[0].for_degrees("allreduce_size_#_consec_#",
                        [&](int group, std::int64_t consecutive, double bandwidth, const std::string& name) {
                          if (consecutive > 1) throw Failure(ErrorKind::usage, name + ": consec is 0 or 1");
                          out.bandwidth[{group, consecutive == 1}] = bandwidth;
                        });
  tables[1].for_degrees("pp_size_#", [&](int stages, std::int64_t, double bandwidth, const std::string&) {
    out.between_stages[stages] = bandwidth;
  });
  out.all_reduce = message_tables(tables[2], "allreduce_size_#_#MB_time");
  out.all_to_all = message_tables(tables[2], "all2all_size_#_#MB_time");
  out.overlap = required_number(tables[3].value, tables[3].name, "overlap_coe", 1e-3, 1e3);
  return out;
}

}  // namespace detail

/// A network from the value of hardware_configs.json; `where` opens the messages. Errors (usage): no objects, figures
/// that are not positive numbers, no "overlap_coe". What is missing otherwise is told when a price needs it.
inline Result<cost::hetu::Hardware> hetu_hardware_from_json(const nlohmann::json& value, const std::string& where) try {
  JsonObject fields(value, where);
  std::array<detail::HetuTable, 4> tables;
  constexpr std::array keys{"allreduce", "p2p", "sp", "overlap"};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const nlohmann::json* found = fields.any(keys[i]);
    if (found == nullptr)
      fields.fail(where + ": the key \"" + keys[i] + "\" is missing");
    else
      tables[i] = {*found, fields.name(keys[i])};
  }
  value_or_throw(fields.finish_allowing_unknown_keys());
  return detail::hetu_hardware(tables);
} catch (const Failure& failure) {
  return error_of(failure);
}

/// The profile of `nodes` nodes of `devices / nodes` devices in a folder. Errors (usage): files that are missing or
/// bad.
inline Result<cost::hetu::Hardware> load_hetu_hardware(const std::filesystem::path& folder, int devices,
                                                       int nodes) try {
  if (nodes < 1 || devices < 1 || devices % nodes != 0)
    return usage_error(std::to_string(devices) + " devices are not spread evenly over " + std::to_string(nodes) +
                       " nodes; choose numbers that divide");
  const std::string suffix =
      "_" + std::to_string(nodes) + "nodes_" + std::to_string(devices / nodes) + "gpus_per_node.json";
  const std::array names{folder / ("allreduce_bandwidth" + suffix), folder / ("p2p_bandwidth" + suffix),
                         folder / ("sp_time" + suffix), folder / "overlap_coefficient.json"};
  std::error_code ignored;
  const std::filesystem::path whole = folder / "hardware_configs.json";
  if (!std::filesystem::exists(names[0], ignored) && std::filesystem::exists(whole, ignored))
    return hetu_hardware_from_json(value_or_throw(read_json_file(whole)), whole.string());
  std::array<detail::HetuTable, 4> tables;
  for (std::size_t i = 0; i < names.size(); ++i)
    tables[i] = {value_or_throw(read_json_file(names[i])), names[i].string()};
  return detail::hetu_hardware(tables);
} catch (const Failure& failure) {
  return error_of(failure);
}

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
