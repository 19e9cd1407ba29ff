// Tokens as training data: any number of files, cut into windows, read in a random order that everybody knows.
//
//   files    |aaaaaaaaaaaaaaaaaaaaaaa|bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb|       one run of N tokens
//   windows  |0      |1      |2      |3      |4      |5      |6      |7      | rest  (N - 1) / S windows
//                    inputs  [.......]
//                    targets  [.......]                                             S tokens each, one further
//
// Sample i of a run is window shuffled(i) of its epoch. Nobody keeps a state: a sample's tokens are a function of
// (files, S, seed, i), so that any rank reads its part of any batch, before or after a restart, without asking.
//
// A file is one of tokens (data/token_view.hpp), or a text: its bytes are the tokens, or a tokenizer makes them
// when the file is opened.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/data_files.hpp>
#include <galvatron/data/token_view.hpp>
#include <galvatron/data/tokenized.hpp>
#include <galvatron/data/tokenizer.hpp>

namespace galvatron::train {

/// Ids above those of bytes that a vocabulary of bytes may have: the mask of a masked language model, the spans of an
/// encoder-decoder model, others that a model has for special purposes.
inline constexpr std::int64_t most_special_tokens = 128;

/// True when the bytes of a text are tokens of a model with this vocabulary: 256 bytes, and at most
/// `most_special_tokens` behind them. A larger vocabulary is that of a tokenizer, whose first 256 ids are no bytes.
constexpr bool is_vocabulary_of_bytes(std::int64_t vocabulary) {
  return vocabulary >= 256 && vocabulary <= 256 + most_special_tokens;
}

/// The error of a text for a model whose vocabulary is not bytes.
/// @param model  what it is called, for messages
inline tl::unexpected<Error> not_a_vocabulary_of_bytes(const std::filesystem::path& path, const std::string& model,
                                                       std::int64_t vocabulary) {
  return usage_error(path.string() + " is a text, whose 256 bytes are its tokens, and " + model + " has the " +
                     std::to_string(vocabulary) +
                     " tokens of another vocabulary; give the model's tokenizer with --tokenizer, or tokenize the text "
                     "into a .bin file with `galvatron data` (docs/data.md)");
}

/// The error that a token is outside the vocabulary.
inline tl::unexpected<Error> outside_vocabulary(const std::string& file, std::int64_t token, std::int64_t position,
                                                std::int64_t vocabulary) {
  return usage_error(file + ": token " + std::to_string(token) + " at position " + std::to_string(position) +
                     " is outside the vocabulary of " + std::to_string(vocabulary) +
                     "; give data made with the model's tokenizer, or a model with a larger vocabulary");
}

/// A name that ends in .bin or .npy is that of a file of tokens, any other that of a text.
inline bool is_text_name(const std::filesystem::path& path) {
  return path.extension() != ".bin" && path.extension() != ".npy";
}

struct TokenSourceOptions {
  std::int64_t sequence = 0;             ///< S: tokens of a sample
  std::int64_t vocabulary = 0;           ///< all tokens are below
  std::uint64_t seed = 0;                ///< of the order
  const Tokenizer* tokenizer = nullptr;  ///< of texts and JSON lines; null: the bytes of a text are its tokens
};

/// The tokens of a file: mapped with it, or made of its text.
struct FileTokens : TokenView {
  std::optional<TokenizedFile> own{};
};

/// Immutable after open(): ranks may share one.
class TokenSource {
 public:
  /// Opens texts (every byte a token) or .bin token files; a file is the latter if its name ends in ".bin". They are
  /// mapped, not loaded, and read through once to check the tokens. With a tokenizer texts and JSON lines are
  /// tokenized, and their documents end with its end token. Errors (usage): no file, one that is missing or unreadable
  /// or damaged, files of different kinds, a token beyond the vocabulary, too few tokens for one sample.
  static Result<TokenSource> open(std::span<const std::filesystem::path> paths, const TokenSourceOptions& options) {
    if (options.sequence < 1 || options.vocabulary < 1 || options.vocabulary > std::int64_t{1} << 31)
      return usage_error("data need a sequence length and a vocabulary of at least 1 (and at most 2^31), not " +
                         std::to_string(options.sequence) + " and " + std::to_string(options.vocabulary));
    if (paths.empty()) return usage_error("no data files; name at least one text or .bin token file");
    auto files = DataFiles<FileTokens>::open(paths, [&](auto bytes, const auto& path, const auto& before) {
      return tokens_of(bytes, path, options.tokenizer).and_then([&](FileTokens&& tokens) {
        return checked(std::move(tokens), path.string(), before, paths.front().string(), options.vocabulary);
      });
    });
    if (!files) return tl::unexpected<Error>(std::move(files.error()));
    TokenSource source(options, std::move(*files));
    if (source.tokens() < options.sequence + 1)
      return usage_error("the data have " + std::to_string(source.tokens()) + " tokens, but one sample of " +
                         std::to_string(options.sequence) + " tokens takes " + std::to_string(options.sequence + 1) +
                         "; give more data or a shorter sequence");
    return source;
  }

  /// Tokens of all files together.
  [[nodiscard]] std::int64_t tokens() const { return files_.count(); }
  /// Calls f(token) for tokens [range.first, range.first + range.count) of all files together.
  template <class F>
  void read(SequenceRange range, const F& f) const {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(range.count));
    if (range.count > 0) copy(range.first, range.count, tokens.data(), 1);
    std::ranges::for_each(tokens, f);
  }
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
    return shuffled(options_.seed, sample / windows(), sample % windows(), windows());
  }

  /// out (range * samples) = the input tokens of samples [first, first + samples), sequence-major: token s of sample
  /// first + i is out[(s - range.first) * samples + i].
  void inputs(std::int64_t first, std::int64_t samples, SequenceRange range, View<std::int32_t> out) const {
    fill(first, samples, range, 0, out);
  }
  /// The same for the tokens to be predicted: each is the one after the input token at its place.
  void targets(std::int64_t first, std::int64_t samples, SequenceRange range, View<std::int32_t> out) const {
    fill(first, samples, range, 1, out);
  }

 private:
  TokenSource(const TokenSourceOptions& options, DataFiles<FileTokens> files)
      : options_(options), files_(std::move(files)) {}

  static const char* kind_of(int width) {
    return width == 1 ? "a text" : width == 2 ? "a 16-bit token file" : "a 32-bit token file";
  }

  static Result<FileTokens> tokens_of(std::span<const std::byte> bytes, const std::filesystem::path& path,
                                      const Tokenizer* tokenizer) {
    if (!is_text_name(path))
      return parse_tokens(bytes, path).map([](const TokenView& view) { return FileTokens{view}; });
    if (tokenizer == nullptr) return FileTokens{TokenView{bytes.data(), std::ssize(bytes), 1}};
    return TokenizedFile::make(bytes, path, {}, *tokenizer, tokenizer->end_token()).map([](TokenizedFile&& file) {
      const TokenView tokens = file.tokens();
      return FileTokens{tokens, std::move(file)};
    });
  }

  // The tokens of a file, if they go with those of the files before.
  static Result<FileTokens> checked(FileTokens view, const std::string& name, std::span<const FileTokens> before,
                                    const std::string& first_name, std::int64_t vocabulary) {
    if (!before.empty() && !view.own && !before.front().own && view.width != before.front().width)
      return usage_error(name + " is " + kind_of(view.width) + ", but " + first_name + " is " +
                         kind_of(before.front().width) + "; give files of one kind");
    if (const std::int64_t at = view.first_outside(vocabulary); at < view.count)
      return outside_vocabulary(name, view[at], at, vocabulary);
    return view;
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
    auto [file, begin] = files_.find(first);
    for (std::int64_t done = 0; done < count; ++file, begin = 0) {
      const TokenView& view = files_.view(file);
      const std::int64_t n = std::min(count - done, view.count - begin);
      for (std::int64_t k = 0; k < n; ++k) out[(done + k) * stride] = static_cast<std::int32_t>(view[begin + k]);
      done += n;
    }
  }

  TokenSourceOptions options_;
  DataFiles<FileTokens> files_;
};

class TokenBatches final : public BatchSource {
 public:
  TokenBatches(const TokenSource& source, std::int64_t global_batch) : source_(source), global_batch_(global_batch) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    source_.inputs(step * global_batch_ + first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    source_.targets(step * global_batch_ + first, samples, range, out);
  }

 private:
  const TokenSource& source_;
  std::int64_t global_batch_;
};

}  // namespace galvatron::train
