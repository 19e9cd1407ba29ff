// What the ranks of a training run are: threads of this process, or processes that mpirun has started.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/trainer.hpp>

#include "commands.hpp"

namespace galvatron::tools {

class Launcher {
 public:
  virtual ~Launcher() = default;
  /// This process shows progress and results and writes files; of several, the one of rank 0.
  [[nodiscard]] virtual bool shows() const = 0;
  /// Ranks that there are; 0: as many as a plan has.
  [[nodiscard]] virtual int ranks() const = 0;
  [[nodiscard]] virtual int threads_per_rank(const Plan& plan) const = 0;
  /// The plan's ranks that are on this machine.
  [[nodiscard]] virtual std::vector<int> ranks_here(const Plan& plan) const = 0;
  /// The text of the process that shows, in all processes.
  virtual std::string shared(std::string text) = 0;
  virtual galvatron::train::TrainReport train(const Plan& plan, const ModelSpec& model,
                                              galvatron::train::BatchSource& source,
                                              const galvatron::train::TrainOptions& options) = 0;
};

/// Ranks are threads of this process.
class ThreadLauncher final : public Launcher {
 public:
  [[nodiscard]] bool shows() const override { return true; }
  [[nodiscard]] int ranks() const override { return 0; }
  [[nodiscard]] int threads_per_rank(const Plan& plan) const override;
  [[nodiscard]] std::vector<int> ranks_here(const Plan& plan) const override;
  std::string shared(std::string text) override { return text; }
  galvatron::train::TrainReport train(const Plan& plan, const ModelSpec& model, galvatron::train::BatchSource& source,
                                      const galvatron::train::TrainOptions& options) override;
};

/// True in a process that mpirun has started.
bool started_by_mpirun();

/// Throws Failure (usage) if this build has no MPI.
void require_mpi();

/// Calls body(launcher) in this process that mpirun has started, as one rank; all processes call it. When the body
/// fails on any rank, one process tells the user and all throw Exited.
void run_as_rank(Common& common, const std::function<void(Launcher&)>& body);

/// Starts `ranks` processes of this command with the same arguments and waits until they have ended. What they write
/// passes through; what mpirun says about a failure that they have told themselves does not.
/// @param mpirun  the command that starts processes, with options: "mpirun --hostfile hosts"
/// Throws Exited when the processes told of a failure, and Failure (machine) when mpirun did.
void start_ranks(const std::string& mpirun, int ranks, const Arguments& arguments);

}  // namespace galvatron::tools
