// Data files of a run, and the order in which it reads what is in them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/rng.hpp>

namespace galvatron::train {

/// Element `index` of a random permutation of [0, count), a different one for every (seed, epoch), which anybody can
/// compute at any place: a Feistel network on the next even number of bits (Luby and Rackoff, 1988) with Philox as its
/// round function, walked until it falls into the range (Black and Rogaway, 2002), which takes less than 4 steps on
/// average. count < 2^62.
constexpr std::int64_t shuffled(std::uint64_t seed, std::int64_t epoch, std::int64_t index, std::int64_t count) {
  if (count <= 1) return 0;
  const int half = (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1))) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  constexpr std::uint64_t stream = 0x6461746100000000U;  // apart from the streams of the weights
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const auto words = random_block(seed, stream + static_cast<std::uint64_t>(epoch), round << 32 | right);
      left = std::exchange(right, left ^ (words[0] & mask));
    }
    x = left << half | right;
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

/// Files that are mapped, not loaded, and their elements, tokens or images, as one run.
/// @tparam FileView  the elements of a file in memory: `count` of them
template <class FileView>
class DataFiles {
 public:
  /// Errors (usage): those of MappedFile::open and of `parse`.
  /// @param parse  (bytes, path, views of the files before) -> Result<FileView>
  template <class Parse>
  static Result<DataFiles> open(std::span<const std::filesystem::path> paths, const Parse& parse) {
    DataFiles out;
    for (const std::filesystem::path& path : paths) {
      auto file = MappedFile::open(path);
      if (!file) return tl::unexpected<Error>(std::move(file.error()));
      auto view = parse(file->bytes(), path, std::as_const(out.views_));
      if (!view) return tl::unexpected<Error>(std::move(view.error()));
      out.starts_.push_back(out.count() + view->count);
      out.views_.push_back(std::move(*view));
      out.files_.push_back(std::move(*file));
    }
    return out;
  }

  [[nodiscard]] std::int64_t count() const { return starts_.back(); }
  [[nodiscard]] const FileView& view(std::size_t file) const { return views_[file]; }
  /// The file of element i of the whole, and the element's number in it.
  [[nodiscard]] std::pair<std::size_t, std::int64_t> find(std::int64_t i) const {
    const auto file = static_cast<std::size_t>(std::ranges::upper_bound(starts_, i) - starts_.begin()) - 1;
    return {file, i - starts_[file]};
  }

 private:
  std::vector<MappedFile> files_;
  std::vector<FileView> views_;
  std::vector<std::int64_t> starts_{0};  // of each file in the whole, and the end
};

}  // namespace galvatron::train
