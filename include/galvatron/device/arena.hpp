// The memory of one rank: one mapping of the planned size, cut into regions that are bump-allocated or stacks.
//
//     | states ........ | stash: slot 0 | slot 1 | ... | boundary | workspace  low-> ... <-high | library |
//
// The same code runs on a device that only counts, with no memory behind it: the regions then only measure.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include <sys/mman.h>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::device {

/// A run of memory that is handed out from both ends, last in first out. `base` may be null: then it only measures.
class Region {
 public:
  Region() = default;
  Region(const char* name, std::byte* base, std::int64_t capacity) : name_(name), base_(base), capacity_(capacity) {}

  /// `count` elements of T from the low end; a multiple of 64 bytes is taken. Throws when that exceeds the plan: a
  /// defect.
  template <class T>
  View<T> take(std::int64_t count) {
    const std::int64_t first = low_;
    grow(low_, count * static_cast<std::int64_t>(sizeof(T)));
    return {place<T>(first), count};
  }
  /// The same from the high end.
  template <class T>
  View<T> take_high(std::int64_t count) {
    grow(high_, count * static_cast<std::int64_t>(sizeof(T)));
    return {place<T>(capacity_ - high_), count};
  }

  [[nodiscard]] std::int64_t low() const { return low_; }
  [[nodiscard]] std::int64_t high() const { return high_; }
  void restore_low(std::int64_t mark) { low_ = mark; }
  void restore_high(std::int64_t mark) { high_ = mark; }
  [[nodiscard]] Bytes peak() const { return {peak_}; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

 private:
  void grow(std::int64_t& end, std::int64_t bytes) {
    bytes = aligned_bytes(bytes);
    if (low_ + high_ + bytes > capacity_)
      throw Failure(ErrorKind::internal, std::string("the ") + name_ + " region of the arena needs " +
                                             std::to_string(low_ + high_ + bytes) + " bytes but the plan gave it " +
                                             std::to_string(capacity_));
    end += bytes;
    peak_ = std::max(peak_, low_ + high_);
  }
  template <class T>
  [[nodiscard]] T* place(std::int64_t first) const {
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + first);
  }

  const char* name_ = "unnamed";
  std::byte* base_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t low_ = 0, high_ = 0, peak_ = 0;
};

/// Gives back what was taken from the low end of a region since its construction.
class Scope {
 public:
  explicit Scope(Region& region) : region_(region), mark_(region.low()) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { region_.restore_low(mark_); }

 private:
  Region& region_;
  std::int64_t mark_;
};

/// Anonymous pages of a fixed size, touched once so that no later access faults; empty when `counts_only`.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Bytes bytes, bool counts_only) : bytes_(bytes.count) {
    if (counts_only || bytes_ == 0) return;
    void* pages =
        mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
      throw DeviceFailure("this machine refused " + std::to_string(bytes_) + " bytes for a rank's arena (" +
                          std::strerror(errno) + "): use fewer ranks, a smaller budget or a smaller model");
    madvise(pages, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(pages);
    for (std::int64_t i = 0; i < bytes_; i += 4096) base_[i] = std::byte{0};
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (base_ != nullptr) munmap(base_, static_cast<std::size_t>(bytes_));
  }

  [[nodiscard]] Region region(const char* name, std::int64_t first, Bytes bytes) const {
    return {name, base_ == nullptr ? nullptr : base_ + first, bytes.count};
  }
  [[nodiscard]] Bytes size() const { return {bytes_}; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace galvatron::device
