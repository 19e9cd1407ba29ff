// The trainer: runs a plan on rank threads of this machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <omp.h>

#include <galvatron/cluster/host_cores.hpp>
#include <galvatron/comm/send_guard.hpp>
#include <galvatron/comm/thread/thread.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/learning_rate.hpp>
#include <galvatron/train/pin.hpp>
#include <galvatron/train/rank_memory.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/stage.hpp>

namespace galvatron::train {

/// What rank 0 tells after every step.
struct StepReport {
  std::int64_t step = 0;  ///< counts from 0
  double loss = 0;        ///< mean cross-entropy of a token, in nats, before the step's update
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;  ///< of this step
  double tokens_per_second = 0;
};

struct TrainOptions {
  std::int64_t steps = 1;
  LearningRate learning_rate{};
  device::AdamW adam{};  ///< the constants; rate, step and scale are set every step
  double clip = 1.0;     ///< the largest gradient norm; 0 for no clipping
  std::uint64_t seed = 1;
  int threads_per_rank = 0;  ///< 0: the cores divided by the ranks, at least 1
  comm::thread::Options world{};
  std::function<void(const StepReport&)> on_step{};  ///< called on rank 0's thread
  Recorder* recorder = nullptr;                      ///< of all ranks: keeps when they did what in the last step
};

struct TrainReport {
  std::vector<StepReport> steps;
  double iteration_seconds = 0;                   ///< median without the first step
  std::vector<cost::StageMemory> planned_memory;  ///< of each rank
  std::vector<cost::StageMemory> measured_memory;
};

/// Threads that each of `ranks` rank threads computes with on this machine.
inline int threads_per_rank(int ranks) { return std::max(1, usable_cores() / ranks); }

/// The median; 0 of nothing.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace detail {

template <class T, class List>
void train_rank(comm::thread::World& world, const Plan& plan, const ModelSpec& model, BatchSource& source,
                const TrainOptions& options, int threads, TrainReport& report, std::mutex& report_mutex) {
  const PinnedRank pin(world.rank(), world.size(), threads);
  omp_set_num_threads(threads);
  const StagePlan stage_of_rank = stage_plan(plan, model, world.rank());
  RankMemory memory(memory_of(stage_of_rank, {device::Host::library_workspace_bytes(threads)}), false);
  device::Host device(threads, memory.library.take<std::byte>(memory.library.capacity()));
  Stage<device::Host, comm::thread::World, T, List> stage(device, world, plan, model, memory);
  const comm::SendGuard guard(world);  // nobody reads this rank's memory once it is gone
  stage.initialise(nn::initial_values(options.seed));
  if (options.recorder != nullptr) stage.observe(&options.recorder->rank(world.rank()));
  world.everybody().barrier();
  auto last = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < options.steps; ++step) {
    device::AdamW hyper = options.adam;
    hyper.learning_rate = static_cast<float>(options.learning_rate.at(step));
    hyper.step = step + 1;
    const StepResult result = stage.step(step, &source, hyper, options.clip);
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
      throw Failure(ErrorKind::machine, "step " + std::to_string(step) + " gave a loss of " +
                                            std::to_string(result.loss) + " and a gradient norm of " +
                                            std::to_string(result.gradient_norm) +
                                            ": training has diverged; use a smaller learning rate or more warm-up");
    if (world.rank() != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    StepReport out{.step = step,
                   .loss = result.loss,
                   .gradient_norm = result.gradient_norm,
                   .learning_rate = options.learning_rate.at(step),
                   .seconds = std::chrono::duration<double>(now - last).count()};
    out.tokens_per_second = static_cast<double>(plan.global_batch * plan.sequence_length) / out.seconds;
    report.steps.push_back(out);
    if (options.on_step) options.on_step(out);
    last = std::chrono::steady_clock::now();
  }
  const std::lock_guard lock(report_mutex);
  report.planned_memory[static_cast<std::size_t>(world.rank())] = memory.planned;
  report.measured_memory[static_cast<std::size_t>(world.rank())] = memory.measured();
}

}  // namespace detail

/// Trains as the plan says, one thread team for each of its ranks.
/// @tparam List  the strategies that are instantiated; a trainer that names its strategy as a type lists only it
/// @param source  asked by all ranks at once
/// Throws what failed first on any rank: Failure (usage) for a plan that this program cannot run, DeviceFailure,
/// PeerFailure, or Failure (machine) when the loss is no longer a number.
template <class List = InstantiatedStrategies>
TrainReport train(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options) {
  const int ranks = plan.ranks();
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(ranks);
  if (!device::Host::supports(plan.precision))
    throw DeviceFailure(std::string("this CPU has no ") + name_of(plan.precision) +
                        " arithmetic: plan with --precision fp32");
  TrainReport report;
  report.steps.reserve(static_cast<std::size_t>(options.steps));
  report.planned_memory.resize(static_cast<std::size_t>(ranks));
  report.measured_memory.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  comm::thread::run(
      ranks,
      [&](comm::thread::World& world) {
        if (plan.precision == Precision::fp32)
          detail::train_rank<float, List>(world, plan, model, source, options, threads, report, mutex);
        else
          detail::train_rank<bfloat16, List>(world, plan, model, source, options, threads, report, mutex);
      },
      options.world);
  std::vector<double> seconds;
  for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i)
    seconds.push_back(report.steps[i].seconds);
  report.iteration_seconds = median(seconds);
  return report;
}

}  // namespace galvatron::train
