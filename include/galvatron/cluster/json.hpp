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
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron {

inline constexpr const char* cluster_format = "galvatron-cluster";
inline constexpr int cluster_format_version = 1;

namespace detail {

using nlohmann::json;

/// A size: a number, or a text that parse_bytes reads back exactly.
inline void bytes_field(JsonObject& fields, std::string_view key, Bytes& bytes, bool required) {
  const json* value = fields.any(key);
  if (value != nullptr && value->is_string()) {
    if (auto parsed = parse_bytes(value->get_ref<const std::string&>()))
      bytes = *parsed;
    else
      fields.fail(fields.name(key) + ": " + parsed.error().message);
  } else if (value != nullptr || required) {
    fields.field(key, bytes.count, 0);
  }
}
inline void bytes_field(JsonWriter<json>& fields, const char* key, Bytes bytes, bool) {
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  if (bytes.count != 0 && bytes.count % gib == 0) return fields.field(key, std::to_string(bytes.count / gib) + "GiB");
  if (bytes.count != 0 && bytes.count % mib == 0) return fields.field(key, std::to_string(bytes.count / mib) + "MiB");
  fields.field(key, bytes.count);
}

/// One of the first N precisions.
template <std::size_t N, class Fields, class P>
void precision_field(Fields& fields, P& precision) {
  fields.word("precision", precision, std::span(precisions).first(N), [](Precision p) { return name_of(p); });
}

/// Pairs [[integer, number], ...].
using Points = std::vector<std::pair<std::int64_t, double>>;
inline void points_field(JsonObject& fields, std::string_view key, Points& points) {
  for (const json& value : fields.required_array(key)) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number_integer() || !value[1].is_number() ||
        value[0].get<double>() < 1 || value[0].get<double>() > 9e18) {
      fields.fail(fields.name(key) + ": expected pairs [positive integer, number], found " +
                  (value.is_array() ? one_line(value.dump(), 60) : JsonObject::describe(value)));
      points.clear();
      return;
    }
    points.emplace_back(value[0].get<std::int64_t>(), value[1].get<double>());
  }
}
inline void points_field(JsonWriter<json>& fields, const char* key, const Points& points) {
  json out = json::array();
  for (const auto& [size, value] : points) out.push_back({size, value});
  fields.field(key, out);
}

template <int D>
void make_grid(JsonObject& fields, LogGrid<D>& grid, typename LogGrid<D>::Axes axes, std::vector<double> seconds) {
  if (fields.failed()) return;
  if (auto problem = LogGrid<D>::problem(axes, seconds); !problem.empty())
    return fields.fail(fields.where() + ": " + problem);
  grid = {std::move(axes), std::move(seconds)};
}

/// A table whose axes have these names.
template <int D>
void grid_field(JsonObject& fields, LogGrid<D>& grid, const std::array<const char*, D>& names) {
  typename LogGrid<D>::Axes axes;
  for (std::size_t d = 0; d < D; ++d) axes[d] = fields.numbers<std::int64_t>(names[d]);
  make_grid(fields, grid, std::move(axes), fields.numbers<double>("seconds"));
}
template <int D>
void grid_field(JsonWriter<json>& fields, const LogGrid<D>& grid, const std::array<const char*, D>& names) {
  for (std::size_t d = 0; d < D; ++d) fields.field(names[d], grid.axes()[d]);
  fields.field("seconds", grid.seconds());
}

/// A table of one axis, as pairs.
inline void curve_field(JsonObject& fields, LogGrid<1>& grid) {
  Points points;
  points_field(fields, "points", points);
  LogGrid<1>::Axes axes;
  std::vector<double> seconds;
  for (const auto& [size, value] : points) {
    axes[0].push_back(size);
    seconds.push_back(value);
  }
  make_grid(fields, grid, std::move(axes), std::move(seconds));
}
inline void curve_field(JsonWriter<json>& fields, const LogGrid<1>& grid) {
  Points points;
  for (std::size_t i = 0; i < grid.seconds().size(); ++i) points.emplace_back(grid.axes()[0][i], grid.seconds()[i]);
  points_field(fields, "points", points);
}

// The fields of a file, for JsonObject, which reads them into a value, and for JsonWriter, which writes those of one.

template <class Fields, class T, class Item>
void list_if_any(Fields& fields, const char* key, T& items, const Item& item_fields) {
  if (fields.has(key, !items.empty())) fields.list(key, items, item_fields);
}

inline constexpr auto link_fields = [](auto& fields, auto& link) {
  constexpr double most = 1e18;
  fields.field("latency", link.latency.value, 0, 10);
  fields.field("bandwidth", link.bandwidth, 1, most);
  fields.field_or("all_reduce_bandwidth", link.all_reduce_bandwidth, link.bandwidth, 1, most);
  fields.field_or("send_bandwidth", link.send_bandwidth, link.bandwidth, 1, most);
};

/// @param device  has what keys that are absent have; without a name nothing is known, and some keys are required
inline constexpr auto device_fields = [](auto& fields, auto& device) {
  const bool known = !device.name.empty();
  const auto known_or_given = [&](const char* key, auto& value, auto... limits) {
    known ? fields.field_or(key, value, value, limits...) : fields.field(key, value, limits...);
  };
  known_or_given("name", device.name);
  bytes_field(fields, "memory", device.memory, !known);
  fields.check("memory", device.memory.count >= 1, "a device needs some memory");
  bytes_field(fields, "library_workspace", device.library_workspace, false);
  fields.check("library_workspace", device.library_workspace < device.memory, "it is not smaller than the memory");
  known_or_given("memory_bandwidth", device.memory_bandwidth, 1.0, 1e18);
  fields.field_or("memory_share", device.memory_share, device.memory_share, 0.01, 1);
  fields.field_or("launch", device.launch.value, known ? device.launch.value : 3e-6, 0, 1);
  fields.field_or("gemm_launch", device.gemm_launch.value, device.gemm_launch.value, 0, 1);
  fields.field_or("gemm_start", device.gemm_start, device.gemm_start, 0, 1e6);
  fields.field_or("multiprocessors", device.multiprocessors, device.multiprocessors, 0, 1 << 20);
  if (fields.has("rates", true))
    fields.list("rates", device.rates, [](auto& item, auto& rate) {
      precision_field<precisions.size()>(item, rate.precision);
      item.field_or("format", rate.format, name_of(rate.precision));
      item.field("peak_flops", rate.peak_flops, 1, 1e21);
      item.field_or("gemm_share", rate.gemm_share, rate.gemm_share, 0.001, 1);
      item.field_or("sustained_share", rate.sustained_share, rate.sustained_share, 0.001, 1);
    });
  fields.check("rates", !device.rates.empty(), "at least one precision is needed, e.g. {\"precision\": \"bf16\", ...}");
  if (fields.has("attention_kernel", device.attention_kernel != op::AttentionKernel::fa2))
    fields.word("attention_kernel", device.attention_kernel,
                std::array{op::AttentionKernel::fa2, op::AttentionKernel::cudnn},
                [](op::AttentionKernel kernel) { return std::string(op::word_of(kernel)); });
  if (fields.has("fp8_recipes", device.fp8_recipes != DeviceSpec{}.fp8_recipes))
    names_field(fields, "fp8_recipes", device.fp8_recipes, fp8_recipes);
  if (fields.has("power", device.power != 1)) fields.field("power", device.power, 0.1, 1);
  if (fields.has("reserve", device.reserve.count != 0)) bytes_field(fields, "reserve", device.reserve, false);
  fields.check("reserve", device.reserve < device.memory, "it is not smaller than the memory");
  list_if_any(fields, "attention", device.attention, [](auto& item, auto& curve) {
    item.word("pass", curve.kind, op::attentions, op::pass_of);
    item.field("head_dim", curve.head_dim, 1, 4096);
    points_field(item, "shares", curve.shares);
    item.check("shares", !curve.shares.empty(), "at least one pair is needed");
    for (std::size_t i = 0; i < curve.shares.size(); ++i) {
      item.check("shares", curve.shares[i].second > 0 && curve.shares[i].second <= 1,
                 "a share lies above 0 and at most 1");
      item.check("shares", i == 0 || curve.shares[i].first > curve.shares[i - 1].first, "tokens must rise");
    }
  });
};

/// Those before the device and the links.
/// @param needs_name  false in a group of a mixed cluster
template <class Fields, class C>
void cluster_fields(Fields& fields, C& cluster, bool needs_name = true) {
  if (fields.has("name", true) || needs_name) fields.field("name", cluster.name);
  fields.field("devices", cluster.devices, 1, most_devices);
  fields.field_or("devices_per_node", cluster.devices_per_node, cluster.devices, 1, most_devices);
  fields.check(
      "devices_per_node", cluster.devices_per_node <= cluster.devices,
      std::to_string(cluster.devices_per_node) + " is more than the " + std::to_string(cluster.devices) + " devices");
  fields.field_or("cores", cluster.cores, 0, 0, most_devices);
  fields.field_or("threads_per_rank", cluster.threads_per_rank, 1, 1, most_devices);
}

/// A third level of the network, where there is one.
template <class Fields, class C>
void pod_fields(Fields& fields, C& cluster) {
  if (!fields.has("devices_per_pod", cluster.devices_per_pod > 0)) return;
  fields.field("devices_per_pod", cluster.devices_per_pod, cluster.devices_per_node, most_devices);
  fields.check("devices_per_pod", cluster.devices_per_pod % cluster.devices_per_node == 0,
               std::to_string(cluster.devices_per_pod) + " is no multiple of the " +
                   std::to_string(cluster.devices_per_node) + " devices of a node");
  fields.object("across_pods", cluster.across_pods, link_fields);
}

inline constexpr auto calibration_fields = [](auto& fields, auto& calibration) {
  fields.field("date", calibration.date);
  fields.check("date", calibration.exists(), "it is empty; write YYYY-MM-DD");
  fields.field_or("cluster", calibration.cluster, "");
  fields.field_or("trainer", calibration.trainer, "");
  fields.field_or("runs", calibration.runs, "");
  fields.field_or("steps", calibration.steps, 0, 0, 1 << 30);
  fields.field_or("noise", calibration.noise, 0, 0, 10);
  fields.object("terms", calibration.terms, [](auto& object, auto& terms) {
    for (const CostTerm term : cost_terms) {
      auto& known = terms[static_cast<std::size_t>(term)];
      if (object.has(name_of(term), !(known == CalibratedTerm{})))
        object.object(name_of(term), known, [](auto& item, auto& t) {
          item.field("factor", t.factor, 0.001, 1000);
          item.field_or("spread", t.spread, 0, 0, 10);
          item.field_or("resolution", t.resolution, 0, 0, 1);
        });
    }
  });
};

/// Those behind them.
template <class Fields, class C>
void table_fields(Fields& fields, C& cluster) {
  fields.field_or("overlap_slowdown", cluster.overlap_slowdown, cluster.overlap_slowdown, 1.0, 100.0);
  const auto concurrency = [](auto& item, auto& table) {
    item.field_or("concurrency", table.concurrency, 0, 0, most_devices);
  };
  list_if_any(fields, "gemm", cluster.gemm, [&](auto& item, auto& table) {
    item.word("layout", table.kind, op::gemms, op::layout_of);
    item.field_or("writes", table.writes, false);
    item.check("writes", !table.writes || table.kind == op::Kind::gemm_tn,
               "only weight gradients, layout tn, are written or added to");
    item.field_or("for_reduction", table.for_reduction, false);
    item.check("for_reduction", !table.for_reduction || table.writes, "only what is written is for a reduction");
    item.field_or("grouped", table.grouped, false);
    precision_field<precisions.size()>(item, table.precision);
    concurrency(item, table);
    grid_field<3>(item, table.seconds, {"m", "n", "k"});
  });
  list_if_any(fields, "attention", cluster.attention, [&](auto& item, auto& table) {
    item.word("pass", table.kind, op::attentions, op::pass_of);
    item.field_or("causal", table.causal, true);
    precision_field<2>(item, table.precision);
    concurrency(item, table);
    grid_field<3>(item, table.seconds, {"tokens", "head_dim", "heads"});
  });
  list_if_any(fields, "memory_bound", cluster.memory_bound, [&](auto& item, auto& table) {
    item.word("kind", table.kind, op::memory_bound, op::name_of);
    precision_field<2>(item, table.precision);
    concurrency(item, table);
    grid_field<2>(item, table.seconds, {"rows", "columns"});
  });
  list_if_any(fields, "messages", cluster.messages, [&](auto& item, auto& table) {
    item.word("kind", table.kind, op::communications, op::name_of);
    item.field("group", table.group, 2, most_devices);
    item.field_or("strided", table.strided, false);
    concurrency(item, table);
    curve_field(item, table.seconds);
  });
  if (fields.has("calibration", cluster.calibration.exists()))
    fields.object("calibration", cluster.calibration, calibration_fields);
}

/// A preset stands for its device, and where the file does not say otherwise for its links with their tables and the
/// overlap slowdown.
/// @param place  of the name in the file, for messages
inline void preset_from_json(JsonObject& fields, const json& name, const std::string& place, Cluster& cluster) {
  if (fields.failed()) return;
  const auto preset = std::find_if(device_presets.begin(), device_presets.end(),
                                   [&](const DevicePreset& p) { return name == std::string(p.name); });
  if (preset == device_presets.end())
    return fields.fail(place + ": unknown device, " + JsonObject::describe(name) + "; known are " +
                       joined(device_presets, ", ", &DevicePreset::name));
  Cluster like = preset_cluster(*preset, cluster.devices);
  cluster.device = std::move(like.device);
  cluster.across_nodes = like.across_nodes;
  cluster.overlap_slowdown = like.overlap_slowdown;
  if (fields.contains("inside_node")) return;  // tables would win over the link that the file gives
  cluster.inside_node = like.inside_node;
  cluster.messages = std::move(like.messages);
}

/// All of a cluster but the format and the version of its file.
inline void read_cluster(JsonObject& fields, Cluster& cluster, bool needs_name) {
  cluster_fields(fields, cluster, needs_name);
  const json* device = fields.any("device");
  const bool named = device != nullptr && device->is_string();
  const bool like = device != nullptr && device->is_object() && device->contains("like");
  if (named) preset_from_json(fields, *device, fields.name("device"), cluster);
  if (like) preset_from_json(fields, device->at("like"), fields.name("device") + ": \"like\"", cluster);
  if (!named)
    fields.object("device", cluster.device, [](JsonObject& object, DeviceSpec& spec) {
      object.any("like");
      device_fields(object, spec);
    });
  const auto link = [&](const char* key, Link& to, bool needed) {
    if (fields.has(key, true) || (needed && !named && !like)) fields.object(key, to, link_fields);
  };
  link("inside_node", cluster.inside_node, cluster.devices_per_node > 1);
  link("across_nodes", cluster.across_nodes, cluster.devices > cluster.devices_per_node);
  pod_fields(fields, cluster);
  table_fields(fields, cluster);
}
inline void write_fields(JsonWriter<json>& fields, const Cluster& cluster) {
  cluster_fields(fields, cluster);
  fields.object("device", cluster.device, device_fields);
  fields.object("inside_node", cluster.inside_node, link_fields);
  fields.object("across_nodes", cluster.across_nodes, link_fields);
  pod_fields(fields, cluster);
  table_fields(fields, cluster);
}

/// The first two keys of a cluster file.
inline void read_format(JsonObject& fields) {
  const auto format = fields.required<std::string>("format");
  fields.check(
      "format", format == cluster_format,
      "this is a \"" + one_line(format, 40) + "\" file; a cluster file has \"format\": \"" + cluster_format + "\"");
  const int version = fields.required<int>("version");
  fields.check("version", version == cluster_format_version,
               "cluster format version " + std::to_string(version) + " is not known; this program reads version " +
                   std::to_string(cluster_format_version) + ", write the file again with galvatron profile");
}
inline void write_format(JsonWriter<json>& fields) {
  fields.field("format", cluster_format);
  fields.field("version", cluster_format_version);
}

/// Why a name or a file of several groups is no cluster of equal devices.
inline std::string why_not_equal_devices(const std::string& cluster) {
  return cluster +
         " is a mixed cluster, of groups of devices: here all devices must be of one kind; name one of its "
         "groups";
}

}  // namespace detail

/// The cluster that a JSON value describes; `source_name` opens every message. Errors (usage): another format or
/// version, missing and unknown keys, values out of range, tables whose sizes disagree, a mixed cluster.
template <class = void>
Result<Cluster> cluster_from_json(const nlohmann::json& value, const std::string& source_name) {
  JsonObject fields(value, source_name);
  detail::read_format(fields);
  if (fields.contains("groups")) fields.fail(detail::why_not_equal_devices(source_name));
  Cluster cluster;
  detail::read_cluster(fields, cluster, true);
  return fields.finish().map([&] { return std::move(cluster); });
}
GALVATRON_IN_PLANNER(Result<Cluster> cluster_from_json<>(const nlohmann::json&, const std::string&))

/// A preset by name, or else the cluster file at that path. Errors (usage): neither exists, or the file is bad.
template <class = void>
Result<Cluster> load_cluster(const std::string& name_or_path) {
  if (is_mixed_name(name_or_path)) {
    auto mixed = mixed_preset(name_or_path);
    if (!mixed) return tl::unexpected<Error>(std::move(mixed.error()));
    return usage_error(detail::why_not_equal_devices(detail::one_line(name_or_path, 120)));
  }
  auto preset = preset_cluster(name_or_path);
  if (!preset) return tl::unexpected<Error>(std::move(preset.error()));
  if (preset->has_value()) return std::move(**preset);
  std::error_code ignored;
  if (!std::filesystem::exists(name_or_path, ignored))
    return usage_error("unknown cluster \"" + detail::one_line(name_or_path, 120) +
                       "\": no preset and no file of this name" +
                       detail::cluster_advice(name_or_path, "; presets are " + joined(cluster_names()) +
                                                                " (N is a number), `galvatron profile` writes a file "
                                                                "for this machine"));
  return read_json_file(name_or_path).and_then([&](const auto& value) {
    return cluster_from_json(value, name_or_path);
  });
}
GALVATRON_IN_PLANNER(Result<Cluster> load_cluster<>(const std::string&))

/// The JSON form of a cluster; cluster_from_json gives the same value back, bit for bit.
template <class = void>
nlohmann::json cluster_to_json(const Cluster& cluster) {
  nlohmann::json out;
  JsonWriter fields(out);
  detail::write_format(fields);
  detail::write_fields(fields, cluster);
  return out;
}
GALVATRON_IN_PLANNER(nlohmann::json cluster_to_json<>(const Cluster&))

/// Writes a cluster file, whole or not at all. Errors (usage): the path cannot be written.
inline Result<void> write_cluster(const std::filesystem::path& path, const Cluster& cluster) {
  return write_file_atomically(path, json_text(cluster_to_json(cluster), 1));
}

}  // namespace galvatron
