// What ranks of a run are: threads, on cores or GPUs, or processes of mpirun (on GPUs also of torchrun and srun).
#pragma once

#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/launch_environment.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/multi_task_plan.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/profile/profile.hpp>
#include <galvatron/train/task_trainer.hpp>
#include <galvatron/train/trainer.hpp>

#include "options.hpp"

namespace galvatron::generate {
struct Capacity;
class LanguageModel;
}  // namespace galvatron::generate

namespace galvatron::tools {

class Launcher {
 public:
  /// @param processes  the ranks when each is a process with a launcher of its own; null: all are in this process
  explicit Launcher(comm::World* processes = nullptr) : processes_(processes) {}
  virtual ~Launcher() = default;
  /// This process shows progress and results and writes files; of several, the one of rank 0.
  [[nodiscard]] bool shows() const { return processes_ == nullptr || processes_->rank() == 0; }
  /// Ranks that there are; 0: as many as a plan has.
  [[nodiscard]] int ranks() const { return processes_ == nullptr ? 0 : processes_->size(); }
  /// What has started them when they are processes.
  [[nodiscard]] virtual std::string starter() const { return "mpirun"; }
  /// What the user should know about the place of a plan's ranks, in one line; mostly nothing.
  [[nodiscard]] virtual std::string remark(const Plan&) const { return {}; }
  /// What a rank's device takes of its memory.
  [[nodiscard]] virtual Bytes library_workspace(const Plan& plan) const = 0;
  /// Throws DeviceFailure when the ranks cannot compute in this precision.
  virtual void require(Precision precision) const = 0;
  /// What the arenas of ranks_here() may take, and what has it: "this machine".
  [[nodiscard]] virtual std::pair<Bytes, std::string> arena_memory(const Plan& plan) const = 0;
  /// What leaves no more of it to so many ranks, as a clause; empty where that is plain.
  [[nodiscard]] virtual std::string memory_bound(int) const { return {}; }
  /// Processor seconds of all ranks of this host, from those of each process, which all call it; of cores only.
  [[nodiscard]] virtual std::optional<double> core_seconds_here(double) { return std::nullopt; }
  /// True when they take it together, false when each rank has as much.
  [[nodiscard]] virtual bool shares_memory(const Plan&) const { return true; }
  /// True when checkpoints' copies come from the same memory.
  [[nodiscard]] virtual bool copies_in_arena_memory() const { return true; }
  /// This machine before anything is measured: enough to know the precision and whether anything fits at all.
  [[nodiscard]] virtual Cluster cluster(int ranks) const = 0;
  /// This machine, or those of the processes, measured; one group, or several where the options tell ranks apart. All
  /// processes call it with the same options, and the one that shows gets the result.
  [[nodiscard]] virtual MixedCluster profile(const galvatron::train::ProfileOptions& options) const = 0;
  /// The plan's ranks that this process sees to the memory of: those on this machine.
  [[nodiscard]] virtual std::vector<int> ranks_here(const Plan& plan) const {
    if (processes_ != nullptr) return {processes_->rank()};
    std::vector<int> ranks(static_cast<std::size_t>(plan.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  /// The text of the process that shows, in all processes, which all call it.
  [[nodiscard]] std::string shared(std::string text) const;
  virtual galvatron::train::TrainReport train(const Plan& plan, const ModelSpec& model,
                                              galvatron::train::BatchSource& source,
                                              const galvatron::train::TrainOptions& options) = 0;
  /// The same of a model of several tasks.
  virtual galvatron::train::TaskTrainReport train_tasks(const MultiTaskModel& model, const MultiTaskPlan& plan,
                                                        const std::vector<galvatron::train::TaskSources>& sources,
                                                        const galvatron::train::TaskTrainOptions& options) = 0;
  /// Calls use(language model) with a model on one GPU.
  virtual void write_texts(const ModelSpec&, const generate::Capacity&, const runtime::ParameterSource&, Precision,
                           const std::function<void(generate::LanguageModel&)>& /*use*/) {
    throw Failure(ErrorKind::usage, "texts are written and scored by one process; start it without " + starter());
  }

 private:
  comm::World* processes_;
};

/// Ranks compute on this machine's cores.
class CoreLauncher : public Launcher {
 public:
  using Launcher::Launcher;
  [[nodiscard]] Bytes library_workspace(const Plan& plan) const override;
  void require(Precision precision) const override;
  [[nodiscard]] std::pair<Bytes, std::string> arena_memory(const Plan& plan) const override {
    return {free_memory(plan.ranks()).bytes, "this machine"};
  }
  [[nodiscard]] std::string memory_bound(int ranks) const override { return free_memory(ranks).bound; }
  [[nodiscard]] std::optional<double> core_seconds_here(double own) override { return own; }
  [[nodiscard]] Cluster cluster(int ranks) const override;
  [[nodiscard]] MixedCluster profile(const galvatron::train::ProfileOptions& options) const override;

 protected:
  [[nodiscard]] virtual int threads_per_rank(const Plan& plan) const = 0;

 private:
  // Ranks that are processes have each its own limits, so only the machine's and those of control groups are shared.
  [[nodiscard]] UsableMemory free_memory(int threads) const { return usable_memory(ranks() == 0 ? threads : 0); }
};

/// Ranks are threads of this process.
class ThreadLauncher final : public CoreLauncher {
 public:
  galvatron::train::TrainReport train(const Plan& plan, const ModelSpec& model, galvatron::train::BatchSource& source,
                                      const galvatron::train::TrainOptions& options) override;
  galvatron::train::TaskTrainReport train_tasks(const MultiTaskModel& model, const MultiTaskPlan& plan,
                                                const std::vector<galvatron::train::TaskSources>& sources,
                                                const galvatron::train::TaskTrainOptions& options) override;

 protected:
  [[nodiscard]] int threads_per_rank(const Plan& plan) const override {
    return galvatron::train::threads_per_rank(plan.ranks());
  }
};

/// Calls body(launcher) with ranks that compute on GPUs: threads of this process, or this process as one of several;
/// when the body fails on any of these, one tells the user and all throw Exited. Throws DeviceFailure when there is no
/// usable GPU. What needs the CUDA libraries, which map 200 MB, is a module that is loaded here.
void run_on_gpus(Common& common, const std::function<void(Launcher&)>& body);

/// Runs what all processes of a job on GPUs do before they have met: of a Failure the first tells, others throw Exited.
void run_alike(const std::function<void()>& body);

/// True when the arguments ask for GPUs.
bool name_gpus(const Arguments& arguments);

/// What the module has for run_on_gpus(): galvatron_run_on_gpus, for this process of a job. Throws nothing.
using RunOnGpus = void(const std::optional<comm::LaunchEnvironment>& job, const std::function<void(Launcher&)>& body,
                       comm::Verdict& verdict);

/// The option --deterministic of those who compute on GPUs.
void deterministic_option(Options& options, bool& deterministic);
/// The option --on-busy of those who measure this machine. @param when  "with --auto: ", or nothing
void busy_option(Options& options, std::optional<bool>& accepts_busy, const std::string& when = {});

/// This machine, measured with a progress display, and the share of the cores that other programs took meanwhile. Says
/// on standard error when the profile is doubtful and accepted. Throws Failure.
std::pair<MixedCluster, double> measured(const Launcher& launcher, galvatron::train::ProfileOptions options,
                                         const Common& common);

/// True in a process that mpirun has started.
bool started_by_mpirun();

/// Throws Failure (usage) if this build has no MPI.
void require_mpi();

/// Calls body(launcher) in this process that mpirun has started, as one rank; all processes call it. When the body
/// fails on any rank, one process tells the user and all throw Exited.
/// @param body  returns the exit code of a run that did not fail: with another one than 0 all throw Exited too
void run_as_rank(Common& common, const std::function<int(Launcher&)>& body);

/// A process beside a rank that says how the rank died, when the rank itself cannot.
///
/// mpirun ends a job when one of its processes dies, but its exit code is then 128 and the signal, and its message has
/// the words of mpirun. So the process that it starts becomes a guard and the rank its child:
///
///   mpirun --+-- guard of rank 0 --- rank 0        rank 1 gets a SIGKILL: its guard tells so and exits with 4, then
///            +-- guard of rank 1 --- rank 1        mpirun ends all others and exits with 4 too
///
/// A guard outlives the signals by which a job is ended in order, and passes them on to its rank.
class Guard {
 public:
  /// Returns in the rank only: a new child. The guard waits for it and ends as it ended; it tells the user if that was
  /// by a signal. To be called before there are other threads.
  explicit Guard(const Common& common);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();

  /// The rank will end with an exit code that is not 0, and the user has been told why.
  void conclude();

 private:
  int pipe_ = -1;
};

/// What a guard writes on standard error, before the rank's number and how it ended, to whoever replaces lost ranks.
inline constexpr std::string_view lost_rank_word = "galvatron-lost: ";

/// How another job takes the place of one that has lost ranks.
struct Replacement {
  /// Whether all others have left what they have. @param lost  how many ranks are gone
  std::function<bool(int lost)> is_ready;
  /// How many ranks the next job has. Throws Failure when there cannot be one.
  /// @param lost  how each rank that is gone ended  @param since  when that was, on the steady clock
  std::function<int(const std::map<int, std::string>& lost, double since)> next;
};

/// Starts `ranks` processes of this command with the same arguments and waits until they have ended. What they write
/// passes through; what mpirun says about a failure that they have told themselves does not.
/// @param mpirun  the command that starts processes, with options: "mpirun --hostfile hosts"
/// Signals that end a run are for the ranks: when these have ended, so does the process, by the same signal.
/// Throws Exited when the processes told of a failure, and Failure (machine) when mpirun did.
/// @param replacement  null: a job that has lost ranks has failed
void start_ranks(const std::string& mpirun, int ranks, const Arguments& arguments,
                 const Replacement* replacement = nullptr);

}  // namespace galvatron::tools
