// How many predictions a model makes for a sample: what the mean in its loss is over.
#pragma once

#include <cstdint>

#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Tokens of a sequence that a masked language model has to find out: 15 of 100, rounded, at least one (Devlin et al.,
/// 2019).
constexpr std::int64_t masked_tokens(std::int64_t sequence) {
  const std::int64_t n = (15 * sequence + 50) / 100;
  return n > 0 ? n : 1;
}

/// Terms of the loss of one sample whose model's sequence has so many tokens.
constexpr std::int64_t predictions(const LayerSpec& head, std::int64_t sequence) {
  switch (head.head) {
    case HeadKind::masked_language:
      return masked_tokens(sequence);
    case HeadKind::classifier:
      return 1;
    case HeadKind::language:
      break;
  }
  return head.tokens.of(sequence);
}

}  // namespace galvatron
