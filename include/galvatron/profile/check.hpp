// What makes a profile doubtful.
#pragma once

#include <cstdio>
#include <string>

#include <galvatron/cluster/host_load.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/quantity.hpp>

namespace galvatron::train {

/// Others' share of the cores above which a profile is refused: its ranks then had less of the machine than others.
inline constexpr double most_others_share = 0.5;

/// A figure of a measured host that no machine has, with its bound: "memory of 700 MB/s, less than 1.00 GB/s"; else
/// empty. The bounds are far from what processors of the last twenty years reach, so that only a failed measurement
/// exceeds them.
inline std::string impossible_figure(const Cluster& cluster) {
  const double threads = cluster.threads_per_rank;
  const auto outside = [](const std::string& what, double rate, double least, double most, const char* unit) {
    if (rate >= least && rate <= most) return std::string();
    return what + " of " + format_count(rate) + unit + (rate < least ? ", less than " : ", more than ") +
           format_count(rate < least ? least : most) + unit;
  };
  std::string out = outside("memory", cluster.device.memory_bandwidth, 1e9, 1e12 * threads, "B/s");
  for (const PrecisionRate& rate : cluster.device.rates)
    if (out.empty())
      out = outside(std::string("products in ") + name_of(rate.precision), rate.peak_flops, 2e8, 2e13 * threads,
                    "FLOP/s");
  return out;
}

/// "other programs took 62 % of the cores"; empty below disturbing_share, where they hardly count.
inline std::string others_text(double share) {
  if (!(share >= disturbing_share)) return {};
  char out[64];
  std::snprintf(out, sizeof out, "other programs took %.0f %% of the cores", 100 * share);
  return out;
}

/// Why a profile should not be used, as one clause; empty when nothing speaks against it.
/// @param others  share of the cores, 0 to 1, that others took meanwhile
inline std::string why_doubtful(const Cluster& cluster, double others) {
  const std::string busy = others_text(others);
  if (const std::string figure = impossible_figure(cluster); !figure.empty())
    return "it has " + figure + ", which no machine has" + (busy.empty() ? "" : "; " + busy);
  return others > most_others_share ? busy + " while it was measured" : "";
}

}  // namespace galvatron::train
