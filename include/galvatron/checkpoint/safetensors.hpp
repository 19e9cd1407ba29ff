// The safetensors format (Hugging Face): tensors of a file, found by name.
//
//   | 8 bytes: length of the header | header: JSON, padded with spaces | data: the tensors, without gaps |
//
//   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::train {

static_assert(std::endian::native == std::endian::little, "galvatron: safetensors are read on little-endian machines");

/// Number formats that a file may have, by the bytes of an element; those that galvatron computes with are F32, F16 and
/// BF16.
struct SafetensorsTypes {
  std::int64_t bytes;
  std::array<std::string_view, 5> names;
};
inline constexpr std::array safetensors_types{SafetensorsTypes{8, {"F64", "I64", "U64"}},
                                              SafetensorsTypes{4, {"F32", "I32", "U32"}},
                                              SafetensorsTypes{2, {"BF16", "F16", "I16", "U16"}},
                                              SafetensorsTypes{1, {"I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"}}};

/// A tensor of a file; its bytes are [begin, end) of the file's data.
struct SafetensorsEntry {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  /// Elements: the product of the shape, 1 for a scalar.
  [[nodiscard]] std::int64_t count() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

/// A parsed file.
struct Safetensors {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  ///< bytes of the file before its data
};

namespace detail {

/// The longest header that is read: what the reference implementation allows.
inline constexpr std::int64_t safetensors_header_limit = 100'000'000;

inline Result<SafetensorsEntry> read_safetensors_entry(const std::string& key, const nlohmann::json& value,
                                                       const std::string& file, std::int64_t data_bytes) {
  SafetensorsEntry entry;
  entry.name = key;
  const std::string where = file + ": the tensor \"" + galvatron::detail::one_line(key, 80) + "\"";
  JsonObject fields(value, where);
  entry.type = fields.required<std::string>("dtype");
  const nlohmann::json& shape = fields.required_array("shape");
  const nlohmann::json& offsets = fields.required_array("data_offsets");
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  const auto* type = std::ranges::find_if(safetensors_types, [&](const SafetensorsTypes& types) {
    return std::ranges::find(types.names, entry.type) != types.names.end();
  });
  if (type == safetensors_types.end() || entry.type.empty())
    return usage_error(where + " has the number format \"" + galvatron::detail::one_line(entry.type, 20) +
                       "\", which is not known; convert it to F32, F16 or BF16");
  const auto natural = [](const nlohmann::json& n) {
    return n.is_number_unsigned() && n.get<std::uint64_t>() <= std::uint64_t{1} << 62;
  };
  std::int64_t bytes = type->bytes;
  for (const nlohmann::json& extent : shape) {
    if (!natural(extent)) return usage_error(where + " has a shape with " + JsonObject::describe(extent) + " in it");
    entry.shape.push_back(extent.get<std::int64_t>());
    if (__builtin_mul_overflow(bytes, entry.shape.back(), &bytes))
      return usage_error(where + " has a shape of more bytes than a file can have");
  }
  if (offsets.size() != 2 || !natural(offsets[0]) || !natural(offsets[1]))
    return usage_error(where + ": \"data_offsets\" are two numbers, where its bytes begin and end");
  entry.begin = offsets[0].get<std::int64_t>();
  entry.end = offsets[1].get<std::int64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes)
    return usage_error(where + " lies at bytes " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                       " of the data, which have " + std::to_string(data_bytes) + "; the file is damaged or cut short");
  if (entry.end - entry.begin != bytes)
    return usage_error(where + " has " + std::to_string(entry.end - entry.begin) + " bytes, but its shape and format " +
                       "make " + std::to_string(bytes) + "; the file is damaged");
  return entry;
}

}  // namespace detail

/// The tensors of a file whose bytes these are; `name` stands for it in messages. Errors (usage): not such a file; one
/// that is cut short or longer than its header says; tensors that overlap or leave gaps, as the reference refuses them.
inline Result<Safetensors> parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::uint64_t length = 0;
  if (size < 8) return usage_error(name + " is not a safetensors file: it has " + std::to_string(size) + " bytes");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > static_cast<std::uint64_t>(detail::safetensors_header_limit))
    return usage_error(name + " is not a safetensors file: it begins with a header length of " +
                       std::to_string(length) + " bytes");
  Safetensors out;
  out.data_begin = 8 + static_cast<std::int64_t>(length);
  if (out.data_begin > size)
    return usage_error(name + " is cut short: its header takes " + std::to_string(out.data_begin) + " bytes, it has " +
                       std::to_string(size));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<std::size_t>(length));
  const auto header = parse_json(text, name);
  if (!header) return tl::unexpected<Error>(header.error());
  if (!header->is_object())
    return usage_error(name + ": the header of a safetensors file is a JSON object, found " +
                       JsonObject::describe(*header));
  const std::int64_t data_bytes = size - out.data_begin;
  for (const auto& [key, value] : header->items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) return usage_error(name + ": \"__metadata__\" is not a JSON object");
      for (const auto& [word, meaning] : value.items()) {
        if (!meaning.is_string()) return usage_error(name + ": \"__metadata__\" has a value that is not a string");
        out.metadata[word] = meaning.get<std::string>();
      }
      continue;
    }
    auto entry = detail::read_safetensors_entry(key, value, name, data_bytes);
    if (!entry) return tl::unexpected<Error>(std::move(entry.error()));
    out.entries.push_back(std::move(*entry));
  }
  std::ranges::sort(out.entries, {}, [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
  std::int64_t end = 0;
  for (const SafetensorsEntry& entry : out.entries) {
    if (entry.begin != end)
      return usage_error(name + ": the tensor \"" + galvatron::detail::one_line(entry.name, 80) + "\" begins at byte " +
                         std::to_string(entry.begin) + " of the data, the one before it ends at " +
                         std::to_string(end) + "; the file is damaged");
    end = entry.end;
  }
  if (end != data_bytes)
    return usage_error(name + " is damaged: its tensors end at byte " + std::to_string(end) + " of " +
                       std::to_string(data_bytes) + " bytes of data");
  return out;
}

/// The bytes of a file before its data: the header of entries that follow each other without gaps, padded so that the
/// data begin at a multiple of 64 bytes.
inline std::string safetensors_header(std::span<const SafetensorsEntry> entries,
                                      const std::map<std::string, std::string>& metadata = {}) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const SafetensorsEntry& entry : entries)
    header[entry.name] = {{"dtype", entry.type}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()) + 8, 64) - 8), ' ');
  const std::uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

}  // namespace galvatron::train
