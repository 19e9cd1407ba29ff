// Tokens in memory, and .bin token files as llm.c writes them:
//
//   .bin   header: 256 int32, little-endian      body: `count` tokens
//          [0] magic       20240520 | 20240801
//          [1] version            1 | 7
//          [2] count
//                            uint16 | uint32
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::train {

/// Tokens in memory that somebody else owns, unsigned and `width` (1, 2 or 4) bytes each.
struct TokenView {
  const std::byte* data = nullptr;
  std::int64_t count = 0;
  int width = 1;

  /// Token i in [0, count).
  [[nodiscard]] std::uint32_t operator[](std::int64_t i) const {
    const std::byte* at = data + i * width;
    if (width == 1) return static_cast<std::uint32_t>(*at);
    return width == 2 ? load_unaligned<std::uint16_t>(at) : load_unaligned<std::uint32_t>(at);
  }

  /// Tokens [first, first + n).
  [[nodiscard]] TokenView slice(std::int64_t first, std::int64_t n) const { return {data + first * width, n, width}; }

  /// The first position whose token is at least `vocabulary`, or `count`.
  [[nodiscard]] std::int64_t first_outside(std::int64_t vocabulary) const {
    if (vocabulary >= (std::int64_t{1} << (8 * width))) return count;
    if (width == 1) return first_above<std::uint8_t>(vocabulary - 1);
    return width == 2 ? first_above<std::uint16_t>(vocabulary - 1) : first_above<std::uint32_t>(vocabulary - 1);
  }

 private:
  template <class T>
  [[nodiscard]] std::int64_t first_above(std::int64_t limit) const {
    constexpr std::int64_t block = 4096;
    T tokens[block];
    for (std::int64_t first = 0; first < count; first += block) {
      const std::int64_t n = std::min(block, count - first);
      std::memcpy(tokens, data + first * width, static_cast<std::size_t>(n) * sizeof(T));
      T largest = 0;
      for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, tokens[i]);
      if (largest <= limit) continue;
      for (std::int64_t i = 0; i < n; ++i)
        if (tokens[i] > limit) return first + i;
    }
    return count;
  }
};

static_assert(std::endian::native == std::endian::little, "galvatron: token files are read on little-endian machines");

/// A kind of .bin file.
struct TokenFormat {
  std::int32_t magic;
  std::int32_t version;
  int width;
  const char* name;
};
inline constexpr std::array token_formats = {TokenFormat{20240520, 1, 2, "16-bit"},
                                             TokenFormat{20240801, 7, 4, "32-bit"}};
inline constexpr std::int64_t token_header_bytes = 256 * 4;

/// The tokens of a .bin file in memory, which `name` stands for in messages. Errors (usage): not such a file, another
/// version, a body that is shorter or longer than the header says.
inline Result<TokenView> parse_token_file(std::span<const std::byte> bytes, std::string_view name) {
  const std::string file(name);
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < token_header_bytes)
    return usage_error(file + " is not a token file: it has " + std::to_string(size) +
                       " bytes, its header alone would have " + std::to_string(token_header_bytes) +
                       "; texts have names that do not end in .bin");
  std::array<std::int32_t, 3> header{};
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const auto [magic, version, count] = header;
  const auto* format = std::ranges::find(token_formats, magic, &TokenFormat::magic);
  if (format == token_formats.end())
    return usage_error(file + " is not a token file: its magic number is " + std::to_string(magic) +
                       ", not 20240520 (16-bit tokens) or 20240801 (32-bit tokens); texts have names that do not end "
                       "in .bin");
  if (version != format->version)
    return usage_error(file + " is a " + format->name + " token file of version " + std::to_string(version) +
                       ", only version " + std::to_string(format->version) + " is known; write it again as that");
  const std::int64_t expected = token_header_bytes + std::int64_t{count} * format->width;
  if (count < 0)
    return usage_error(file + " is damaged: its header says " + std::to_string(count) + " tokens; write it again");
  if (size != expected)
    return usage_error(file + (size < expected ? " is cut short: " : " is damaged: ") + std::to_string(count) + " " +
                       format->name + " tokens make " + std::to_string(expected) + " bytes, it has " +
                       std::to_string(size) + "; write it again");
  return TokenView{bytes.data() + token_header_bytes, count, format->width};
}

}  // namespace galvatron::train
