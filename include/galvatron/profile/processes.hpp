// Measures the machines of an MPI job, with its processes as ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/mixed.hpp>
#include <galvatron/comm/mpi/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/profile/host.hpp>

namespace galvatron::train {

namespace detail {

/// The least memory of a rank on the machines of a job. Called by all processes.
/// @param own  on this machine
/// Throws Failure (usage): the machines do not have equally many ranks.
inline Bytes least_memory(const comm::mpi::Runtime& runtime, comm::mpi::World& world, Bytes own) {
  const std::vector<std::int64_t> mine{runtime.local_size(), own.count};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(world.size()));
  world.control().everybody().all_gather(View<const std::int64_t>(mine.data(), 2),
                                         View<std::int64_t>(all.data(), static_cast<std::int64_t>(all.size())));
  for (std::size_t i = 0; i < all.size(); i += 2) {
    if (all[i] != mine[0])
      throw Failure(ErrorKind::usage, text_of("one machine of the job has ", mine[0], " ranks and another ", all[i],
                                              ": start as many on each (mpirun --map-by ppr:N:node)"));
    own = min(own, Bytes{all[i + 1]});
  }
  return own;
}

}  // namespace detail

/// What profile_host_ranks() does with rank threads, this process as one rank of a job on one machine or several.
/// Called by all processes, with the same options. What other programs take of the cores is not watched.
/// @return  on rank 0 what was measured, on the others what is known without measuring
/// Errors and failures as of profile_host_ranks(), usage also for another number of ranks than the job has.
inline Result<MixedCluster> profile_host_ranks(const comm::mpi::Runtime& runtime, comm::mpi::World& world,
                                               const ProfileOptions& options) {
  if (options.ranks != 0 && options.ranks != world.size())
    return usage_error(
        text_of("cannot profile ", options.ranks, " ranks in ", world.size(), " processes: start as many"));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : runtime.cores_per_rank();
  const int here = runtime.local_size();
  const int cores = runtime.bound() ? runtime.cores_per_rank() * here : usable_cores();  // of this machine
  auto wanted = detail::host_profile(options, world.size(), here, cores, threads);
  if (!wanted) return tl::unexpected<Error>(std::move(wanted.error()));
  Bytes& memory = wanted->cluster.device.memory;
  memory = detail::least_memory(runtime, world, memory);
  detail::Profile profile(std::move(wanted->plan), wanted->precisions, options.progress, wanted->cluster);
  PinnedRank pinned(runtime.local_rank(), runtime.local_size(), runtime.bound() ? 0 : threads);
  profile.measure(world, HostPlatform{threads, &pinned});
  if (world.rank() != 0) return alone(wanted->cluster);
  return detail::accepted(profile.finish(), 0, options);
}

}  // namespace galvatron::train
