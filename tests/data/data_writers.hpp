// Data files of tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>

namespace galvatron::test {

using Tokens = std::vector<std::int32_t>;

template <class T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A .bin file of llm.c with 16-bit tokens.
inline std::string token_file(const Tokens& tokens) {
  std::string bytes(1024, '\0');
  const std::int32_t header[3] = {20240520, 1, static_cast<std::int32_t>(tokens.size())};
  std::memcpy(bytes.data(), header, sizeof header);
  for (const std::int32_t token : tokens) append(bytes, static_cast<std::uint16_t>(token));
  return bytes;
}

/// A data set of Megatron-LM.
struct MegatronFiles {
  std::string bin, idx;

  /// @param documents  each in its sequences  @param type  8: uint16, 4: int32, 1: uint8
  static MegatronFiles of(const std::vector<std::vector<Tokens>>& documents, int type = 8) {
    MegatronFiles out;
    std::string lengths, pointers, ends;
    std::uint64_t sequences = 0;
    append(ends, std::int64_t{0});
    for (const auto& document : documents) {
      for (const Tokens& sequence : document) {
        append(lengths, static_cast<std::int32_t>(sequence.size()));
        append(pointers, static_cast<std::int64_t>(out.bin.size()));
        for (const std::int32_t token : sequence) {
          if (type == 8) append(out.bin, static_cast<std::uint16_t>(token));
          if (type == 4) append(out.bin, token);
          if (type == 1) append(out.bin, static_cast<std::uint8_t>(token));
        }
        ++sequences;
      }
      append(ends, static_cast<std::int64_t>(sequences));
    }
    out.idx = header(type, sequences, documents.size() + 1) + lengths + pointers + ends;
    return out;
  }
  static std::string header(int type, std::uint64_t sequences, std::uint64_t ends) {
    std::string bytes("MMIDIDX\0\0", 9);
    append(bytes, std::uint64_t{1});
    append(bytes, static_cast<std::uint8_t>(type));
    append(bytes, sequences);
    append(bytes, ends);
    return bytes;
  }
};

inline std::string json_line(std::string_view text) { return nlohmann::json{{"text", text}}.dump() + "\n"; }

/// The message of bad data, which is one line.
std::string refused(const auto& result) {
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find('\n') == std::string::npos);
  return result.error().message;
}

}  // namespace galvatron::test
