// A rank's file of a checkpoint: written past the page cache, read in large pieces, both with the checksum on the way.
//
// Mapped memory is slower on both ways: each of its pages is entered into the page table on the first touch, which on a
// virtual machine can take longer than to copy it.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stop_token>
#include <system_error>
#include <utility>

#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>

namespace galvatron::train {

/// Addresses, sizes and places in a file that the system moves between memory and disk itself are multiples of this.
inline constexpr std::size_t direct_alignment = 4096;

/// Writes a rank's file and brings it to the disk: its bytes go there from where they are, so that the kernel neither
/// copies them nor drops other files for them. File systems that cannot do that, and the end of a file, go through the
/// page cache. Errors (usage): what the system says.
/// @param bytes  begin at a multiple of direct_alignment
inline Result<CheckpointFile> write_shard(const std::filesystem::path& path, std::span<const std::byte> bytes,
                                          const std::stop_token& stop) {
  const auto refused = [&](int reason) { return galvatron::detail::file_error("cannot write", path, reason); };
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) return refused(error.value());
  galvatron::detail::FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) return refused(errno);
  bool direct = ::fcntl(file.get(), F_SETFL, O_DIRECT) == 0;
  CheckpointFile out{path.filename().string(), static_cast<std::int64_t>(bytes.size()), 0};
  constexpr std::size_t run = std::size_t{4} << 20;  // enough for the disk to be busy all the time
  while (!bytes.empty()) {
    if (stop.stop_requested()) return refused(EINTR);
    auto part = bytes.first(std::min(run, bytes.size()));
    bytes = bytes.subspan(part.size());
    out.crc32c = crc32c(part, out.crc32c);
    while (!part.empty()) {
      const std::size_t size = direct ? part.size() / direct_alignment * direct_alignment : part.size();
      const ssize_t n = size > 0 ? ::write(file.get(), part.data(), size) : -1;
      if (n >= 0) {
        part = part.subspan(static_cast<std::size_t>(n));
      } else if (direct && (size == 0 || errno == EINVAL)) {
        direct = false;
        if (::fcntl(file.get(), F_SETFL, 0) != 0) return refused(errno);
      } else if (errno != EINTR) {
        return refused(errno);
      }
    }
  }
  if (::fsync(file.get()) != 0 && errno != EINVAL) return refused(errno);  // EINVAL: a file system without fsync
  if (const int reason = file.close(); reason != 0) return refused(reason);
  return out;
}

/// A rank's file, open for reading. Immutable: threads may share one.
class ShardFile {
 public:
  /// Errors (usage): missing, unreadable, not a regular file.
  static Result<ShardFile> open(const std::filesystem::path& path) {
    auto mapped = MappedFile::open(path);
    if (!mapped) return tl::unexpected<Error>(std::move(mapped.error()));
    ShardFile out(path, std::move(*mapped));
    out.file_ = galvatron::detail::FileHandle(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!out.file_.is_open()) return galvatron::detail::file_error("cannot read", path, errno);
    return out;
  }

  [[nodiscard]] std::int64_t size() const { return mapped_.size(); }
  /// For what is read in small pieces: the header, and rows that do not follow each other.
  [[nodiscard]] std::span<const std::byte> mapped() const { return mapped_.bytes(); }

  /// Copies the bytes [from, from + size) of the file to `to`. Errors (usage): what the system says.
  Result<void> read(std::int64_t from, std::int64_t size, std::byte* to) const {
    while (size > 0) {
      const ssize_t n = ::pread(file_.get(), to, static_cast<std::size_t>(size), static_cast<off_t>(from));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return galvatron::detail::file_error("cannot read", path_, errno);
      if (n == 0) return usage_error(path_.string() + " has become shorter while it was read");
      to += n;
      from += n;
      size -= n;
    }
    return {};
  }

  /// The CRC-32C of the whole file. Errors (usage): what the system says.
  [[nodiscard]] Result<std::uint32_t> checksum() const {
    constexpr std::int64_t run = std::int64_t{512} << 10;  // stays in a core's cache
    const auto buffer = std::make_unique<std::byte[]>(static_cast<std::size_t>(run));
    ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // reads further ahead
    std::uint32_t out = 0;
    for (std::int64_t at = 0; at < size(); at += run) {
      const std::int64_t count = std::min(run, size() - at);
      if (auto done = read(at, count, buffer.get()); !done) return tl::unexpected<Error>(std::move(done.error()));
      out = crc32c({buffer.get(), static_cast<std::size_t>(count)}, out);
    }
    return out;
  }

 private:
  ShardFile(std::filesystem::path path, MappedFile mapped) : path_(std::move(path)), mapped_(std::move(mapped)) {}

  std::filesystem::path path_;
  MappedFile mapped_;
  galvatron::detail::FileHandle file_;
};

}  // namespace galvatron::train
