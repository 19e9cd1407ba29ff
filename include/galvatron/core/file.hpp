// Files: read with a limit, written whole or not at all, mapped read-only; and the paths that they have of others.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron {

namespace detail {

/// "No such file or directory" for ENOENT.
inline std::string reason_of(int error_number) { return std::generic_category().message(error_number); }

inline tl::unexpected<Error> file_error(const char* what, const std::filesystem::path& path, int error_number) {
  return usage_error(std::string(what) + " " + path.string() + ": " + reason_of(error_number));
}

/// An open file that closes itself.
class FileHandle {
 public:
  explicit FileHandle(int descriptor = -1) : descriptor_(descriptor) {}
  FileHandle(FileHandle&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  ~FileHandle() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  /// Closes now; 0 or the errno (a full disk of a network file system may show only here).
  int close() { return ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno; }

 private:
  int descriptor_;
};

/// A file open for reading, and what the system says of it.
struct ReadableFile {
  FileHandle file;
  struct stat status{};

  /// Errors (usage): missing, unreadable, a directory.
  static Result<ReadableFile> open(const std::filesystem::path& path, int flags = 0) {
    ReadableFile out{FileHandle(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags))};
    if (!out.file.is_open() || ::fstat(out.file.get(), &out.status) != 0) return file_error("cannot read", path, errno);
    if (S_ISDIR(out.status.st_mode)) return file_error("cannot read", path, EISDIR);
    return out;
  }
};

/// Brings what a folder contains, names that is, to the disk.
inline void sync_folder(const std::filesystem::path& folder) {
  const FileHandle handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.is_open()) ::fsync(handle.get());
}

/// Makes a folder if need be; whether it was made. Errors (usage): what the system says.
inline Result<bool> make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(folder, error);
  if (error) return file_error("cannot write", folder, error.value());
  return made;
}

/// Writes everything; 0 or the errno.
inline int write_fully(int descriptor, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(descriptor, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return 0;
}

/// The folder of a file, without links; empty when it has none that could be named.
inline std::filesystem::path folder_of(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::weakly_canonical(std::filesystem::absolute(file, error), error);
  if (error) return {};
  return folder.parent_path();
}

}  // namespace detail

/// The whole text of a file of at most `limit` bytes. Errors (usage): missing, unreadable, a directory, too large.
template <class = void>
Result<std::string> read_text_file(const std::filesystem::path& path, std::int64_t limit = std::int64_t{64} << 20) {
  const auto opened = detail::ReadableFile::open(path);
  if (!opened) return tl::unexpected<Error>(opened.error());
  const auto& [file, status] = *opened;
  std::string text;
  if (S_ISREG(status.st_mode) && status.st_size <= limit) text.reserve(static_cast<std::size_t>(status.st_size) + 1);
  while (static_cast<std::int64_t>(text.size()) <= limit) {
    char piece[1 << 16];
    const ssize_t n = ::read(file.get(), piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return detail::file_error("cannot read", path, errno);
    if (n == 0) return text;
    text.append(piece, static_cast<std::size_t>(n));
  }
  return usage_error("cannot read " + path.string() + ": it is larger than the limit of " + std::to_string(limit) +
                     " bytes");
}
GALVATRON_IN_PLANNER(Result<std::string> read_text_file<>(const std::filesystem::path&, std::int64_t))

/// A file under construction: it has a temporary name in the folder of its target until commit(), and is removed when
/// it goes away without one. A target that is not a regular file (a pipe, /dev/null) is written directly.
class AtomicFile {
 public:
  /// Errors (usage): the folder does not exist or is not writable, the target is a directory.
  static Result<AtomicFile> create(const std::filesystem::path& path) {
    AtomicFile file;
    file.path_ = path;
    struct stat status{};
    bool replaces = false;
    if (::stat(path.c_str(), &status) == 0) {
      if (S_ISDIR(status.st_mode)) return detail::file_error("cannot write", path, EISDIR);
      if (!S_ISREG(status.st_mode)) {
        file.handle_ = detail::FileHandle(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        if (!file.handle_.is_open()) return detail::file_error("cannot write", path, errno);
        return file;
      }
      replaces = true;
      std::error_code ignored;
      if (auto target = std::filesystem::canonical(path, ignored); !ignored) file.path_ = target;
    }
    static std::atomic<unsigned> counter{0};
    do {
      file.temporary_ = file.path_;
      file.temporary_ += "." + std::to_string(::getpid()) + "." + std::to_string(counter++) + ".tmp";
      file.handle_ = detail::FileHandle(::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    } while (!file.handle_.is_open() && errno == EEXIST);
    if (!file.handle_.is_open()) {
      const int reason = errno;
      file.temporary_.clear();
      return detail::file_error("cannot write", path, reason);
    }
    if (replaces && ::fchmod(file.handle_.get(), status.st_mode & 0777) != 0)
      return detail::file_error("cannot write", path, errno);
    return file;
  }

  AtomicFile(AtomicFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        handle_(std::move(other.handle_)) {}
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  /// Appends bytes. Errors (usage): what the system says, a full disk for instance.
  Result<void> write(std::string_view bytes) {
    if (const int reason = detail::write_fully(handle_.get(), bytes.data(), bytes.size()); reason != 0)
      return detail::file_error("cannot write", path_, reason);
    return {};
  }
  Result<void> write(std::span<const std::byte> bytes) {
    return write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

  /// Writes again what the file has from `place` on: a header that says how much came behind it. Errors (usage): what
  /// the system says, also of a pipe.
  Result<void> write_again(std::int64_t place, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(handle_.get(), bytes.data(), bytes.size(), place);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return detail::file_error("cannot write", path_, errno);
      place += n;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
  }

  /// Brings the bytes to the disk and gives the file its name.
  Result<void> commit() {
    if (temporary_.empty()) {
      if (const int reason = handle_.close(); reason != 0) return detail::file_error("cannot write", path_, reason);
      return {};
    }
    int reason = ::fsync(handle_.get()) == 0 ? 0 : errno;
    if (reason == EINVAL) reason = 0;  // a file system without fsync
    if (reason == 0) reason = handle_.close();
    if (reason == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) reason = errno;
    if (reason != 0) return detail::file_error("cannot write", path_, reason);
    temporary_.clear();
    detail::sync_folder(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
    return {};
  }

 private:
  AtomicFile() = default;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  detail::FileHandle handle_;
};

/// Writes a file whole or not at all: whoever reads `path` sees the old content or the new one. Errors (usage): the
/// folder does not exist or is not writable, the disk is full; nothing is left behind then.
inline Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  return AtomicFile::create(path).and_then(
      [&](AtomicFile&& file) { return file.write(content).and_then([&] { return file.commit(); }); });
}

/// A file that grows by whole records while others read it.
class AppendedFile {
 public:
  /// Opens or makes it. Errors (usage): it cannot be written.
  static Result<AppendedFile> open(const std::filesystem::path& path, int flags = 0) {
    AppendedFile out;
    out.path_ = path;
    out.file_ = detail::FileHandle(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666));
    if (!out.file_.is_open()) return detail::file_error("cannot write", path, errno);
    return out;
  }

  /// Adds a record at the end, whole or not at all: what a full disk took of it is removed. Errors (usage): what the
  /// system says.
  Result<void> append(std::string_view record) {
    struct stat before{};
    const bool can_shrink = ::fstat(file_.get(), &before) == 0 && S_ISREG(before.st_mode);
    const int reason = detail::write_fully(file_.get(), record.data(), record.size());
    if (reason == 0) return {};
    static_cast<void>(can_shrink && ::ftruncate(file_.get(), before.st_size) == 0);
    return detail::file_error("cannot write", path_, reason);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  AppendedFile() = default;

  std::filesystem::path path_;
  detail::FileHandle file_;
};

/// A file in memory, read-only and loaded page by page. The file must not shrink while it is mapped.
class MappedFile {
 public:
  /// Errors (usage): missing, unreadable, not a regular file. An empty file is an empty span.
  static Result<MappedFile> open(const std::filesystem::path& path) {
    const auto opened = detail::ReadableFile::open(path, O_NONBLOCK);
    if (!opened) return tl::unexpected<Error>(opened.error());
    const auto& [file, status] = *opened;
    if (!S_ISREG(status.st_mode)) return usage_error("cannot map " + path.string() + ": it is not a regular file");
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0) return MappedFile(nullptr, 0);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) return detail::file_error("cannot map", path, errno);
    return MappedFile(data, size);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_.get()), data_ ? data_.get_deleter().size : 0};
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(bytes().size()); }

 private:
  struct Unmap {
    std::size_t size = 0;
    void operator()(void* data) const { ::munmap(data, size); }
  };
  MappedFile(void* data, std::size_t size) : data_(data, Unmap{size}) {}

  std::unique_ptr<void, Unmap> data_;
};

// Paths that a file has of other files, of which a plan names its model's config.json. In a file a relative path begins
// at the folder of that file, so that it means the same wherever the program runs, and a folder with both can be moved.
// In a program it begins at the current folder, as paths of the command line do.

/// What a file that is written at `file` says of `path`, which begins at the current folder. An absolute path stays as
/// it is, and so does one of which there is nothing. Into a pipe or a device, whose folder means nothing, a path is
/// written as absolute.
inline std::string path_for_file(const std::string& path, const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path given(path);
  if (path.empty() || given.is_absolute() || !std::filesystem::exists(given, error)) return path;
  const std::filesystem::path whole = std::filesystem::canonical(given, error);
  if (error) return path;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) return whole.string();
  const std::filesystem::path folder = detail::folder_of(file);
  const std::filesystem::path relative = folder.empty() ? whole : whole.lexically_relative(folder);
  return (relative.empty() ? whole : relative).string();
}

/// The path of what `file` calls `path`: from the current folder, as `file` is, or absolute if `file` is. Where nothing
/// is there the path is taken from the current folder, from which files of before name it.
inline std::string path_from_file(const std::string& path, const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path given(path);
  if (path.empty() || given.is_absolute()) return path;
  const std::filesystem::path folder = detail::folder_of(file);
  if (folder.empty() || !std::filesystem::exists(folder / given, error)) return path;
  const std::filesystem::path whole = std::filesystem::canonical(folder / given, error);
  if (error) return path;
  if (file.is_absolute()) return whole.string();
  const std::filesystem::path relative = whole.lexically_relative(std::filesystem::current_path(error));
  return (relative.empty() ? whole : relative).string();
}

}  // namespace galvatron
