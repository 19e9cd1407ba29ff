// Any bytes given as the manifest of a checkpoint end in one that can be used or in a one-line error; any name of a
// slice is read as it is written or not at all.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/checkpoint/slice.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron::train;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto name = parse_slice_name(std::string(text))) {
    require(name->slice.rows > 0 && name->slice.columns > 0 && name->slice.row >= 0 && name->slice.column >= 0);
    require(parse_slice_name(name_text(*name)) == name);
  }
  const auto manifest = parse_manifest(text, "manifest.json");
  if (!manifest) {
    require_one_line(manifest.error());
    return 0;
  }
  for (const CheckpointFile& file : manifest->files) require(file.name.find('/') == std::string::npos);
  require(manifest->training.samples() >= 0);
  const auto again = parse_manifest(manifest_text(*manifest), "again");
  require(again && again->files == manifest->files && again->training.step == manifest->training.step);
  return 0;
}
