// cuDNN's graphs of attention, and the engines that it has for them, on GPUs that are only described.
//
// The engines want a driver's library to be there; CUDA's stub of it does, which the build puts in the way.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include <dlfcn.h>

#include <doctest/doctest.h>

#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/cudnn_attention_plan.hpp>

#include "described_device.hpp"

namespace {

using namespace galvatron;
namespace cudnn = device::cuda::cudnn;
using device::AttentionShape;

// An H100 and an A100, as cuDNN describes them.
std::string device_json(int version, int multiprocessors, int shared) {
  return R"({"deviceName":"GPU","cudaDeviceId":0,"driverVer":13000,"maxGridSize":[2147483647,65535,65535],)"
         R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"smClockRateKHz":1500000,"memClockRateKHz":1500000,)"
         R"("l2CacheSize":41943040,"warpSize":32,"maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,)"
         R"("maxRegistersPerSM":65536,"pciDeviceId":0,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
         R"("maxThreadsPerSM":2048,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":42520809984,)"
         R"("deviceVer":)" +
         std::to_string(version) + R"(,"multiProcessorCount":)" + std::to_string(multiprocessors) +
         R"(,"maxSharedMemoryPerBlockOptin":)" + std::to_string(shared) + "}";
}

std::vector<AttentionShape> shapes() {
  std::vector<AttentionShape> all;
  for (const bool causal : {false, true})
    for (const std::int64_t kv_heads : {8, 2})
      for (const std::int64_t head_dim : {64, 128})
        for (const std::int64_t tokens : {17, 512, 4096})
          all.push_back({.batch = 2,
                         .queries = tokens,
                         .keys = tokens,
                         .heads = 8,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .causal = causal,
                         .q_stride = (8 + 2 * kv_heads) * head_dim,
                         .kv_stride = (8 + 2 * kv_heads) * head_dim,
                         .out_stride = 8 * head_dim,
                         .lse_stride = head_dim == 64 ? 0 : tokens + 25});
  return all;
}

/// Of groups of packed documents.
std::vector<AttentionShape> group_shapes() {
  std::vector<AttentionShape> all;
  for (const std::int64_t slots : {1, 16})
    for (const std::int64_t kv_heads : {8, 2})
      for (const std::int64_t head_dim : {64, 128})
        for (const std::int64_t tokens : {std::int64_t{128}, std::int64_t{4096}})
          all.push_back({.batch = slots,
                         .queries = tokens,
                         .keys = tokens,
                         .heads = 8,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .causal = true,
                         .q_stride = (8 + 2 * kv_heads) * head_dim,
                         .kv_stride = (8 + 2 * kv_heads) * head_dim,
                         .out_stride = 8 * head_dim});
  return all;
}

/// The least workspace of the engines that are deterministic; -1 where there is none.
std::int64_t least_workspace(const cudnn::Graph& graph, const cudnn::Target& target) {
  const cudnn::Object operations = graph.finished(target);
  std::int64_t bytes = -1;
  for (const cudnn::Choice& choice : cudnn::choices(operations, target, CUDNN_HEUR_MODE_A))
    if (!choice.varies && (bytes < 0 || choice.workspace < bytes)) bytes = choice.workspace;
  return bytes;
}

/// Ends the program as skipped without a library of the driver.
void need_driver() {
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW); driver == nullptr) {
    std::puts("skipped: no library of the CUDA driver, nor its stub");
    std::exit(77);
  }
}

TEST_CASE("cuDNN accepts attention's operations as one graph, whatever the shape") {
  for (const AttentionShape& s : shapes()) {
    const cudnn::AttentionPart all{s.batch, s.kv_heads};
    CAPTURE(cudnn::to_string(s, true));
    CHECK_NOTHROW(std::ignore = cudnn::attention_forward_graph(s, all).finished({}));
    for (const bool deterministic : {true, false}) {
      CHECK_NOTHROW(std::ignore = cudnn::attention_backward_graph(s, all, deterministic).finished({}));
      CHECK_NOTHROW(std::ignore = cudnn::attention_backward_graph(s, {1, 1}, deterministic).finished({}));
    }
  }
}

TEST_CASE("cuDNN has engines for attention on an H100 and an A100") {
  need_driver();
  for (const auto& [version, multiprocessors, shared] : {std::array{900, 132, 232448}, std::array{800, 108, 166912}}) {
    const cudnn::Object device = test::described_device(device_json(version, multiprocessors, shared));
    const cudnn::Target target{.device = device.get()};
    for (const AttentionShape& s : shapes()) {
      CAPTURE(cudnn::to_string(s, true));
      CAPTURE(version);
      const std::int64_t forward = least_workspace(cudnn::attention_forward_graph(s, {s.batch, s.kv_heads}), target);
      CHECK(forward >= 0);
      CHECK(forward <= 256);
      // Backward: one gradient of the weights in bfloat16 for every head of the part, on tiles of 64 or 128 tokens, and
      // for grouped queries the gradients of keys and values by query head.
      const cudnn::AttentionPart part{1, 1};
      const std::int64_t heads = part.heads(s);
      const std::int64_t tokens = round_up(s.queries, 256);
      const std::int64_t backward = least_workspace(cudnn::attention_backward_graph(s, part, true), target);
      CHECK(backward >= heads * s.queries * s.queries * 2);
      CHECK(backward <= heads * tokens * (tokens + 4 * s.head_dim) * 2 + 1024);
      // Not deterministic: nothing of (queries, keys).
      const std::int64_t adding = least_workspace(cudnn::attention_backward_graph(s, part, false), target);
      CHECK(adding >= 0);
      CHECK(adding <= heads * tokens * 4 * s.head_dim * 2 + 1024);
    }
  }
}

TEST_CASE("cuDNN has engines for groups of packed documents on an H100") {
  need_driver();
  const cudnn::Object device = test::described_device(device_json(900, 132, 232448));
  const cudnn::Target target{.device = device.get()};
  for (const AttentionShape& s : group_shapes()) {
    CAPTURE(cudnn::to_string(s, true));
    const cudnn::AttentionPart all{s.batch, s.kv_heads};
    const std::int64_t forward = least_workspace(cudnn::attention_forward_graph(s, all, true), target);
    CHECK(forward >= 0);
    CHECK(forward <= 32768);
    // What samples of one length take, see above.
    for (const cudnn::AttentionPart part : {all, cudnn::AttentionPart{1, 1}}) {
      const std::int64_t rows = part.samples * part.heads(s) * s.queries;
      const std::int64_t backward = least_workspace(cudnn::attention_backward_graph(s, part, true, true), target);
      CHECK(backward >= rows * s.queries * 2);
      CHECK(backward <= rows * (s.queries + 4 * s.head_dim) * 2 + 8192);
      const std::int64_t adding = least_workspace(cudnn::attention_backward_graph(s, part, false, true), target);
      CHECK(adding >= 0);
      CHECK(adding <= rows * 4 * s.head_dim * 2 + 8192);
    }
  }
}

}  // namespace
