// Any bytes given to the reader of Hugging Face configurations end in a consistent model, whose counts fit 64 bits, or
// in a one-line error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/layers.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto model =
      galvatron::parse_huggingface_config(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
  if (model) {
    require(galvatron::checked(*model).has_value());
    const std::int64_t count = galvatron::parameters(*model);
    require(count > 0 && count < (std::int64_t{1} << 57));
  } else {
    require(model.error().kind == galvatron::ErrorKind::usage);
    require_one_line(model.error());
  }
  return 0;
}
