// The folder of a run's checkpoints.
//
//   checkpoints/
//     step-00000100/            complete: it got this name when everything in it was on the disk
//       manifest.json
//       rank-0000.safetensors   what rank 0 wrote; each rank writes its part
//       rank-0001.safetensors
//     step-00000200/
//     step-00000300.tmp/        being written, or left behind by a crash
//     lock                      of the run that writes here: lock.hpp
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <linux/fs.h>
#include <sys/syscall.h>
#endif

#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/path_in_file.hpp>
#include <galvatron/model/zoo.hpp>

namespace galvatron::train {

inline std::string checkpoint_name(std::int64_t step) {
  char out[32];
  std::snprintf(out, sizeof out, "step-%08lld", static_cast<long long>(step));
  return out;
}
inline std::filesystem::path unfinished(const std::filesystem::path& checkpoint) {
  return checkpoint.string() + ".tmp";
}
inline std::string shard_name(int rank) {
  char out[40];
  std::snprintf(out, sizeof out, "rank-%04d.safetensors", rank);
  return out;
}

/// A complete checkpoint of a folder.
struct CheckpointPlace {
  std::int64_t step = 0;
  std::filesystem::path path;
};

/// The complete checkpoints in a folder, the oldest first; none when there is no such folder.
inline std::vector<CheckpointPlace> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<CheckpointPlace> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view prefix = "step-";
    if (!name.starts_with(prefix)) continue;
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    if (error != std::errc{} || end != name.data() + name.size() || step < 0) continue;
    if (std::filesystem::exists(entry.path() / manifest_name, ignored)) out.push_back({step, entry.path()});
  }
  std::ranges::sort(out, {}, &CheckpointPlace::step);
  return out;
}

/// The checkpoint that `path` names: itself, or the newest in it. Errors (usage): there is none.
inline Result<std::filesystem::path> find_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path / manifest_name, ignored)) return path;
  if (!std::filesystem::exists(path, ignored)) return galvatron::detail::file_error("cannot read", path, ENOENT);
  const auto all = list_checkpoints(path);
  if (all.empty())
    return usage_error("there is no complete checkpoint in " + path.string() +
                       "; name a folder that `galvatron train --checkpoint` wrote");
  return all.back().path;
}

namespace detail {

/// Brings what a folder contains, names that is, to the disk.
inline void sync_folder(const std::filesystem::path& folder) {
  const galvatron::detail::FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.is_open()) ::fsync(handle.get());
}

/// Gives a folder its final name. One that has the name already changes places with it in one step where the system
/// can, so that there is a complete folder of that name at any moment.
inline Result<void> put_in_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  if (errno != ENOTEMPTY && errno != EEXIST) return galvatron::detail::file_error("cannot write", to, errno);
#if defined(__linux__) && defined(SYS_renameat2) && defined(RENAME_EXCHANGE)
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    std::filesystem::remove_all(from, ignored);
    return {};
  }
#endif
  std::error_code error;
  std::filesystem::remove_all(to, error);
  if (!error) std::filesystem::rename(from, to, error);
  if (error) return galvatron::detail::file_error("cannot write", to, error.value());
  return {};
}

}  // namespace detail

/// Makes the folder of a run's checkpoints and removes what a crash left unfinished in it. Errors (usage): it cannot be
/// made or written.
inline Result<void> prepare_checkpoint_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return galvatron::detail::file_error("cannot write", folder, error.value());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return galvatron::detail::file_error("cannot write", folder, errno);
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".tmp")) {
      std::error_code ignored;
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
  return {};
}

/// Makes a checkpoint of an unfinished one whose other files are on the disk: writes the manifest, gives the folder its
/// name, and removes all but the newest `keep` checkpoints up to this one. Errors (usage): what the system says.
inline Result<void> complete_checkpoint(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                                        int keep) {
  const std::filesystem::path path = folder / checkpoint_name(manifest.training.step);
  const std::filesystem::path temporary = unfinished(path);
  CheckpointManifest written = manifest;
  if (!find_model(written.training.model))
    written.training.model = path_for_file(written.training.model, temporary / manifest_name);
  if (auto done = write_file_atomically(temporary / manifest_name, manifest_text(written)); !done) return done;
  detail::sync_folder(temporary);
  if (auto done = detail::put_in_place(temporary, path); !done) return done;
  detail::sync_folder(folder);
  auto all = list_checkpoints(folder);
  std::erase_if(all, [&](const CheckpointPlace& place) { return place.step > manifest.training.step; });
  const auto old = static_cast<std::ptrdiff_t>(all.size()) - std::max(keep, 1);
  for (std::ptrdiff_t i = 0; i < old; ++i) {
    // Under another name first: what is half removed must not look complete.
    const auto& place = all[static_cast<std::size_t>(i)].path;
    std::error_code ignored;
    if (::rename(place.c_str(), unfinished(place).c_str()) == 0)
      std::filesystem::remove_all(unfinished(place), ignored);
  }
  return {};
}

}  // namespace galvatron::train
