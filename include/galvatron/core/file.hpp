// Files: read with a limit, written whole or not at all, mapped read-only.
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
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

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

}  // namespace detail

/// The whole text of a file of at most `limit` bytes. Errors (usage): missing, unreadable, a directory, too large.
inline Result<std::string> read_text_file(const std::filesystem::path& path,
                                          std::int64_t limit = std::int64_t{64} << 20) {
  const detail::FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return detail::file_error("cannot read", path, errno);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return detail::file_error("cannot read", path, errno);
  if (S_ISDIR(status.st_mode)) return detail::file_error("cannot read", path, EISDIR);
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
    const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
    const detail::FileHandle directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.is_open()) ::fsync(directory.get());
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
  auto file = AtomicFile::create(path);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  if (auto written = file->write(content); !written) return written;
  return file->commit();
}

/// A file in memory, read-only and loaded page by page. The file must not shrink while it is mapped.
class MappedFile {
 public:
  /// Errors (usage): missing, unreadable, not a regular file. An empty file is an empty span.
  static Result<MappedFile> open(const std::filesystem::path& path) {
    const detail::FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.is_open()) return detail::file_error("cannot read", path, errno);
    struct stat status{};
    if (::fstat(file.get(), &status) != 0) return detail::file_error("cannot read", path, errno);
    if (S_ISDIR(status.st_mode)) return detail::file_error("cannot read", path, EISDIR);
    if (!S_ISREG(status.st_mode)) return usage_error("cannot map " + path.string() + ": it is not a regular file");
    MappedFile mapped;
    mapped.size_ = static_cast<std::size_t>(status.st_size);
    if (mapped.size_ == 0) return mapped;
    void* data = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) return detail::file_error("cannot map", path, errno);
    mapped.data_ = static_cast<const std::byte*>(data);
    return mapped;
  }

  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(size_); }

 private:
  MappedFile() = default;

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace galvatron
