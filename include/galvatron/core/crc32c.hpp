// CRC-32C, the checksum of checkpoints and of TensorBoard's records.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace galvatron {

namespace detail {

static_assert(std::endian::native == std::endian::little, "galvatron: checksums are made on little-endian machines");

/// tables[0] is the CRC of a byte; tables[k] that of a byte followed by k zeros.
constexpr std::array<std::array<std::uint32_t, 256>, 8> crc32c_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1U ? 0x82F63B78U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xFFU];
  return tables;
}
inline constexpr auto crc32c_table = crc32c_tables();

/// Eight bytes a round ("slicing-by-8", Kounavis and Berry, 2005); `crc` and the result are not inverted.
inline std::uint32_t crc32c_portable(std::uint32_t crc, const std::byte* data, std::size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    word ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= crc32c_table[7 - k][word >> (8 * k) & 0xFFU];
  }
  for (; size > 0; ++data, --size) crc = crc >> 8 ^ crc32c_table[0][(crc ^ static_cast<std::uint32_t>(*data)) & 0xFFU];
  return crc;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
/// The same with the instruction that SSE4.2 has for it.
__attribute__((target("sse4.2"))) inline std::uint32_t crc32c_sse42(std::uint32_t crc, const std::byte* data,
                                                                    std::size_t size) {
  std::uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return crc32c_portable(static_cast<std::uint32_t>(wide), data, size);
}
#endif

}  // namespace detail

/// The CRC-32C (Castagnoli; RFC 3720, appendix B.4) of bytes that follow others whose CRC is `before`.
inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~detail::crc32c_sse42(~before, bytes.data(), bytes.size());
#endif
  return ~detail::crc32c_portable(~before, bytes.data(), bytes.size());
}
inline std::uint32_t crc32c(std::string_view text, std::uint32_t before = 0) {
  return crc32c(std::as_bytes(std::span(text)), before);
}

}  // namespace galvatron
