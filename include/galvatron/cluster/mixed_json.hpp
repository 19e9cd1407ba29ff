// Files of mixed clusters: JSON as of cluster/json.hpp, with groups instead of devices:
//
//   { "format": "galvatron-cluster", "version": 1, "name": "lab",
//     "groups": [ "16xv100-32g",
//                 { "like": "48xp100-16g", "name": "old", "across_nodes": { "latency": 1e-5, "bandwidth": 1.2e9 } },
//                 { "devices": 8, "device": "a100-80g" } ],
//     "links":  [ { "between": [0, "old"], "latency": 1e-5, "bandwidth": 1.2e9 } ] }
//
// A group is a preset's name; what differs from a preset; or all that a cluster file has, where the name may be left
// out. Links are between two groups, by number or by name; for the others see usual_link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron {

namespace detail {

/// The preset with a name that a file gives. An unknown name is an error of `fields`.
inline Cluster preset_group(JsonObject& fields, const std::string& name, const std::string& place) {
  auto preset = find_cluster(name);
  if (preset) return std::move(*preset);
  fields.fail(place + ": " + preset.error().message);
  return {};
}

/// What a group has otherwise than the preset that it is like.
inline void group_like(JsonObject& fields, Cluster& group) {
  group = preset_group(fields, fields.required<std::string>("like"), fields.name("like"));
  if (fields.failed()) return;
  fields.field_or("name", group.name, group.name);
  fields.field_or("devices_per_node", group.devices_per_node, group.devices_per_node, 1, group.devices);
  if (fields.has("device", true)) fields.object("device", group.device, device_fields);
  if (fields.has("inside_node", true)) {
    group.messages.clear();  // tables would win over the link that the file gives
    fields.object("inside_node", group.inside_node, link_fields);
  }
  if (fields.has("across_nodes", true)) fields.object("across_nodes", group.across_nodes, link_fields);
  fields.field_or("overlap_slowdown", group.overlap_slowdown, group.overlap_slowdown, 1.0, 100.0);
}

inline Cluster group_from_json(JsonObject& fields, const json& value, const std::string& place) {
  Cluster group;
  if (value.is_string()) return preset_group(fields, value.get<std::string>(), place);
  JsonObject own(value, place);
  if (own.contains("like"))
    group_like(own, group);
  else
    read_cluster(own, group, false);
  if (group.name.empty()) group.name = std::to_string(group.devices) + "x" + group.device.name;
  if (auto done = own.finish(); !done) fields.fail(done.error().message);
  return group;
}

/// The number of the group that one end of a link names, or -1 where `fields` has failed.
inline int group_named(JsonObject& fields, const json& end, const std::vector<Cluster>& groups) {
  const std::string where = fields.name("between");
  const auto count = static_cast<int>(groups.size());
  if (end.is_number_integer()) {
    if (end >= 0 && end < count) return end.get<int>();
    fields.fail(where + ": there is no group " + end.dump() + ": they are 0 to " + std::to_string(count - 1));
    return -1;
  }
  if (!end.is_string()) {
    fields.fail(where + ": expected numbers or names of groups, found " + JsonObject::describe(end));
    return -1;
  }
  const auto is_named = [&](const Cluster& group) { return group.name == end.get_ref<const std::string&>(); };
  const auto found = std::ranges::find_if(groups, is_named);
  if (found == groups.end() || std::ranges::count_if(groups, is_named) > 1) {
    fields.fail(where + ": " + (found == groups.end() ? "no group has" : "several groups have") + " the name of " +
                JsonObject::describe(end) + "; they are " + one_line(joined(groups, ", ", &Cluster::name), 200) +
                ", numbered from 0");
    return -1;
  }
  return static_cast<int>(found - groups.begin());
}

inline void read_links(JsonObject& fields, MixedCluster& cluster) {
  const auto count = static_cast<int>(cluster.groups.size());
  std::vector<std::optional<Link>> given(group_pairs(count));
  const json* links = fields.any("links");
  if (links != nullptr && !links->is_null()) {
    const json& all = fields.required_array("links");
    for (std::size_t i = 0; i < all.size() && !fields.failed(); ++i) {
      JsonObject own(all[i], fields.where() + ": links[" + std::to_string(i) + "]");
      const json& between = own.required_array("between");
      own.check("between", own.failed() || between.size() == 2,
                "expected two groups, found " + one_line(between.dump(), 60));
      const int a = own.failed() ? -1 : group_named(own, between[0], cluster.groups);
      const int b = own.failed() ? -1 : group_named(own, between[1], cluster.groups);
      own.check("between", own.failed() || a != b,
                "a link is between two groups; that inside one is its \"across_nodes\"");
      Link link;
      link_fields(own, link);
      if (auto done = own.finish(); !done) return fields.fail(done.error().message);
      std::optional<Link>& place = given[pair_index(a, b)];
      if (place)
        return fields.fail(own.where() + ": the link between groups " + std::to_string(std::min(a, b)) + " and " +
                           std::to_string(std::max(a, b)) + " is given twice; keep one of them");
      place = link;
    }
  }
  if (fields.failed()) return;
  for (int b = 0; b < count; ++b)
    for (int a = 0; a < b; ++a) {
      const Cluster& from = cluster.groups[static_cast<std::size_t>(a)];
      const Cluster& to = cluster.groups[static_cast<std::size_t>(b)];
      cluster.links.push_back(given[pair_index(a, b)].value_or(usual_link(from, to)));
      if (cluster.links.back().bandwidth <= 0)
        return fields.fail(fields.name("links") + ": nothing says how groups " + std::to_string(a) + " (" + from.name +
                           ") and " + std::to_string(b) + " (" + to.name +
                           ") are linked; add it, or \"across_nodes\" of one of them");
    }
}

}  // namespace detail

/// The cluster that a JSON value describes, of one group or several. Errors (usage): those of cluster_from_json in any
/// group, no group, groups of links that do not exist, a pair that has two links or none.
template <class = void>
Result<MixedCluster> mixed_cluster_from_json(const nlohmann::json& value, const std::string& source_name) {
  JsonObject fields(value, source_name);
  if (!fields.contains("groups")) return cluster_from_json(value, source_name).map(alone);
  detail::read_format(fields);
  MixedCluster cluster;
  fields.field("name", cluster.name);
  const nlohmann::json& groups = fields.required_array("groups");
  fields.check(
      "groups", fields.failed() || (!groups.empty() && groups.size() <= most_groups),
      "expected 1 to " + std::to_string(most_groups) + " groups of devices, found " + std::to_string(groups.size()));
  std::int64_t devices = 0;
  for (std::size_t i = 0; i < groups.size() && !fields.failed(); ++i) {
    const std::string place = source_name + ": groups[" + std::to_string(i) + "]";
    cluster.groups.push_back(detail::group_from_json(fields, groups[i], place));
    devices += cluster.groups.back().devices;
  }
  fields.check("groups", devices <= most_devices,
               std::to_string(devices) + " devices; at most " + std::to_string(most_devices) + " are planned for");
  if (!fields.failed()) detail::read_links(fields, cluster);
  return fields.finish().map([&] { return std::move(cluster); });
}
GALVATRON_IN_PLANNER(Result<MixedCluster> mixed_cluster_from_json<>(const nlohmann::json&, const std::string&))

/// A preset, several joined by `+`, or else the cluster file at that path. Errors (usage): none of them, or the file is
/// bad.
inline Result<MixedCluster> load_mixed_cluster(const std::string& name_or_path) {
  if (is_mixed_name(name_or_path)) return mixed_preset(name_or_path);
  std::error_code ignored;
  const auto preset = preset_cluster(name_or_path);
  if (!preset || preset->has_value() || !std::filesystem::exists(name_or_path, ignored))
    return load_cluster(name_or_path).map(alone);
  return read_json_file(name_or_path).and_then([&](const auto& value) {
    return mixed_cluster_from_json(value, name_or_path);
  });
}

/// The JSON form of a mixed cluster, all links given; mixed_cluster_from_json gives the same value back, bit for bit.
template <class = void>
nlohmann::json mixed_cluster_to_json(const MixedCluster& cluster) {
  nlohmann::json out;
  JsonWriter fields(out);
  detail::write_format(fields);
  fields.field("name", cluster.name);
  fields.list("groups", cluster.groups, [](auto& item, const Cluster& group) { detail::write_fields(item, group); });
  out["links"] = nlohmann::json::array();
  for (int b = 0; b < static_cast<int>(cluster.groups.size()); ++b)
    for (int a = 0; a < b; ++a) {
      JsonWriter link(out["links"].emplace_back());
      link.field("between", std::pair(a, b));
      detail::link_fields(link, cluster.links[pair_index(a, b)]);
    }
  return out;
}
GALVATRON_IN_PLANNER(nlohmann::json mixed_cluster_to_json<>(const MixedCluster&))

/// Writes a cluster file, whole or not at all. Errors (usage): the path cannot be written.
inline Result<void> write_mixed_cluster(const std::filesystem::path& path, const MixedCluster& cluster) {
  return write_file_atomically(path, json_text(mixed_cluster_to_json(cluster), 1));
}

}  // namespace galvatron
