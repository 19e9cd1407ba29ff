// A build with the trainer.
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/device/host/host.hpp>

#include "../commands.hpp"
#include "../plans.hpp"

namespace galvatron::tools {

const bool has_trainer = true;

Cluster host_before_profile(int ranks) {
  Cluster cluster = host_cluster(ranks);
  cluster.device.library_workspace = {device::Host::library_workspace_bytes(cluster.threads_per_rank)};
  std::erase_if(cluster.device.rates,
                [](const PrecisionRate& rate) { return !device::Host::supports(rate.precision); });
  return cluster;
}

}  // namespace galvatron::tools
