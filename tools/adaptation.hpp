// Runs that adapt to slow and lost ranks: the options of train, the plan for what is left, and what the processes of a
// job leave each other so that another job can go on where one has lost ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/adapt.hpp>
#include <galvatron/train/trainer.hpp>

#include "launcher.hpp"
#include "options.hpp"

namespace galvatron::tools {

struct AdaptArguments {
  bool on = false;
  double margin = 0.1;
  int spare_ranks = 0;
};
void adapt_options(Options& options, AdaptArguments& a);

/// The plan for the ranks that are left of a run on this machine. Errors (infeasible): none fits.
/// @param memory  of a rank; 0: what the machine has
Result<Plan> plan_for_left(const Plan& before, const ModelSpec& model, int ranks, Bytes memory);

/// `adaptations` of the JSON; steps count from 1.
nlohmann::ordered_json adaptations_json(const std::vector<train::Adaptation>& adaptations);
/// A line for the user: `Rank 2 was lost: ...; step 12 goes on with m1: dp3 zero1, 0.4 s later`.
std::string adaptation_text(const train::Adaptation& adaptation);

/// The folder of a job of processes, in the memory of the machine where it was started. Its name is in the environment
/// of all of the job's processes. Whoever is on another machine does not find it.
///
///   plan.json           the plan that the job runs, from its rank 0
///   steps.jsonl         its steps, adaptations.json its adaptations: of the jobs before too
///   state-1-40          all that rank 1 has kept of the state after 40 steps, from rank 1 when it had lost another one
///   report-1            the report of the last of these steps, as rank 1 knows it
///   next.json           the plan of the next job, and because of whom, from the command that starts both
class JobFolder {
 public:
  static constexpr const char* variable = "GALVATRON_JOB_FOLDER";

  /// The folder of the job of this process; nothing when it has none here.
  static std::optional<JobFolder> of_this_process();
  /// Makes the folder of a new job, and names it in the environment of what is started from here on. Throws
  /// DeviceFailure.
  static JobFolder make();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void remove() const;

  // By rank 0.
  void write_plan(const Plan& plan) const;
  /// After a step of its own a job does not need any more what the ranks of a job before have left.
  void add(const train::StepReport& step);
  void write(const std::vector<train::Adaptation>& adaptations) const;
  /// By any rank that has lost another one: waits here for the end of the job, but not for ever.
  void leave(const train::Survivor& survivor) const;

  // By what starts the jobs.
  /// The plan of the job; nothing when training had not begun.
  [[nodiscard]] std::optional<Plan> plan() const;
  /// How many ranks have left what they have.
  [[nodiscard]] int survivors() const;
  void write_next(const train::Adaptation& next, double since) const;

  // By rank 0 of the next job.
  /// Text for all ranks of the job, for Restart; empty when this is the first one.
  /// @param states_count  all ranks see this folder, so that what survivors have left can be used
  [[nodiscard]] std::string restart_text(bool states_count,
                                         const std::function<ModelSpec(const Plan&)>& model_of) const;
  [[nodiscard]] std::vector<train::StepReport> steps() const;
  [[nodiscard]] std::vector<train::Adaptation> adaptations() const;

 private:
  explicit JobFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
  bool is_clean_ = false;  // nothing is there of a job before
};

/// How a job goes on that takes the place of one which has lost ranks; the same in all processes.
struct Restart {
  explicit Restart(const std::string& text);
  Plan plan;
  train::Loss loss;
  std::vector<std::string> states;  ///< files that have all of it; none: from the newest checkpoint, or the beginning
  std::int64_t step = 0;            ///< of the states
};

/// The states of a restart, mapped.
class RestartStates {
 public:
  /// Throws Failure when they cannot be read.
  RestartStates(const Restart& restart, const ModelSpec& model);
  [[nodiscard]] const train::Continuation& continuation() const { return continuation_; }

 private:
  std::vector<MappedFile> files_;
  train::StateImages images_;
  train::Continuation continuation_;
};

}  // namespace galvatron::tools
