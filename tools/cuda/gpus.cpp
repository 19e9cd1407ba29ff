// Ranks that compute on a GPU of this machine: a module that the command loads when it is asked for one.
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/train/profile_gpu.hpp>

#include "../launcher.hpp"
#include "train_on_gpus.hpp"

namespace galvatron::tools {

namespace {

/// All ranks are threads of this process, on the first GPU that it may use (CUDA_VISIBLE_DEVICES).
class GpuLauncher final : public Launcher {
 public:
  [[nodiscard]] bool shows() const override { return true; }
  [[nodiscard]] int ranks() const override { return 0; }
  [[nodiscard]] Bytes library_workspace(const Plan&) const override {
    return galvatron::train::CudaPlatform::library_workspace();
  }
  void require(Precision precision) const override { galvatron::train::CudaPlatform::require(precision); }
  [[nodiscard]] std::pair<Bytes, std::string> arena_memory() const override {
    return {device::cuda::free_memory(ordinal), "the GPU"};
  }
  [[nodiscard]] bool copies_in_arena_memory() const override { return false; }
  [[nodiscard]] Cluster cluster(int ranks) const override {
    return galvatron::train::gpu_cluster(ranks == 0 ? 1 : ranks, ordinal);
  }
  [[nodiscard]] Cluster profile(const galvatron::train::ProfileOptions& options) const override {
    return value_or_throw(galvatron::train::profile_gpu(options, ordinal));
  }
  [[nodiscard]] std::vector<int> ranks_here(const Plan& plan) const override {
    std::vector<int> ranks(static_cast<std::size_t>(plan.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  std::string shared(std::string text) override { return text; }
  galvatron::train::TrainReport train(const Plan& plan, const ModelSpec& model, galvatron::train::BatchSource& source,
                                      const galvatron::train::TrainOptions& options) override {
    if (plan.ranks() > comm::local_gpu::most_ranks)
      throw Failure(ErrorKind::usage, "the plan has " + std::to_string(plan.ranks()) +
                                          " ranks, and one GPU trains at most " +
                                          std::to_string(comm::local_gpu::most_ranks) + "; plan for fewer");
    return galvatron::train::train_on_gpu(plan, model, source, options, ordinal);
  }

 private:
  static constexpr int ordinal = 0;
};

}  // namespace

}  // namespace galvatron::tools

// What the command looks for in this module; the caller owns what it gets.
extern "C" galvatron::tools::Launcher* galvatron_gpu_launcher() {
  if (const auto count = galvatron::device::cuda::device_count(); !count)
    throw galvatron::DeviceFailure(count.error().message);
  return new galvatron::tools::GpuLauncher;
}
