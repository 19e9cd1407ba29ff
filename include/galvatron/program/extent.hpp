// Extents of a program's steps and buffers: products of a layer's widths, a rank's rows and the degrees.
//
// A program is made once for a layer and the kinds of a strategy. What depends on degrees and rows is named by letters,
// which Numbers evaluates for one rank.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::program {

/// Tokens of the head for which logits exist at one time. Every chunk c reads and writes the gradient of the table, 8
/// bytes for 6 c FLOP: nothing for c = 512 where arithmetic is slow, but half of the head's time at the 300 FLOP a byte
/// that GPUs have in bf16.
constexpr std::int64_t head_chunk_rows(std::int64_t rows, Precision precision) {
  const std::int64_t most = precision == Precision::fp32 ? 512 : 4096;
  return rows < most ? rows : most;
}

/// A factor of an extent that degrees and rows decide.
enum class Letter : std::uint8_t {
  one,
  rows,              ///< tokens of a rank inside tensor-parallel regions
  local_rows,        ///< those between the regions: rows / tp under Megatron's sequence parallelism
  piece_rows,        ///< rows that follow each other in the sequence: half of them under zigzag
  local_piece_rows,  ///< the same between the regions
  samples,           ///< b
  tokens,            ///< of a sequence, on a rank
  ring_keys,         ///< keys that queries of a rank see of another rank's block: half of them under a causal mask
  tp,
  core_rows,              ///< tokens of a rank inside the core of Ulysses: rows * cp
  core_tokens,            ///< of a sequence there
  core_heads,             ///< query heads of a rank there
  core_projection_heads,  ///< query, key and value heads there
  copied_kv_heads,        ///< key/value heads that a rank sends: at least one to every rank
  exchanged_heads,        ///< the most heads that one exchange moves: query or key/value heads
  extra_kv_heads,         ///< those of them that are copies of others
  vocabulary,             ///< rows of the vocabulary on a rank, with padding
  chunk,                  ///< rows whose logits exist at one time
};
inline constexpr int letters = static_cast<int>(Letter::chunk) + 1;

/// factor * a * b * c, divided by tp where the width behind the factor is split.
struct Extent {
  std::int64_t factor = 0;
  Letter a = Letter::one;
  Letter b = Letter::one;
  bool over_tp = false;
  friend constexpr bool operator==(const Extent&, const Extent&) = default;

  [[nodiscard]] constexpr Extent times(Letter letter) const {
    Extent out = *this;
    (out.a == Letter::one ? out.a : out.b) = letter;
    return out;
  }
  [[nodiscard]] constexpr Extent times(std::int64_t number) const {
    Extent out = *this;
    out.factor *= number;
    return out;
  }
};

/// The letters of one rank.
class Numbers {
 public:
  /// @param samples  of a micro-batch over all data ranks  @param sequence  S of the model
  constexpr Numbers(const LayerSpec& layer, const StrategySpec& spec, std::int64_t samples, std::int64_t sequence,
                    Precision precision) {
    const std::int64_t cp = spec.context;
    const std::int64_t tp = spec.tensor;
    const std::int64_t b = samples / spec.data;
    const std::int64_t tokens = layer.tokens.of(sequence) / cp;
    const std::int64_t rows = tokens * b;
    const std::int64_t local = spec.sequence == SequenceKind::megatron ? rows / tp : rows;
    const std::int64_t pieces = spec.uses_ring() ? 2 : 1;
    const std::int64_t heads = layer.heads / tp;
    const std::int64_t kv_heads = layer.kv_heads / tp;
    const std::int64_t copied = kv_heads < cp ? cp : kv_heads;
    set(Letter::one, 1);
    set(Letter::rows, rows);
    set(Letter::local_rows, local);
    set(Letter::piece_rows, rows / pieces);
    set(Letter::local_piece_rows, local / pieces);
    set(Letter::samples, b);
    set(Letter::tokens, tokens);
    set(Letter::ring_keys, layer.causal ? tokens / 2 : tokens);
    set(Letter::tp, tp);
    set(Letter::core_rows, rows * cp);
    set(Letter::core_tokens, tokens * cp);
    set(Letter::core_heads, heads / cp);
    set(Letter::core_projection_heads, heads / cp + 2 * (copied / cp));
    set(Letter::copied_kv_heads, copied);
    set(Letter::exchanged_heads, heads < copied ? copied : heads);
    set(Letter::extra_kv_heads, copied - kv_heads);
    set(Letter::vocabulary, vocabulary_shard(layer.vocabulary, spec.tensor));
    set(Letter::chunk, head_chunk_rows(rows, precision));
    tp_ = tp;
  }

  constexpr void set(Letter letter, std::int64_t value) { values_[static_cast<std::size_t>(letter)] = value; }
  [[nodiscard]] constexpr std::int64_t operator()(Letter letter) const {
    return values_[static_cast<std::size_t>(letter)];
  }
  [[nodiscard]] constexpr std::int64_t operator()(const Extent& e) const {
    return (e.over_tp ? e.factor / tp_ : e.factor) * (*this)(e.a) * (*this)(e.b);
  }

 private:
  std::int64_t values_[letters]{};
  std::int64_t tp_ = 1;
};

}  // namespace galvatron::program
