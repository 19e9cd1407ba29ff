// Ranks as processes of Open MPI; without.cpp takes the place of this file where there is none.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/comm/mpi/world.hpp>
#include <galvatron/profile/processes.hpp>
#include <galvatron/train/compiled.hpp>
#include <galvatron/train/processes.hpp>
#include <galvatron/train/task_processes.hpp>

#include "../adaptation.hpp"
#include "../launcher.hpp"
#include "../signals.hpp"

namespace galvatron::tools {

namespace {

class ProcessLauncher final : public CoreLauncher {
 public:
  ProcessLauncher(const comm::mpi::Runtime& runtime, comm::mpi::World& world)
      : CoreLauncher(&world), runtime_(runtime), world_(world) {}
  [[nodiscard]] std::vector<int> ranks_here(const Plan&) const override { return runtime_.local_ranks(); }
  [[nodiscard]] std::optional<double> core_seconds_here(double own) override {
    std::vector<double> all(static_cast<std::size_t>(world_.size()));
    world_.control().everybody().all_gather(View<const double>(&own, 1),
                                            View<double>(all.data(), static_cast<std::int64_t>(all.size())));
    double sum = 0;
    for (const int rank : runtime_.local_ranks()) sum += all[static_cast<std::size_t>(rank)];
    return sum;
  }
  [[nodiscard]] Cluster cluster(int) const override {
    Cluster out = CoreLauncher::cluster(runtime_.local_size());
    out.devices = world_.size();
    return out;
  }
  [[nodiscard]] MixedCluster profile(const train::ProfileOptions& options) const override {
    return value_or_throw(train::profile_host_ranks(runtime_, world_, options));
  }
  train::TrainReport train(const Plan& plan, const ModelSpec& model, train::BatchSource& source,
                           const train::TrainOptions& options) override {
    return train::train(runtime_, world_, plan, model, source, options);
  }
  train::TaskTrainReport train_tasks(const MultiTaskModel& model, const MultiTaskPlan& plan,
                                     const std::vector<train::TaskSources>& sources,
                                     const train::TaskTrainOptions& options) override {
    return plan.order == in_waves
               ? train::train_tasks<Tasks<in_waves>>(runtime_, world_, model, plan.waves, sources, options)
               : train::train_tasks<Tasks<in_sequence>>(runtime_, world_, model, plan.waves, sources, options);
  }

 private:
  [[nodiscard]] int threads_per_rank(const Plan&) const override { return runtime_.cores_per_rank(); }

  const comm::mpi::Runtime& runtime_;
  comm::mpi::World& world_;
};

// Standard output of a process that shows nothing; the one that reports a failure gets its own back.
class SilencedOutput {
 public:
  explicit SilencedOutput(bool silent) {
    if (!silent) return;
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    kept_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    ::dup2(nowhere, STDOUT_FILENO);
    ::close(nowhere);
  }
  SilencedOutput(const SilencedOutput&) = delete;
  SilencedOutput& operator=(const SilencedOutput&) = delete;
  ~SilencedOutput() { restore(); }
  void restore() {
    if (kept_ < 0) return;
    ::dup2(kept_, STDOUT_FILENO);
    ::close(std::exchange(kept_, -1));
  }

 private:
  int kept_ = -1;
};

}  // namespace

void require_mpi() {}

void run_as_rank(Common& common, const std::function<int(Launcher&)>& body) {
  Guard guard(common);
  comm::mpi::Runtime runtime;
  if (std::getenv(JobFolder::variable) != nullptr) runtime.watch(&note_lost_ranks());
  SilencedOutput output(runtime.rank() != 0);
  int result = 0;
  const comm::Verdict verdict = comm::mpi::outcome_of(runtime, [&](comm::mpi::World& world) {
    ProcessLauncher launcher(runtime, world);
    result = body(launcher);
  });
  if (verdict.failure != nullptr) {
    output.restore();
    result = verdict.reports ? report_failure(verdict.failure, common) : static_cast<int>(verdict.error);
    comm::mpi::conclude(runtime, verdict.reports);
  }
  if (result == 0) return;
  guard.conclude();
  throw Exited{result};
}

}  // namespace galvatron::tools
