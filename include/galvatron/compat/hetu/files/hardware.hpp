// Reads what Hetu-Galvatron's hardware profiler wrote: a folder with
//
//   allreduce_bandwidth_1nodes_8gpus_per_node.json   { "allreduce_size_8_consec_1": 154.2, ... }       GB/s
//   p2p_bandwidth_1nodes_8gpus_per_node.json         { "pp_size_2": 163.7, ... }                       GB/s
//   sp_time_1nodes_8gpus_per_node.json               { "allreduce_size_8_1MB_time": 0.079,
//                                                      "all2all_size_8_1MB_time": 0.112, ... }         ms
//   overlap_coefficient.json                         { "overlap_coe": 1.13 }
//
// or with the four of them in one, hardware_configs.json: { "allreduce": {...}, "p2p": {...}, "sp": {...}, "overlap":
// {...} }. Keys that are not of these forms are ignored.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

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
  /// is a degree, the second one is 0 where there is none.
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

}  // namespace galvatron
