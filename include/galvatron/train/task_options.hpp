// What a run of several tasks is told, and what it reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/task_mix.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/train/held_out.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/train_options.hpp>

namespace galvatron::train {

/// What a change of the mix took.
struct MixCosts {
  double plan_seconds = 0;       ///< to make the plan
  std::int64_t moved_bytes = 0;  ///< of states, that ranks got of others
  double seconds = 0;            ///< from the end of the last step until training goes on
};

/// What rank 0 tells after every step.
struct TaskStepReport {
  std::int64_t step = 0;  ///< counts from 0
  /// Of each task of the model, in their order: mean of its predictions, in nats, before the update; 0: it paused.
  std::vector<double> losses;
  std::vector<std::int64_t> batches;  ///< of each task; 0: the step's mix leaves it out
  double loss = 0;                    ///< their weighted sum
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;     ///< of this step
  std::string skipped{};  ///< empty, or where the step's numbers stopped being numbers: its update was skipped then
  /// Of each task, after this step; empty where it was not measured. Tasks that pause are not.
  std::vector<TaskScore> held_out{};
  std::optional<MixCosts> mix{};  ///< of the first step of another mix: what the change took
};

/// A plan for the tasks of a mix.
struct PlannedMix {
  WavePlan waves;
  TaskOrder order = TaskOrder::in_waves;
};

/// Another mix of tasks while a run goes on.
struct MixChange {
  std::int64_t step = 0;  ///< the first under it; counts from 0
  MultiTaskModel model;   ///< with the mix's tasks
  PlannedMix plan;
  MixCosts costs;
};

struct TaskTrainOptions {
  std::int64_t steps = 1;  ///< of the whole run, those before a resumption included
  LearningRate learning_rate{};
  device::AdamW adam{};  ///< the constants; rate, step and seed are set every step
  double clip = 1.0;     ///< the largest gradient norm; 0 for no clipping
  std::uint64_t seed = 1;
  OnNan on_nan = OnNan::stop;
  Precision precision = Precision::fp32;  ///< fp32 or bf16
  runtime::ParameterSource initial{};     ///< the parameters to start from; empty: by the seed
  const Checkpoint* resume = nullptr;     ///< go on after its step, with what it has of the model's components
  CheckpointOptions checkpoint{};
  std::vector<TaskStream> streams{};  ///< of the tasks, for manifests; empty: from the first sample on
  /// Of pipelines (model/pipelines.hpp) the model that they are of, with its data as TrainOptions has them: checkpoints
  /// are those of that model, with which any plan for it goes on, and `resume` may be of any.
  const ModelSpec* single = nullptr;
  std::int64_t data_tokens = 0;
  std::optional<std::uint32_t> data_crc32c{};
  const HeldOut* held_out = nullptr;  ///< data that are not trained on
  /// Which tasks are trained from which step on, by their steps; before the first of them all of the model's.
  std::vector<TaskMix> mixes{};
  /// A plan for a model with the tasks of a mix, on as many ranks; called by rank 0 alone, before the mix's first step.
  /// Null: plan_by_levels(). An error ends the run.
  std::function<Result<PlannedMix>(const MultiTaskModel& mixed, int ranks)> plan_for{};
  /// Called on rank 0's thread before the first step of a mix.
  std::function<void(const MixChange&)> on_mix{};
  TaskRecorder* recorder = nullptr;  ///< of all ranks: keeps when they did what in the last step
  int threads_per_rank = 0;          ///< 0: the cores divided by the ranks, at least 1
  bool deterministic = true;         ///< on GPUs: the same plan gives the same bits
  comm::thread::Options world{};
  /// Called on rank 0's thread. What it throws ends the run: with a checkpoint, where there are any.
  std::function<void(const TaskStepReport&)> on_step{};
  /// As TrainOptions::stop.
  const std::atomic<int>* stop = nullptr;
  /// Called on every rank's thread with each of its parameter stores: in every step before its update, and once more
  /// with `steps` after the last. The store's memory is the device's.
  std::function<void(std::int64_t step, const runtime::StoreView& store)> on_store{};
};

struct TaskTrainReport {
  std::vector<TaskStepReport> steps;
  double iteration_seconds = 0;                   ///< median of the steps of the last mix, without the first of them
  std::vector<MixChange> mixes;                   ///< the changes of the mix, where rank 0 is
  std::vector<cost::StageMemory> planned_memory;  ///< of each rank, under the plan that takes most on it
  std::vector<cost::StageMemory> measured_memory;
  std::vector<CheckpointReport> checkpoints;  ///< of each rank
  int stopped = 0;                            ///< as TrainReport::stopped
};

/// The first step that a run does.
inline std::int64_t first_step(const TaskTrainOptions& options) {
  return options.resume == nullptr ? 0 : options.resume->training().step;
}

}  // namespace galvatron::train
