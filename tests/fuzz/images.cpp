// Any bytes given as an .images file end in images that can all be read or in a one-line error.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <galvatron/data/image_source.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto images = galvatron::train::parse_image_file(bytes, "input.images");
  if (!images) {
    require_one_line(images.error());
    return 0;
  }
  std::int64_t read = galvatron::train::image_header_bytes;
  unsigned sum = 0;
  for (std::int64_t i = 0; i < images->count; ++i) {
    for (std::int64_t k = 0; k < images->image_bytes(); ++k) sum += images->pixels(i)[k];
    require(images->label(i) < images->classes);
    read += images->image_bytes() + 2;
  }
  require(sum <= 255U * static_cast<unsigned>(size) && read == static_cast<std::int64_t>(size));
  return 0;
}
