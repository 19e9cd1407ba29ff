// galvatron train of multi-task models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/profile/profile.hpp>
#include <galvatron/train/trainer.hpp>

#include "launcher.hpp"
#include "run_files.hpp"
#include "tasks.hpp"

namespace galvatron::tools {

/// The word of --data that stands for samples made of numbers (data/synthetic_samples.hpp).
inline constexpr const char* synthetic_data = "synthetic";

struct TrainTasksArguments {
  std::string plan_path;     ///< empty: --auto
  TaskPlanArguments wanted;  ///< model; with --auto all of it, `out` is --save-plan
  int ranks = 0;             ///< 0: not given
  std::vector<std::string> data;
  std::string tokenizer;            ///< of pipelines, as of other models of one task
  std::int64_t held_out = 0;        ///< samples of each task
  std::int64_t evaluate_every = 0;  ///< 0: a tenth of the steps
  std::vector<std::string> mixes;   ///< as parse_task_mix() reads them
  std::string save_cluster;
  train::ProfileOptions profile;  ///< with --auto and without a cluster: ranks and precisions are set here
  double rank_timeout = 600;
  RunFileArguments files;
  std::string trace;
  std::string report;
  bool live = false;
};

/// Trains as a plan of waves says; the number of the signal that ended it early, or 0. Throws Failure.
/// @param options  steps and constants
int train_tasks(TrainTasksArguments a, const train::TrainOptions& options, const RunStart& start, Launcher& launcher,
                const Common& common);
/// Ranks of the plan that is given, or that will be found.
int task_ranks(const TrainTasksArguments& a, const Launcher& launcher);

}  // namespace galvatron::tools
