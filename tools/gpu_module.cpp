// Loads what computes on GPUs, and lets this process be one of a job.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <galvatron/comm/launch_environment.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/core/error.hpp>

#include "launcher.hpp"

namespace galvatron::tools {

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
    throw DeviceFailure("cannot load " + module.string() + ": " + (why == nullptr ? "unknown cause" : why) +
                        "; put the folders of the CUDA libraries into LD_LIBRARY_PATH, or use --device host");
  }
  throw DeviceFailure(
      "this build of galvatron has no CUDA: build it where nvcc, cuBLAS, cuDNN and NCCL are, or use --device host");
}

}  // namespace

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
