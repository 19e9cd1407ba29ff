#include "launcher.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>
#include <thread>

#include <galvatron/core/error.hpp>
#include <galvatron/profile/host.hpp>
#include <galvatron/train/compiled.hpp>

#include "plans.hpp"

namespace galvatron::tools {

std::string Launcher::shared(std::string text) const {
  return processes_ == nullptr ? text : comm::shared_text(processes_->everybody(), std::move(text));
}

Bytes CoreLauncher::library_workspace(const Plan& plan) const {
  return {device::Host::library_workspace_bytes(threads_per_rank(plan))};
}

void CoreLauncher::require(Precision precision) const { galvatron::train::HostPlatform::require(precision); }

Cluster CoreLauncher::cluster(int ranks) const { return host_before_profile(ranks); }

MixedCluster CoreLauncher::profile(const galvatron::train::ProfileOptions& options) const {
  return value_or_throw(galvatron::train::profile_host_ranks(options));
}

galvatron::train::TrainReport ThreadLauncher::train(const Plan& plan, const ModelSpec& model,
                                                    galvatron::train::BatchSource& source,
                                                    const galvatron::train::TrainOptions& options) {
  return galvatron::train::train(plan, model, source, options);
}

galvatron::train::TaskTrainReport ThreadLauncher::train_tasks(const MultiTaskModel& model, const MultiTaskPlan& plan,
                                                              const std::vector<galvatron::train::TaskSources>& sources,
                                                              const galvatron::train::TaskTrainOptions& options) {
  return plan.order == in_waves
             ? galvatron::train::train_tasks<Tasks<in_waves>>(model, plan.waves, sources, options)
             : galvatron::train::train_tasks<Tasks<in_sequence>>(model, plan.waves, sources, options);
}

namespace {

RunOnGpus* module_function() {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path command = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  for (const fs::path& folder : std::array{command, command / GALVATRON_MODULES}) {
    const fs::path module = folder / "galvatron_gpu.so";
    if (!fs::exists(module, unknown)) continue;
    void* const loaded = ::dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays until the program ends
    auto* const run =
        loaded == nullptr ? nullptr : reinterpret_cast<RunOnGpus*>(::dlsym(loaded, "galvatron_run_on_gpus"));
    if (run != nullptr) return run;
    const char* const why = ::dlerror();
    throw DeviceFailure(text_of("cannot load ", module.string(), ": ", why == nullptr ? "unknown cause" : why,
                                "; put the folders of the CUDA libraries into LD_LIBRARY_PATH, or use --device host"));
  }
  throw DeviceFailure(
      "this galvatron has no CUDA: its part for GPUs, galvatron_gpu.so, is not beside it; build all, or the target "
      "galvatron_gpu, where nvcc, cuBLAS, cuDNN and NCCL are, or use --device host");
}

}  // namespace

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

void run_alike(const std::function<void()>& body) {
  try {
    body();
  } catch (const Failure& e) {
    if (const auto job = comm::launched_job(); !job || !*job || (*job)->rank == 0) throw;
    throw Exited{static_cast<int>(e.kind())};
  }
}

bool name_gpus(const Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i] == "--device=cuda" ||
        (arguments[i] == "--device" && i + 1 < arguments.size() && arguments[i + 1] == "cuda"))
      return true;
  return false;
}

void run_on_gpus(Common& common, const std::function<void(Launcher&)>& body) {
  std::optional<comm::LaunchEnvironment> job;
  RunOnGpus* run = nullptr;
  run_alike([&] {
    job = value_or_throw(comm::launched_job());
    run = module_function();
  });
  comm::Verdict verdict;
  run(job, body, verdict);
  if (verdict.failure == nullptr) return;
  if (!job) std::rethrow_exception(verdict.failure);
  int code = static_cast<int>(verdict.error);
  if (verdict.reports)
    code = report_failure(verdict.failure, common);
  else  // launchers end all processes when one has: the user is told first
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  throw Exited{code};
}

}  // namespace galvatron::tools
