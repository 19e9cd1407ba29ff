// CRC-32C against published values, whatever instructions compute it.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <galvatron/core/crc32c.hpp>

using namespace galvatron;

TEST_CASE("the examples of RFC 3720, appendix B.4") {
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43U);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  CHECK(crc32c(rising) == 0x46DD794EU);
  CHECK(crc32c(std::string(rising.rbegin(), rising.rend())) == 0x113FDB5CU);
  CHECK(crc32c("123456789") == 0xE3069283U);
  CHECK(crc32c("") == 0);
}

TEST_CASE("parts, the portable loop and a bit at a time agree") {
  std::mt19937 random(3);
  for (std::size_t size = 0; size < 100; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    std::uint32_t expected = ~0U;
    for (const std::byte b : bytes) {
      expected ^= static_cast<std::uint32_t>(b);
      for (int bit = 0; bit < 8; ++bit) expected = expected >> 1 ^ (expected & 1U ? 0x82F63B78U : 0U);
    }
    const std::span<const std::byte> all(bytes);
    CHECK(crc32c(all) == ~expected);
    CHECK(~galvatron::detail::crc32c_portable(~0U, bytes.data(), bytes.size()) == ~expected);
    const std::size_t cut = size == 0 ? 0 : random() % size;
    CHECK(crc32c(all.subspan(cut), crc32c(all.first(cut))) == ~expected);
  }
}
