// Training data: tokens of any number of files, cut into windows, read in a random order that everybody knows.
//
//   files    |aaaaaaaaaaaaaaaaaaaaaaa|bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb|       one run of N tokens
//   windows  |0      |1      |2      |3      |4      |5      |6      |7      | rest  (N - 1) / S windows
//                    inputs  [.......]
//                    targets  [.......]                                             S tokens each, one further
//
// Sample i of a run is window shuffled(i) of its epoch. Nobody keeps a state: a sample's tokens are a function of
// (files, S, seed, i), so that any rank reads its part of any batch, before or after a restart, without asking.
#pragma once

#include <algorithm>
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
#include <galvatron/data/shuffle.hpp>
#include <galvatron/data/token_file.hpp>

namespace galvatron::train {

struct TokenSourceOptions {
  std::int64_t sequence = 0;    ///< S: tokens of a sample
  std::int64_t vocabulary = 0;  ///< all tokens are below
  std::uint64_t seed = 0;       ///< of the order
};

/// Immutable after open(): ranks may share one.
class TokenSource {
 public:
  /// Opens texts (every byte a token) or .bin token files; a file is the latter if its name ends in ".bin". They are
  /// mapped, not loaded, and read through once to check the tokens. Errors (usage): no file, one that is missing or
  /// unreadable or damaged, files of different kinds, a token beyond the vocabulary, too few tokens for one sample.
  static Result<TokenSource> open(std::span<const std::filesystem::path> paths, const TokenSourceOptions& options) {
    if (options.sequence < 1 || options.vocabulary < 1 || options.vocabulary > std::int64_t{1} << 31)
      return usage_error("data need a sequence length and a vocabulary of at least 1 (and at most 2^31), not " +
                         std::to_string(options.sequence) + " and " + std::to_string(options.vocabulary));
    if (paths.empty()) return usage_error("no data files; name at least one text or .bin token file");
    TokenSource source(options);
    for (const auto& path : paths) {
      auto file = MappedFile::open(path);
      if (!file) return tl::unexpected<Error>(std::move(file.error()));
      auto tokens = is_text_name(path) ? Result<TokenView>(text_tokens(file->bytes()))
                                       : parse_token_file(file->bytes(), path.string());
      if (!tokens) return tl::unexpected<Error>(std::move(tokens.error()));
      if (auto added = source.add(*tokens, path.string(), paths.front().string()); !added)
        return tl::unexpected<Error>(std::move(added.error()));
      source.files_.push_back(std::move(*file));
    }
    if (source.tokens() < options.sequence + 1)
      return usage_error("the data have " + std::to_string(source.tokens()) + " tokens, but one sample of " +
                         std::to_string(options.sequence) + " tokens takes " + std::to_string(options.sequence + 1) +
                         "; give more data or a shorter sequence");
    return source;
  }

  /// Tokens of all files together.
  [[nodiscard]] std::int64_t tokens() const { return starts_.back(); }
  /// CRC-32C of the number of tokens and of tokens in pieces that are spread evenly over the whole: all of them up to
  /// 256 Ki tokens. It does not depend on how the tokens are divided into files, nor on their width.
  [[nodiscard]] std::uint32_t checksum() const {
    constexpr std::int64_t most = 256;  // pieces
    constexpr std::int64_t length = 1024;
    const std::int64_t all = tokens();
    const std::int64_t pieces = std::min(most, (all + length - 1) / length);
    std::vector<std::int32_t> piece(length);
    std::uint32_t crc = crc32c(std::as_bytes(std::span(&all, 1)));
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::int64_t first = all <= most * length ? i * length : (all - length) * i / (most - 1);
      const std::int64_t count = std::min(length, all - first);
      copy(first, count, piece.data(), 1);
      crc = crc32c(std::as_bytes(std::span(piece.data(), static_cast<std::size_t>(count))), crc);
    }
    return crc;
  }
  /// Samples of an epoch.
  [[nodiscard]] std::int64_t windows() const { return (tokens() - 1) / options_.sequence; }
  [[nodiscard]] std::int64_t sequence() const { return options_.sequence; }

  /// The window of sample `sample` >= 0 of the run, in [0, windows()).
  [[nodiscard]] std::int64_t window(std::int64_t sample) const {
    return static_cast<std::int64_t>(shuffled(options_.seed, static_cast<std::uint64_t>(sample / windows()),
                                              static_cast<std::uint64_t>(sample % windows()),
                                              static_cast<std::uint64_t>(windows())));
  }

  /// out (range * samples) = the input tokens of samples [first, first + samples), sequence-major: token s of sample
  /// first + i is out[(s - range.first) * samples + i]. Without a range: the whole sequence.
  void inputs(std::int64_t first, std::int64_t samples, View<std::int32_t> out) const {
    inputs(first, samples, {0, options_.sequence}, out);
  }
  void inputs(std::int64_t first, std::int64_t samples, SequenceRange range, View<std::int32_t> out) const {
    fill(first, samples, range, 0, out);
  }
  /// The same for the tokens to be predicted: each is the one after the input token at its place.
  void targets(std::int64_t first, std::int64_t samples, View<std::int32_t> out) const {
    targets(first, samples, {0, options_.sequence}, out);
  }
  void targets(std::int64_t first, std::int64_t samples, SequenceRange range, View<std::int32_t> out) const {
    fill(first, samples, range, 1, out);
  }

 private:
  explicit TokenSource(const TokenSourceOptions& options) : options_(options) {}

  static const char* kind_of(int width) {
    return width == 1 ? "a text" : width == 2 ? "a 16-bit token file" : "a 32-bit token file";
  }

  Result<void> add(const TokenView& view, const std::string& name, const std::string& first_name) {
    if (!views_.empty() && view.width != views_.front().width)
      return usage_error(name + " is " + kind_of(view.width) + ", but " + first_name + " is " +
                         kind_of(views_.front().width) + "; give files of one kind");
    if (const std::int64_t at = view.first_outside(options_.vocabulary); at < view.count)
      return usage_error(name + ": token " + std::to_string(view[at]) + " at position " + std::to_string(at) +
                         " is outside the vocabulary of " + std::to_string(options_.vocabulary) +
                         "; give data made with the model's tokenizer, or a model with a larger vocabulary");
    views_.push_back(view);
    starts_.push_back(starts_.back() + view.count);
    return {};
  }

  void fill(std::int64_t first, std::int64_t samples, SequenceRange range, std::int64_t shift,
            View<std::int32_t> out) const {
    if (first < 0 || range.first < 0 || range.count < 0 || range.first + range.count > options_.sequence ||
        out.count != range.count * samples)
      throw Failure(ErrorKind::internal,
                    "data: " + std::to_string(out.count) + " places for " + std::to_string(samples) + " samples from " +
                        std::to_string(first) + " on, tokens " + std::to_string(range.first) + " to " +
                        std::to_string(range.first + range.count) + " of " + std::to_string(options_.sequence));
    for (std::int64_t i = 0; i < samples; ++i)
      copy(window(first + i) * options_.sequence + range.first + shift, range.count, out.data + i, samples);
  }

  // Tokens [first, first + count) of the whole, every `stride` places.
  void copy(std::int64_t first, std::int64_t count, std::int32_t* out, std::int64_t stride) const {
    auto file = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin()) - 1;
    for (std::int64_t done = 0; done < count; ++file) {
      const TokenView& view = views_[file];
      const std::int64_t begin = first + done - starts_[file];
      const std::int64_t n = std::min(count - done, view.count - begin);
      for (std::int64_t k = 0; k < n; ++k) out[(done + k) * stride] = static_cast<std::int32_t>(view[begin + k]);
      done += n;
    }
  }

  TokenSourceOptions options_;
  std::vector<MappedFile> files_;
  std::vector<TokenView> views_;
  std::vector<std::int64_t> starts_{0};  // of each file in the whole, and the end
};

}  // namespace galvatron::train
