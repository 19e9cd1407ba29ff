#include "machine.hpp"

#include <galvatron/cluster/json.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/host/host.hpp>

namespace galvatron::tools {

Cluster cluster_named(const std::string& name_or_path, int ranks) {
  if (name_or_path == "host") return host_before_profile(ranks);
  Cluster cluster = value_or_throw(load_cluster(name_or_path));
  cluster.name = name_or_path;  // in messages a profile is not taken for the preset `host`
  return cluster;
}

Cluster host_before_profile(int ranks) {
  Cluster cluster = host_cluster(ranks);
  cluster.device.library_workspace = {device::Host::library_workspace_bytes(cluster.threads_per_rank)};
  std::erase_if(cluster.device.rates,
                [](const PrecisionRate& rate) { return !device::Host::supports(rate.precision); });
  return cluster;
}

Precision precision_named(const std::string& option) {
  return option == "fp32" ? Precision::fp32 : option == "fp8" ? Precision::fp8 : Precision::bf16;
}

void moments_option(Options& options, std::string& moments) {
  options.choice(
      "--moments", moments, {"fp32", "bf16"},
      "in which AdamW keeps its two moments; bf16 takes 4 bytes a parameter less, rounded at random (default: fp32)");
}

Precision chosen_precision(const std::string& option, const Cluster& cluster) {
  if (option.empty()) return cluster.supports(Precision::bf16) ? Precision::bf16 : Precision::fp32;
  const Precision precision = precision_named(option);
  if (precision != Precision::fp8 && !cluster.supports(precision))  // that the planner answers: there is no such plan
    refuse("the cluster " + cluster.name + " has no rates for " + option + "; plan with --precision " +
           (precision == Precision::fp32 ? "bf16" : "fp32") + ", or on another --cluster");
  return precision;
}

}  // namespace galvatron::tools
