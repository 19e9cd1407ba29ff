// Calls of CUDA and its libraries, checked.
#pragma once

#include <source_location>
#include <string>

#include <cuda_runtime_api.h>

#include <galvatron/core/error.hpp>

namespace galvatron::device::cuda {

/// `what (file.hpp:12)`.
inline std::string with_place(const std::string& what, const std::source_location& where) {
  std::string file = where.file_name();
  if (const auto slash = file.find_last_of('/'); slash != std::string::npos) file.erase(0, slash + 1);
  return what + " (" + file + ":" + std::to_string(where.line()) + ")";
}

/// Throws DeviceFailure with CUDA's own words and the place of the call, when a call did not succeed; a later launch
/// does not report it again.
inline void check(cudaError_t status, std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceFailure(
      with_place("CUDA: " + std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status), where), where);
}

}  // namespace galvatron::device::cuda
