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
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/image_file.hpp>
#include <galvatron/data/shuffle.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

/// Immutable after open(): ranks may share one.
class ImageSource {
 public:
  /// Opens .images files for a model of images. They are mapped, not loaded, and their labels are checked. Errors
  /// (usage): no file, one that is missing or damaged, images of another size than the model's, more classes than it
  /// has.
  static Result<ImageSource> open(std::span<const std::filesystem::path> paths, const ModelSpec& model,
                                  std::uint64_t seed) {
    if (paths.empty()) return usage_error("no data files; name at least one .images file");
    ImageSource source(seed);
    for (const auto& path : paths) {
      auto file = MappedFile::open(path);
      if (!file) return tl::unexpected<Error>(std::move(file.error()));
      const auto view = parse_image_file(file->bytes(), path.string());
      if (!view) return tl::unexpected<Error>(view.error());
      if (auto added = source.add(*view, path.string(), model); !added)
        return tl::unexpected<Error>(std::move(added.error()));
      source.files_.push_back(std::move(*file));
    }
    if (source.images() == 0) return usage_error("the data have no image; give at least one");
    return source;
  }

  /// Images of all files together, which are the samples of an epoch.
  [[nodiscard]] std::int64_t images() const { return starts_.back(); }
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
    return static_cast<std::int64_t>(shuffled(seed_, static_cast<std::uint64_t>(sample / images()),
                                              static_cast<std::uint64_t>(sample % images()),
                                              static_cast<std::uint64_t>(images())));
  }

  /// out (range * samples, P) = these patches of samples [first, first + samples); patch s of sample first + i is row
  /// (s - range.first) * samples + i.
  template <class T>
  void patches(std::int64_t first, std::int64_t samples, SequenceRange range, View<T> out) const {
    const ImageView& shape = views_.front();
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
      const std::uint8_t* pixels = view->pixels(at);
      for (std::int64_t s = 0; s < range.count; ++s) {
        const std::int64_t patch = range.first + s;
        const std::uint8_t* corner = pixels + (patch / across * shape.width + patch % across) * patch_;
        T* to = out.data + (s * samples + i) * width;
        for (std::int64_t c = 0; c < shape.channels; ++c)
          for (std::int64_t y = 0; y < patch_; ++y)
            for (std::int64_t x = 0; x < patch_; ++x)
              *to++ = T(static_cast<float>(corner[(c * shape.height + y) * shape.width + x]) / 127.5F - 1.0F);
      }
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
  explicit ImageSource(std::uint64_t seed) : seed_(seed) {}

  static std::int64_t root(std::int64_t square) {
    return static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(square))));
  }

  Result<void> add(const ImageView& view, const std::string& name, const ModelSpec& model) {
    const std::int64_t numbers = model.embedding.patch_width;
    const std::int64_t patch = root(numbers / view.channels);
    const std::int64_t tokens = model.positions() - (model.embedding.class_token ? 1 : 0);
    const std::int64_t side = root(tokens) * patch;
    if (patch * patch * view.channels != numbers || view.height != side || view.width != side)
      return usage_error(name + " has images of " + std::to_string(view.channels) + " x " +
                         std::to_string(view.height) + " x " + std::to_string(view.width) + ", and the model " +
                         model.name + " takes " + std::to_string(tokens) + " patches of " + std::to_string(numbers) +
                         " numbers: channels x side x side of a patch; scale the images, or choose another model");
    if (view.classes > model.head.vocabulary)
      return usage_error(name + " has " + std::to_string(view.classes) + " classes, and the model " + model.name + " " +
                         std::to_string(model.head.vocabulary) + "; choose a model of as many");
    if (!views_.empty() && view.channels != views_.front().channels)
      return usage_error(name + " has images of " + std::to_string(view.channels) + " channels, others of " +
                         std::to_string(views_.front().channels) + "; give files of one kind");
    patch_ = patch;
    views_.push_back(view);
    starts_.push_back(starts_.back() + view.count);
    return {};
  }

  // The file of an image, and its place there.
  [[nodiscard]] std::pair<const ImageView*, std::int64_t> find(std::int64_t image) const {
    const auto file =
        static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), image) - starts_.begin()) - 1;
    return {&views_[file], image - starts_[file]};
  }

  std::uint64_t seed_;
  std::int64_t patch_ = 1;  // pixels of a side
  std::vector<MappedFile> files_;
  std::vector<ImageView> views_;
  std::vector<std::int64_t> starts_{0};  // of each file in the whole, and the end
};

/// Sample i of step t is sample t * global_batch + i of the run. Ranks may share one: reading changes nothing.
class ImageBatches final : public BatchSource {
 public:
  /// `source` outlives this.
  ImageBatches(const ImageSource& source, std::int64_t global_batch) : source_(source), global_batch_(global_batch) {}

  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<float> out) override {
    source_.patches(step * global_batch_ + first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<bfloat16> out) override {
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
