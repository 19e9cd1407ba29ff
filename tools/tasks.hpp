// Multi-task models, for the commands: plans of waves found, read and told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/interval.hpp>
#include <galvatron/plan/multi_task_plan.hpp>
#include <galvatron/simulate/find_waves.hpp>

#include "options.hpp"
#include "output.hpp"
#include "plans.hpp"
#include "report/waves.hpp"

namespace galvatron::tools {

/// Whether a name is that of a multi-task model: a preset, or a file that says so.
bool names_tasks(const std::string& name_or_path);
/// Whether a file is a plan of waves; false for one that cannot be read, which others say.
bool is_waves_file(const std::string& path);
/// Whether it is one of several pipelines over a model of one task.
bool is_pipelines_file(const std::string& path);

/// `text,llm=FOLDER`: components, and where the model is that they are.
struct ComponentsOf {
  std::vector<std::string> names;
  std::string path;
};
/// Throws Failure (usage) for another form. @param option  for the message
ComponentsOf components_of(const std::string& option, const std::string& text);

/// What `plan` asks for.
struct TaskPlanArguments {
  std::string model;
  std::string cluster;
  std::int64_t global_batch = 0;  ///< 0: the tasks' own
  std::optional<Precision> precision;
  Bytes memory;  ///< 0: all that a device has
  simulate::TaskSchedule schedule = simulate::TaskSchedule::fastest;
  std::vector<TaskBatch> tasks{};    ///< of a mix; empty: all, with global_batch samples
  std::optional<WaveKinds> kinds{};  ///< as WaveSearchOptions::kinds
  std::string out;
};
/// The option --task-schedule. @param when  "with --auto: ", or nothing
void task_schedule_option(Options& options, simulate::TaskSchedule& schedule, const std::string& when = {});
/// Throws Failure (usage), or Infeasible.
/// @param name  of the cluster in the plan
ReadMultiTaskPlan found_tasks(const TaskPlanArguments& a, const Cluster& cluster, const std::string& name,
                              const Common& common, Seconds* search = nullptr);

// The commands, for multi-task models.
void plan_tasks(const TaskPlanArguments& a, const Common& common);
void cost_tasks(const PlanArguments& a, const Common& common);
void simulate_tasks(const PlanArguments& a, const std::string& trace, const std::string& report, const Common& common);
void explain_tasks(const PlanArguments& a);

/// Several pipelines beside a plan of one chain of stages (simulate/find_pipelines.hpp).
struct PipelinesBeside {
  std::optional<ReadMultiTaskPlan> faster;  ///< the fastest, if it is faster than the chain
  std::string row;                          ///< else what the summary says of them; empty: there are none
  Seconds search;
};
/// @param chain  the plan of one chain, whose alternatives get the pipelines; not feasible: none fits
PipelinesBeside pipelines_beside(FoundPlan& chain, const ModelSpec& model, const std::string& model_name,
                                 const MixedCluster& cluster, const std::string& cluster_name,
                                 const search::SearchOptions& search);
/// Prints the answer of `plan` for pipelines, and writes their file. Throws Failure (usage).
/// @param reserve  of each device, kept free  @param interval  of the step, if it is known
void print_pipelines(const ReadMultiTaskPlan& of, const MixedCluster& cluster, const std::string& out, Seconds search,
                     Bytes reserve, const std::optional<PredictionInterval>& interval, const Common& common);

/// Writes the trace and the report of a run, measured beside what is predicted of its plan, whole or not at all; an
/// empty path: not. Throws Failure (usage).
/// @param made_for  the cluster that the plan was found for; null: the one that it names, or this machine
void write_task_run(const ReadMultiTaskPlan& of, const Cluster* made_for,
                    const simulate::report::MeasuredTasks& measured, const std::string& trace,
                    const std::string& report, const Common& common);

}  // namespace galvatron::tools
