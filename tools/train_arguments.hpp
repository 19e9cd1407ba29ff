// The options of galvatron train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/simulate/find_waves.hpp>
#include <galvatron/strategy/strategy.hpp>
#include <galvatron/train/trainer.hpp>

#include "adaptation.hpp"
#include "launcher.hpp"
#include "options.hpp"
#include "plans.hpp"
#include "run_files.hpp"
#include "tasks.hpp"

namespace galvatron::tools {

struct TrainArguments {
  // Whether the model, or that of the plan, has several tasks.
  [[nodiscard]] bool has_tasks() const { return names_tasks(model) || is_waves_file(plan_path); }

  std::string plan_path;
  bool automatic = false;
  std::string model;
  std::vector<std::string> data;
  train::TrainOptions options;
  std::int64_t global_batch = 0;  // 0: not given
  std::int64_t sequence = 0;      // 0: not given
  int ranks = 0;                  // 0: not given
  Bytes memory;                   // 0: not given
  std::string device = "host";
  std::string launcher;  // empty: what started this process
  std::string mpirun = "mpirun";
  double rank_timeout = 600;
  std::optional<Precision> precision;
  std::optional<Precision> moments;
  double expert_imbalance = 0;  // 0: not given
  DispatchArguments dispatch;
  LoraArguments lora;
  std::string space;
  std::string cluster;
  double profile_seconds = 8;
  std::optional<bool> accepts_busy;
  AdaptArguments adapt;
  std::string save_plan;
  std::string save_cluster;
  TrainingConstants constants;
  RunFileArguments files;
  std::string trace;
  std::string report;
  bool live = false;
  std::int64_t mask_token = -1;  // negative: the last of the vocabulary
  std::string tokenizer;
  std::vector<std::string> validation;
  std::int64_t validate_every = 0;    // 0: a tenth of the steps
  std::int64_t validate_samples = 0;  // 0: not given
  bool pack = false;
  simulate::TaskSchedule schedule = simulate::TaskSchedule::fastest;
  std::int64_t held_out = 0;
  std::int64_t evaluate_every = 0;  // 0: not given
  std::vector<std::string> mixes;   // of tasks, as parse_task_mix() reads them
  std::int64_t max_tokens = 0;      // 0: not given
  std::optional<SequenceGroupKind> groups;
  train::DocumentOptions documents;
};

/// False: help was asked for.
bool read_train_arguments(const Arguments& arguments, TrainArguments& a, Common& common);

/// Throws Failure (usage) for options that contradict each other.
void check_train_arguments(const TrainArguments& a, const train::LearningRate& rate, const Launcher& launcher);

}  // namespace galvatron::tools
