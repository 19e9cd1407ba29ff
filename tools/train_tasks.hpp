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
  std::string save_cluster;
  train::ProfileOptions profile;  ///< with --auto and without a cluster: ranks and precisions are set here
  double rank_timeout = 600;
  RunFileArguments files;
};

/// Trains on rank threads as a plan of waves says. Throws Failure.
/// @param options  steps and constants
void train_tasks(TrainTasksArguments a, const train::TrainOptions& options, const RunStart& start, Launcher& launcher,
                 const Common& common);

}  // namespace galvatron::tools
