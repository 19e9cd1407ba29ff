// Texts in UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace galvatron::train {

/// Bytes of the character of a text that begins at `at`; 0 where they are not UTF-8 (RFC 3629).
constexpr std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xC0U) != 0x80) return 0;
  const unsigned second = byte(at + 1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool outside = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);
  return overlong || outside ? 0 : length;
}

/// The first byte of a text that is not UTF-8, or its size.
constexpr std::size_t first_not_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return text.size();
}

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// The text, with U+FFFD for every byte that is not UTF-8.
inline std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    length == 0 ? out.append(replacement_character) : out.append(text.substr(at, length));
    at += length == 0 ? 1 : length;
  }
  return out;
}

/// Characters that Unicode has as white space.
constexpr bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/// The character of `length` bytes at `at`.
constexpr char32_t utf8_character(std::string_view text, std::size_t at, std::size_t length) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  if (length == 1) return byte(0);
  char32_t out = byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) out = out << 6U | (byte(i) & 0x3FU);
  return out;
}

inline void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const std::size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  out += static_cast<char>((0xF00U >> length & 0xFFU) | c >> (6 * (length - 1)));
  for (std::size_t i = length - 1; i-- > 0;) out += static_cast<char>(0x80U | (c >> (6 * i) & 0x3FU));
}

}  // namespace galvatron::train
