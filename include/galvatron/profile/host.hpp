// Measures this machine as a cluster of rank threads.
//
// Everything that ranks share is measured with all of them at work: cores, caches, memory bandwidth. What a rank
// computes is measured with one rank at work too, because pipelines leave ranks idle.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/cluster/mixed.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/profile/check.hpp>
#include <galvatron/profile/profile.hpp>
#include <galvatron/rank/host_rank.hpp>

namespace galvatron::train {

namespace detail {

/// The plan for a time budget. 35 s is what the full plan takes for 4 ranks on 2 cores in two precisions, a third of it
/// for each sweep.
inline ProfilePlan profile_plan(double budget) {
  const double effort = std::clamp(budget / 35, 0.001, 10.0);
  ProfilePlan plan;
  plan.again_until = 1.5 * budget;
  plan.least = 0.5e-3 * std::min(effort, 4.0);
  plan.least_message = 3e-3 * effort;
  plan.most_flops = 2.5e8 * std::max(effort, 0.1);
  plan.most_bytes = effort >= 0.5 ? 64 << 20 : effort >= 0.1 ? 8 << 20 : 1 << 18;
  if (effort < 0.1) {
    plan.sweeps = 1;
    plan.most_elements = 1 << 16;
    plan.gemm = {{{16, 256}, {32, 256}, {32, 256}}};
    plan.attention = {{{32, 128}, {32, 64}, {1, 8}}};
    plan.rows = {{{16, 256}, {64, 256}}};
    plan.elements = {{{256, 1 << 16}, {1}}};
    plan.bytes = {{{64, 1 << 12, 1 << 18}}};
    return plan;
  }
  const LogGrid<3>::Axis features{32, 64, 128, 256, 512, 1024, 2048, 4096};
  plan.gemm = {{{16, 32, 64, 128, 256, 512, 1024, 2048, 4096}, features, features}};
  plan.attention = {{{32, 64, 128, 256, 512, 1024, 2048}, {16, 32, 64, 128}, {1, 4, 16, 64}}};
  plan.rows = {{{16, 128, 1024, 8192}, {64, 256, 1024, 4096}}};
  plan.elements = {{{256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22}, {1}}};
  for (std::int64_t bytes = 64; bytes <= plan.most_bytes; bytes *= 4) plan.bytes[0].push_back(bytes);
  if (effort < 0.9) plan.sweeps = effort < 0.6 ? 1 : 2;
  if (effort < 0.35) {
    plan.gemm = {{{16, 128, 1024}, {32, 128, 512, 2048}, {32, 128, 512, 2048}}};
    plan.attention = {{{32, 128, 512}, {32, 64}, {1, 8, 64}}};
  }
  return plan;
}

/// Pools through which measurements walk. Together those of all ranks are beyond what caches hold, so that each needs
/// less of many; the rank that computes alone keeps its own. A coarse plan has small operands.
inline void size_pools(ProfilePlan& plan, int ranks) {
  constexpr std::int64_t mebibyte = 1 << 20;
  if (plan.most_elements <= 1 << 16) plan.alone.pool_bytes = 8 * mebibyte;
  plan.sizes.pool_bytes = std::clamp(256 * mebibyte / ranks / mebibyte * mebibyte, 4 * mebibyte, plan.alone.pool_bytes);
  for (BenchSizes* sizes : {&plan.sizes, &plan.alone}) {  // so that the table of the widest rows fits
    const std::int64_t widest = plan.rows[1].back();
    while (widest << sizes->vocabulary_bits > sizes->pool_bytes / 4) --sizes->vocabulary_bits;
  }
  std::erase_if(plan.bytes[0], [&](std::int64_t bytes) { return bytes > plan.sizes.pool_bytes; });
}

}  // namespace detail

/// What the ranks of a profile take of the machine's memory: {a rank, all of them}. @param plan  with its pools
inline std::pair<Bytes, Bytes> profile_memory(const detail::ProfilePlan& plan, int ranks, int threads) {
  using Bench = detail::Bench<HostPlatform>;
  const HostPlatform platform{threads, nullptr};
  const Bytes each = Bench::memory(platform, plan.sizes).total();
  const Bytes alone = plan.alone == plan.sizes ? Bytes{} : Bench::memory(platform, plan.alone).total();
  return {each, Bytes{ranks * each.count} + alone};
}

namespace detail {

/// What a profile of ranks on cores measures.
struct HostProfile {
  std::vector<Precision> precisions;
  ProfilePlan plan;
  Cluster cluster;
};

/// The profile of `ranks` ranks of `threads` threads, `here` of them on this machine. Errors: usage for impossible
/// options; infeasible when the ranks take more memory than there is.
inline Result<HostProfile> host_profile(const ProfileOptions& options, int ranks, int here, int cores, int threads) {
  std::vector<Precision> precisions = options.precisions;
  if (precisions.empty())
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      if (device::Host::supports(precision)) precisions.push_back(precision);
  complete(precisions);
  for (const Precision precision : precisions)
    if (!device::Host::supports(precision))
      return usage_error(std::string("this processor has no ") + name_of(precision) + " arithmetic: profile fp32");

  Cluster cluster = host_cluster(here, cores);
  cluster.devices = ranks;
  cluster.threads_per_rank = threads;
  cluster.device.library_workspace = {device::Host::library_workspace_bytes(threads)};
  ProfilePlan plan = profile_plan(options.time_budget.value);
  size_pools(plan, here);
  plan.weights = weights_of(options.models, ranks);
  plan.terms = options.terms;
  plan.tells_ranks_apart = options.tells_ranks_apart && ranks > 1;
  plan.seconds_to_tell_apart = std::clamp(options.time_budget.value / 20, 0.05, 2.0);
  const auto [each, all] = profile_memory(plan, here, threads);
  if (const UsableMemory memory = usable_memory(here); all > memory.bytes)
    return tl::unexpected<Error>(
        Error{ErrorKind::infeasible, "a profile of " + std::to_string(here) + (here == 1 ? " rank" : " ranks") +
                                         " takes " + format_bytes(all) + " of memory, " + format_bytes(each) +
                                         " a rank, but " + format_bytes(memory.bytes) + " are free: " + memory.bound +
                                         "; profile fewer ranks"});
  return HostProfile{std::move(precisions), std::move(plan), std::move(cluster)};
}

/// What was measured, or why it is not used. @param others  share of the cores, 0 to 1, that others took meanwhile
inline Result<MixedCluster> accepted(MixedCluster measured, double others, const ProfileOptions& options) {
  const std::string why = why_doubtful(measured.groups.front(), others);
  if (why.empty() || options.accepts_busy) return measured;
  return tl::unexpected<Error>(Error{
      ErrorKind::machine,
      "the profile is not used: " + why + "; measure when nothing else runs, or accept it with --on-busy accept"});
}

}  // namespace detail

/// Measures this machine with rank threads, as training on it will use it: operations of device::Host with all ranks
/// and with one at work, collectives and messages of comm::thread for all group sizes that divide the ranks, all over
/// sizes, and the slowdown of computing beside communication. What other programs disturbed is measured again while
/// time_budget allows, half of it more at most. Errors: usage for impossible options; infeasible when the ranks take
/// more memory than there is; machine when the profile is doubtful (profile/check.hpp) and the options do not accept
/// it. Machine failures are thrown (DeviceFailure, PeerFailure).
/// @return  one group, or with tells_ranks_apart one for each run of ranks that are as fast as each other
inline Result<MixedCluster> profile_host_ranks(const ProfileOptions& options) {
  const int cores = usable_cores();
  const int ranks = options.ranks == 0 ? cores : options.ranks;
  if (ranks < 1 || ranks > 1024)
    return usage_error("cannot profile " + std::to_string(ranks) + " ranks: choose 1 to 1024");
  if (options.threads_per_rank < 0)
    return usage_error("cannot profile " + std::to_string(options.threads_per_rank) +
                       " threads a rank: choose 1 or more");
  if (!(options.time_budget.value > 0))
    return usage_error("the profile's time budget must be positive, e.g. 35 seconds");
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores / ranks);
  auto wanted = detail::host_profile(options, ranks, ranks, cores, threads);
  if (!wanted) return tl::unexpected<Error>(std::move(wanted.error()));
  wanted->plan.watches_cores = true;
  detail::Profile profile(std::move(wanted->plan), wanted->precisions, options.progress, std::move(wanted->cluster));
  comm::thread::run(ranks, [&](comm::thread::World& world) {
    PinnedRank pinned(world.rank(), ranks, threads);
    profile.measure(world, HostPlatform{threads, &pinned});
  });
  return detail::accepted(profile.finish(), profile.others(), options);
}

/// The same of ranks that are equal. @param options  without tells_ranks_apart
inline Result<Cluster> profile_host(const ProfileOptions& options) {
  return profile_host_ranks(options).map([](MixedCluster&& cluster) { return std::move(cluster.groups.front()); });
}

}  // namespace galvatron::train
