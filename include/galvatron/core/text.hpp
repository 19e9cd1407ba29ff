// Messages made of texts and whole numbers.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>

namespace galvatron {

namespace detail {

// A text, or a whole number and its digits: few types, so that the compiler has few functions to make of many messages.
class TextPart {
 public:
  TextPart(std::string_view text) : text_(text) {}
  TextPart(std::int64_t number) : text_(digits_.data(), written(number)) {}
  TextPart(std::uint64_t number) : text_(digits_.data(), written(number)) {}
  TextPart(const TextPart&) = delete;  // the text may be its own digits
  TextPart& operator=(const TextPart&) = delete;
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  std::size_t written(auto number) {
    char* const begin = digits_.data();
    return static_cast<std::size_t>(std::to_chars(begin, begin + digits_.size(), number).ptr - begin);
  }

  std::array<char, 20> digits_;  // before the text, which needs them
  std::string_view text_;
};

template <class Part>
auto part_of(const Part& part) {
  if constexpr (std::unsigned_integral<Part>)
    return std::uint64_t{part};
  else if constexpr (std::integral<Part>)
    return std::int64_t{part};
  else
    return std::string_view(part);
}

inline std::string text_of_parts(std::initializer_list<TextPart> parts) {
  std::string out;
  for (const TextPart& part : parts) out += part.text();
  return out;
}

}  // namespace detail

/// The parts, texts and whole numbers, one behind the other.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  return detail::text_of_parts({detail::part_of(parts)...});
}

/// Throws a Failure (usage) with the parts as its message: what the user asked for cannot be.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Failure(ErrorKind::usage, text_of(parts...));
}

/// What `of` makes of each item, a text or a whole number, with `separator` between them; `last` stands before the
/// last.
template <class Items, class Of = std::identity>
std::string joined(const Items& items, std::string_view separator = ", ", Of of = {}, std::string_view last = {}) {
  std::string out;
  std::size_t left = std::size(items);
  for (const auto& item : items) {
    out += text_of(std::invoke(of, item));
    if (--left > 0) out += left == 1 && !last.empty() ? last : separator;
  }
  return out;
}

}  // namespace galvatron
