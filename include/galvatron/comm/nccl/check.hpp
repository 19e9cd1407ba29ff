// What NCCL's status codes mean here.
#pragma once

#include <source_location>
#include <string>

#include <nccl.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/stream.hpp>

// Before 2.24 rank threads read each other's memory where only their own GPU can; before 2.22 communicators were
// aborted one by one.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 24, 0)
#error "galvatron: comm::nccl needs NCCL 2.24 or newer"
#endif

namespace galvatron::comm::nccl {

/// One line: NCCL's words, the last error that it logged, and the place of the call.
inline std::string text_of(ncclResult_t status, ncclComm_t comm, const std::source_location& where) {
  std::string text = std::string("NCCL: ") + ncclGetErrorString(status);
  if (const char* const last = ncclGetLastError(comm); last != nullptr && *last != '\0')
    text += ": " + galvatron::detail::one_line(last);
  return device::cuda::with_place(text, where);
}

/// True for what is no failure: done, or under way.
inline bool is_fine(ncclResult_t status) { return status == ncclSuccess || status == ncclInProgress; }

/// True for failures that may be another rank's.
inline bool is_remote(ncclResult_t status) { return status == ncclRemoteError || status == ncclSystemError; }

/// Throws what a call has to throw that was not fine: PeerFailure or DeviceFailure.
inline void check(ncclResult_t status, ncclComm_t comm = nullptr,
                  std::source_location where = std::source_location::current()) {
  if (is_fine(status)) return;
  if (is_remote(status)) throw PeerFailure(text_of(status, comm, where), where);
  throw DeviceFailure(text_of(status, comm, where), where);
}

}  // namespace galvatron::comm::nccl
