// The files of a run of train: what it starts from and what it leaves behind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/metrics.hpp>
#include <galvatron/train/trainer.hpp>

#include "launcher.hpp"
#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

struct RunFileArguments {
  std::string checkpoint;
  std::int64_t checkpoint_every = 0;  // 0: a tenth of the steps
  int checkpoint_keep = 2;
  std::string resume;
  std::string initial;
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
  double weight_decay = -1;
  double clip = -1;
  std::int64_t seed = -1;
  std::optional<device::Rounding> rounding{};
};

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
bool continues(const train::CheckpointManifest& resumed, const Plan& plan, const train::Data& data, std::int64_t steps);

/// Bytes of the copies that the ranks take for checkpoints, beside their arenas; nothing without checkpoints.
std::vector<Bytes> checkpoint_copies(const RunFileArguments& a, const Plan& plan, const ModelSpec& model);

/// The files of a run while it goes on.
class RunFiles {
 public:
  /// Opens the checkpoint to resume or to start from, checks all of it, sets what `options` say of it and of NaN, and
  /// begins the metrics. Throws Failure (usage). This must outlive the run.
  /// @param writes_metrics  whether this process has rank 0
  RunFiles(const RunFileArguments& a, const RunStart& start, const ModelSpec& model, bool writes_metrics,
           train::TrainOptions& options);
  /// Writes the metrics of a step. Throws Failure (usage).
  void add(const train::StepReport& step);
  /// Steps from this one on, which counts from 0, are done again: what was written of them goes. Throws Failure
  /// (usage).
  void go_back_to(std::int64_t step);

 private:
  std::string metrics_path_;
  std::int64_t written_ = 0;  // steps
  std::optional<train::Checkpoint> resumed_;
  std::optional<train::Checkpoint> initial_;
  std::optional<train::HuggingFaceWeights> huggingface_;
  std::optional<train::MetricsFile> metrics_;
  std::optional<train::TensorBoardFile> tensorboard_;
};

/// What the JSON and the text of a run say about its files.
void add_files_json(nlohmann::ordered_json& out, const RunFileArguments& a, const train::TrainReport& report);
std::string files_text(const RunFileArguments& a, const train::TrainReport& report);

}  // namespace galvatron::tools
