// Any bytes given as the texts of pairs end in samples within their limits or in a one-line error. The first byte
// chooses between lines of bytes and lines of numbers.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <galvatron/data/pair_source.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool numbers = data[0] == '#';
  const galvatron::train::TextLimits limits{.vocabulary = 200, .tokens = 20};
  const auto texts = galvatron::train::parse_pair_texts(bytes, numbers, limits, "input");
  if (!texts) {
    require_one_line(texts.error());
    return 0;
  }
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < texts->count(); ++i) {
    const auto text = texts->text(i);
    require(!text.empty() && std::ssize(text) <= limits.tokens);
    for (const std::int32_t token : text) require(token >= 0 && token < limits.vocabulary);
    tokens += std::ssize(text);
  }
  require(tokens == std::ssize(texts->tokens));
  if (!numbers) require(tokens + texts->count() + 1 >= std::ssize(bytes));
  return 0;
}
