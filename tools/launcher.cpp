#include "launcher.hpp"

#include <cstdint>
#include <cstdlib>
#include <numeric>

#include <galvatron/profile/host.hpp>
#include <galvatron/train/compiled.hpp>

#include "machine.hpp"

namespace galvatron::tools {

std::vector<int> Launcher::ranks_here(const Plan& plan) const {
  if (processes_ != nullptr) return {processes_->rank()};
  std::vector<int> ranks(static_cast<std::size_t>(plan.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string Launcher::shared(std::string text) const {
  if (processes_ == nullptr) return text;
  auto size = static_cast<std::int64_t>(text.size());
  processes_->everybody().broadcast(View<std::int64_t>(&size, 1), 0);
  text.resize(static_cast<std::size_t>(size));
  processes_->everybody().broadcast(View<char>(text.data(), size), 0);
  return text;
}

Bytes CoreLauncher::library_workspace(const Plan& plan) const {
  return {device::Host::library_workspace_bytes(threads_per_rank(plan))};
}

void CoreLauncher::require(Precision precision) const { galvatron::train::HostPlatform::require(precision); }

// Ranks that are processes have each its own limits, so only the machine's and those of control groups are shared.
UsableMemory CoreLauncher::free_memory(int threads) const { return usable_memory(ranks() == 0 ? threads : 0); }

std::pair<Bytes, std::string> CoreLauncher::arena_memory(const Plan& plan) const {
  return {free_memory(plan.ranks()).bytes, "this machine"};
}

std::string CoreLauncher::memory_bound(int ranks) const { return free_memory(ranks).bound; }

Cluster CoreLauncher::cluster(int ranks) const { return host_before_profile(ranks); }

Cluster CoreLauncher::profile(const galvatron::train::ProfileOptions& options) const {
  return value_or_throw(galvatron::train::profile_host(options));
}

int ThreadLauncher::threads_per_rank(const Plan& plan) const {
  return galvatron::train::threads_per_rank(plan.ranks());
}

galvatron::train::TrainReport ThreadLauncher::train(const Plan& plan, const ModelSpec& model,
                                                    galvatron::train::BatchSource& source,
                                                    const galvatron::train::TrainOptions& options) {
  return galvatron::train::train(plan, model, source, options);
}

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

}  // namespace galvatron::tools
