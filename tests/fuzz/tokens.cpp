// Any bytes given as a .bin token file end in tokens that can all be read or in a one-line error.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <galvatron/data/token_source.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto tokens = galvatron::train::parse_token_file(bytes, "input.bin");
  if (!tokens) {
    require_one_line(tokens.error());
    return 0;
  }
  require(tokens->count >= 0 && tokens->data == bytes.data() + galvatron::train::token_header_bytes);
  require(tokens->data + tokens->count * tokens->width == bytes.data() + size);
  for (const std::int64_t vocabulary : {1, 256, 50257, 128256}) {
    std::int64_t expected = tokens->count;
    for (std::int64_t i = tokens->count; i-- > 0;)
      if ((*tokens)[i] >= vocabulary) expected = i;
    require(tokens->first_outside(vocabulary) == expected);
  }
  return 0;
}
