// Training data from texts, JSON lines, token files and image files: opened in the way that the model of a run reads
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <galvatron/core/error.hpp>
#include <galvatron/data/denoising_batches.hpp>
#include <galvatron/data/document_source.hpp>
#include <galvatron/data/image_source.hpp>
#include <galvatron/data/packed_batches.hpp>
#include <galvatron/data/packing.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

struct DataOptions {
  std::int64_t sequence = 0;     ///< S, of models of tokens
  std::uint64_t seed = 0;        ///< of the order, and of what is masked
  std::int64_t mask_token = -1;  ///< of masked language models; below 0: the last of the vocabulary
  /// Documents as they are, to be packed; else the texts of all files are one, cut into samples. Vocabulary and seed in
  /// it do not matter.
  std::optional<DocumentOptions> documents{};
  /// Of texts and JSON lines; it outlives the opening. Null: the bytes of a text are its tokens, where the model's
  /// vocabulary is bytes.
  const Tokenizer* tokenizer = nullptr;
};

/// Open files. Immutable: ranks may share one.
class Data {
 public:
  /// Texts or .bin token files for models of tokens, .images files for models of images. Errors (usage): as
  /// TokenSource::open, DocumentSource::open and ImageSource::open; a text for a model whose vocabulary is not bytes; a
  /// mask token outside the vocabulary; a sequence or a vocabulary that is too small for spans; documents for a model
  /// that does not predict the next token.
  static Result<Data> open(std::span<const std::filesystem::path> paths, const ModelSpec& model,
                           const DataOptions& options) {
    Data data;
    if (options.documents &&
        (model.takes_images() || model.is_encoder_decoder() || model.head.head != HeadKind::language))
      return usage_error(
          "documents are packed for models that predict the next token, as GPT and Llama do, and the model " +
          model.name + " does not; train it on samples of one length");
    if (model.takes_images()) {
      auto images = ImageSource::open(paths, model, options.seed);
      if (!images) return tl::unexpected<Error>(std::move(images.error()));
      data.images_ = std::make_unique<ImageSource>(std::move(*images));
      return data;
    }
    TokenSourceOptions text{.sequence = options.sequence,
                            .vocabulary = model.vocabulary(),
                            .seed = options.seed,
                            .tokenizer = options.tokenizer};
    if (options.tokenizer != nullptr)
      if (auto fits = check_vocabulary(*options.tokenizer, model.vocabulary(), "the model " + model.name); !fits)
        return tl::unexpected<Error>(std::move(fits.error()));
    if (model.is_encoder_decoder()) {
      data.spans_ = {.sequence = options.sequence,
                     .vocabulary = model.vocabulary(),
                     .corruption = span_corruption(options.sequence),
                     .seed = options.seed};
      if (auto possible = data.spans_.check(); !possible) return tl::unexpected<Error>(std::move(possible.error()));
      text.sequence = data.spans_.corruption.text;
      text.vocabulary -= data.spans_.corruption.spans;
    }
    for (const std::filesystem::path& path : paths)
      if (options.tokenizer == nullptr && is_text_name(path) && !is_vocabulary_of_bytes(model.vocabulary()))
        return not_a_vocabulary_of_bytes(path, "the model " + model.name, model.vocabulary());
    data.are_bytes_ = options.tokenizer == nullptr && std::ranges::all_of(paths, is_text_name);
    if (options.documents) {
      DocumentOptions chosen = *options.documents;
      chosen.vocabulary = model.vocabulary();
      chosen.seed = options.seed;
      chosen.tokenizer = options.tokenizer;
      auto documents = DocumentSource::open(paths, chosen);
      if (!documents) return tl::unexpected<Error>(std::move(documents.error()));
      data.documents_ = std::make_unique<DocumentSource>(std::move(*documents));
      return data;
    }
    auto tokens = TokenSource::open(paths, text);
    if (!tokens) return tl::unexpected<Error>(std::move(tokens.error()));
    data.tokens_ = std::make_unique<TokenSource>(std::move(*tokens));
    if (model.head.head != HeadKind::masked_language) return data;
    if (options.mask_token >= model.vocabulary())
      return usage_error("the mask token " + std::to_string(options.mask_token) + " is outside the vocabulary of " +
                         std::to_string(model.vocabulary()) + "; give one of its tokens");
    data.mask_ = {
        .vocabulary = model.vocabulary(),
        .mask_token = static_cast<std::int32_t>(options.mask_token < 0 ? model.vocabulary() - 1 : options.mask_token),
        .seed = options.seed};
    return data;
  }

  /// Tokens or images of all files together.
  [[nodiscard]] std::int64_t size() const {
    if (documents_) return documents_->tokens();
    return images_ ? images_->images() : tokens_->tokens();
  }
  /// Tokens for each byte of the texts that are predicted token by token, as far as the first million tokens tell; 0:
  /// not known, as of token files without a tokenizer, or other predictions are made.
  /// @param tokenizer  of these data; null: the bytes of texts are tokens
  [[nodiscard]] double tokens_per_byte(const Tokenizer* tokenizer) const {
    if (images_ || mask_.vocabulary > 0 || spans_.vocabulary > 0) return 0;
    if (tokenizer == nullptr) return are_bytes_ ? 1 : 0;
    std::int64_t bytes = 0, tokens = 0;
    const auto add = [&](std::int32_t token) {
      bytes += tokenizer->bytes_of(token);
      ++tokens;
    };
    constexpr std::int64_t most = 1 << 20;
    if (tokens_) tokens_->read({0, std::min(most, tokens_->tokens())}, add);
    for (std::int64_t i = 0; documents_ && i < documents_->documents() && tokens < most; ++i)
      documents_->read(i, {0, documents_->length(i)}, add);
    return bytes > 0 ? static_cast<double>(tokens) / static_cast<double>(bytes) : 0;
  }
  /// Samples of an epoch: windows of tokens, images or documents.
  [[nodiscard]] std::int64_t samples() const {
    if (documents_) return documents_->documents();
    return images_ ? images_->images() : tokens_->windows();
  }
  /// Of samples of the data: other data of the same size hardly ever have the same. Cheap, however large the files.
  [[nodiscard]] std::uint32_t checksum() const {
    if (documents_) return documents_->checksum();
    return images_ ? images_->checksum() : tokens_->checksum();
  }
  /// Null unless the data are documents.
  [[nodiscard]] const DocumentSource* documents() const { return documents_.get(); }
  /// The batches of a run on samples of one length. They read from this object, which outlives them.
  [[nodiscard]] std::unique_ptr<BatchSource> batches(std::int64_t global_batch) const {
    if (documents_) throw Failure(ErrorKind::internal, "data: documents are packed");
    if (images_) return std::make_unique<ImageBatches>(*images_, global_batch);
    if (mask_.vocabulary > 0) return std::make_unique<MaskedBatches>(*tokens_, global_batch, mask_);
    if (spans_.vocabulary > 0) return std::make_unique<SpanBatches>(*tokens_, global_batch, spans_);
    return std::make_unique<TokenBatches>(*tokens_, global_batch);
  }

 private:
  Data() = default;

  std::unique_ptr<const TokenSource> tokens_;
  std::unique_ptr<const DocumentSource> documents_;
  std::unique_ptr<const ImageSource> images_;
  MaskOptions mask_;
  SpanOptions spans_;
  bool are_bytes_ = false;  ///< all files are texts, and their bytes the tokens
};

}  // namespace galvatron::train
