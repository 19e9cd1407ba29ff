// Cluster files: JSON that a person can write and `galvatron profile` does write. Version 1:
//
//   { "format": "galvatron-cluster", "version": 1, "name": "lab", "devices": 16, "devices_per_node": 8,
//     "device": { "name": "a100-80g", "memory": "80GiB", "memory_bandwidth": 2.039e12,
//                 "rates": [ { "precision": "bf16", "peak_flops": 312e12 } ] },
//     "inside_node":  { "latency": 3.2e-6, "bandwidth": 231e9 },
//     "across_nodes": { "latency": 4.7e-6, "bandwidth": 24e9 } }
//
// Times are seconds, rates bytes/s or FLOP/s, sizes `80GiB` or a number of bytes. Everything else is optional:
// docs/clusters.md has all keys. With "device": "a100-80g" or "device": { "like": "a100-80g", ... } what the file does
// not give is that of the preset.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron {

inline constexpr const char* cluster_format = "galvatron-cluster";
inline constexpr int cluster_format_version = 1;
inline constexpr int most_devices = 1 << 20;  ///< of a cluster

namespace detail {

using nlohmann::json;

inline Bytes bytes_from_json(JsonObject& fields, std::string_view key, Bytes otherwise, bool required) {
  const json* value = fields.any(key);
  if (value == nullptr && !required) return otherwise;
  if (value != nullptr && value->is_string()) {
    auto bytes = parse_bytes(value->get_ref<const std::string&>());
    if (bytes) return *bytes;
    fields.fail(fields.name(key) + ": " + bytes.error().message);
    return otherwise;
  }
  return {fields.required<std::int64_t>(key, 0)};
}

/// The enumerator among `values` whose word is the field's text.
template <class E, std::size_t N, class Word>
E enum_from_json(JsonObject& fields, std::string_view key, const std::array<E, N>& values, Word word) {
  const auto text = fields.required<std::string>(key);
  std::string known;
  for (const E value : values) {
    if (text == word(value)) return value;
    known += (known.empty() ? "" : ", ") + std::string(word(value));
  }
  fields.fail(fields.name(key) + ": unknown value \"" + one_line(text, 40) + "\"; known are " + known);
  return values.front();
}

/// One of the first N precisions.
template <int N>
Precision precision_from_json(JsonObject& fields) {
  constexpr auto values = [] {
    std::array<Precision, N> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Precision>(i);
    return out;
  }();
  return enum_from_json(fields, "precision", values, [](Precision precision) { return name_of(precision); });
}

template <class T>
std::vector<T> numbers_from_json(JsonObject& fields, std::string_view key) {
  std::vector<T> numbers;
  for (const json& value : fields.required_array(key)) {
    if (std::is_integral_v<T> ? !value.is_number_integer() : !value.is_number()) {
      fields.fail(fields.name(key) + ": expected " + (std::is_integral_v<T> ? "integers" : "numbers") + ", found " +
                  JsonObject::describe(value));
      return {};
    }
    if (std::is_integral_v<T> && value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fields.fail(fields.name(key) + ": the number " + value.dump() + " is too large");
      return {};
    }
    numbers.push_back(value.get<T>());
  }
  return numbers;
}

/// Pairs [[integer, number], ...].
inline std::vector<std::pair<std::int64_t, double>> points_from_json(JsonObject& fields, std::string_view key) {
  std::vector<std::pair<std::int64_t, double>> points;
  for (const json& value : fields.required_array(key)) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number_integer() || !value[1].is_number() ||
        value[0].get<double>() < 1 || value[0].get<double>() > 9e18) {
      fields.fail(fields.name(key) + ": expected pairs [positive integer, number], found " +
                  (value.is_array() ? one_line(value.dump(), 60) : JsonObject::describe(value)));
      return {};
    }
    points.emplace_back(value[0].get<std::int64_t>(), value[1].get<double>());
  }
  return points;
}

template <int D>
LogGrid<D> grid_or_fail(JsonObject& fields, typename LogGrid<D>::Axes axes, std::vector<double> seconds) {
  if (fields.failed()) return {};
  if (auto problem = LogGrid<D>::problem(axes, seconds); !problem.empty()) {
    fields.fail(fields.where() + ": " + problem);
    return {};
  }
  return {std::move(axes), std::move(seconds)};
}

inline LogGrid<3> grid_from_json(JsonObject& fields, const char* x, const char* y, const char* z) {
  LogGrid<3>::Axes axes{numbers_from_json<std::int64_t>(fields, x), numbers_from_json<std::int64_t>(fields, y),
                        numbers_from_json<std::int64_t>(fields, z)};
  auto seconds = numbers_from_json<double>(fields, "seconds");
  return grid_or_fail<3>(fields, std::move(axes), std::move(seconds));
}

inline LogGrid<2> grid_from_json(JsonObject& fields, const char* x, const char* y) {
  LogGrid<2>::Axes axes{numbers_from_json<std::int64_t>(fields, x), numbers_from_json<std::int64_t>(fields, y)};
  auto seconds = numbers_from_json<double>(fields, "seconds");
  return grid_or_fail<2>(fields, std::move(axes), std::move(seconds));
}

inline LogGrid<1> curve_from_json(JsonObject& fields) {
  LogGrid<1>::Axes axes;
  std::vector<double> seconds;
  for (const auto& [size, value] : points_from_json(fields, "points")) {
    axes[0].push_back(size);
    seconds.push_back(value);
  }
  return grid_or_fail<1>(fields, std::move(axes), std::move(seconds));
}

/// Reads every object of an optional array; the first error goes to `fields`.
template <class T, class Read>
void list_from_json(JsonObject& fields, std::string_view key, std::vector<T>& list, Read read) {
  if (!fields.contains(key)) return;
  const json& values = fields.required_array(key);
  for (std::size_t i = 0; i < values.size() && !fields.failed(); ++i) {
    JsonObject item(values[i], fields.name(key) + "[" + std::to_string(i) + "]");
    list.push_back(read(item));
    if (auto done = item.finish(); !done) fields.fail(done.error().message);
  }
}

/// Two entries for one thing contradict each other.
template <class T, class Key>
void refuse_repeats(JsonObject& fields, std::string_view key, const std::vector<T>& list, Key key_of) {
  for (std::size_t i = 0; i < list.size() && !fields.failed(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (key_of(list[i]) == key_of(list[j]))
        fields.fail(fields.name(key) + ": entries " + std::to_string(j) + " and " + std::to_string(i) +
                    " are for the same thing; keep one of them");
}

inline Link link_from_json(JsonObject fields, JsonObject& parent) {
  constexpr double most = 1e18;
  Link link;
  link.latency = {fields.required<double>("latency", 0, 10)};
  link.bandwidth = fields.required<double>("bandwidth", 1, most);
  link.all_reduce_bandwidth = fields.optional<double>("all_reduce_bandwidth", link.bandwidth, 1, most);
  link.send_bandwidth = fields.optional<double>("send_bandwidth", link.bandwidth, 1, most);
  if (auto done = fields.finish(); !done) parent.fail(done.error().message);
  return link;
}

/// @param device  what keys that are absent have; without a name nothing is known, and some keys are required
inline DeviceSpec device_from_json(JsonObject fields, JsonObject& parent, DeviceSpec device) {
  const bool known = !device.name.empty();
  fields.any("like");
  device.name = known ? fields.optional<std::string>("name", device.name) : fields.required<std::string>("name");
  device.memory = bytes_from_json(fields, "memory", device.memory, !known);
  if (!fields.failed() && device.memory.count < 1) fields.fail(fields.name("memory") + ": a device needs some memory");
  device.library_workspace = bytes_from_json(fields, "library_workspace", device.library_workspace, false);
  if (!fields.failed() && device.library_workspace >= device.memory)
    fields.fail(fields.name("library_workspace") + ": it is not smaller than the memory");
  device.memory_bandwidth = known ? fields.optional<double>("memory_bandwidth", device.memory_bandwidth, 1, 1e18)
                                  : fields.required<double>("memory_bandwidth", 1, 1e18);
  device.memory_share = fields.optional<double>("memory_share", device.memory_share, 0.01, 1);
  device.launch = {fields.optional<double>("launch", known ? device.launch.value : 3e-6, 0, 1)};
  device.gemm_launch = {fields.optional<double>("gemm_launch", device.gemm_launch.value, 0, 1)};
  device.gemm_start = fields.optional<double>("gemm_start", device.gemm_start, 0, 1e6);
  device.multiprocessors = fields.optional<int>("multiprocessors", device.multiprocessors, 0, 1 << 20);
  if (fields.contains("rates")) device.rates.clear();
  if (fields.contains("attention")) device.attention.clear();
  list_from_json(fields, "rates", device.rates, [](JsonObject& item) {
    PrecisionRate rate;
    rate.precision = precision_from_json<precisions>(item);
    rate.format = item.optional<std::string>("format", name_of(rate.precision));
    rate.peak_flops = item.required<double>("peak_flops", 1, 1e21);
    rate.gemm_share = item.optional<double>("gemm_share", rate.gemm_share, 0.001, 1);
    rate.sustained_share = item.optional<double>("sustained_share", rate.sustained_share, 0.001, 1);
    return rate;
  });
  refuse_repeats(fields, "rates", device.rates, [](const PrecisionRate& r) { return r.precision; });
  if (!fields.failed() && device.rates.empty())
    fields.fail(fields.name("rates") + ": at least one precision is needed, e.g. {\"precision\": \"bf16\", ...}");
  list_from_json(fields, "attention", device.attention, [](JsonObject& item) {
    AttentionCurve curve;
    curve.kind = enum_from_json(item, "pass", op::attentions, op::pass_of);
    curve.head_dim = item.required<int>("head_dim", 1, 4096);
    curve.shares = points_from_json(item, "shares");
    if (!item.failed() && curve.shares.empty()) item.fail(item.name("shares") + ": at least one pair is needed");
    for (std::size_t i = 0; i < curve.shares.size(); ++i) {
      if (!(curve.shares[i].second > 0 && curve.shares[i].second <= 1))
        item.fail(item.name("shares") + ": a share lies above 0 and at most 1");
      if (i > 0 && curve.shares[i].first <= curve.shares[i - 1].first)
        item.fail(item.name("shares") + ": tokens must rise");
    }
    return curve;
  });
  refuse_repeats(fields, "attention", device.attention,
                 [](const AttentionCurve& c) { return std::pair(c.kind, c.head_dim); });
  if (auto done = fields.finish(); !done) parent.fail(done.error().message);
  return device;
}

/// A preset stands for its device, and where the file does not say otherwise for its links with their tables and the
/// overlap slowdown.
/// @param place  of the name in the file, for messages
inline void preset_from_json(JsonObject& fields, const json& name, const std::string& place, Cluster& cluster) {
  if (fields.failed()) return;
  const auto preset = std::find_if(device_presets.begin(), device_presets.end(),
                                   [&](const DevicePreset& p) { return name == std::string(p.name); });
  if (preset == device_presets.end()) {
    std::vector<std::string> names;
    for (const DevicePreset& p : device_presets) names.emplace_back(p.name);
    fields.fail(place + ": unknown device, " + JsonObject::describe(name) + "; known are " + join(names));
    return;
  }
  Cluster like = preset_cluster(*preset, cluster.devices);
  cluster.device = std::move(like.device);
  cluster.across_nodes = like.across_nodes;
  cluster.overlap_slowdown = like.overlap_slowdown;
  if (fields.contains("inside_node")) return;  // tables would win over the link that the file gives
  cluster.inside_node = like.inside_node;
  if (!fields.contains("messages")) cluster.messages = std::move(like.messages);
}

}  // namespace detail

/// The cluster that a JSON value describes; `source_name` opens every message. Errors (usage): another format or
/// version, missing and unknown keys, values out of range, tables whose sizes disagree.
inline Result<Cluster> cluster_from_json(const nlohmann::json& value, const std::string& source_name) {
  JsonObject fields(value, source_name);
  if (value.is_object()) {
    if (const auto format = fields.required<std::string>("format"); !fields.failed() && format != cluster_format)
      fields.fail(source_name + ": this is a \"" + detail::one_line(format, 40) +
                  "\" file; a cluster file has \"format\": \"" + cluster_format + "\"");
    if (const int version = fields.required<int>("version"); !fields.failed() && version != cluster_format_version)
      fields.fail(source_name + ": cluster format version " + std::to_string(version) +
                  " is not known; this program reads version " + std::to_string(cluster_format_version) +
                  ", write the file again with galvatron profile");
  }
  if (fields.failed()) return tl::unexpected<Error>(fields.finish_allowing_unknown_keys().error());

  Cluster cluster;
  cluster.name = fields.required<std::string>("name");
  cluster.devices = fields.required<int>("devices", 1, most_devices);
  cluster.devices_per_node = fields.optional<int>("devices_per_node", cluster.devices, 1, most_devices);
  if (!fields.failed() && cluster.devices_per_node > cluster.devices)
    fields.fail(fields.name("devices_per_node") + ": " + std::to_string(cluster.devices_per_node) +
                " is more than the " + std::to_string(cluster.devices) + " devices");
  cluster.cores = fields.optional<int>("cores", 0, 0, most_devices);
  cluster.threads_per_rank = fields.optional<int>("threads_per_rank", 1, 1, most_devices);
  const nlohmann::json* device = fields.any("device");
  const bool named = device != nullptr && device->is_string();
  const bool like = device != nullptr && device->is_object() && device->contains("like");
  if (named) detail::preset_from_json(fields, *device, fields.name("device"), cluster);
  if (like) detail::preset_from_json(fields, device->at("like"), fields.name("device") + ": \"like\"", cluster);
  if (device == nullptr) fields.fail(source_name + ": the key \"device\" is missing");
  if (!named && !fields.failed())
    cluster.device = detail::device_from_json(fields.required_object("device"), fields, std::move(cluster.device));
  if (fields.contains("inside_node"))
    cluster.inside_node = detail::link_from_json(fields.required_object("inside_node"), fields);
  else if (cluster.devices_per_node > 1 && !named && !like)
    fields.fail(source_name + ": the key \"inside_node\" is missing");
  else
    fields.any("inside_node");
  if (fields.contains("across_nodes"))
    cluster.across_nodes = detail::link_from_json(fields.required_object("across_nodes"), fields);
  else if (!fields.failed() && cluster.nodes() > 1 && !named && !like)
    fields.fail(source_name + ": the key \"across_nodes\" is missing");
  else
    fields.any("across_nodes");
  cluster.overlap_slowdown = fields.optional<double>("overlap_slowdown", cluster.overlap_slowdown, 1.0, 100.0);

  detail::list_from_json(fields, "gemm", cluster.gemm, [](JsonObject& item) {
    GemmTable table;
    table.kind = detail::enum_from_json(item, "layout", op::gemms, op::layout_of);
    table.writes = item.optional<bool>("writes", false);
    if (table.writes && table.kind != op::Kind::gemm_tn)
      item.fail(item.name("writes") + ": only weight gradients, layout tn, are written or added to");
    table.precision = detail::precision_from_json<precisions>(item);
    table.concurrency = item.optional<int>("concurrency", 0, 0, most_devices);
    table.seconds = detail::grid_from_json(item, "m", "n", "k");
    return table;
  });
  detail::list_from_json(fields, "attention", cluster.attention, [](JsonObject& item) {
    AttentionTable table;
    table.kind = detail::enum_from_json(item, "pass", op::attentions, op::pass_of);
    table.causal = item.optional<bool>("causal", true);
    table.precision = detail::precision_from_json<2>(item);
    table.concurrency = item.optional<int>("concurrency", 0, 0, most_devices);
    table.seconds = detail::grid_from_json(item, "tokens", "head_dim", "heads");
    return table;
  });
  detail::list_from_json(fields, "memory_bound", cluster.memory_bound, [](JsonObject& item) {
    MemoryTable table;
    table.kind = detail::enum_from_json(item, "kind", op::memory_bound, op::name_of);
    table.precision = detail::precision_from_json<2>(item);
    table.concurrency = item.optional<int>("concurrency", 0, 0, most_devices);
    table.seconds = detail::grid_from_json(item, "rows", "columns");
    return table;
  });
  detail::list_from_json(fields, "messages", cluster.messages, [](JsonObject& item) {
    MessageTable table;
    table.kind = detail::enum_from_json(item, "kind", op::communications, op::name_of);
    table.group = item.required<int>("group", 2, most_devices);
    table.strided = item.optional<bool>("strided", false);
    table.concurrency = item.optional<int>("concurrency", 0, 0, most_devices);
    table.seconds = detail::curve_from_json(item);
    return table;
  });
  detail::refuse_repeats(fields, "gemm", cluster.gemm, [](const GemmTable& t) {
    const auto& axes = t.seconds.axes();
    const auto weight = static_cast<std::size_t>(t.first_of_weight());
    return std::tuple(t.kind, t.writes, t.precision, t.concurrency,
                      t.is_of_one_weight() ? std::pair(axes[weight].front(), axes[weight + 1].front())
                                           : std::pair<std::int64_t, std::int64_t>());
  });
  detail::refuse_repeats(fields, "attention", cluster.attention, [](const AttentionTable& t) {
    return std::tuple(t.kind, t.causal, t.precision, t.concurrency);
  });
  detail::refuse_repeats(fields, "memory_bound", cluster.memory_bound,
                         [](const MemoryTable& t) { return std::tuple(t.kind, t.precision, t.concurrency); });
  detail::refuse_repeats(fields, "messages", cluster.messages,
                         [](const MessageTable& t) { return std::tuple(t.kind, t.group, t.strided, t.concurrency); });
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(done.error());
  return cluster;
}

/// Reads a cluster file. Errors (usage): unreadable, malformed, and those of cluster_from_json.
inline Result<Cluster> read_cluster(const std::filesystem::path& path) {
  auto value = read_json_file(path);
  if (!value) return tl::unexpected<Error>(std::move(value.error()));
  return cluster_from_json(*value, path.string());
}

/// A preset by name, or else the cluster file at that path. Errors (usage): neither exists, or the file is bad.
inline Result<Cluster> load_cluster(const std::string& name_or_path) {
  auto preset = preset_cluster(name_or_path);
  if (!preset) return tl::unexpected<Error>(std::move(preset.error()));
  if (preset->has_value()) return std::move(**preset);
  std::error_code ignored;
  if (!std::filesystem::exists(name_or_path, ignored))
    return usage_error("unknown cluster \"" + detail::one_line(name_or_path, 120) +
                       "\": no preset and no file of this name" +
                       detail::cluster_advice(name_or_path, "; presets are " + detail::join(cluster_names()) +
                                                                " (N is a number), `galvatron profile` writes a file "
                                                                "for this machine"));
  return read_cluster(name_or_path);
}

}  // namespace galvatron
