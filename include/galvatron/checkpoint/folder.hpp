// The folder of a run's checkpoints.
//
//   checkpoints/
//     step-00000100/            complete: it got this name when everything in it was on the disk
//       manifest.json
//       rank-0000.safetensors   what rank 0 wrote; each rank writes its part
//       rank-0001.safetensors
//     step-00000200/
//     step-00000300.tmp/        being written, or left behind by a crash
//     lock                      of the run that writes here
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/model/zoo.hpp>

namespace galvatron::train {

inline std::string checkpoint_name(std::int64_t step) {
  return galvatron::detail::formatted("step-%08lld", static_cast<long long>(step));
}
inline std::filesystem::path unfinished(const std::filesystem::path& checkpoint) {
  return checkpoint.string() + ".tmp";
}
inline std::string shard_name(int rank) { return galvatron::detail::formatted("rank-%04d.safetensors", rank); }

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
    const std::string_view digits = std::string_view(name).substr(prefix.size());
    const auto step = galvatron::detail::leading_number(digits);
    if (!step || digits.find_first_not_of("0123456789") != digits.npos) continue;
    if (std::filesystem::exists(entry.path() / manifest_name, ignored)) out.push_back({*step, entry.path()});
  }
  std::ranges::sort(out, {}, &CheckpointPlace::step);
  return out;
}

/// The checkpoint that `path` names: itself, or the newest in it. Errors (usage): no checkpoint is there.
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

/// Gives a folder its final name. One that has the name already changes places with it in one step where the system
/// can, so that there is a complete folder of that name at any moment.
inline Result<void> put_in_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  if (errno != ENOTEMPTY && errno != EEXIST) return galvatron::detail::file_error("cannot write", to, errno);
  std::error_code error;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    std::filesystem::remove_all(from, error);
    return {};
  }
  std::filesystem::remove_all(to, error);
  if (!error) std::filesystem::rename(from, to, error);
  if (error) return galvatron::detail::file_error("cannot write", to, error.value());
  return {};
}

}  // namespace detail

/// Makes the folder of a run's checkpoints and removes what a crash left unfinished in it. Errors (usage): it cannot be
/// made or written.
inline Result<void> prepare_checkpoint_folder(const std::filesystem::path& folder) {
  if (auto made = galvatron::detail::make_folder(folder); !made) return tl::unexpected<Error>(std::move(made.error()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return galvatron::detail::file_error("cannot write", folder, errno);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".tmp")) std::filesystem::remove_all(entry.path(), ignored);
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
  if (!written.training.base.empty())
    written.training.base = path_for_file(written.training.base, temporary / manifest_name);
  if (auto done = write_file_atomically(temporary / manifest_name, manifest_text(written)); !done) return done;
  galvatron::detail::sync_folder(temporary);
  if (auto done = detail::put_in_place(temporary, path); !done) return done;
  galvatron::detail::sync_folder(folder);
  auto all = list_checkpoints(folder);
  std::erase_if(all, [&](const CheckpointPlace& place) { return place.step > manifest.training.step; });
  all.resize(all.size() - std::min(all.size(), static_cast<std::size_t>(std::max(keep, 1))));
  for (const CheckpointPlace& old : all) {
    // Under another name first: what is half removed must not look complete.
    std::error_code ignored;
    if (::rename(old.path.c_str(), unfinished(old.path).c_str()) == 0)
      std::filesystem::remove_all(unfinished(old.path), ignored);
  }
  return {};
}

// One run at a time writes to a folder of checkpoints. The lock is the kernel's, on the file `lock` of the folder: it
// goes with the process, however that ends, and network file systems with locks (NFS, Lustre with -o flock, GPFS,
// CephFS) have it on all machines. What is in the file only names the holder for others. Where the file system has no
// locks, the file itself is the lock: that of a process of this machine which no longer runs is taken over, and that of
// another machine when nothing touched it for minutes.

inline constexpr const char* lock_name = "lock";

/// Who holds a lock, as its file tells others.
struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string since;          ///< UTC: "2026-11-25 10:00:00"
  std::string process_begin;  ///< what tells this process from a later one of the same number; empty: unknown

  static LockHolder self() {
    LockHolder out;
    char name[256] = "";
    if (::gethostname(name, sizeof name - 1) == 0) out.host = name;
    out.pid = ::getpid();
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    char text[32];
    out.since.assign(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts));
    out.process_begin = begin_of(out.pid);
    return out;
  }

  [[nodiscard]] std::string text() const {
    return nlohmann::ordered_json{{"host", host}, {"pid", pid}, {"since", since}, {"process_begin", process_begin}}
               .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
           "\n";
  }
  /// Of a file's text; without a pid when it is not one.
  static LockHolder of(const std::string& text) try {
    const auto value = nlohmann::json::parse(text);
    const auto read = [&](const char* key) { return galvatron::detail::one_line(value.value(key, "")); };
    return {read("host"), value.value("pid", std::int64_t{0}), read("since"), read("process_begin")};
  } catch (const nlohmann::json::exception&) {
    return {};
  }

  /// False when it was a process of this machine that has ended; true also when nobody can know.
  [[nodiscard]] bool may_run() const {
    if (pid <= 0 || host != self().host) return true;
    if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return false;
    return process_begin.empty() || process_begin == begin_of(pid);
  }

 private:
  // Boot of the kernel, and ticks from there to the beginning of a process.
  static std::string begin_of(std::int64_t pid) {
    std::string boot = read_text_file("/proc/sys/kernel/random/boot_id").value_or("");
    boot.resize(std::min(boot.size(), boot.find('\n')));
    const std::string all = read_text_file("/proc/" + std::to_string(pid) + "/stat").value_or("");
    std::istringstream fields(all.substr(std::min(all.size(), all.rfind(')') + 1)));
    std::string ticks;
    for (int field = 3; field <= 22; ++field)
      if (!(fields >> ticks)) return "";
    return boot + " " + ticks;
  }
};

/// Held until it goes away; then its file goes too, and the folder if this made it and nothing is in it.
class FolderLock {
 public:
  /// Where the file system has no locks, a file of another machine that was not touched for so long is void.
  static constexpr std::chrono::seconds stale{300};
  /// How often a holder touches it.
  static constexpr std::chrono::seconds beat{15};

  /// Takes the lock of a folder, which is made if need be. Errors (usage): another run has it, and who that is; the
  /// folder cannot be made or written.
  /// @param kernel_locks  false: as on a file system without locks
  static Result<std::shared_ptr<FolderLock>> take(const std::filesystem::path& folder, bool kernel_locks = true) {
    const std::shared_ptr<FolderLock> out(new FolderLock(folder));
    const auto made = galvatron::detail::make_folder(folder);
    if (!made) return tl::unexpected<Error>(made.error());
    out->made_folder_ = *made;
    const std::string text = LockHolder::self().text();
    for (int attempt = 0; attempt < 100; ++attempt) {
      const auto taken = kernel_locks ? out->ask_kernel(kernel_locks) : out->ask_file();
      if (!taken) return tl::unexpected<Error>(taken.error());
      if (!*taken) continue;
      const int written = ::ftruncate(out->file_.get(), 0) != 0
                              ? errno
                              : galvatron::detail::write_fully(out->file_.get(), text.data(), text.size());
      if (written != 0) return galvatron::detail::file_error("cannot write", out->path_, written);
      return out;
    }
    return usage_error("cannot lock " + folder.string() + ": other runs begin and end there all the time");
  }

  ~FolderLock() {
    if (file_.is_open()) ::unlink(path_.c_str());
    if (made_folder_) ::rmdir(folder_.c_str());
  }

  /// Now and then while the run goes on: tells those who cannot ask the kernel that the holder still runs.
  void touch() {
    const auto now = std::chrono::steady_clock::now();
    if (now - touched_ < beat) return;
    touched_ = now;
    static_cast<void>(::futimens(file_.get(), nullptr));
  }

 private:
  explicit FolderLock(const std::filesystem::path& folder) : folder_(folder), path_(folder / lock_name) {}

  // 0 or the errno; EAGAIN or EACCES: somebody has it.
  static int lock(int file) {
    struct flock whole{};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    return ::fcntl(file, F_OFD_SETLK, &whole) == 0 ? 0 : errno;
  }
  // Whoever ended meanwhile has removed the file that was opened.
  static bool is_at(int file, const std::filesystem::path& path) {
    struct stat here{};
    struct stat there{};
    return ::fstat(file, &here) == 0 && ::stat(path.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
           here.st_ino == there.st_ino;
  }

  [[nodiscard]] tl::unexpected<Error> in_use(const LockHolder& holder) const {
    const std::string who = holder.pid > 0 ? "process " + std::to_string(holder.pid) + " on " + holder.host +
                                                 " since " + holder.since + " UTC"
                                           : "another run that has just begun";
    return usage_error(folder_.string() + " is in use by " + who +
                       "; wait until that run has ended, or name another folder");
  }

  // True: taken. False: try again.
  Result<bool> ask_kernel(bool& kernel_locks) {
    galvatron::detail::FileHandle file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file.is_open()) return galvatron::detail::file_error("cannot write", path_, errno);
    const int reason = lock(file.get());
    if (reason == EAGAIN || reason == EACCES) return in_use(LockHolder::of(read_text_file(path_).value_or("")));
    if (reason != 0) {  // no locks here
      kernel_locks = false;
      struct stat status{};
      if (::fstat(file.get(), &status) == 0 && status.st_size == 0) ::unlink(path_.c_str());  // most likely just made
      return false;
    }
    if (!is_at(file.get(), path_)) return false;
    file_ = std::move(file);
    return true;
  }
  Result<bool> ask_file() {
    galvatron::detail::FileHandle file(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.is_open()) {
      file_ = std::move(file);
      return true;
    }
    if (errno != EEXIST) return galvatron::detail::file_error("cannot write", path_, errno);
    const std::string text = read_text_file(path_).value_or("");
    const LockHolder holder = LockHolder::of(text);
    if (holder.may_run() && !is_stale(holder)) return in_use(holder);
    // Of several who see the void file one gets it, and who gets the file of another one gives it back.
    const std::filesystem::path old = path_.string() + "." + std::to_string(::getpid()) + ".old";
    if (::rename(path_.c_str(), old.c_str()) != 0) return false;
    if (read_text_file(old).value_or("") != text) static_cast<void>(::link(old.c_str(), path_.c_str()));
    ::unlink(old.c_str());
    return false;
  }
  // By the clock of the file system, and only of another machine's process.
  [[nodiscard]] bool is_stale(const LockHolder& holder) const {
    if (holder.host == LockHolder::self().host) return false;
    const std::filesystem::path probe = path_.string() + "." + std::to_string(::getpid()) + ".now";
    struct stat now{};
    struct stat then{};
    const galvatron::detail::FileHandle file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    const bool known = file.is_open() && ::fstat(file.get(), &now) == 0 && ::stat(path_.c_str(), &then) == 0;
    ::unlink(probe.c_str());
    return known && now.st_mtime - then.st_mtime > stale.count();
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
  galvatron::detail::FileHandle file_;
  bool made_folder_ = false;
  std::chrono::steady_clock::time_point touched_{};
};

}  // namespace galvatron::train
