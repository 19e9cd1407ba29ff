// tokenizer.json: whatever the bytes say, the reader refuses them in one line, or has a tokenizer whose tokens are
// those of its vocabulary. links: pcre2-8 utf8proc
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/data/tokenizer_json.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = parse_json(text, "t");
  if (!value) return 0;
  const auto tokenizer = train::ByteLevelBpe::parse(*value, "t");
  if (!tokenizer) {
    require_one_line(tokenizer.error());
    return 0;
  }
  try {
    const std::string_view sample = text.substr(0, 300);
    for (const std::int32_t token : (*tokenizer)->encode(sample))
      require(token >= 0 && token < (*tokenizer)->vocabulary() && (*tokenizer)->bytes_of(token) >= 0);
  } catch (const Failure& failure) {
    require(failure.kind() == ErrorKind::usage);  // a regular expression that takes too much work
  }
  return 0;
}
