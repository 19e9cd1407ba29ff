// The trainer: runs a plan on rank threads of this machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/rank/stopwatch.hpp>
#include <galvatron/train/expert_dispatch.hpp>
#include <galvatron/train/expert_loads.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/stage.hpp>
#include <galvatron/train/stop.hpp>

namespace galvatron::train {

/// What rank 0 tells after every step.
struct StepReport {
  std::int64_t step = 0;  ///< counts from 0
  double loss = 0;        ///< mean cross-entropy of a prediction, in nats, before the step's update
  double gradient_norm = 0;
  double balance_loss = 0;  ///< of the routers of experts, as StepResult has it; 0: the model has none
  double z_loss = 0;        ///< the same
  DispatchSums dispatch{};  ///< of all layers with experts
  double learning_rate = 0;
  double seconds = 0;       ///< of this step
  std::int64_t tokens = 0;  ///< of the step's samples
  double tokens_per_second = 0;
  double mfu = 0;       ///< model FLOPs over what the plan's devices could do in that time; 0: the plan does not say
  Bytes peak_memory{};  ///< of rank 0's arena so far
  /// Empty, or where the step's numbers stopped being numbers: its update was skipped then.
  std::string skipped{};
  /// Of layers with experts, with TrainOptions::counts_loads; TrainReport keeps those of the last step alone.
  std::vector<ExpertLoads> loads{};
  std::vector<LayerDispatch> layer_dispatch{};  ///< the same, with and without counts_loads
  /// Of packed documents, how.
  struct Packed {
    std::int64_t microbatches = 0;
    std::int64_t padding = 0;  ///< rows
    std::string groups{};      ///< as groups_text() has them
    double waited = 0;         ///< seconds that rank 0's process waited for it
  };
  std::optional<Packed> packed{};
};

/// What to do when the loss or a gradient is infinite or not a number.
enum class OnNan : std::uint8_t { stop, skip };

struct TrainOptions {
  std::int64_t steps = 1;  ///< of the whole run, those before a resumption included
  LearningRate learning_rate{};
  device::AdamW adam{};  ///< the constants; rate, step and seed are set every step
  double clip = 1.0;     ///< the largest gradient norm; 0 for no clipping
  std::uint64_t seed = 1;
  OnNan on_nan = OnNan::stop;
  runtime::ParameterSource initial{};  ///< the parameters to start from; empty: by the seed
  const Checkpoint* resume = nullptr;  ///< go on after its step, with its parameters and moments
  CheckpointOptions checkpoint{};
  std::int64_t data_tokens = 0;  ///< for the manifests of checkpoints, as is the next one (Data::size, Data::checksum)
  std::optional<std::uint32_t> data_crc32c{};
  bool repeats = true;        ///< see Stage::repeat
  bool searches = true;       ///< before training, the fastest algorithms of products, where a rank is alone
  bool deterministic = true;  ///< GPUs: the same bits every time; else attention's gradients differ by their rounding
  int threads_per_rank = 0;   ///< 0: the cores divided by the ranks, at least 1. On GPUs they draw the initial values
  comm::thread::Options world{};
  /// Called on rank 0's thread. What it throws ends the run: with a checkpoint, where there are any, within about 0.1
  /// s.
  std::function<void(const StepReport&)> on_step{};
  /// Ends the run early when it is not 0, on any rank: after the step at hand (within about 0.1 s where steps are
  /// shorter), with a checkpoint, where there are any. A handler of signals may set it. Null: the run is never asked.
  const std::atomic<int>* stop = nullptr;
  bool late_groups_fixed = false;  ///< see Stage::take_fixed_groups
  bool counts_loads = false;       ///< StepReport::loads; all else has the same bits with and without
  Recorder* recorder = nullptr;    ///< of all ranks: keeps when they did what in the last step
};

struct TrainReport {
  std::vector<StepReport> steps;
  double iteration_seconds = 0;                   ///< median without the first step
  std::vector<cost::StageMemory> planned_memory;  ///< of each rank
  std::vector<cost::StageMemory> measured_memory;
  std::vector<CheckpointReport> checkpoints;  ///< of each rank
  std::vector<std::string> remarks;           ///< of rank 0's device: what it did in another way than usual
  /// Why the run ended before its last step: the value of TrainOptions::stop, the largest of all ranks. 0: all steps
  /// are done.
  int stopped = 0;
};

/// The first step that a run does.
inline std::int64_t first_step(const TrainOptions& options) {
  return options.resume == nullptr ? 0 : options.resume->training().step;
}

/// Threads that each of `ranks` rank threads computes with on this machine.
inline int threads_per_rank(int ranks) { return std::max(1, usable_cores() / ranks); }
/// The same, or what the options ask for.
inline int threads_per_rank(const TrainOptions& options, int ranks) {
  return options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(ranks);
}

namespace detail {

inline StepReport::Packed packed_report(BatchSource& source, const Plan& plan, std::int64_t step) {
  const auto packing = source.packing(step);
  return {.microbatches = packing->microbatches(),
          .padding = packing->padding(),
          .groups = groups_text(*packing, plan.embedding.context),
          .waited = source.waited(step)};
}

/// What every rank does, whatever a rank is.
/// @param platform  HostPlatform or its like: what makes a rank's memory and device
template <class T, class Platform>
void train_rank(comm::World& world, const Platform& platform, const Plan& plan, const ModelSpec& model,
                const LayerMaker<typename Platform::Rank::Device, T>& make, BatchSource& source,
                const TrainOptions& options, TrainReport& report, std::mutex& report_mutex) {
  using Device = typename Platform::Rank::Device;
  platform.enter();
  const StagePlan stage_of_rank = stage_plan(plan, model, world.rank());
  typename Platform::Rank rank = platform.make(memory_of(stage_of_rank, platform.library_workspace()));
  RankMemory& memory = rank.memory();
  Stage<Device, T> stage(rank.device(), world, plan, model, memory, make, options.counts_loads);
  const comm::SendGuard guard(world);  // nobody reads this rank's memory once it is gone
  if (options.resume != nullptr)
    restore(stage, *options.resume);
  else
    stage.initialise(options.initial ? options.initial : runtime::initial_values(options.seed, platform.threads));
  if constexpr (requires { rank.begin_search(); }) {
    if (options.searches && world.size() == 1) {  // on values of training: a GPU multiplies zeros faster
      rank.begin_search();
      stage.autotune(first_step(options), &source);
      rank.end_search();
    }
  }
  std::optional<Checkpointer<Device, decltype(stage)>> checkpointer;
  if (!options.checkpoint.folder.empty()) {
    const TrainingState training{.model = model.name,
                                 .architecture = model_architecture(model),
                                 .step = first_step(options),
                                 .seed = options.seed,
                                 .global_batch = plan.global_batch,
                                 .sequence_length = plan.sequence_length,
                                 .data_tokens = options.data_tokens,
                                 .data_crc32c = options.data_crc32c,
                                 .precision = plan.precision,
                                 .learning_rate = options.learning_rate,
                                 .adam = options.adam,
                                 .clip = options.clip};
    checkpointer.emplace(options.checkpoint, training, rank.device(), world, stage,
                         [&platform] { platform.enter_beside(); });
    stage.before_update([&checkpointer] { checkpointer->before_update(); });
  }
  stage.repeat(options.repeats);
  stage.take_fixed_groups(options.late_groups_fixed);
  if (options.recorder != nullptr) stage.observe(&options.recorder->rank(world.rank()));
  StopVote vote(world.control().everybody(), options.stop);
  std::exception_ptr failed_report;  // what on_step threw
  std::int64_t step = first_step(options);
  double last = steady_seconds();
  for (; step < options.steps && !vote.ends(); ++step) {
    device::AdamW hyper = options.adam;
    hyper.learning_rate = static_cast<float>(options.learning_rate.at(step));
    hyper.step = step + 1;
    hyper.seed = options.seed;
    const StepResult result = stage.step(step, &source, hyper, options.clip);
    world.check();
    std::string wrong;
    if (!result.is_finite()) {
      const auto text = [](double value) { return std::isnan(value) ? "nan" : std::to_string(value); };  // no "-nan"
      wrong = "step " + std::to_string(step + 1) + " gave a loss of " + text(result.loss) + " and a gradient norm of " +
              text(result.gradient_norm) + ", first seen in " + place_text(stage.find_non_finite());
      if (options.on_nan == OnNan::stop)
        throw Failure(
            ErrorKind::machine,
            wrong + (step == 0 ? ": no parameter was updated yet, so it is not the learning rate; the weights that "
                                 "the run began with are too large for this precision, or the model has no finite "
                                 "loss on these data"
                               : ": training has diverged; use a smaller learning rate or more warm-up, or skip "
                                 "such steps"));
    }
    if (world.rank() == 0) {
      const double seconds = steady_seconds() - last;
      const std::int64_t tokens = plan.packed ? result.tokens : plan.global_batch * plan.sequence_length;
      const StepReport out{.step = step,
                           .loss = result.loss,
                           .gradient_norm = result.gradient_norm,
                           .balance_loss = result.balance_loss,
                           .z_loss = result.z_loss,
                           .dispatch = total(result.dispatch),
                           .learning_rate = options.learning_rate.at(step),
                           .seconds = seconds,
                           .tokens = tokens,
                           .tokens_per_second = static_cast<double>(tokens) / seconds,
                           .mfu = plan.predicted.mfu * plan.predicted.iteration.value / seconds,
                           .peak_memory = memory.measured().total(),
                           .skipped = std::move(wrong),
                           .loads = result.loads,
                           .layer_dispatch = result.dispatch,
                           .packed = plan.packed ? std::optional(packed_report(source, plan, step)) : std::nullopt};
      if (!report.steps.empty()) report.steps.back().loads.clear();
      if (!report.steps.empty()) report.steps.back().layer_dispatch.clear();
      report.steps.push_back(out);
      if (options.on_step && failed_report == nullptr) {
        try {
          options.on_step(out);
        } catch (...) {
          failed_report = std::current_exception();
        }
      }
    }
    vote.after_step(failed_report != nullptr);
    if (checkpointer) checkpointer->after_step(step + 1, step + 1 == options.steps || vote.ends());
    last = steady_seconds();
  }
  if (failed_report != nullptr) std::rethrow_exception(failed_report);
  const std::lock_guard lock(report_mutex);
  if (step < options.steps) report.stopped = vote.asked_for();
  report.planned_memory[static_cast<std::size_t>(world.rank())] = memory.planned;
  report.measured_memory[static_cast<std::size_t>(world.rank())] = memory.measured();
  if (world.rank() == 0) report.remarks = rank.remarks();
  if (checkpointer) report.checkpoints[static_cast<std::size_t>(world.rank())] = checkpointer->report();
}

/// Trains the ranks that `start` starts, which calls its argument with the world and the platform of each.
template <class List, class Start>
TrainReport train_ranks(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options,
                        const Start& start) {
  TrainReport report;
  report.steps.reserve(static_cast<std::size_t>(std::max<std::int64_t>(options.steps - first_step(options), 0)));
  report.planned_memory.resize(static_cast<std::size_t>(plan.ranks()));
  report.measured_memory.resize(static_cast<std::size_t>(plan.ranks()));
  report.checkpoints.resize(static_cast<std::size_t>(plan.ranks()));
  std::mutex mutex;
  start([&]<class Platform>(comm::World& world, const Platform& platform) {
    using Device = typename Platform::Rank::Device;
    const auto train = [&]<class T>(const LayerMaker<Device, T>& make) {
      train_rank<T>(world, platform, plan, model, make, source, options, report, mutex);
    };
    if (plan.precision == Precision::fp32)
      train(layer_maker<List, Device, float>());
    else
      train(layer_maker<List, Device, bfloat16>());
  });
  std::vector<double> seconds;
  for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i)
    seconds.push_back(report.steps[i].seconds);
  report.iteration_seconds = median_of(std::move(seconds));
  return report;
}

}  // namespace detail

/// Trains as the plan says, one thread team for each of its ranks.
/// @tparam List  the strategies of the program; a trainer that names its strategy as a type lists only it
/// @param source  asked by all ranks at once
/// Throws what failed first on any rank: Failure (usage) for a plan that this program cannot run, DeviceFailure,
/// PeerFailure, or Failure (machine) when the loss or a gradient is no longer a number and on_nan is stop.
template <class List = InstantiatedStrategies>
TrainReport train(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options) {
  const int ranks = plan.ranks();
  const int threads = threads_per_rank(options, ranks);
  HostPlatform::require(plan.precision);
  return detail::train_ranks<List>(plan, model, source, options, [&](const auto& train_one) {
    comm::thread::run(
        ranks,
        [&](comm::thread::World& world) {
          const PinnedRank pin(world.rank(), world.size(), threads);
          train_one(world, HostPlatform{threads, &pin});
        },
        options.world);
  });
}

}  // namespace galvatron::train
