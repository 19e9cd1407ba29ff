// Tokenizers of sentencepiece (Kudo and Richardson, 2018) by its library: tokenizer.model of Llama 2, T5 and others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sentencepiece_processor.h>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/data/tokenizer.hpp>

namespace galvatron::train {

class SentencePiece final : public Tokenizer {
 public:
  using Tokenizer::encode;

  /// Errors (usage): the file cannot be read, or is no model of sentencepiece.
  static Result<std::unique_ptr<SentencePiece>> open(const std::filesystem::path& path) {
    const auto file = MappedFile::open(path);
    if (!file) return tl::unexpected<Error>(file.error());
    std::unique_ptr<SentencePiece> out(new SentencePiece);
    const std::string_view bytes(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    if (const auto status = out->processor_.LoadFromSerializedProto({bytes.data(), bytes.size()}); !status.ok())
      return usage_error(path.string() +
                         " is no model of sentencepiece: " + galvatron::detail::one_line(status.error_message()));
    out->end_token_ = out->processor_.eos_id();
    if (const int begin = out->processor_.bos_id(); begin >= 0)
      out->prompt_begin_.push_back(begin);
    else if (out->end_token_ >= 0)
      out->prompt_end_.push_back(out->end_token_);  // as T5 has it
    return out;
  }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    std::vector<int> tokens;
    const auto status = processor_.Encode({text.data(), text.size()}, &tokens);
    if (!status.ok()) throw Failure(ErrorKind::usage, "sentencepiece: " + status.ToString());
    out.insert(out.end(), tokens.begin(), tokens.end());
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens, bool special = true) const override {
    std::vector<int> known;
    for (const std::int32_t token : tokens)
      if (token >= 0 && token < vocabulary() && (special || !is_special(token))) known.push_back(token);
    std::string out;
    const auto status = processor_.Decode(known, &out);
    if (!status.ok()) throw Failure(ErrorKind::usage, "sentencepiece: " + status.ToString());
    return out;
  }
  [[nodiscard]] std::int64_t bytes_of(std::int32_t token) const override {
    if (token < 0 || token >= vocabulary() || is_special(token)) return 0;
    if (processor_.IsByte(token)) return 1;
    constexpr std::string_view space = "\xE2\x96\x81";  // U+2581 stands for a space
    const std::string& piece = processor_.IdToPiece(token);
    std::int64_t bytes = std::ssize(piece);
    for (std::size_t at = piece.find(space); at != std::string::npos; at = piece.find(space, at + space.size()))
      bytes -= std::ssize(space) - 1;
    return bytes;
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return processor_.GetPieceSize(); }

 private:
  SentencePiece() = default;
  [[nodiscard]] bool is_special(std::int32_t token) const {
    return processor_.IsControl(token) || processor_.IsUnknown(token);
  }

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace galvatron::train
