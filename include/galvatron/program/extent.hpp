// Extents of a program's steps and buffers: products of a layer's widths, a rank's rows and the degrees.
//
// A program is made once for a layer and the kinds of a strategy. What depends on degrees and rows is named by letters,
// which Numbers evaluates for one rank.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/expert_nodes.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/ratios.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::program {

/// Tokens of the head for which logits exist at one time. Every chunk c reads and writes the gradient of the table, 8
/// bytes for 6 c FLOP: nothing for c = 512 where arithmetic is slow, but half of the head's time at the 300 FLOP a byte
/// that GPUs have in bf16.
constexpr std::int64_t head_chunk_rows(std::int64_t rows, Precision precision) {
  const std::int64_t most = precision == Precision::fp32 ? 512 : 4096;
  return rows < most ? rows : most;
}

/// The rows that experts of a rank have memory for, over those that they have where all ranks have equally many.
inline constexpr double default_expert_imbalance = 1.5;

/// A factor of an extent that degrees and rows decide.
enum class Letter : std::uint8_t {
  one,
  rows,         ///< tokens of a rank inside tensor-parallel regions
  local_rows,   ///< those between the regions: this rank's part under Megatron's sequence parallelism
  memory_rows,  ///< tokens of the encoder's output inside the regions
  local_memory_rows,
  target_rows,  ///< tokens of the target beside the encoder's
  local_target_rows,
  patch_rows,     ///< rows between the regions but for those of first tokens
  first_rows,     ///< first tokens of samples: on the first tensor rank under Megatron's sequence parallelism
  samples,        ///< b
  all_samples,    ///< those of all data ranks
  tokens,         ///< of a sequence, on a rank
  memory_tokens,  ///< of the encoder's output
  windows,        ///< of all samples
  distances,      ///< of two tokens of a sequence
  scores,         ///< of all heads of a rank
  tp,
  ring_rows,              ///< tokens of the largest block of keys that goes around a ring
  core_rows,              ///< tokens of a rank inside the core of Ulysses: whole sequences
  core_tokens,            ///< of a sequence there
  core_heads,             ///< query heads of a rank there
  core_projection_heads,  ///< query, key and value heads there
  core_slot,              ///< heads of all rows there, or of those of the rank's projection where these are more
  exchanged_heads,        ///< the most heads that one exchange moves: query or key/value heads
  choices,                ///< of experts, k for each row whose routing a rank has
  own_rows,               ///< rows that a rank sends to experts, where tokens are exchanged; else all
  routed_rows,            ///< those, each as often as it has experts
  expert_rows,            ///< rows that the experts of a rank have at one time
  expert_inputs,          ///< of a rank's part of an expert
  expert_width,           ///< the same, behind its activation
  expert_scratch,         ///< the larger of H and that width
  expert_parts,           ///< ranks that share an expert, where tokens are exchanged
  exchange_ranks,         ///< ranks that exchange tokens
  expert_bounds,          ///< where experts begin among what a rank sends, and nodes where tokens go by them
  packed_rows,            ///< rows that a rank packs to send them; by nodes also tokens that it sends and relays
  returned_rows,          ///< rows that it gets back from the parts of experts; by nodes also those that it relays
  relayed_rows,           ///< by nodes: rows that a rank relays at most; else 0, and so are those that follow
  node_choices,           ///< of nodes, for each token that a rank sends
  node_numbers,           ///< order and places of these, and the choices of experts that have places
  relay_numbers,          ///< choices of the tokens sent and relayed, order and places of the latter, bounds of experts
  relay_weights,          ///< weights of the tokens sent and relayed, and of the rows, with their gradients
  summed_parts,           ///< the same as expert_parts where it is above 1, else 0
  bucket_indices,         ///< of compressed dispatch: bucket and members of the routed rows, and where buckets begin
  rotated,                ///< rotated rows that are there at one time, times their width
  codes,                  ///< of all rows that a rank sends
  bucket_places,          ///< of the table in which buckets are searched
  vocabulary,             ///< rows of the vocabulary on a rank, with padding
  chunk,                  ///< rows whose logits exist at one time
};
inline constexpr int letters = static_cast<int>(Letter::chunk) + 1;

/// factor * a * b. Where tensor ranks share the factor, it is `units` parts of one size, of which a rank has some: key/
/// value heads, or hidden units.
struct Extent {
  std::int64_t factor = 0;
  Letter a = Letter::one;
  Letter b = Letter::one;
  std::int64_t units = 0;  ///< 0: the factor is whole
  bool of_heads = false;
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

/// What a context rank has of a tensor rank's heads inside the core of Ulysses. Equal parts may be of less than a
/// key/value head, which is then sent to several ranks.
struct CoreHeads {
  std::int64_t heads, kv_heads;
  std::int64_t sent_kv_heads;  ///< to all context ranks

  /// @param own, own_kv  heads of the tensor rank  @param ranks  that share them
  constexpr CoreHeads(const RankShares& shares, std::int64_t own, std::int64_t own_kv, std::int64_t ranks)
      : heads(own / ranks),
        kv_heads(own_kv < ranks ? 1 : own_kv / ranks),
        sent_kv_heads(own_kv < ranks ? ranks : own_kv) {
    if (shares.has_even_core_heads()) return;
    kv_heads = shares.core_heads().count(own_kv);
    heads = own_kv > 0 ? own / own_kv * kv_heads : 0;
    sent_kv_heads = own_kv;
  }
};

/// The letters of one rank.
class Numbers {
 public:
  /// @param samples  of a micro-batch over all data ranks  @param sequence  S of the model
  /// @param shares     of the rank in what tensor ranks share; of no rank: what all that have as much make room for
  /// @param imbalance  of experts: see default_expert_imbalance
  /// @param lsh        of compressed dispatch
  /// @param exchanged  of the ranks that exchange tokens
  constexpr Numbers(const LayerSpec& layer, const StrategySpec& spec, std::int64_t samples, std::int64_t sequence,
                    Precision precision, const RankShares& shares, double imbalance = default_expert_imbalance,
                    const LshOptions& lsh = {}, const ExchangedSamples& exchanged = {})
      : shares_(shares), kv_heads_(layer.kv_heads), own_kv_heads_(shares.heads().count(layer.kv_heads)) {
    const std::int64_t cp = spec.context;
    const std::int64_t tp = spec.tensor;
    const std::int64_t b = samples / spec.data;
    const std::int64_t all_tokens = layer.tokens.of(sequence);
    // Of so many tokens of a sequence, those inside the regions and between them.
    const auto inside = [&](std::int64_t all) { return shares.region_tokens().count(all); };
    const auto between = [&](std::int64_t all) { return shares.tokens().count(all); };
    const std::int64_t tokens = inside(all_tokens);
    const std::int64_t rows = tokens * b;
    const std::int64_t memory = layer.memory.of(sequence);
    const std::int64_t target = layer.target.of(sequence);
    const bool megatron = spec.cuts_over_tensor();
    const std::int64_t local = between(all_tokens) * b;
    // Under Megatron's sequence parallelism the first tensor rank has the first tokens. Room is made for those of a
    // head, which is on that rank, and for the patches of the others.
    const bool has_first = !megatron || (shares.rank() < 0 ? layer.kind == LayerKind::head : shares.rank() == 0);
    const std::int64_t first = layer.class_token && has_first ? b : 0;
    const std::int64_t kv_heads = own_kv_heads_;
    const std::int64_t heads = kv_heads > 0 ? layer.heads / layer.kv_heads * kv_heads : 0;
    const CoreHeads core(shares, heads, kv_heads, cp);
    set(Letter::one, 1);
    set(Letter::rows, rows);
    set(Letter::local_rows, local);
    set(Letter::memory_rows, inside(memory) * b);
    set(Letter::local_memory_rows, between(memory) * b);
    set(Letter::target_rows, inside(target) * b);
    set(Letter::local_target_rows, between(target) * b);
    set(Letter::patch_rows, local - first);
    set(Letter::first_rows, first);
    set(Letter::samples, b);
    set(Letter::all_samples, b * spec.data);
    set(Letter::tokens, tokens);
    set(Letter::memory_tokens, inside(memory));
    set(Letter::windows, layer.window > 0 ? rows / (layer.window * layer.window) : 0);
    set(Letter::distances, 2 * tokens - 1);
    set(Letter::scores, b * heads * tokens * all_tokens);
    set(Letter::tp, tp);
    std::int64_t largest = tokens;
    for (const TokenShare& share : shares.context_tokens())
      largest = largest < share.count(all_tokens) ? share.count(all_tokens) : largest;
    set(Letter::ring_rows, largest * b);
    set(Letter::core_rows, all_tokens * b);
    set(Letter::core_tokens, all_tokens);
    set(Letter::core_heads, core.heads);
    set(Letter::core_projection_heads, core.heads + 2 * core.kv_heads);
    const std::int64_t core_slot = all_tokens * b * (core.heads + 2 * core.kv_heads);
    const std::int64_t projected = rows * (heads + 2 * kv_heads);
    set(Letter::core_slot, core_slot < projected ? projected : core_slot);
    set(Letter::exchanged_heads, heads < core.sent_kv_heads ? core.sent_kv_heads : heads);
    set_experts(layer, spec, rows, local, imbalance,
                exchanged.all > 0 ? exchanged : ExchangedSamples{b * spec.exchange_ranks(), b}, tokens);
    set_buckets(lsh);
    set(Letter::vocabulary, shares.vocabulary_rows(layer.vocabulary));
    const bool of_samples = layer.head == HeadKind::classifier || layer.head == HeadKind::contrastive;
    set(Letter::chunk, head_chunk_rows(of_samples ? b : rows, precision));
  }

  /// Rows that are not those of equal sequences.
  constexpr void set_rows(std::int64_t rows) {
    set(Letter::local_rows, rows * (*this)(Letter::local_rows) / (*this)(Letter::rows));
    set(Letter::rows, rows);
  }
  constexpr void set(Letter letter, std::int64_t value) { values_[static_cast<std::size_t>(letter)] = value; }
  [[nodiscard]] constexpr std::int64_t operator()(Letter letter) const {
    return values_[static_cast<std::size_t>(letter)];
  }
  [[nodiscard]] constexpr std::int64_t operator()(const Extent& e) const {
    return part(e) * (*this)(e.a) * (*this)(e.b);
  }
  /// True for the first rank that has a part of an extent that tensor ranks share.
  [[nodiscard]] constexpr bool is_first_part(const Extent& e) const {
    if (e.units == 0) return shares_.rank() == 0;
    const Sharding::Range own = shares_.of(e.units, e.units, e.of_heads);
    return own.begin == 0 && own.count() > 0;
  }
  /// What the rank has of what tensor ranks share.
  [[nodiscard]] constexpr const RankShares& shares() const { return shares_; }
  /// Tokens of all ranks that exchange them, those of the rank among them; 0 where none are exchanged.
  [[nodiscard]] constexpr std::int64_t exchanged_tokens() const { return exchanged_tokens_; }
  /// The nodes between which they travel to experts.
  [[nodiscard]] constexpr const ExchangeNodes& nodes() const { return nodes_; }

 private:
  constexpr void set_experts(const LayerSpec& layer, const StrategySpec& spec, std::int64_t rows, std::int64_t local,
                             double imbalance, const ExchangedSamples& exchanged, std::int64_t tokens) {
    const bool exchanges = spec.exchanges_tokens();
    const std::int64_t k = layer.active_experts;
    const std::int64_t own = exchanges ? rows / spec.tensor : rows;
    const std::int64_t parts = exchanges ? spec.etp() : 1;
    const std::int64_t width = layer.ffn / spec.etp();
    std::int64_t computed = own * k;
    if (exchanges) {
      // No more than all that the ranks have for the experts here.
      const std::int64_t here = layer.experts / spec.expert;
      exchanged_tokens_ = exchanged.all * tokens / spec.tensor;
      const std::int64_t most = exchanged_tokens_ * (k < here ? k : here);
      const std::int64_t mean = exchanged_tokens_ * k * parts / spec.exchange_ranks();
      const auto stated = static_cast<std::int64_t>(static_cast<double>(mean) * imbalance) + 1;
      computed = stated < most ? stated : most;
    }
    set(Letter::choices, (exchanges ? local : rows) * k);
    set(Letter::own_rows, own);
    set(Letter::routed_rows, own * k);
    set(Letter::expert_rows, computed);
    set(Letter::expert_inputs, inputs_of(layer.activation) * width);
    set(Letter::expert_width, width);
    set(Letter::expert_scratch, layer.hidden < width ? width : layer.hidden);
    set(Letter::expert_parts, parts);
    set(Letter::exchange_ranks, exchanges ? spec.exchange_ranks() : 1);
    nodes_ = exchange_nodes(layer, spec, exchanged.most * tokens / spec.tensor, imbalance);
    set_nodes(layer, own, parts);
  }
  constexpr void set_nodes(const LayerSpec& layer, std::int64_t own, std::int64_t parts) {
    const ExchangeNodes& nodes = nodes_;
    const std::int64_t k = layer.active_experts;
    const bool relays = nodes.count > 1;
    const auto most = [](std::int64_t a, std::int64_t b) { return a < b ? b : a; };
    set(Letter::expert_bounds, layer.experts + 1 + (relays ? nodes.count + 1 : 0));
    set(Letter::packed_rows, most(own * k, 2 * nodes.tokens));
    set(Letter::returned_rows, most(own * k, nodes.rows) * parts);
    set(Letter::relayed_rows, nodes.rows);
    set(Letter::node_choices, relays ? own * nodes.count : 0);
    set(Letter::node_numbers, relays ? own * (2 * nodes.count + k) : 0);
    set(Letter::relay_numbers, relays ? 4 * nodes.tokens * k + layer.experts / nodes.count + 1 : 0);
    set(Letter::relay_weights, 2 * nodes.tokens * k + nodes.rows * (1 + parts));
  }

  constexpr void set_buckets(const LshOptions& lsh) {
    const std::int64_t own = (*this)(Letter::own_rows);
    const std::int64_t routed = (*this)(Letter::routed_rows);
    const std::int64_t parts = (*this)(Letter::expert_parts);
    set(Letter::summed_parts, parts > 1 ? parts : 0);
    set(Letter::bucket_indices, 3 * routed + 1);
    set(Letter::rotated, (own < LshOptions::most_rotated ? own : LshOptions::most_rotated) * lsh.columns());
    set(Letter::codes, own * lsh.hashes);
    set(Letter::bucket_places, LshOptions::table_places(routed));
  }

  // Of the factor of an extent, what the rank has.
  [[nodiscard]] constexpr std::int64_t part(const Extent& e) const {
    if (e.units == 0) return e.factor;
    return e.factor / e.units *
           (e.of_heads && e.units == kv_heads_ ? own_kv_heads_ : shares_.of(e.units, e.units, e.of_heads).count());
  }

  std::int64_t values_[letters]{};
  RankShares shares_;
  std::int64_t exchanged_tokens_ = 0;
  ExchangeNodes nodes_{};
  std::int64_t kv_heads_;
  std::int64_t own_kv_heads_;  ///< of the rank
};

/// Numbers of tokens that an embedding takes, or of targets of a head; of a block with noise those that tell which
/// (SampleStream); of a projection of texts where they end (runtime/text_ends.hpp).
constexpr std::int64_t token_count(const LayerSpec& layer, const Numbers& numbers) {
  if (layer.has_jitter()) return SampleStream::words;
  if (layer.end_token != no_token) return numbers(Letter::samples) + numbers(Letter::local_rows);
  if (layer.kind == LayerKind::block || layer.patch_width > 0) return 0;
  if (layer.kind == LayerKind::head && layer.head == HeadKind::classifier) return numbers(Letter::samples);
  return numbers(Letter::rows) + (layer.kind == LayerKind::embedding ? numbers(Letter::target_rows) : 0);
}

}  // namespace galvatron::program
