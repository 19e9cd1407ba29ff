// The files of a run of train: what it starts from and what it leaves behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/checkpoint/huggingface_components.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/metrics.hpp>
#include <galvatron/train/task_metrics.hpp>
#include <galvatron/train/task_trainer.hpp>
#include <galvatron/train/trainer.hpp>

#include "launcher.hpp"
#include "options.hpp"
#include "output.hpp"
#include "weights.hpp"

namespace galvatron::tools {

struct RunFileArguments {
  std::string checkpoint;
  std::int64_t checkpoint_every = 0;  // 0: a tenth of the steps
  int checkpoint_keep = 2;
  std::string resume;
  std::string initial;
  std::string adapter;  ///< of peft; adapters begin as those
  std::string metrics;
  std::string tensorboard;
  train::OnNan on_nan = train::OnNan::stop;
};

/// Declares the options. The sections are the caller's.
void add_start_options(Options& options, RunFileArguments& a);
void add_output_options(Options& options, RunFileArguments& a);

/// Constants of training that the command line may leave to the checkpoint that is resumed; negative: not given.
struct TrainingConstants {
  double learning_rate = -1;
  double least_rate = -1;
  std::int64_t warmup = -1;
  std::optional<train::RateSchedule> schedule{};
  std::int64_t decay_steps = -1;
  double beta1 = -1, beta2 = -1, epsilon = -1;  ///< of AdamW
  double weight_decay = -1;
  double clip = -1;
  std::int64_t seed = -1;
  std::optional<device::Rounding> rounding{};
};

/// Declares their options.
void add_constants_options(Options& options, TrainingConstants& c);

struct RunStart {
  std::string checkpoint{};                             ///< that is resumed; empty: a new run
  std::optional<train::CheckpointManifest> manifest{};  ///< of it
  std::shared_ptr<train::FolderLock> lock{};            ///< of the folder of --checkpoint, in the process that shows
};

/// Where this run begins: after the newest whole checkpoint, or, when --resume and --checkpoint are one folder that has
/// none, anew. Collective, and the same in all processes; what the user should know is noted. Throws Failure (usage),
/// also when another run writes to the folder or has checkpoints in it, or the file of the metrics is something else.
RunStart run_start(const RunFileArguments& a, Launcher& launcher);

/// The same for what only starts the processes: it takes no lock and compares no checksums.
RunStart likely_run_start(const RunFileArguments& a);

/// The newest checkpoint of the run, if it writes any: "saved/step-00000010", and how to go on after it; else nothing.
std::string newest_checkpoint(const RunFileArguments& a);
std::string way_to_go_on(const RunFileArguments& a);

/// Sets the constants of a run of options.steps: those that were given, else those of the checkpoint, or the defaults.
/// Throws Failure (usage) when what was given contradicts the checkpoint.
void settle(const TrainingConstants& constants, const std::optional<train::CheckpointManifest>& resumed,
            train::TrainOptions& options);

/// False when the run of so many steps has ended. Throws Failure (usage) when this plan and these data are of another
/// run than the checkpoint, or it is further than the run is long.
/// @param sequence  tokens of a sample; 0: samples are documents
bool continues(const train::CheckpointManifest& resumed, std::int64_t global_batch, std::int64_t sequence,
               const train::Data& data, std::int64_t steps);

/// Bytes of the copies that the ranks take for checkpoints, beside their arenas; nothing without checkpoints.
std::vector<Bytes> checkpoint_copies(const RunFileArguments& a, const Plan& plan, const ModelSpec& model);

/// The files of a run while it goes on.
class RunFiles {
 public:
  /// Opens the checkpoint to resume or to start from, checks all of it, sets what `options` say of it and of NaN, and
  /// begins the metrics. Throws Failure (usage). This must outlive the run.
  /// @param writes_metrics  whether this process has rank 0
  /// @param options  train::TrainOptions, or train::TaskTrainOptions of a model of several tasks
  template <class Model, class Options>
  RunFiles(const RunFileArguments& a, const RunStart& start, const Model& model, bool writes_metrics,
           Options& options) {
    options.on_nan = a.on_nan;
    options.checkpoint.folder = a.checkpoint;
    options.checkpoint.every =
        a.checkpoint_every > 0 ? a.checkpoint_every : std::max<std::int64_t>(options.steps / 10, 1);
    options.checkpoint.keep = a.checkpoint_keep;
    options.checkpoint.lock = start.lock;
    if (!start.checkpoint.empty()) {
      resumed_ = value_of("--resume", train::Checkpoint::open(start.checkpoint, model, train::Checksums::known));
      options.resume = &*resumed_;
    }
    // Adapters that are resumed have the same base.
    const std::string base = resumed_ && a.initial.empty() ? resumed_->training().base : a.initial;
    if (!base.empty() && (!resumed_ || is_adapted(model))) {
      options.initial = initial_weights(base, model, options.seed, a.adapter);
      if constexpr (requires { options.initial_name; }) options.initial_name = base;
    }
    if (writes_metrics) begin_metrics(a, train::first_step(options));
  }
  /// Writes the metrics of a step. Throws Failure (usage).
  void add(const train::StepReport& step) { add(step.step, train::metrics_line(step), train::metrics_scalars(step)); }
  void add(const train::TaskStepReport& step, const std::vector<TaskSpec>& tasks) {
    add(step.step, train::metrics_line(step, tasks), train::metrics_scalars(step, tasks));
  }
  /// Steps from this one on, which counts from 0, are done again: what was written of them goes. Throws Failure
  /// (usage).
  void go_back_to(std::int64_t step);

 private:
  static bool is_adapted(const ModelSpec& model) { return adapters_of(model).rank > 0; }
  static bool is_adapted(const MultiTaskModel&) { return false; }
  /// @param seed  of what has no weights
  runtime::ParameterSource initial_weights(const std::string& path, const ModelSpec& model, std::uint64_t seed,
                                           const std::string& adapter);
  runtime::ParameterSource initial_weights(const std::string& path, const MultiTaskModel& model, std::uint64_t seed,
                                           const std::string& adapter);
  void begin_metrics(const RunFileArguments& a, std::int64_t done);
  void add(std::int64_t step, const std::string& line, const std::vector<train::Scalar>& scalars);

  std::string metrics_path_;
  std::int64_t written_ = 0;  // steps
  std::optional<train::Checkpoint> resumed_;
  std::optional<train::Checkpoint> initial_;
  std::optional<Weights> weights_;
  std::optional<train::PeftAdapter> peft_;
  std::optional<train::ComponentWeights> components_;
  std::optional<train::MetricsFile> metrics_;
  std::optional<train::TensorBoardFile> tensorboard_;
};

/// What a run has done, as far as its files tell.
struct RunSummary {
  std::int64_t first_step = 0;
  std::int64_t steps = 0;  ///< done in this run
  std::int64_t skipped = 0;
  std::vector<train::CheckpointReport> checkpoints;  ///< of each rank

  template <class Report>
  explicit RunSummary(const Report& report)
      : first_step(report.steps.empty() ? 0 : report.steps.front().step),
        steps(std::ssize(report.steps)),
        skipped(std::ranges::count_if(report.steps, [](const auto& step) { return !step.skipped.empty(); })),
        checkpoints(report.checkpoints) {}
};

/// What the JSON and the text of a run say about its files.
void add_files_json(nlohmann::ordered_json& out, const RunFileArguments& a, const RunSummary& run);
std::string files_text(const RunFileArguments& a, const RunSummary& run);
/// Where a run of `steps` steps that signals have ended is, in a line.
std::string interruption(const RunSummary& run, const RunFileArguments& a, std::int64_t steps);

/// The report that `run` returns. A failure says which checkpoint is the newest.
template <class Run>
auto trained(const RunFileArguments& files, const Run& run) {
  const auto with_newest = [&](const std::string& message) {
    const std::string newest = newest_checkpoint(files);
    return message + (newest.empty() ? "" : "; " + newest + " is the newest checkpoint, and " + way_to_go_on(files));
  };
  try {
    return run();
  } catch (const Failure& e) {
    const bool is_plain = typeid(e) == typeid(Failure) || typeid(e) == typeid(DeviceFailure) ||
                          typeid(e) == typeid(PeerFailure);  // others mean something to who catches them
    if (files.checkpoint.empty() || !is_plain) throw;
    throw Failure(e.kind(), with_newest(e.what()), e.where());
  } catch (const std::bad_alloc&) {
    throw Failure(ErrorKind::machine, with_newest(std::string(memory_is_exhausted)));
  }
}

}  // namespace galvatron::tools
