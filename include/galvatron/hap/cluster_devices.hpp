// Devices of a cluster, as HAP's prices see them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/hap/prices.hpp>

namespace galvatron::hap {

namespace detail {

// Latency and bandwidth of a collective over all devices: a line through two of the cluster's prices. Bytes are those
// of the whole tensor.
inline void fit_collective(Devices& devices, const Cluster& cluster, Collective collective, op::Kind kind,
                           std::int64_t parts) {
  constexpr std::int64_t small = std::int64_t{1} << 20;
  constexpr std::int64_t large = std::int64_t{1} << 28;
  const auto seconds = [&](std::int64_t bytes) {
    return cost::time_of({.kind = kind, .m = bytes / parts, .n = cluster.devices}, Precision::fp32, cluster).value;
  };
  const double a = seconds(small);
  const double b = seconds(large);
  const auto i = static_cast<std::size_t>(collective);
  constexpr double at_once = 1e30;  // one device sends nothing
  devices.bandwidth[i] = b > a ? static_cast<double>(large - small) / (b - a) : at_once;
  devices.latency[i] = std::max(0.0, a - static_cast<double>(small) / devices.bandwidth[i]);
}

}  // namespace detail

/// The devices of a cluster in fp32, group by group: the rate of their largest products, the memory that libraries
/// leave, and the prices of collectives over all devices.
inline Devices devices_of(const ClusterView& cluster) {
  Devices out;
  std::map<int, int> ranks;
  for (int number = 0; number < cluster.count(); ++number) {
    const Cluster& group = cluster.group(number);
    ranks[number] = group.devices;
    const auto count = static_cast<std::size_t>(group.devices);
    const PrecisionRate* rate = group.device.rate(Precision::fp32);
    if (rate == nullptr && !group.device.rates.empty()) rate = &group.device.rates.front();
    const double flops = rate == nullptr ? 1e12 : rate->peak_flops * rate->gemm_share * rate->sustained_share;
    out.flops.insert(out.flops.end(), count, flops);
    out.memory.insert(out.memory.end(), count,
                      static_cast<double>((group.device.memory - group.device.library_workspace).count));
  }
  const Cluster all = beside_others(cluster, ranks, 0);
  detail::fit_collective(out, all, Collective::all_reduce, op::Kind::all_reduce, 1);
  detail::fit_collective(out, all, Collective::all_gather, op::Kind::all_gather, 1);
  detail::fit_collective(out, all, Collective::reduce_scatter, op::Kind::reduce_scatter, 1);
  detail::fit_collective(out, all, Collective::all_to_all, op::Kind::all_to_all, all.devices);
  return out;
}

}  // namespace galvatron::hap
