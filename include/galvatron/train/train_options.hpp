// What a run of the trainer is told, and what it reports.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/train/adapt.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/step_report.hpp>

namespace galvatron::train {

/// Samples that a run does not train on, and how often it looks at their loss.
struct Validation {
  BatchSource* source = nullptr;  ///< asked by all ranks at once; null: none
  std::int64_t batches = 0;       ///< its first ones: as many samples each as a step has
  std::int64_t predictions = 0;   ///< of all of them; of packed documents the tokens of the packings count
  std::int64_t every = 1;         ///< steps between two; the last step is followed by one
  double tokens_per_byte = 0;     ///< of their texts; 0: not known
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
  runtime::ParameterSource initial{};     ///< the parameters to start from, and the frozen ones; empty: by the seed
  std::string initial_name{};             ///< where they come from, for the manifests of adapters
  const Checkpoint* resume = nullptr;     ///< go on after its step, with its parameters and moments
  const Continuation* goes_on = nullptr;  ///< the same from memory, before all others
  AdaptOptions adapt{};
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
  Validation validation{};
  double tokens_per_byte = 0;  ///< of the texts that are trained on; 0: not known
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
  std::vector<Adaptation> adaptations;        ///< where rank 0 is
  /// Why the run ended before its last step: the value of TrainOptions::stop, the largest of all ranks. 0: all steps
  /// are done.
  int stopped = 0;
};

/// The first step that a run does.
inline std::int64_t first_step(const TrainOptions& options) {
  if (options.goes_on != nullptr) return options.goes_on->step;
  return options.resume == nullptr ? 0 : options.resume->training().step;
}

/// Threads that each of `ranks` rank threads computes with on this machine.
inline int threads_per_rank(int ranks) { return std::max(1, usable_cores() / ranks); }
/// The same, or what the options ask for.
inline int threads_per_rank(const TrainOptions& options, int ranks) {
  return options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(ranks);
}

}  // namespace galvatron::train
