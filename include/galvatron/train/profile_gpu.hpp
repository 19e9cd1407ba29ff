// Measures a GPU of this machine as a cluster of ranks on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/train/detail/profile_measure.hpp>
#include <galvatron/train/gpus.hpp>
#include <galvatron/train/profile_options.hpp>

namespace galvatron::train {

namespace detail {

/// The plan for a time budget; 60 s is what the full one is meant to take for one rank in two precisions.
inline ProfilePlan gpu_profile_plan(double budget) {
  const double effort = std::clamp(budget / 60, 0.02, 10.0);
  ProfilePlan plan;
  // Far beyond the 50 to 126 MB of second-level cache, and well within it.
  plan.sizes = {.pool_bytes = std::int64_t{4} << 30, .near_bytes = std::int64_t{8} << 20};
  plan.sweeps = effort >= 0.5 ? 3 : 1;
  plan.least = 2e-3 * std::min(effort, 4.0);
  plan.least_message = 5e-3 * effort;
  plan.most_flops = 2e13 * std::min(effort, 1.0);
  plan.most_elements = std::int64_t{1} << 28;
  plan.most_bytes = std::int64_t{1} << 30;
  const LogGrid<3>::Axis features{256, 1024, 2048, 4096, 8192, 16384};
  plan.gemm = {{{256, 1024, 2048, 4096, 8192, 16384, 65536}, features, features}};
  plan.attention = {{{256, 1024, 2048, 4096, 8192, 32768}, {64, 128}, {4, 16, 64, 256}}};
  plan.rows = {{{256, 2048, 16384}, {512, 2048, 8192}}};
  plan.elements = {{{1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28}, {1}}};
  for (std::int64_t bytes = 1 << 10; bytes <= plan.most_bytes; bytes *= 4) plan.bytes[0].push_back(bytes);
  if (effort < 0.5) {
    plan.gemm = {{{1024, 4096, 16384}, {1024, 4096, 16384}, {1024, 4096, 16384}}};
    plan.attention = {{{1024, 4096}, {64, 128}, {16, 64}}};
  }
  return plan;
}

}  // namespace detail

/// GPU `ordinal` with `ranks` ranks as a cluster, before anything is measured: the rates of its generation's data
/// sheet, and what is free of its memory, shared by the ranks. Throws DeviceFailure.
inline Cluster gpu_cluster(int ranks, int ordinal = 0) {
  const device::cuda::DeviceDescription gpu = device::cuda::describe_device(ordinal);
  Cluster cluster;
  cluster.name = "cuda";
  cluster.devices = ranks;
  cluster.devices_per_node = ranks;
  cluster.cores = ranks > 1 ? 1 : 0;  // all ranks compute on one GPU
  cluster.device.name = gpu.name;
  cluster.device.memory = {device::cuda::free_memory(ordinal).count / ranks};
  cluster.device.library_workspace = CudaPlatform::library_workspace();
  cluster.device.memory_bandwidth = gpu.memory_bandwidth > 0 ? gpu.memory_bandwidth : 2e12;
  cluster.device.multiprocessors = gpu.multiprocessors;
  cluster.device.launch = {4e-6};
  cluster.device.gemm_launch = {2e-6};
  // What the data sheets say (docs/clusters.md); for others Ampere's figures, until they are measured.
  const bool hopper = gpu.major >= 9;
  cluster.device.rates = {{Precision::fp32, "fp32", hopper ? 67e12 : 19.5e12, 0.7},
                          {Precision::bf16, "bf16", hopper ? 989e12 : 312e12, 0.7}};
  const double between = cluster.device.memory_bandwidth / 4;  // ranks on one GPU read and write its memory
  cluster.inside_node = {{5e-6}, between, between, between};
  cluster.across_nodes = cluster.inside_node;
  return cluster;
}

/// Measures GPU `ordinal` as profile_host() measures the cores. Errors: usage for impossible options; machine failures
/// are thrown.
inline Result<Cluster> profile_gpu(const ProfileOptions& options, int ordinal = 0) {
  const int ranks = options.ranks == 0 ? 1 : options.ranks;
  if (ranks < 1 || ranks > comm::local_gpu::most_ranks)
    return usage_error("cannot profile " + std::to_string(ranks) + " ranks on one GPU: choose 1 to " +
                       std::to_string(comm::local_gpu::most_ranks));
  if (!(options.time_budget.value > 0))
    return usage_error("the profile's time budget must be positive, e.g. 60 seconds");
  std::vector<Precision> precisions = options.precisions;
  if (precisions.empty()) precisions = {Precision::bf16, Precision::fp32};
  Cluster cluster = gpu_cluster(ranks, ordinal);
  detail::ProfilePlan plan = detail::gpu_profile_plan(options.time_budget.value);
  const std::int64_t share = cluster.device.memory.count / 4;  // two pools, and room for others on the GPU
  plan.sizes.pool_bytes = std::min(plan.sizes.pool_bytes, share / tensor_alignment * tensor_alignment);
  detail::Profile profile(plan, precisions, ranks, options.progress, cluster);
  detail::on_one_gpu(ranks, ordinal, {},
                     [&](OneGpuWorld& world, const CudaPlatform& platform) { profile.measure(world, platform); });
  profile.finish();
  return cluster;
}

}  // namespace galvatron::train
