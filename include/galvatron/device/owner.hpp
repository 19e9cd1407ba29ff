// What destroys an object of a C library when it is no longer needed.
#pragma once

#include <utility>

namespace galvatron::device {

/// @tparam Handle   a pointer to an object of the library
/// @tparam destroy  the library's function that destroys it
template <class Handle, auto destroy>
class Owner {
 public:
  Owner() = default;
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != nullptr) destroy(handle_);
  }
  [[nodiscard]] const Handle& get() const { return handle_; }
  /// Where the library's function that makes one puts it.
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

}  // namespace galvatron::device
