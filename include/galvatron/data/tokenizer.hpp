// Tokenizer: from texts to the tokens of a model's vocabulary and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron::train {

/// Immutable: threads may share one.
class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// Appends the tokens of a text in UTF-8, without those that only begin or end a prompt. Bytes that are not UTF-8 are
  /// read as U+FFFD.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out) const = 0;
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> out;
    encode(text, out);
    return out;
  }
  /// The same with what the tokenizer puts before and behind a prompt, as transformers does.
  [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::string_view text) const {
    std::vector<std::int32_t> out = prompt_begin_;
    encode(text, out);
    out.insert(out.end(), prompt_end_.begin(), prompt_end_.end());
    return out;
  }
  /// The bytes of a text that has these tokens; those outside the vocabulary have none. They need not be UTF-8 where a
  /// character has several tokens.
  /// @param special  with the names of special tokens
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> tokens, bool special = true) const = 0;
  /// Bytes of a text that a token stands for; 0 of special ones.
  [[nodiscard]] virtual std::int64_t bytes_of(std::int32_t token) const = 0;
  /// Tokens are below.
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  /// The token that ends a text; -1: the tokenizer has no such token.
  [[nodiscard]] std::int32_t end_token() const { return end_token_; }

 protected:
  std::vector<std::int32_t> prompt_begin_, prompt_end_;
  std::int32_t end_token_ = -1;
};

/// Opens the tokenizer of a folder or a file: see open_tokenizer(). Empty: this program has none.
using TokenizerOpener = Result<std::shared_ptr<const Tokenizer>> (*)(const std::filesystem::path&);

/// A tokenizer of bytes, for models whose vocabulary is 256 bytes and some tokens behind them.
class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::int32_t end_token = -1) { end_token_ = end_token; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens, bool /*special*/ = true) const override {
    std::string out;
    for (const std::int32_t token : tokens)
      if (bytes_of(token) == 1) out += static_cast<char>(token);
    return out;
  }
  [[nodiscard]] std::int64_t bytes_of(std::int32_t token) const override { return token >= 0 && token < 256 ? 1 : 0; }
  [[nodiscard]] std::int64_t vocabulary() const override { return 256; }
};

/// Errors (usage): the tokenizer has tokens that the model does not have.
inline Result<void> check_vocabulary(const Tokenizer& tokenizer, std::int64_t vocabulary, const std::string& model) {
  if (tokenizer.vocabulary() <= vocabulary) return {};
  return usage_error(text_of("the tokenizer has ", tokenizer.vocabulary(), " tokens, and the vocabulary of ", model,
                             " is ", vocabulary, "; give the model's own tokenizer with --tokenizer"));
}

/// The names of the files in which a model's folder has its tokenizer, the first that is there counts.
inline constexpr const char* tokenizer_files[] = {"tokenizer.json", "tokenizer.model", "spiece.model"};

/// True for a folder that has a tokenizer.
inline bool has_tokenizer(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const char* name : tokenizer_files)
    if (std::filesystem::is_regular_file(folder / name, ignored)) return true;
  return false;
}

}  // namespace galvatron::train
