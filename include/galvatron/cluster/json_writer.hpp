// The writer of cluster files, for profilers; a program that only plans needs the reader alone and compiles faster.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron {

namespace detail {

/// A size as parse_bytes reads it back exactly.
inline json bytes_to_json(Bytes bytes) {
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  if (bytes.count != 0 && bytes.count % gib == 0) return std::to_string(bytes.count / gib) + "GiB";
  if (bytes.count != 0 && bytes.count % mib == 0) return std::to_string(bytes.count / mib) + "MiB";
  return bytes.count;
}

inline json curve_to_json(const LogGrid<1>& grid) {
  json points = json::array();
  for (std::size_t i = 0; i < grid.seconds().size(); ++i) points.push_back({grid.axes()[0][i], grid.seconds()[i]});
  return points;
}

inline json link_to_json(const Link& link) {
  return {{"latency", link.latency.value},
          {"bandwidth", link.bandwidth},
          {"all_reduce_bandwidth", link.all_reduce_bandwidth},
          {"send_bandwidth", link.send_bandwidth}};
}

inline json device_to_json(const DeviceSpec& device) {
  json out{{"name", device.name},
           {"memory", bytes_to_json(device.memory)},
           {"library_workspace", bytes_to_json(device.library_workspace)},
           {"memory_bandwidth", device.memory_bandwidth},
           {"memory_share", device.memory_share},
           {"launch", device.launch.value},
           {"gemm_launch", device.gemm_launch.value},
           {"gemm_start", device.gemm_start},
           {"multiprocessors", device.multiprocessors},
           {"rates", json::array()}};
  for (const PrecisionRate& rate : device.rates)
    out["rates"].push_back({{"precision", name_of(rate.precision)},
                            {"format", rate.format},
                            {"peak_flops", rate.peak_flops},
                            {"gemm_share", rate.gemm_share},
                            {"sustained_share", rate.sustained_share}});
  for (const AttentionCurve& curve : device.attention) {
    json shares = json::array();
    for (const auto& [tokens, share] : curve.shares) shares.push_back({tokens, share});
    out["attention"].push_back({{"pass", op::pass_of(curve.kind)}, {"head_dim", curve.head_dim}, {"shares", shares}});
  }
  return out;
}

}  // namespace detail

/// The JSON form of a cluster; cluster_from_json gives the same value back, bit for bit.
inline nlohmann::json cluster_to_json(const Cluster& cluster) {
  using nlohmann::json;
  json out{{"format", cluster_format},
           {"version", cluster_format_version},
           {"name", cluster.name},
           {"devices", cluster.devices},
           {"devices_per_node", cluster.devices_per_node},
           {"cores", cluster.cores},
           {"threads_per_rank", cluster.threads_per_rank},
           {"device", detail::device_to_json(cluster.device)},
           {"inside_node", detail::link_to_json(cluster.inside_node)},
           {"across_nodes", detail::link_to_json(cluster.across_nodes)},
           {"overlap_slowdown", cluster.overlap_slowdown}};
  for (const GemmTable& table : cluster.gemm)
    out["gemm"].push_back({{"layout", op::layout_of(table.kind)},
                           {"writes", table.writes},
                           {"precision", name_of(table.precision)},
                           {"concurrency", table.concurrency},
                           {"m", table.seconds.axes()[0]},
                           {"n", table.seconds.axes()[1]},
                           {"k", table.seconds.axes()[2]},
                           {"seconds", table.seconds.seconds()}});
  for (const AttentionTable& table : cluster.attention)
    out["attention"].push_back({{"pass", op::pass_of(table.kind)},
                                {"causal", table.causal},
                                {"precision", name_of(table.precision)},
                                {"concurrency", table.concurrency},
                                {"tokens", table.seconds.axes()[0]},
                                {"head_dim", table.seconds.axes()[1]},
                                {"heads", table.seconds.axes()[2]},
                                {"seconds", table.seconds.seconds()}});
  for (const MemoryTable& table : cluster.memory_bound)
    out["memory_bound"].push_back({{"kind", name_of(table.kind)},
                                   {"precision", name_of(table.precision)},
                                   {"concurrency", table.concurrency},
                                   {"rows", table.seconds.axes()[0]},
                                   {"columns", table.seconds.axes()[1]},
                                   {"seconds", table.seconds.seconds()}});
  for (const MessageTable& table : cluster.messages)
    out["messages"].push_back({{"kind", name_of(table.kind)},
                               {"group", table.group},
                               {"strided", table.strided},
                               {"concurrency", table.concurrency},
                               {"points", detail::curve_to_json(table.seconds)}});
  return out;
}

/// Writes a cluster file, whole or not at all. Errors (usage): the path cannot be written.
inline Result<void> write_cluster(const std::filesystem::path& path, const Cluster& cluster) {
  nlohmann::json value = cluster_to_json(cluster);
  return write_file_atomically(path, value.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace galvatron
