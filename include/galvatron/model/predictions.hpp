// How many predictions a model makes for a sample: what the mean in its loss is over.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/model/spec.hpp>

namespace galvatron {

namespace detail {
/// `part` of `whole` of n, rounded, at least one.
constexpr std::int64_t share_of(std::int64_t n, std::int64_t part, std::int64_t whole) {
  return std::max<std::int64_t>((2 * part * n + whole) / (2 * whole), 1);
}
}  // namespace detail

/// Tokens of a sequence that a masked language model has to find out: 15 of 100 (Devlin et al., 2019).
constexpr std::int64_t masked_tokens(std::int64_t sequence) { return detail::share_of(sequence, 15, 100); }

/// How an encoder-decoder model is trained on text (Raffel et al., 2020, section 3.1.4): 15 of 100 tokens of a sample
/// are noise, in spans of 3 on average. For the encoder every span becomes one token; the decoder is to tell what they
/// were. Both end with a token of their own.
struct SpanCorruption {
  std::int64_t text = 0;   ///< tokens of a sample
  std::int64_t noise = 0;  ///< of them
  std::int64_t spans = 0;

  [[nodiscard]] constexpr std::int64_t inputs() const { return text - noise + spans + 1; }
  [[nodiscard]] constexpr std::int64_t targets() const { return noise + spans + 1; }
};
inline constexpr std::int64_t least_corrupted_sequence = 3;  ///< tokens of the encoder

/// The longest text whose corrupted form fits an encoder of `sequence` tokens.
constexpr SpanCorruption span_corruption(std::int64_t sequence) {
  const auto corrupted = [](std::int64_t text) {
    const std::int64_t noise = detail::share_of(text, 15, 100);
    return SpanCorruption{text, noise, detail::share_of(noise, 1, 3)};
  };
  SpanCorruption out = corrupted(2);
  for (std::int64_t text = 3; corrupted(text).inputs() <= sequence; ++text) out = corrupted(text);
  return out;
}

/// Terms of the loss of one sample whose model's sequence has so many tokens.
constexpr std::int64_t predictions(const ModelSpec& model, std::int64_t sequence) {
  const LayerSpec& head = model.head;
  const std::int64_t tokens = head.tokens.of(sequence);
  if (model.is_encoder_decoder()) return std::min(span_corruption(sequence).targets(), tokens);
  if (head.head == HeadKind::masked_language) return masked_tokens(sequence);
  return head.head == HeadKind::classifier ? 1 : tokens;  // two of a contrastive head: one of each tower
}

}  // namespace galvatron
