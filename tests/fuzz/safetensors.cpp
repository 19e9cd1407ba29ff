// Any bytes given as a safetensors file end in tensors that lie in them or in a one-line error.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <galvatron/checkpoint/safetensors.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron::train;
  const auto parsed = parse_safetensors(std::as_bytes(std::span(data, size)), "input.safetensors");
  if (!parsed) {
    require_one_line(parsed.error());
    return 0;
  }
  std::int64_t end = 0;
  for (const SafetensorsEntry& entry : parsed->entries) {
    require(entry.begin == end && entry.end >= entry.begin && entry.count() >= 0 && entry.count() <= entry.end - end);
    end = entry.end;
  }
  require(parsed->data_begin + end == static_cast<std::int64_t>(size));
  // Written again, it reads the same.
  const std::string again =
      safetensors_header(parsed->entries, parsed->metadata) +
      std::string(reinterpret_cast<const char*>(data) + parsed->data_begin, static_cast<std::size_t>(end));
  const auto twice = parse_safetensors(std::as_bytes(std::span(again)), "again");
  require(twice && twice->entries == parsed->entries && twice->metadata == parsed->metadata);
  return 0;
}
