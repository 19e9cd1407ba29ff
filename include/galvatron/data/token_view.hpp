// Tokens in memory, arrays of numpy, and .bin token files as llm.c writes them:
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
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
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

/// The tokens of an array of numpy in memory, which `name` stands for in messages. Errors (usage): not such a file, of
/// more than one dimension, of other numbers than uint8, uint16, uint32 and int32, or of another size than it says.
inline Result<TokenView> parse_npy(std::span<const std::byte> bytes, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto wrong = [&](const std::string& why) {
    return usage_error(text_of(name, " is no array of tokens of numpy: ", why));
  };
  if (!text.starts_with(std::string_view("\x93NUMPY", 6)) || text.size() < 12) return wrong("it does not begin as one");
  const bool longer = text[6] >= 2;
  const std::size_t begin = longer ? 12 : 10;
  const std::size_t length = longer ? load_unaligned<std::uint32_t>(bytes.data() + 8)
                                    : std::size_t{load_unaligned<std::uint16_t>(bytes.data() + 8)};
  if (length > text.size() - begin) return wrong("it is cut short");
  const std::string_view header = text.substr(begin, length);
  const auto value = [&](std::string_view key) {
    std::size_t at = header.find(key);
    if (at == std::string_view::npos) return std::string_view{};
    at = header.find_first_not_of(" :", at + key.size());
    return at == std::string_view::npos ? std::string_view{} : header.substr(at);
  };
  int width = 0;
  for (const auto& [type, bytes_of_type] :
       std::array<std::pair<std::string_view, int>, 4>{{{"'|u1'", 1}, {"'<u2'", 2}, {"'<u4'", 4}, {"'<i4'", 4}}})
    if (value("'descr'").starts_with(type)) width = bytes_of_type;
  if (width == 0) return wrong("it has no uint8, uint16, uint32 or int32; write it with tokens.astype(\"uint32\")");
  const std::string_view shape = value("'shape'");
  std::int64_t count = -1;
  if (!shape.starts_with('(')) return wrong("it has no shape");
  const auto [end, error] = std::from_chars(shape.data() + 1, shape.data() + shape.size(), count);
  if (error != std::errc{} || count < 0 || std::string_view(end, shape.data() + shape.size()).substr(0, 2) != ",)")
    return wrong("it has not one dimension; write it with tokens.reshape(-1)");
  const auto size = static_cast<std::int64_t>(text.size() - begin - length);
  if (count > size || count * width != size)
    return wrong(text_of(count, " tokens of ", width, " bytes do not make the ", size, " bytes that it has"));
  return TokenView{bytes.data() + begin + length, count, width};
}

/// The tokens of a file with such a name: an array of numpy's .npy, or a .bin file. Errors: those of the two.
inline Result<TokenView> parse_tokens(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  return path.extension() == ".npy" ? parse_npy(bytes, path.string()) : parse_token_file(bytes, path.string());
}

}  // namespace galvatron::train
