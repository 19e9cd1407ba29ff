// What machines that are not there record: see device/cuda/graph_replay.hpp.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::test {

/// Memory of the program on a boundary of tensors, as the library's machines have it.
class HostMemory {
 public:
  explicit HostMemory(Bytes bytes)
      : bytes_(bytes),
        memory_(static_cast<std::byte*>(
            ::operator new(static_cast<std::size_t>(bytes.count), std::align_val_t(tensor_alignment)))) {}

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] Bytes size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(tensor_alignment)); }
  };
  Bytes bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// Does work at once, or keeps it while somebody records.
class WorkRecorder {
 public:
  using Work = std::vector<std::function<void()>>;

  void begin() { kept_.emplace(); }
  Work end() { return std::exchange(kept_, std::nullopt).value(); }
  void drop() { kept_.reset(); }
  [[nodiscard]] bool records() const { return kept_.has_value(); }
  /// Operations like the one so many further on cannot be recorded.
  void refuse_after(int operations) { left_ = operations; }

  template <class F>
  void give(F&& work) {
    if (!kept_) return work();
    if (left_ >= 0 && left_-- == 0) throw DeviceFailure("this cannot be recorded");
    kept_->emplace_back(std::forward<F>(work));
  }

 private:
  std::optional<Work> kept_;
  int left_ = -1;
};

}  // namespace galvatron::test
