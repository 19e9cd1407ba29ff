// Messages made of texts and whole numbers.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>

namespace galvatron {

/// The parts, texts and whole numbers, one behind the other.
template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::string out;
  const auto add = [&out]<class Part>(const Part& part) {
    if constexpr (std::integral<Part>)
      out += std::to_string(part);
    else
      out += std::string_view(part);
  };
  (add(parts), ...);
  return out;
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
