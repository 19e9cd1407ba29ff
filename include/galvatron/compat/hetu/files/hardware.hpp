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

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/compat/hetu/files/text.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron {

namespace detail {

/// A group size or degree that fits int.
inline Result<int> hetu_size(std::int64_t n, const std::string& name) {
  if (n >= 1 && n <= std::numeric_limits<int>::max()) return static_cast<int>(n);
  return usage_error(name + ": " + std::to_string(n) + " is no number of ranks");
}

/// Calls `take(numbers, value)` for every key of the form `pattern`. Errors (usage): `value` is not an object, a figure
/// is not a number above 0.
template <class F>
Result<void> for_figures(const nlohmann::json& value, const std::string& where, std::string_view pattern, F&& take) {
  if (!value.is_object()) return usage_error(where + ": expected a JSON object, found " + JsonObject::describe(value));
  for (const auto& [key, field] : value.items()) {
    const auto numbers = numbers_in(key, pattern);
    if (!numbers) continue;
    const std::string name = where + ": \"" + one_line(key, 60) + "\"";
    const auto figure = measured_number(field, name, above_zero);
    if (!figure) return tl::unexpected<Error>(figure.error());
    if (Result<void> taken = take(*numbers, *figure, name); !taken) return taken;
  }
  return {};
}

inline Result<std::map<int, cost::hetu::MessageTimes>> message_tables(const nlohmann::json& value,
                                                                      const std::string& where,
                                                                      std::string_view pattern) {
  std::map<int, std::map<double, double>> measured;
  auto read =
      for_figures(value, where, pattern, [&](const auto& n, double ms, const std::string& name) -> Result<void> {
        const auto group = hetu_size(n[0], name);
        if (!group) return tl::unexpected<Error>(group.error());
        if (n[1] < 1 || n[1] > (std::int64_t{1} << 30)) return usage_error(name + ": not a size in MB");
        measured[*group][static_cast<double>(n[1])] = ms;
        return {};
      });
  if (!read) return tl::unexpected<Error>(std::move(read.error()));
  std::map<int, cost::hetu::MessageTimes> out;
  for (auto& [group, times] : measured) out[group] = cost::hetu::message_times(std::move(times));
  return out;
}

}  // namespace detail

/// A network from the four JSON values; `..._name` opens the messages. Errors (usage): no objects, figures that are not
/// positive numbers, no "overlap_coe". What is missing otherwise is told when a price needs it.
inline Result<cost::hetu::Hardware> hetu_hardware_from_json(
    const nlohmann::json& allreduce, const std::string& allreduce_name, const nlohmann::json& p2p,
    const std::string& p2p_name, const nlohmann::json& messages, const std::string& messages_name,
    const nlohmann::json& overlap, const std::string& overlap_name) {
  cost::hetu::Hardware out;
  auto read = detail::for_figures(allreduce, allreduce_name, "allreduce_size_#_consec_#",
                                  [&](const auto& n, double bandwidth, const std::string& name) -> Result<void> {
                                    const auto group = detail::hetu_size(n[0], name);
                                    if (!group) return tl::unexpected<Error>(group.error());
                                    if (n[1] > 1) return usage_error(name + ": consec is 0 or 1");
                                    out.bandwidth[{*group, n[1] == 1}] = bandwidth;
                                    return {};
                                  });
  if (!read) return tl::unexpected<Error>(std::move(read.error()));
  read = detail::for_figures(p2p, p2p_name, "pp_size_#",
                             [&](const auto& n, double bandwidth, const std::string& name) -> Result<void> {
                               const auto stages = detail::hetu_size(n[0], name);
                               if (!stages) return tl::unexpected<Error>(stages.error());
                               out.between_stages[*stages] = bandwidth;
                               return {};
                             });
  if (!read) return tl::unexpected<Error>(std::move(read.error()));
  auto reduce = detail::message_tables(messages, messages_name, "allreduce_size_#_#MB_time");
  if (!reduce) return tl::unexpected<Error>(std::move(reduce.error()));
  auto exchange = detail::message_tables(messages, messages_name, "all2all_size_#_#MB_time");
  if (!exchange) return tl::unexpected<Error>(std::move(exchange.error()));
  out.all_reduce = std::move(*reduce);
  out.all_to_all = std::move(*exchange);
  JsonObject fields(overlap, overlap_name);
  out.overlap = fields.required<double>("overlap_coe", 1e-3, 1e3);
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return out;
}

/// The same from hardware_configs.json.
inline Result<cost::hetu::Hardware> hetu_hardware_from_json(const nlohmann::json& value, const std::string& where) {
  JsonObject fields(value, where);
  const auto part = [&](const char* key) -> const nlohmann::json& {
    static const nlohmann::json nothing = nlohmann::json::object();
    const nlohmann::json* found = fields.any(key);
    if (found == nullptr) fields.fail(where + ": the key \"" + key + "\" is missing");
    return found == nullptr ? nothing : *found;
  };
  const nlohmann::json& allreduce = part("allreduce");
  const nlohmann::json& p2p = part("p2p");
  const nlohmann::json& messages = part("sp");
  const nlohmann::json& overlap = part("overlap");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return hetu_hardware_from_json(allreduce, fields.name("allreduce"), p2p, fields.name("p2p"), messages,
                                 fields.name("sp"), overlap, fields.name("overlap"));
}

/// The profile of `nodes` nodes of `devices / nodes` devices in a folder. Errors (usage): files that are missing or
/// bad.
inline Result<cost::hetu::Hardware> load_hetu_hardware(const std::filesystem::path& folder, int devices, int nodes) {
  if (nodes < 1 || devices < 1 || devices % nodes != 0)
    return usage_error(std::to_string(devices) + " devices are not spread evenly over " + std::to_string(nodes) +
                       " nodes; choose numbers that divide");
  const std::string suffix =
      "_" + std::to_string(nodes) + "nodes_" + std::to_string(devices / nodes) + "gpus_per_node.json";
  const std::filesystem::path names[] = {folder / ("allreduce_bandwidth" + suffix), folder / ("p2p_bandwidth" + suffix),
                                         folder / ("sp_time" + suffix), folder / "overlap_coefficient.json"};
  std::error_code ignored;
  const std::filesystem::path whole = folder / "hardware_configs.json";
  if (!std::filesystem::exists(names[0], ignored) && std::filesystem::exists(whole, ignored)) {
    const auto value = read_json_file(whole);
    if (!value) return tl::unexpected<Error>(value.error());
    return hetu_hardware_from_json(*value, whole.string());
  }
  nlohmann::json values[4];
  for (int i = 0; i < 4; ++i) {
    auto value = read_json_file(names[i]);
    if (!value) return tl::unexpected<Error>(std::move(value.error()));
    values[i] = std::move(*value);
  }
  return hetu_hardware_from_json(values[0], names[0].string(), values[1], names[1].string(), values[2],
                                 names[2].string(), values[3], names[3].string());
}

}  // namespace galvatron
