// Clusters by name: COUNTxDEVICE, 8 devices a node, COUNTxDEVICE:NODE for others, and `host`. The figures are in
// cluster/detail/device_presets.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/detail/device_presets.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron {

namespace detail {

/// Bytes over the busiest link of a ring of n, relative to the message.
constexpr double ring_volume(op::Kind kind, int n) {
  const double share = static_cast<double>(n - 1) / n;
  return kind == op::Kind::all_reduce ? 2 * share : kind == op::Kind::send ? 1 : share;
}
/// Steps of a ring of n.
constexpr int ring_steps(op::Kind kind, int n) {
  return kind == op::Kind::all_reduce ? 2 * (n - 1) : kind == op::Kind::send ? 1 : n - 1;
}

/// A table of bus bandwidths by size; below the first point a message costs its steps and no more than that point.
inline MessageTable bus_table(op::Kind kind, int group, std::span<const BusPoint> points, double scale, Seconds step) {
  LogGrid<1>::Axes axes;
  std::vector<double> seconds;
  const double latency = step.value * ring_steps(kind, group);
  const auto at_rate_of = [&](const BusPoint& point, std::int64_t bytes) {
    return static_cast<double>(bytes) * ring_volume(kind, group) / (point.gigabytes * scale * 1e9);
  };
  const auto add = [&](std::int64_t bytes, double time) {
    axes[0].push_back(bytes);
    seconds.push_back(time);
  };
  const BusPoint& first = points.front();
  for (const std::int64_t bytes : {4096, 65536, 1048576, 4194304})
    if (bytes < first.bytes)
      add(bytes, std::min(latency + at_rate_of(first, bytes), std::max(latency, at_rate_of(first, first.bytes))));
  for (const BusPoint& point : points) add(point.bytes, std::max(at_rate_of(point, point.bytes), latency));
  return {kind, group, false, 0, {std::move(axes), std::move(seconds)}};
}

inline Cluster preset_cluster(const DevicePreset& preset, int count) {
  Cluster cluster;
  cluster.name = std::to_string(count) + "x" + std::string(preset.name);
  cluster.devices = count;
  cluster.devices_per_node = std::min(count, 8);
  DeviceSpec& device = cluster.device;
  device.name = preset.name;
  device.memory = {preset.memory.mib << 20};
  device.library_workspace = Bytes{std::int64_t{1} << 30};  // context, channels of the collectives, BLAS workspace
  device.reserve = preset_reserve;
  device.attention_kernel = preset.attention_kernel;
  device.memory_bandwidth = preset.memory.bandwidth * 1e9;
  device.memory_share = preset.memory.share;
  device.launch = {3e-6};
  device.gemm_launch = {preset.half.launch * 1e-6};
  device.gemm_start = preset.half.start;
  device.multiprocessors = preset.multiprocessors;
  device.rates = {{Precision::bf16, std::string(preset.half.format), preset.half.tflops * 1e12, preset.half.share,
                   preset.half.sustained},
                  {Precision::fp32, "fp32", preset.fp32_tflops * 1e12, 0.85}};
  if (preset.fp8.tflops > 0)
    device.rates.push_back({Precision::fp8, "fp8", preset.fp8.tflops * 1e12, preset.fp8.share, preset.fp8.sustained});
  device.fp8_recipes.assign(fp8_recipes.begin(), fp8_recipes.begin() + preset.recipes);
  for (const op::Kind kind : {op::Kind::attention_forward, op::Kind::attention_backward})
    for (const int head_dim : {64, 128}) {
      const auto& [forward, backward, narrow] = preset.attention;
      const AttentionRates& tflops = kind == op::Kind::attention_forward ? forward : backward;
      AttentionCurve curve{kind, head_dim, {}};
      for (std::size_t i = 0; i < tflops.size(); ++i)
        curve.shares.emplace_back(512 << i, tflops[i] * (head_dim == 64 ? narrow : 1.0) / preset.half.tflops);
      device.attention.push_back(std::move(curve));
    }
  const auto& [all_reduce, gather, send, step_us, pcie] = preset.node;
  cluster.inside_node = {{step_us * 1e-6}, gather * 1e9, all_reduce * 1e9, send * 1e9};
  const double network = preset.network.bandwidth * 1e9;
  cluster.across_nodes = {{preset.network.step * 1e-6}, network, network, network};
  cluster.overlap_slowdown = preset.overlap;

  const Seconds step = cluster.inside_node.latency;
  if (pcie > 0) {
    for (const auto& [kind, two, four, eight] : pcie_shares)
      for (const auto& [group, reached] : {std::pair{2, two}, {4, four}, {8, eight}})
        cluster.messages.push_back(bus_table(kind, group, std::array{BusPoint{8589934592, reached * pcie}}, 1.0, step));
    return cluster;
  }
  const bool measured = !preset.all_reduce_curve.empty();
  cluster.messages.push_back(bus_table(op::Kind::all_reduce, 8, measured ? preset.all_reduce_curve : ring_ramp,
                                       measured ? 1.0 : all_reduce, step));
  for (const op::Kind kind : {op::Kind::all_gather, op::Kind::reduce_scatter})
    cluster.messages.push_back(bus_table(kind, 8, ring_ramp, gather, step));
  return cluster;
}

/// The number of devices in a name such as `8xa100`, `8 x A100` or `A100x8`, in lower case; that of a node when it has
/// none.
inline std::string device_count_in(std::string_view text) {
  const auto digits_from = [&](std::size_t at) {
    std::size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    return text.substr(at, end - at);
  };
  const auto cross_at = [&](std::size_t at) {
    while (at < text.size() && text[at] == ' ') ++at;
    return at < text.size() && (text[at] == 'x' || text[at] == '*');
  };
  if (const std::string_view first = digits_from(0); !first.empty() && cross_at(first.size()))
    return std::string(first);
  const std::size_t last = text.find_last_not_of("0123456789") + 1;
  const std::size_t cross = last == 0 ? std::string_view::npos : text.find_last_not_of(' ', last - 1);
  if (last < text.size() && cross != std::string_view::npos && cross > 0 && cross_at(cross) && text[cross - 1] != 't')
    return std::string(text.substr(last));  // not the x of rtx4090
  return "8";
}

/// The presets that a name may mean, as COUNTxDEVICE: `A100x8` and `8xa100` are 8xa100-40g or 8xa100-80g. None when the
/// name has no device in it.
inline std::vector<std::string> likely_clusters(std::string_view name) {
  const std::string text = lower_case(name.substr(0, 64));
  const std::string count = device_count_in(text);
  // Where `word` stands from `from` on, not as a part of a longer name or number.
  const auto find = [&text](std::string_view word, std::size_t from, std::string_view joined) {
    for (std::size_t at = text.find(word, from); at != std::string::npos; at = text.find(word, at + 1)) {
      const char before = at == 0 ? ' ' : text[at - 1];
      const bool begins = joined.find(before) != std::string_view::npos || !(is_letter(before) || is_digit(before));
      const std::size_t end = at + word.size();
      if (begins && (end == text.size() || !is_digit(text[end]))) return at;
    }
    return std::string::npos;
  };
  std::vector<std::string> of_kind;
  std::vector<std::string> of_memory;
  for (const DevicePreset& preset : device_presets) {
    const std::size_t dash = preset.name.find('-');
    const std::size_t at = find(preset.name.substr(0, dash), 0, "x0123456789");
    if (at == std::string::npos) continue;
    of_kind.push_back(count + "x" + std::string(preset.name));
    const std::string_view gigabytes = preset.name.substr(dash + 1, preset.name.size() - dash - 2);
    if (find(gigabytes, at + dash, "") != std::string::npos) of_memory.push_back(of_kind.back());
  }
  return of_memory.empty() ? of_kind : of_memory;
}

/// `; did you mean 8xa100-40g or 8xa100-80g?`, or `otherwise`.
inline std::string cluster_advice(std::string_view name, const std::string& otherwise) {
  const std::vector<std::string> likely = likely_clusters(name);
  return likely.empty() ? otherwise : "; did you mean " + joined(likely, " or ") + "?";
}

}  // namespace detail

/// Of the memory that may still be taken (usable_memory) the ranks of a host share so much; the rest is for the program
/// itself, and for what changes until training begins.
inline constexpr double host_memory_share = 0.95;

/// This machine before anything was measured: `ranks` devices (default: one a core) that share `cores` cores and
/// host_memory_share of the memory that is free now. Rates are those of a server core with AVX-512; `galvatron profile`
/// replaces them by measured ones.
inline Cluster host_cluster(int ranks = 0, int cores = 0) {
  if (cores <= 0) cores = usable_cores();
  if (ranks <= 0) ranks = cores;
  const double memory = host_memory_share * static_cast<double>(usable_memory(ranks).bytes.count);
  constexpr std::int64_t mebibyte = 1 << 20;
  Cluster cluster;
  cluster.name = "host";
  cluster.devices = ranks;
  cluster.devices_per_node = ranks;
  cluster.cores = cores;
  cluster.threads_per_rank = std::max(1, cores / ranks);
  const double threads = cluster.threads_per_rank;
  cluster.device.name = "host";
  cluster.device.memory = {std::max<std::int64_t>(static_cast<std::int64_t>(memory / ranks) / mebibyte, 1) * mebibyte};
  cluster.device.memory_bandwidth = 15e9 * threads;
  cluster.device.memory_share = 0.9;
  cluster.device.launch = {1e-6};
  cluster.device.rates = {{Precision::fp32, "fp32", 110e9 * threads, 0.8},
                          {Precision::bf16, "bf16", 220e9 * threads, 0.7},
                          {Precision::fp8, "fp8", 30e9 * threads, 0.9}};  // emulated
  cluster.inside_node = {{5e-6}, 4e9, 4e9, 4e9};
  cluster.across_nodes = cluster.inside_node;
  return cluster;
}

/// The names that load_cluster knows, for lists; N stands for any number of devices.
inline std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const detail::DevicePreset& preset : detail::device_presets)
    names.push_back((preset.name == "titan-24g" ? "8x" : "Nx") + std::string(preset.name));
  names.emplace_back("host");
  return names;
}

/// The preset of this name (`64xh100-80g`, `64xa100-40g:4` with nodes of 4 devices, `host`; in any case of letters), if
/// there is one. Errors (usage): a COUNTxDEVICE name with a bad count or an unknown device.
template <class = void>
Result<std::optional<Cluster>> preset_cluster(std::string_view given) {
  const std::string name_text = detail::lower_case(given);
  const std::string_view name = name_text;
  if (name == "host") return std::optional(host_cluster());
  const std::size_t cross = name.find('x');
  const auto known = [] { return "; known are " + joined(cluster_names()); };
  if (cross == 0 || cross == std::string_view::npos) return std::nullopt;
  const std::string_view digits = name.substr(0, cross);
  const std::size_t colon = std::min(name.find(':', cross), name.size());
  const std::string_view device = name.substr(cross + 1, colon - cross - 1);
  const bool counts = digits.find_first_not_of("0123456789") == std::string_view::npos;
  for (const detail::DevicePreset& preset : detail::device_presets) {
    if (preset.name != device) continue;
    const auto count = detail::leading_number(digits);
    if (!counts || !count || *count < 1 || *count > most_devices)
      return usage_error("bad cluster \"" + detail::one_line(name, 60) + "\": the number of devices must be 1 to " +
                         std::to_string(most_devices) + ", e.g. 8x" + std::string(device));
    Cluster cluster = detail::preset_cluster(preset, static_cast<int>(*count));
    if (colon == name.size()) return std::optional(std::move(cluster));
    const std::string_view node = name.substr(colon + 1);
    const auto devices = detail::leading_number(node);
    if (node.find_first_not_of("0123456789") != std::string_view::npos || !devices || *devices < 1 || *devices > *count)
      return usage_error("bad cluster \"" + detail::one_line(name, 60) + "\": the devices of a node must be 1 to " +
                         std::to_string(*count) + ", e.g. 16x" + std::string(device) + ":4");
    cluster.devices_per_node = static_cast<int>(*devices);
    cluster.name += ":" + std::to_string(*devices);
    return std::optional(std::move(cluster));
  }
  if (counts && name.find('/') == std::string_view::npos && !name.ends_with(".json"))
    return usage_error("unknown device \"" + detail::one_line(device, 40) + "\" in cluster \"" +
                       detail::one_line(name, 60) + "\"" + detail::cluster_advice(name, known()));
  return std::nullopt;
}
GALVATRON_IN_PLANNER(Result<std::optional<Cluster>> preset_cluster<>(std::string_view))

/// The preset of this name. Errors (usage): no preset has it. A template so that galvatron::planner can have it
/// compiled.
template <class = void>
Result<Cluster> find_cluster(std::string_view name) {
  auto preset = preset_cluster(name);
  if (!preset) return tl::unexpected<Error>(std::move(preset.error()));
  if (preset->has_value()) return std::move(**preset);
  return usage_error("unknown cluster \"" + detail::one_line(name, 120) + "\"" +
                     detail::cluster_advice(name, ": presets are " + joined(cluster_names()) + " (N is a number)"));
}

}  // namespace galvatron
