// Images as training data: any number of files, read in a random order that everybody knows, cut into patches.
//
//   image (C, h, w)                 patches (h / p * w / p, C p p), row by row; a patch is (C, p, p)
//   +---+---+---+
//   | 0 | 1 | 2 |                   pixel 0..255 -> -1..1
//   +---+---+---+
//   | 3 | 4 | 5 |
//   +---+---+---+
//
// Sample i of a run is image shuffled(i) of its epoch: a function of (files, seed, i), as for tokens.
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

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/data_files.hpp>
#include <galvatron/model/spec.hpp>

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
    return load_unaligned<std::uint16_t>(data + count * image_bytes() + i * 2);
  }
  /// out (channels, side, side) = patch `patch` of image i, of those of `side` x `side` pixels row by row.
  template <class T>
  void cut_patch(std::int64_t i, std::int64_t side, std::int64_t patch, T* out) const {
    const std::int64_t across = width / side;
    const std::uint8_t* const corner = pixels(i) + (patch / across * width + patch % across) * side;
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t y = 0; y < side; ++y)
        for (std::int64_t x = 0; x < side; ++x)
          *out++ = T(static_cast<float>(corner[(c * height + y) * width + x]) / 127.5F - 1.0F);
  }
};

/// The images of an .images file in memory, which `name` stands for in messages. Errors (usage): not such a file,
/// another version, sizes out of range, a body that is not as the header says, a label that is no class.
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

/// Immutable after open(): ranks may share one.
class ImageSource {
 public:
  /// Opens .images files for a model of images. They are mapped, not loaded, and their labels are checked. Errors
  /// (usage): no file, one that is missing or damaged, images of another size than the model's, more classes than it
  /// has.
  static Result<ImageSource> open(std::span<const std::filesystem::path> paths, const ModelSpec& model,
                                  std::uint64_t seed) {
    if (paths.empty()) return usage_error("no data files; name at least one .images file");
    auto files = DataFiles<ImageView>::open(paths, [&](auto bytes, const auto& path, const auto& before) {
      const auto view = parse_image_file(bytes, path.string());
      return view ? checked(*view, path.string(), before, model) : view;
    });
    if (!files) return tl::unexpected<Error>(std::move(files.error()));
    ImageSource source(seed, model, std::move(*files));
    if (source.images() == 0) return usage_error("the data have no image; give at least one");
    return source;
  }

  /// Images of all files together, which are the samples of an epoch.
  [[nodiscard]] std::int64_t images() const { return files_.count(); }
  /// CRC-32C of the number of images, and of up to 256 images that are spread evenly over all files, with their
  /// classes.
  [[nodiscard]] std::uint32_t checksum() const {
    constexpr std::int64_t most = 256;
    const std::int64_t all = images();
    std::uint32_t crc = crc32c(std::as_bytes(std::span(&all, 1)));
    for (std::int64_t i = 0; i < std::min(all, most); ++i) {
      const auto [view, at] = find(all <= most ? i : (all - 1) * i / (most - 1));
      const std::int32_t label = view->label(at);
      crc = crc32c(std::as_bytes(std::span(view->pixels(at), static_cast<std::size_t>(view->image_bytes()))), crc);
      crc = crc32c(std::as_bytes(std::span(&label, 1)), crc);
    }
    return crc;
  }
  /// The image of sample `sample` >= 0 of the run, in [0, images()).
  [[nodiscard]] std::int64_t image(std::int64_t sample) const {
    return shuffled(seed_, sample / images(), sample % images(), images());
  }

  /// out (range * samples, P) = these patches of samples [first, first + samples); patch s of sample first + i is row
  /// (s - range.first) * samples + i.
  template <class T>
  void patches(std::int64_t first, std::int64_t samples, SequenceRange range, View<T> out) const {
    const ImageView& shape = files_.view(0);
    const std::int64_t width = shape.channels * patch_ * patch_;
    const std::int64_t across = shape.width / patch_;
    if (range.first < 0 || range.first + range.count > across * (shape.height / patch_) ||
        out.count != range.count * samples * width)
      throw Failure(ErrorKind::internal, "data: " + std::to_string(out.count) + " places for patches " +
                                             std::to_string(range.first) + " to " +
                                             std::to_string(range.first + range.count) + " of " +
                                             std::to_string(samples) + " images");
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto [view, at] = find(image(first + i));
      for (std::int64_t s = 0; s < range.count; ++s)
        view->cut_patch(at, patch_, range.first + s, out.data + (s * samples + i) * width);
    }
  }
  /// out (samples) = the classes of the images.
  void labels(std::int64_t first, std::int64_t samples, View<std::int32_t> out) const {
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto [view, at] = find(image(first + i));
      out[i] = view->label(at);
    }
  }

 private:
  ImageSource(std::uint64_t seed, const ModelSpec& model, DataFiles<ImageView> files)
      : seed_(seed), patch_(patch_side(files.view(0), model)), files_(std::move(files)) {}

  // Pixels of a side of a patch; 0 where none fits.
  static std::int64_t patch_side(const ImageView& view, const ModelSpec& model) {
    return side_of_square(model.embedding.patch_width / view.channels);
  }

  // The images of a file, if they go with the model and those of the files before.
  static Result<ImageView> checked(const ImageView& view, const std::string& name, std::span<const ImageView> before,
                                   const ModelSpec& model) {
    const std::int64_t numbers = model.embedding.patch_width;
    const std::int64_t patch = patch_side(view, model);
    const std::int64_t tokens = model.positions() - (model.embedding.class_token ? 1 : 0);
    const std::int64_t side = side_of_square(tokens) * patch;
    if (patch * patch * view.channels != numbers || view.height != side || view.width != side)
      return usage_error(name + " has images of " + std::to_string(view.channels) + " x " +
                         std::to_string(view.height) + " x " + std::to_string(view.width) + ", and the model " +
                         model.name + " takes " + std::to_string(tokens) + " patches of " + std::to_string(numbers) +
                         " numbers: channels x side x side of a patch; scale the images, or choose another model");
    if (view.classes > model.head.vocabulary)
      return usage_error(name + " has " + std::to_string(view.classes) + " classes, and the model " + model.name + " " +
                         std::to_string(model.head.vocabulary) + "; choose a model of as many");
    if (!before.empty() && view.channels != before.front().channels)
      return usage_error(name + " has images of " + std::to_string(view.channels) + " channels, others of " +
                         std::to_string(before.front().channels) + "; give files of one kind");
    return view;
  }

  // The file of an image, and its place there.
  [[nodiscard]] std::pair<const ImageView*, std::int64_t> find(std::int64_t image) const {
    const auto [file, place] = files_.find(image);
    return {&files_.view(file), place};
  }

  std::uint64_t seed_;
  std::int64_t patch_;
  DataFiles<ImageView> files_;
};

class ImageBatches final : public PatchSource<ImageBatches> {
 public:
  ImageBatches(const ImageSource& source, std::int64_t global_batch) : source_(source), global_batch_(global_batch) {}

  template <class T>
  void cut(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range, View<T> out) const {
    source_.patches(step * global_batch_ + first, samples, range, out);
  }
  /// The classes.
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange,
               View<std::int32_t> out) override {
    source_.labels(step * global_batch_ + first, samples, out);
  }

 private:
  const ImageSource& source_;
  std::int64_t global_batch_;
};

}  // namespace galvatron::train
