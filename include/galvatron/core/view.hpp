// A run of elements in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace galvatron {

/// `count` elements from `data` on. On a device that only counts (tests/counting_device.hpp) `data` is null while
/// `count` is true; slices of such a view are null too. Shapes stand in the comment of the line that makes the view.
template <class T>
struct View {
  T* data = nullptr;
  std::int64_t count = 0;

  constexpr View() = default;
  constexpr View(T* pointer, std::int64_t n) : data(pointer), count(n) {}
  /// A mutable view is a view of constants too.
  constexpr operator View<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, count};
  }
  /// Elements [first, first + n).
  [[nodiscard]] constexpr View slice(std::int64_t first, std::int64_t n) const {
    return {data == nullptr ? nullptr : data + first, n};
  }
  [[nodiscard]] constexpr bool empty() const { return count == 0; }
  constexpr T& operator[](std::int64_t i) const { return data[i]; }
  [[nodiscard]] constexpr T* begin() const { return data; }
  [[nodiscard]] constexpr T* end() const { return data + count; }
};

/// The memory of a view.
template <class T>
View<std::byte> raw_bytes(View<T> v) {
  return {reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(v.data)),
          v.count * static_cast<std::int64_t>(sizeof(T))};
}

/// The T whose bytes are at a place that need not be aligned.
template <class T>
T load_unaligned(const std::byte* place) {
  T value;
  std::memcpy(&value, place, sizeof value);
  return value;
}

}  // namespace galvatron
