// MixedCluster: groups of equal devices, each a Cluster of its own, and the links between them. A cluster of one kind
// of device is one with one group; ClusterView reads both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron {

inline constexpr int most_groups = 64;  ///< of a mixed cluster

/// Pairs of `groups` groups.
constexpr std::size_t group_pairs(int groups) {
  return static_cast<std::size_t>(groups) * static_cast<std::size_t>(std::max(0, groups - 1)) / 2;
}

/// The place of a pair of groups, a != b, in a list of all pairs: (0, 1), (0, 2), (1, 2), (0, 3), ...
constexpr std::size_t pair_index(int a, int b) {
  return group_pairs(std::max(a, b)) + static_cast<std::size_t>(std::min(a, b));
}

/// Groups of devices. Devices are numbered group by group, and in each group node by node. Two groups may have the same
/// kind of device.
struct MixedCluster {
  std::string name;
  std::vector<Cluster> groups;
  std::vector<Link> links;  ///< of every pair of groups, at pair_index; bandwidths are of one device

  friend bool operator==(const MixedCluster&, const MixedCluster&) = default;
};

/// The cluster of one group.
inline MixedCluster alone(Cluster group) {
  std::string name = group.name;
  return {std::move(name), {std::move(group)}, {}};
}

/// A cluster of one kind of device, or a mixed one, that lives elsewhere.
class ClusterView {
 public:
  ClusterView(const Cluster& cluster) : name_(&cluster.name), groups_(&cluster, 1) {}
  ClusterView(const MixedCluster& cluster) : name_(&cluster.name), groups_(cluster.groups), links_(cluster.links) {}

  [[nodiscard]] const std::string& name() const { return *name_; }
  [[nodiscard]] std::span<const Cluster> groups() const { return groups_; }
  [[nodiscard]] int count() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] bool is_mixed() const { return groups_.size() > 1; }
  [[nodiscard]] const Cluster& group(int number) const { return groups_[static_cast<std::size_t>(number)]; }
  /// Of every pair of groups, at pair_index; none where there is one group.
  [[nodiscard]] std::span<const Link> links() const { return links_; }
  /// Between devices of two groups.
  [[nodiscard]] const Link& link(int a, int b) const { return links_[pair_index(a, b)]; }

  [[nodiscard]] int devices() const {
    int sum = 0;
    for (const Cluster& group : groups_) sum += group.devices;
    return sum;
  }
  /// The number of a group's first device.
  [[nodiscard]] int first_device(int number) const { return ClusterView(*this, number).devices(); }
  /// The group of a device; behind the last device the last group.
  [[nodiscard]] int group_of(int device) const {
    int group = 0;
    for (; group + 1 < count() && device >= this->group(group).devices; ++group) device -= this->group(group).devices;
    return group;
  }
  /// Of the device that has most.
  [[nodiscard]] Bytes most_memory() const {
    Bytes most;
    for (const Cluster& group : groups_) most = max(most, group.device.memory);
    return most;
  }
  /// Some devices can compute in this precision.
  [[nodiscard]] bool supports(Precision precision) const {
    return std::ranges::any_of(groups_, [=](const Cluster& group) { return group.supports(precision); });
  }
  /// Why no plan of this precision can be; empty when one can, on some groups.
  [[nodiscard]] std::string lack_of(Precision precision, Fp8Recipe recipe) const {
    std::string why;
    for (const Cluster& group : groups_) {
      why = group.lack_of(precision, recipe);
      if (why.empty()) return {};
    }
    return why;
  }
  /// For messages: `group 1 (48xp100-16g)`.
  [[nodiscard]] std::string group_name(int number) const {
    return "group " + std::to_string(number) + " (" + group(number).name + ")";
  }

 private:
  ClusterView(const ClusterView& other, int groups)
      : name_(other.name_), groups_(other.groups_.first(static_cast<std::size_t>(groups))) {}

  const std::string* name_;
  std::span<const Cluster> groups_;
  std::span<const Link> links_;
};

/// The worse of two links in every number; one without bandwidths is not known.
constexpr Link slower_link(const Link& a, const Link& b) {
  if (a.bandwidth <= 0 || b.bandwidth <= 0) return a.bandwidth > 0 ? a : b;
  return {max(a.latency, b.latency), std::min(a.bandwidth, b.bandwidth),
          std::min(a.all_reduce_bandwidth, b.all_reduce_bandwidth), std::min(a.send_bandwidth, b.send_bandwidth)};
}

/// The devices of a group among ranks on several groups, as their collectives see them: what leaves a node, or the
/// ranks of one group, goes by the slowest link between these groups or between the nodes of one.
/// @param ranks  on each of these groups, by its number
inline Cluster beside_others(const ClusterView& cluster, const std::map<int, int>& ranks, int group) {
  Cluster out = cluster.group(group);
  if (ranks.size() < 2) return out;
  out.devices = 0;
  out.across_nodes = {};
  out.devices_per_pod = 0;
  for (const auto& [a, count] : ranks) {
    const Cluster& own = cluster.group(a);
    out.devices += count;
    out.devices_per_node = std::min({out.devices_per_node, count, own.devices_per_node});
    if (count > own.devices_per_node) out.across_nodes = slower_link(out.across_nodes, own.network(count));
    for (const auto& [b, others] : ranks)
      if (a < b) out.across_nodes = slower_link(out.across_nodes, cluster.link(a, b));
  }
  return out;
}

/// The link between two groups where nobody says another: the slower of their networks, those between their nodes.
constexpr Link usual_link(const Cluster& a, const Cluster& b) {
  return slower_link(a.network(a.devices), b.network(b.devices));
}

/// The cluster of these groups, with the usual links. Errors (usage): no group or too many, more than most_devices
/// devices together, two groups that have no network.
inline Result<MixedCluster> mixed_cluster(std::string name, std::vector<Cluster> groups) {
  const auto count = static_cast<int>(std::min<std::size_t>(groups.size(), most_groups + 1));
  if (count < 1 || count > most_groups)
    return usage_error("the cluster " + name + " has " + std::to_string(groups.size()) +
                       " groups of devices: give 1 to " + std::to_string(most_groups));
  MixedCluster out{std::move(name), std::move(groups), {}};
  std::int64_t devices = 0;
  for (const Cluster& group : out.groups) devices += group.devices;
  if (devices > most_devices)
    return usage_error("the cluster " + out.name + " has " + std::to_string(devices) + " devices: at most " +
                       std::to_string(most_devices) + " are planned for");
  for (std::size_t b = 0; b < out.groups.size(); ++b)
    for (std::size_t a = 0; a < b; ++a) {
      out.links.push_back(usual_link(out.groups[a], out.groups[b]));
      if (out.links.back().bandwidth <= 0)
        return usage_error("the cluster " + out.name + " has no link between its groups " + std::to_string(a) + " (" +
                           out.groups[a].name + ") and " + std::to_string(b) + " (" + out.groups[b].name +
                           "): give it in \"links\", or \"across_nodes\" of one of them");
    }
  return out;
}

/// Whether a name is one of several presets, such as `16xv100-32g+48xp100-16g`, and not a path.
inline bool is_mixed_name(std::string_view name) {
  return name.find('+') != std::string_view::npos && name.find('/') == std::string_view::npos &&
         !name.ends_with(".json");
}

/// The cluster of a name of presets that `+` joins. Errors (usage): a part that is no preset, and those of
/// mixed_cluster.
inline Result<MixedCluster> mixed_preset(std::string_view name) {
  std::vector<Cluster> groups;
  for (std::size_t at = 0; at <= name.size() && groups.size() <= most_groups;) {
    const std::size_t end = std::min(name.find('+', at), name.size());
    auto group = find_cluster(name.substr(at, end - at));
    if (!group)
      return usage_error("bad cluster \"" + detail::one_line(name, 120) + "\", group " + std::to_string(groups.size()) +
                         ": " + group.error().message);
    groups.push_back(std::move(*group));
    at = end + 1;
  }
  const std::string whole = joined(groups, "+", &Cluster::name);
  return mixed_cluster(whole, std::move(groups));
}

}  // namespace galvatron
