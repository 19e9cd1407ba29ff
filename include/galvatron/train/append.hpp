// Adding a record to a file that a run writes while it goes on.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include <galvatron/core/file.hpp>

namespace galvatron::train::detail {

/// Adds a record at the end of a file, whole or not at all: what a full disk took of it is removed. 0 or the errno.
/// @param file  opened with O_APPEND
inline int append_record(int file, std::string_view record) {
  struct stat before{};
  const bool can_shrink = ::fstat(file, &before) == 0 && S_ISREG(before.st_mode);
  const int reason = galvatron::detail::write_fully(file, record.data(), record.size());
  if (reason != 0 && can_shrink && ::ftruncate(file, before.st_size) != 0) return reason;
  return reason;
}

}  // namespace galvatron::train::detail
