// Reads what Hetu-Galvatron's hardware profiler wrote: a folder with
//
//   allreduce_bandwidth_1nodes_8gpus_per_node.json   { "allreduce_size_8_consec_1": 154.2, ... }       GB/s
//   p2p_bandwidth_1nodes_8gpus_per_node.json         { "pp_size_2": 163.7, ... }                       GB/s
//   sp_time_1nodes_8gpus_per_node.json               { "allreduce_size_8_1MB_time": 0.079,
//                                                      "all2all_size_8_1MB_time": 0.112, ... }         ms
//   overlap_coefficient.json                         { "overlap_coe": 1.13 }
//
// or with all in one, hardware_configs.json: { "allreduce": {...}, "p2p": {...}, "sp": {...}, "overlap": {...} };
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
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron {

namespace detail {

/// The numbers at the places of '#' in `pattern` if `key` is of that form: ("a_8_b", "a_#_b") gives {8}.
inline std::optional<std::vector<std::int64_t>> numbers_in(std::string_view key, std::string_view pattern) {
  std::vector<std::int64_t> out;
  for (const char c : pattern) {
    std::size_t read = 1;
    if (c == '#') {
      const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), out.emplace_back());
      if (failure != std::errc{} || key.front() == '-') return std::nullopt;
      read = static_cast<std::size_t>(end - key.data());
    } else if (!key.starts_with(c)) {
      return std::nullopt;
    }
    key.remove_prefix(read);
  }
  if (!key.empty()) return std::nullopt;
  return out;
}

inline bool is_degree(std::int64_t n) { return n >= 1 && n <= std::numeric_limits<int>::max(); }
inline constexpr double above_zero = 1e-12;
inline constexpr double most_measured = 1e12;

/// A value in a profile; its name opens the messages. What cannot be read is thrown as a Failure (usage).
struct HetuValue {
  nlohmann::json value;
  std::string name;

  [[nodiscard]] const nlohmann::json& object() const {
    if (!value.is_object()) refuse(name, ": expected a JSON object, found ", JsonObject::describe(value));
    return value;
  }

  /// The value under a key of an object.
  [[nodiscard]] HetuValue at(const std::string& key) const {
    if (!object().contains(key)) refuse(name, ": the key \"", key, "\" is missing");
    return {value.at(key), name_of_key(key)};
  }
  [[nodiscard]] std::string name_of_key(const std::string& key) const { return text_of(name, ": \"", key, "\""); }

  /// A measured quantity: a number in [least, most_measured].
  [[nodiscard]] double measured(double least) const {
    const double x = value.is_number() ? value.get<double>() : -1;
    if (x >= least && x <= most_measured) return x;
    refuse(name, ": expected a number ", least > 0 ? "above 0" : "of at least 0", " and at most 1e12, found ",
           JsonObject::describe(value), "; measure it again or mend the file");
  }

  /// The number `key` of an object, in [least, most].
  [[nodiscard]] double number(const char* key, double least, double most) const {
    JsonObject fields(value, name);
    const auto out = fields.required<double>(key, least, most);
    value_or_throw(fields.finish_allowing_unknown_keys());
    return out;
  }

  /// Calls `take(numbers, value)` for every key of the form `pattern` of an object.
  template <class F>
  void for_keys(std::string_view pattern, F&& take) const {
    for (const auto& [key, field] : object().items())
      if (const auto numbers = numbers_in(key, pattern))
        take(*numbers, HetuValue{field, name_of_key(one_line(key, 60))});
  }

  /// The same for measured figures: calls `take(degree, second number of the key or 0, figure, name)`.
  template <class F>
  void for_degrees(std::string_view pattern, F&& take) const {
    for_keys(pattern, [&](const auto& n, const HetuValue& field) {
      const double figure = field.measured(above_zero);
      if (!is_degree(n[0])) refuse(field.name, ": ", n[0], " is no number of ranks");
      take(static_cast<int>(n[0]), n.size() > 1 ? n[1] : 0, figure, field.name);
    });
  }
};

inline std::map<int, cost::hetu::MessageTimes> message_tables(const HetuValue& table, std::string_view pattern) {
  std::map<int, std::map<double, double>> measured;
  table.for_degrees(pattern, [&](int group, std::int64_t megabytes, double ms, const std::string& name) {
    if (megabytes < 1 || megabytes > (std::int64_t{1} << 30)) refuse(name, ": not a size in MB");
    measured[group][static_cast<double>(megabytes)] = ms;
  });
  std::map<int, cost::hetu::MessageTimes> out;
  for (auto& [group, times] : measured) out[group] = cost::hetu::message_times(std::move(times));
  return out;
}

/// @param tables  all-reduce, point to point, messages, overlap
inline cost::hetu::Hardware hetu_hardware(const std::array<HetuValue, 4>& tables) {
  cost::hetu::Hardware out;
  tables[0].for_degrees("allreduce_size_#_consec_#",
                        [&](int group, std::int64_t consecutive, double bandwidth, const std::string& name) {
                          if (consecutive > 1) refuse(name, ": consec is 0 or 1");
                          out.bandwidth[{group, consecutive == 1}] = bandwidth;
                        });
  tables[1].for_degrees("pp_size_#", [&](int stages, std::int64_t, double bandwidth, const std::string&) {
    out.between_stages[stages] = bandwidth;
  });
  out.all_reduce = message_tables(tables[2], "allreduce_size_#_#MB_time");
  out.all_to_all = message_tables(tables[2], "all2all_size_#_#MB_time");
  out.overlap = tables[3].number("overlap_coe", 1e-3, 1e3);
  return out;
}

}  // namespace detail

/// A network from the value of hardware_configs.json; `where` opens the messages. Errors (usage): no objects, figures
/// that are not positive numbers, no "overlap_coe". What is missing otherwise is told when a price needs it.
inline Result<cost::hetu::Hardware> hetu_hardware_from_json(const nlohmann::json& value, const std::string& where) try {
  const detail::HetuValue file{value, where};
  return detail::hetu_hardware({file.at("allreduce"), file.at("p2p"), file.at("sp"), file.at("overlap")});
} catch (const Failure& failure) {
  return error_of(failure);
}

/// The profile of `nodes` nodes of `devices / nodes` devices in a folder. Errors (usage): missing or bad files.
inline Result<cost::hetu::Hardware> load_hetu_hardware(const std::filesystem::path& folder, int devices,
                                                       int nodes) try {
  if (nodes < 1 || devices < 1 || devices % nodes != 0)
    return usage_error(
        text_of(devices, " devices are not spread evenly over ", nodes, " nodes; choose numbers that divide"));
  const std::string suffix = text_of("_", nodes, "nodes_", devices / nodes, "gpus_per_node.json");
  const std::array names{folder / ("allreduce_bandwidth" + suffix), folder / ("p2p_bandwidth" + suffix),
                         folder / ("sp_time" + suffix), folder / "overlap_coefficient.json"};
  std::error_code ignored;
  const std::filesystem::path whole = folder / "hardware_configs.json";
  if (!std::filesystem::exists(names[0], ignored) && std::filesystem::exists(whole, ignored))
    return hetu_hardware_from_json(value_or_throw(read_json_file(whole)), whole.string());
  std::array<detail::HetuValue, 4> tables;
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
inline std::vector<cost::hetu::TimePoint> hetu_times(const HetuValue& profile, bool of_layer) {
  std::vector<cost::hetu::TimePoint> out;
  profile.for_keys(
      of_layer ? "layertype_#_bsz#_seq#" : "layertype_other_bsz#_seq#", [&](const auto& n, const HetuValue& field) {
        if (of_layer && n[0] != 0)
          refuse(field.name, ": a model with several kinds of layers; profiles of one kind, layertype_0, are read");
        const double ms = field.measured(of_layer ? above_zero : 0);
        const cost::hetu::TimePoint point{n[n.size() - 2], n.back(), ms};
        constexpr std::int64_t most = std::int64_t{1} << 40;
        if (point.batch < 1 || point.batch > most || point.sequence < 1 || point.sequence > most)
          refuse(field.name, ": not a batch size and a sequence length");
        out.push_back(point);
      });
  return out;
}

/// The entry of a table by sequence length: that of the memory mode, whose activations are to be multiplied by `scale`.
struct HetuRow : HetuValue {
  HetuValue shortest;  // the entry of the shortest sequence, under the same name
  double scale = 1;

  /// A table of MB by degree, times `factor`; other keys are ignored.
  [[nodiscard]] std::map<int, double> degrees(const char* key, double factor) const {
    std::map<int, double> out;
    const auto table = object().find(key);
    if (table == value.end() || !table->is_object())
      refuse(name_of_key(key), ": expected a JSON object with a figure for each tensor-parallel degree");
    at(key).for_keys("#", [&](const auto& n, const HetuValue& figure) {
      if (is_degree(n[0])) out[static_cast<int>(n[0])] = figure.measured(0) * factor;
    });
    return out;
  }
};

inline HetuRow hetu_row(const HetuValue& memory, const std::string& key, const HetuProfileOptions& options) {
  const std::string full = key + (options.sequence_parallel ? "_sp" : "");
  const std::string other = key + (options.sequence_parallel ? "" : "_sp");
  const nlohmann::json& tables = memory.object();
  if (!tables.contains(full))
    refuse(memory.name, ": the key \"", full, "\" is missing",
           !tables.contains(other) ? "; profile the memory of the model"
                                   : text_of(", but \"", other, "\" is there; ",
                                             options.sequence_parallel ? "add" : "drop", " --no-sequence-parallel"));
  const HetuValue by_sequence = memory.at(full);
  std::map<std::int64_t, nlohmann::json> rows;
  std::string known;
  by_sequence.for_keys("#", [&](const auto& n, const HetuValue& row) {
    if (n[0] < 1) return;
    rows[n[0]] = row.value;
    if (known.size() < 80) known += text_of(known.empty() ? "" : ", ", n[0]);
  });
  if (rows.empty()) refuse(by_sequence.name, ": no sequence length in it; profile the memory of the model");
  const auto wanted = options.memory_over_sequence ? std::prev(rows.end()) : rows.find(options.sequence);
  if (wanted == rows.end())
    refuse(by_sequence.name, ": no sequence length ", options.sequence, " but ", known,
           "; profile it, or choose --memory-mode sequence");
  const double scale = static_cast<double>(options.sequence) / static_cast<double>(wanted->first);
  const std::string name = by_sequence.name_of_key(std::to_string(wanted->first));
  return {{wanted->second, name}, {rows.begin()->second, name}, options.memory_over_sequence ? scale : 1};
}

}  // namespace detail

/// The model of two profiles; the names open the messages. Errors (usage): what is missing, no positive number, or of
/// several kinds of layers.
inline Result<cost::hetu::ModelProfile> hetu_model_from_json(const nlohmann::json& computation,
                                                             const std::string& computation_name,
                                                             const nlohmann::json& memory,
                                                             const std::string& memory_name,
                                                             const HetuProfileOptions& options) try {
  const detail::HetuValue times{computation, computation_name};
  const detail::HetuValue megabytes{memory, memory_name};
  const auto line = [&](bool of_layer) {
    return value_or_throw(cost::hetu::time_line(detail::hetu_times(times, of_layer), options.time, options.sequence,
                                                of_layer, computation_name));
  };
  cost::hetu::ModelProfile out;
  out.layer = line(true);
  out.ends = line(false);
  const detail::HetuRow row = detail::hetu_row(megabytes, "layertype_0", options);
  constexpr const char* by_degree = "tp_activation_per_bsz_dict";
  out.activation = row.degrees(by_degree, row.scale);
  out.parameters = (options.memory_over_sequence ? row.shortest : row)
                       .number("parameter_size", detail::above_zero, detail::most_measured);
  out.checkpoint = row.scale * row.at(by_degree).number("checkpoint", 0, detail::most_measured);
  for (const auto& [key, end] : {std::pair{"other_memory_pp_off", &out.whole},
                                 {"other_memory_pp_on_first", &out.first},
                                 {"other_memory_pp_on_last", &out.last}}) {
    const detail::HetuRow of_end = detail::hetu_row(megabytes, key, options);
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
