// Images of one file, with a class for each.
//
//   .images   header: 256 int32, little-endian          body
//             [0] magic    20261121                      pixels  (count, channels, height, width) uint8
//             [1] version         1                      labels  (count) uint16, little-endian, below `classes`
//             [2] count
//             [3] channels  1..16
//             [4] height    1..4096
//             [5] width     1..4096
//             [6] classes   1..65536
//             others 0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>

namespace galvatron::train {

inline constexpr std::int32_t image_magic = 20261121;
inline constexpr std::int32_t image_version = 1;
inline constexpr std::int64_t image_header_bytes = 256 * 4;

/// Images in memory that somebody else owns.
struct ImageView {
  const std::byte* data = nullptr;  ///< the pixels, and behind them the labels
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;

  [[nodiscard]] std::int64_t image_bytes() const { return channels * height * width; }
  /// (channels, height, width) of image i in [0, count).
  [[nodiscard]] const std::uint8_t* pixels(std::int64_t i) const {
    return reinterpret_cast<const std::uint8_t*>(data + i * image_bytes());
  }
  [[nodiscard]] std::int32_t label(std::int64_t i) const {
    std::uint16_t label;
    std::memcpy(&label, data + count * image_bytes() + i * 2, sizeof label);
    return label;
  }
};

/// The images of an .images file in memory, which `name` stands for in messages. Errors (usage): not such a file,
/// another version, sizes out of range, a body that is shorter or longer than the header says, a label that is no
/// class.
inline Result<ImageView> parse_image_file(std::span<const std::byte> bytes, std::string_view name) {
  const std::string file(name);
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < image_header_bytes)
    return usage_error(file + " is not an image file: it has " + std::to_string(size) +
                       " bytes, its header alone would have " + std::to_string(image_header_bytes));
  std::array<std::int32_t, 7> header{};
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const auto [magic, version, count, channels, height, width, classes] = header;
  if (magic != image_magic)
    return usage_error(file + " is not an image file: its magic number is " + std::to_string(magic) + ", not " +
                       std::to_string(image_magic));
  if (version != image_version)
    return usage_error(file + " is an image file of version " + std::to_string(version) + ", only version " +
                       std::to_string(image_version) + " is known");
  const auto within = [](std::int32_t n, std::int32_t most) { return n >= 1 && n <= most; };
  if (count < 0 || !within(channels, 16) || !within(height, 4096) || !within(width, 4096) || !within(classes, 65536))
    return usage_error(file + " is damaged: its header says " + std::to_string(count) + " images of " +
                       std::to_string(channels) + " x " + std::to_string(height) + " x " + std::to_string(width) +
                       " of " + std::to_string(classes) + " classes");
  const ImageView view{bytes.data() + image_header_bytes, count, channels, height, width, classes};
  const std::int64_t expected = image_header_bytes + view.count * (view.image_bytes() + 2);
  if (size != expected)
    return usage_error(file + (size < expected ? " is cut short: " : " is damaged: ") + std::to_string(count) +
                       " images of " + std::to_string(view.image_bytes()) + " bytes and their labels make " +
                       std::to_string(expected) + " bytes, it has " + std::to_string(size));
  for (std::int64_t i = 0; i < view.count; ++i)
    if (view.label(i) >= classes)
      return usage_error(file + " is damaged: image " + std::to_string(i) + " has the class " +
                         std::to_string(view.label(i)) + " of " + std::to_string(classes));
  return view;
}

}  // namespace galvatron::train
