// Loads what computes on GPUs.
#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <galvatron/core/error.hpp>

#include "launcher.hpp"

namespace galvatron::tools {

std::unique_ptr<Launcher> gpu_launcher() {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path command = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  for (const fs::path& folder : std::array{command, command / GALVATRON_MODULES}) {
    const fs::path module = folder / "galvatron_gpu.so";
    if (!fs::exists(module, unknown)) continue;
    void* const loaded = ::dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays until the program ends
    using Make = Launcher* (*)();
    const auto make = loaded == nullptr ? nullptr : reinterpret_cast<Make>(::dlsym(loaded, "galvatron_gpu_launcher"));
    if (make == nullptr) {
      const char* const why = ::dlerror();
      throw DeviceFailure("cannot load " + module.string() + ": " + (why == nullptr ? "unknown cause" : why) +
                          "; put the folders of the CUDA libraries into LD_LIBRARY_PATH, or use --device host");
    }
    return std::unique_ptr<Launcher>(make());
  }
  throw DeviceFailure(
      "this build of galvatron has no CUDA: build it where nvcc, cuBLAS, cuDNN and NCCL are, or use --device host");
}

}  // namespace galvatron::tools
