// Measures GPUs as a cluster: a rank on each, or all on one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/profile/profile.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/rank/gpu_world.hpp>
#include <galvatron/rank/placement.hpp>

namespace galvatron::train {

namespace detail {

/// The plan for a time budget; 60 s is what the full one is meant to take for one rank in two precisions.
inline ProfilePlan gpu_profile_plan(double budget) {
  const double effort = std::clamp(budget / 60, 0.02, 10.0);
  ProfilePlan plan;
  // Far beyond the 50 to 126 MB of second-level cache, and well within it.
  plan.sizes = {.pool_bytes = std::int64_t{4} << 30, .near_bytes = std::int64_t{8} << 20, .vocabulary_bits = 15};
  // One sweep of a GPU that nobody shares, as long as several: the fastest of short ones would be of a GPU that has not
  // yet come to its limit of power, as it does in training.
  plan.sweeps = 1;
  plan.least = 5e-3 * std::min(effort, 4.0);
  plan.least_message = 5e-3 * effort;
  plan.most_flops = 2e13 * std::min(effort, 1.0);
  plan.fp32_share = 0.07;
  plan.most_elements = std::int64_t{1} << 28;
  plan.most_bytes = std::int64_t{1} << 30;
  const LogGrid<3>::Axis features{256, 1024, 2048, 4096, 8192, 16384};
  plan.gemm = {{{256, 1024, 2048, 4096, 8192, 16384, 32768, 65536}, features, features}};
  plan.attention = {{{256, 1024, 2048, 4096, 8192, 32768}, {64, 128}, {4, 16, 64, 256}}};
  plan.rows = {{{256, 2048, 16384}, {512, 2048, 8192}}};
  plan.elements = {{{1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 23, 1 << 24, 1 << 26, 1 << 28}, {1}}};
  for (std::int64_t bytes = 1 << 10; bytes <= plan.most_bytes; bytes *= 4) plan.bytes[0].push_back(bytes);
  if (effort < 0.5) {
    plan.gemm = {{{1024, 4096, 16384}, {1024, 4096, 16384}, {1024, 4096, 16384}}};
    plan.attention = {{{1024, 4096}, {64, 128}, {16, 64, 256}}};
  }
  return plan;
}

/// Errors: usage for impossible options.
inline Result<void> check_gpu_profile(const ProfileOptions& options) {
  if (!(options.time_budget.value > 0))
    return usage_error("the profile's time budget must be positive, e.g. 60 seconds");
  if (options.ranks < 0) return usage_error("cannot profile " + std::to_string(options.ranks) + " ranks");
  return {};
}

/// Measures the ranks that `start` starts, which calls its argument with the world and the platform of each.
/// @param gets_cluster  rank 0 is in this process
template <class Start>
Cluster measured_gpus(const ProfileOptions& options, Cluster cluster, bool gets_cluster, const Start& start) {
  std::vector<Precision> precisions = options.precisions;
  if (precisions.empty()) {
    precisions = {Precision::bf16, Precision::fp32};
    if (cluster.supports(Precision::fp8)) precisions.push_back(Precision::fp8);
  }
  complete(precisions);
  for (const Precision precision : precisions)
    if (!cluster.supports(precision)) throw device::cuda::no_8bit_products(cluster.device.name);
  ProfilePlan plan = gpu_profile_plan(options.time_budget.value);
  plan.weights = weights_of(options.models, cluster.devices);
  plan.terms = options.terms;
  const std::int64_t share = cluster.device.memory.count / 4;  // two pools; the rest is for other processes
  plan.sizes.pool_bytes = std::min(plan.sizes.pool_bytes, share / tensor_alignment * tensor_alignment);
  plan.alone = plan.sizes;
  Profile profile(plan, precisions, options.progress, cluster);
  start([&](comm::World& world, const CudaPlatform& platform) { profile.measure(world, platform); });
  return gets_cluster ? std::move(profile.finish().groups.front()) : cluster;
}

}  // namespace detail

/// What the arenas of ranks on GPU `ordinal` may take together. Throws DeviceFailure.
inline Bytes arena_memory(int ordinal) { return max(device::cuda::free_memory(ordinal) - code_allowance, Bytes{0}); }

/// What the arena of a rank with that GPU of its own may take. Throws DeviceFailure.
inline Bytes memory_beside_nccl(int ordinal) { return max(arena_memory(ordinal) - nccl_allowance, Bytes{0}); }

/// The least of the first `gpus`.
inline Bytes gpu_memory(int gpus) {
  Bytes least = memory_beside_nccl(0);
  for (int ordinal = 1; ordinal < gpus; ++ordinal) least = min(least, memory_beside_nccl(ordinal));
  return least;
}

/// GPUs with these ranks as a cluster, before anything is measured: the rates of their generation's data sheet, and
/// what is free of their memory. Throws DeviceFailure.
inline Cluster gpu_cluster(const Placement& placement) {
  using Kind = Placement::Kind;
  const int ranks = placement.ranks;
  const bool shared = placement.kind == Kind::one_gpu;
  const device::cuda::DeviceDescription gpu = device::cuda::describe_device(placement.gpu);
  Cluster cluster;
  cluster.name = "cuda";
  cluster.devices = ranks;
  cluster.devices_per_node = ranks;
  cluster.cores = shared && ranks > 1 ? 1 : 0;  // all ranks compute on one GPU
  cluster.device.name = gpu.name;
  cluster.device.memory = shared                             ? Bytes{arena_memory(placement.gpu).count / ranks}
                          : placement.kind == Kind::own_gpus ? gpu_memory(ranks)
                                                             : memory_beside_nccl(placement.gpu);
  cluster.device.library_workspace = CudaPlatform::library_workspace();
  cluster.device.memory_bandwidth = gpu.memory_bandwidth > 0 ? gpu.memory_bandwidth : 2e12;
  cluster.device.multiprocessors = gpu.multiprocessors;
  cluster.device.launch = {4e-6};
  cluster.device.gemm_launch = {2e-6};
  // What the data sheets say (docs/clusters.md); for others Ampere's figures, until they are measured.
  const bool hopper = gpu.major >= 9;
  cluster.device.rates = {{Precision::fp32, "fp32", hopper ? 67e12 : 19.5e12, 0.7},
                          {Precision::bf16, "bf16", hopper ? 989e12 : 312e12, 0.7}};
  if (device::cuda::has_8bit_products(gpu))
    cluster.device.rates.push_back({Precision::fp8, "fp8", hopper ? 1979e12 : 660e12, 0.6});
  // Ranks on one GPU read and write its memory; between GPUs there is at least PCI Express.
  const double between = shared ? cluster.device.memory_bandwidth / 4 : 20e9;
  cluster.inside_node = {{shared ? 5e-6 : 10e-6}, between, between, between};
  cluster.across_nodes = cluster.inside_node;
  return cluster;
}

/// Measures the GPUs that this process may use as profile_host() measures the cores: rank r on GPU r, over NCCL; more
/// ranks than GPUs, or one, on the first GPU. Errors: usage for impossible options; machine failures are thrown.
inline Result<Cluster> profile_gpus(const ProfileOptions& options) {
  if (auto fine = detail::check_gpu_profile(options); !fine) return tl::unexpected<Error>(std::move(fine.error()));
  const Result<int> gpus = device::cuda::device_count();
  if (!gpus) return tl::unexpected<Error>(gpus.error());
  const auto placement = placement_of(*gpus, std::nullopt, options.ranks);
  if (!placement) return tl::unexpected<Error>(placement.error());
  if (placement->kind == Placement::Kind::one_gpu && placement->ranks > comm::local_gpu::most_ranks)
    return usage_error("cannot profile " + std::to_string(placement->ranks) + " ranks on one GPU: choose 1 to " +
                       std::to_string(comm::local_gpu::most_ranks));
  return detail::measured_gpus(options, gpu_cluster(*placement), true, [&](const auto& measure) {
    if (placement->kind == Placement::Kind::own_gpus)
      detail::on_own_gpus(placement->ranks, comm::thread::Options{}.timeout,
                          with_platform(measure, options.deterministic));
    else
      detail::on_one_gpu(placement->ranks, placement->gpu, {}, with_platform(measure, options.deterministic));
  });
}

/// The same, this process as one rank, on GPU `ordinal`; called by all processes with the same options. Rank 0 gets the
/// cluster, the others what is known without measuring.
inline Result<Cluster> profile_gpus(comm::tcp::World& control, int ordinal, const ProfileOptions& options) {
  if (auto fine = detail::check_gpu_profile(options); !fine) return tl::unexpected<Error>(std::move(fine.error()));
  if (options.ranks != 0 && options.ranks != control.size())
    return usage_error("cannot profile " + std::to_string(options.ranks) + " ranks in " +
                       std::to_string(control.size()) + " processes: start as many");
  Cluster cluster = gpu_cluster({Placement::Kind::processes, control.size(), ordinal});
  cluster.devices_per_node = ranks_a_host(take_seats(control, seat_on(ordinal)));
  std::vector<std::int64_t> memory(static_cast<std::size_t>(control.size()));
  control.everybody().all_gather(View<const std::int64_t>(&cluster.device.memory.count, 1),
                                 View<std::int64_t>(memory.data(), static_cast<std::int64_t>(memory.size())));
  cluster.device.memory = {*std::ranges::min_element(memory)};
  return detail::measured_gpus(options, std::move(cluster), control.rank() == 0, [&](const auto& measure) {
    detail::on_own_gpu(control, ordinal, comm::thread::Options{}.timeout,
                       with_platform(measure, options.deterministic));
  });
}

}  // namespace galvatron::train
