// Where the ranks of a run on GPUs are: in which processes, on which GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <galvatron/comm/launch_environment.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::train {

struct Placement {
  enum class Kind : std::uint8_t {
    one_gpu,    ///< all ranks are threads of this process, on its first GPU
    own_gpus,   ///< threads of this process, rank r on GPU r
    processes,  ///< this process is one rank
  };
  Kind kind = Kind::one_gpu;
  int ranks = 1;  ///< of the run
  int gpu = 0;    ///< that this process's first rank computes on
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// A process of a job is one rank, on the GPU of its number among the processes of its host, or on the only one that it
/// may use. A process that is alone has all ranks: each on a GPU of its own where there are as many, else all on the
/// first.
/// @param gpus  that this process may use, at least 1
/// @param job  of which this process is one
/// @param ranks  of the plan; 0: as many as there are processes or GPUs
/// Errors (usage): a job of another number of ranks, or with more processes on a host than GPUs.
inline Result<Placement> placement_of(int gpus, const std::optional<comm::LaunchEnvironment>& job, int ranks) {
  const auto counted = [](int n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); };
  if (!job) {
    const int all = ranks == 0 ? gpus : ranks;
    return Placement{all > 1 && all <= gpus ? Placement::Kind::own_gpus : Placement::Kind::one_gpu, all, 0};
  }
  if (ranks != 0 && ranks != job->size)
    return usage_error(std::string(job->launcher) + " has started " + std::to_string(job->size) + " processes for " +
                       counted(ranks, "rank") + "; start " + std::to_string(ranks) + ", or plan for " +
                       std::to_string(job->size));
  if (gpus > 1 && job->local_rank >= gpus)
    return usage_error("rank " + std::to_string(job->rank) + " is process " + std::to_string(job->local_rank + 1) +
                       " of its host, which has " + counted(gpus, "GPU") + "; start at most one process a GPU");
  return Placement{Placement::Kind::processes, job->size, gpus == 1 ? 0 : job->local_rank};
}

}  // namespace galvatron::train
