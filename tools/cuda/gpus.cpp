// Ranks that compute on GPUs: a module that the command loads when it is asked for them.
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <galvatron/comm/launch_environment.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/generate/gpu.hpp>
#include <galvatron/profile/gpu.hpp>
#include <galvatron/rank/placement.hpp>
#include <galvatron/train/gpu_compiled.hpp>
#include <galvatron/train/gpus.hpp>

#include "../launcher.hpp"

namespace galvatron::tools {

namespace {

using Kind = train::Placement::Kind;

/// Calls train(policy) with the policy of a plan of several tasks.
template <class Train>
train::TaskTrainReport with_order(TaskOrder order, const Train& train) {
  return order == TaskOrder::in_sequence ? train(Tasks<in_sequence>()) : train(Tasks<in_waves>());
}

class GpuLauncher : public Launcher {
 public:
  using Launcher::Launcher;
  [[nodiscard]] Bytes library_workspace(const Plan&) const override { return train::CudaPlatform::library_workspace(); }
  void require(Precision precision) const override { train::CudaPlatform::require(precision); }
  [[nodiscard]] bool copies_in_arena_memory() const override { return false; }
};

/// All ranks are threads of this process: each on a GPU of its own where there are enough of those that it may use
/// (CUDA_VISIBLE_DEVICES), else all on the first.
class GpuThreads final : public GpuLauncher {
 public:
  explicit GpuThreads(int gpus) : gpus_(gpus) {}
  [[nodiscard]] std::string remark(const Plan& plan) const override {
    if (!shares_memory(plan) || plan.ranks() == 1) return {};
    return "The plan has " + std::to_string(plan.ranks()) + " ranks, and there " +
           (gpus_ == 1 ? "is 1 GPU" : "are " + std::to_string(gpus_) + " GPUs") +
           ": all ranks share the first one, which checks the plan and is no faster than one rank.";
  }
  [[nodiscard]] std::pair<Bytes, std::string> arena_memory(const Plan& plan) const override {
    if (shares_memory(plan)) return {train::arena_memory(0), "the GPU"};
    return {train::gpu_memory(plan.ranks()), "the fullest GPU"};
  }
  [[nodiscard]] bool shares_memory(const Plan& plan) const override {
    return placed(plan.ranks()).kind == Kind::one_gpu;
  }
  [[nodiscard]] Cluster cluster(int ranks) const override { return train::gpu_cluster(placed(ranks)); }
  [[nodiscard]] MixedCluster profile(const train::ProfileOptions& options) const override {
    return alone(value_or_throw(train::profile_gpus(options)));
  }
  train::TrainReport train(const Plan& plan, const ModelSpec& model, train::BatchSource& source,
                           const train::TrainOptions& options) override {
    if (!shares_memory(plan)) return train::train_on_gpus(plan, model, source, options);
    require_ranks_of_one_gpu(plan.ranks());
    return train::train_on_gpu(plan, model, source, options);
  }
  train::TaskTrainReport train_tasks(const MultiTaskModel& model, const MultiTaskPlan& plan,
                                     const std::vector<train::TaskSources>& sources,
                                     const train::TaskTrainOptions& options) override {
    return with_order(plan.order, [&]<class Policy>(Policy) {
      if (placed(plan.waves.ranks).kind != Kind::one_gpu)
        return train::train_tasks_on_gpus<Policy>(model, plan.waves, sources, options);
      require_ranks_of_one_gpu(plan.waves.ranks);
      return train::train_tasks_on_gpu<Policy>(model, plan.waves, sources, options);
    });
  }
  void write_texts(const ModelSpec& model, const generate::Capacity& capacity, const runtime::ParameterSource& weights,
                   Precision precision, const std::function<void(generate::LanguageModel&)>& use) override {
    generate::with_gpu_language_model(model, capacity, weights, precision, 0, use);
  }

 private:
  static void require_ranks_of_one_gpu(int ranks) {
    if (ranks > comm::local_gpu::most_ranks)
      throw Failure(ErrorKind::usage, "the plan has " + std::to_string(ranks) + " ranks, and one GPU trains at most " +
                                          std::to_string(comm::local_gpu::most_ranks) + "; plan for fewer");
  }
  [[nodiscard]] train::Placement placed(int ranks) const {
    return value_or_throw(train::placement_of(gpus_, std::nullopt, ranks));
  }

  int gpus_;
};

/// This process is one rank of a job, with a GPU of its own.
class GpuProcess final : public GpuLauncher {
 public:
  GpuProcess(comm::tcp::World& control, const comm::LaunchEnvironment& job, int gpu)
      : GpuLauncher(&control), control_(control), job_(job), gpu_(gpu) {}
  [[nodiscard]] std::string starter() const override { return std::string(job_.launcher); }
  [[nodiscard]] std::pair<Bytes, std::string> arena_memory(const Plan&) const override {
    return {train::memory_beside_nccl(gpu_), "its GPU"};
  }
  [[nodiscard]] Cluster cluster(int) const override {
    return train::gpu_cluster({Kind::processes, control_.size(), gpu_});
  }
  [[nodiscard]] MixedCluster profile(const train::ProfileOptions& options) const override {
    return alone(value_or_throw(train::profile_gpus(control_, gpu_, options)));
  }
  train::TrainReport train(const Plan& plan, const ModelSpec& model, train::BatchSource& source,
                           const train::TrainOptions& options) override {
    return train::train_on_gpus(control_, gpu_, plan, model, source, options);
  }
  train::TaskTrainReport train_tasks(const MultiTaskModel& model, const MultiTaskPlan& plan,
                                     const std::vector<train::TaskSources>& sources,
                                     const train::TaskTrainOptions& options) override {
    return with_order(plan.order, [&]<class Policy>(Policy) {
      return train::train_tasks_on_gpus<Policy>(control_, gpu_, model, plan.waves, sources, options);
    });
  }

 private:
  comm::tcp::World& control_;
  const comm::LaunchEnvironment& job_;
  int gpu_;
};

}  // namespace
}  // namespace galvatron::tools

// What the command looks for in this module.
extern "C" void galvatron_run_on_gpus(const std::optional<galvatron::comm::LaunchEnvironment>& job,
                                      const std::function<void(galvatron::tools::Launcher&)>& body,
                                      galvatron::comm::Verdict& verdict) {
  using namespace galvatron;
  device::cuda::prepare_process();
  try {
    if (job) {
      verdict = comm::tcp::outcome_of(*job, [&](comm::tcp::World& control) {
        const auto placement =
            value_or_throw(train::placement_of(value_or_throw(device::cuda::device_count()), job, 0));
        tools::GpuProcess launcher(control, *job, placement.gpu);
        body(launcher);
      });
    } else {
      tools::GpuThreads launcher(value_or_throw(device::cuda::device_count()));
      body(launcher);
    }
  } catch (...) {
    verdict.failure = std::current_exception();
  }
}

static_assert(std::is_same_v<decltype(galvatron_run_on_gpus), galvatron::tools::RunOnGpus>);
