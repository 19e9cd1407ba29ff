// What a run of several tasks is told, and what it reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/train/held_out.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/train_options.hpp>

namespace galvatron::train {

/// What rank 0 tells after every step.
struct TaskStepReport {
  std::int64_t step = 0;       ///< counts from 0
  std::vector<double> losses;  ///< of each task, in their order: mean of its predictions, in nats, before the update
  double loss = 0;             ///< their weighted sum
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;     ///< of this step
  std::string skipped{};  ///< empty, or where the step's numbers stopped being numbers: its update was skipped then
  std::vector<TaskScore> held_out{};  ///< of each task, after this step; empty where it was not measured
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
  const HeldOut* held_out = nullptr;  ///< data that are not trained on
  TaskRecorder* recorder = nullptr;   ///< of all ranks: keeps when they did what in the last step
  int threads_per_rank = 0;           ///< 0: the cores divided by the ranks, at least 1
  bool deterministic = true;          ///< on GPUs: the same plan gives the same bits
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
  double iteration_seconds = 0;                   ///< median without the first step
  std::vector<cost::StageMemory> planned_memory;  ///< of each rank
  std::vector<cost::StageMemory> measured_memory;
  std::vector<CheckpointReport> checkpoints;  ///< of each rank
  int stopped = 0;                            ///< as TrainReport::stopped
};

/// The first step that a run does.
inline std::int64_t first_step(const TaskTrainOptions& options) {
  return options.resume == nullptr ? 0 : options.resume->training().step;
}

}  // namespace galvatron::train
