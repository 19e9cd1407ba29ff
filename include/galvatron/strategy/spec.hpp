// StrategySpec: how one layer is spread over the ranks of its pipeline stage, as a value, and in a few letters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/core/compiled.hpp>
#include <galvatron/strategy/rank_layout.hpp>

namespace galvatron {

/// How the tokens of a sequence are split over ranks inside a layer.
enum class SequenceKind : std::uint8_t {
  none,      ///< every rank holds whole sequences
  megatron,  ///< between the tensor-parallel regions activations are split along the sequence (Korthikanti et al.);
             ///< with a context degree, sequences are also split over context ranks, with ring attention
  ulysses,   ///< sequences split, heads exchanged around attention by all-to-all
  ring,      ///< sequences split in zigzag, keys and values travel around a ring
  megatron_ulysses,  ///< Megatron's between the tensor-parallel regions, and inside them Ulysses over context ranks
};

inline constexpr std::array sequence_kinds{SequenceKind::none, SequenceKind::megatron, SequenceKind::ulysses,
                                           SequenceKind::ring, SequenceKind::megatron_ulysses};
/// Those that spaces and trainers name. Megatron's together with Ulysses is where both are.
inline constexpr std::array named_sequence_kinds{SequenceKind::none, SequenceKind::megatron, SequenceKind::ulysses,
                                                 SequenceKind::ring};
constexpr const char* name_of(SequenceKind kind) {
  return std::array{"none", "megatron", "ulysses", "ring", "megatron_ulysses"}[static_cast<std::size_t>(kind)];
}
/// Between the tensor-parallel regions tensor ranks have other tokens.
constexpr bool cuts_over_tensor(SequenceKind kind) {
  return kind == SequenceKind::megatron || kind == SequenceKind::megatron_ulysses;
}
/// Around attention context ranks exchange heads for tokens by all-to-all.
constexpr bool exchanges_heads(SequenceKind kind) {
  return kind == SequenceKind::ulysses || kind == SequenceKind::megatron_ulysses;
}

/// What backward computes again instead of keeping.
enum class RecomputeKind : std::uint8_t {
  cheap,      ///< the outputs of norms and activations only
  selective,  ///< them and the attention core
  full,       ///< the whole layer from its input
  none,       ///< nothing: everything is kept
};

inline constexpr std::array recompute_kinds{RecomputeKind::cheap, RecomputeKind::selective, RecomputeKind::full,
                                            RecomputeKind::none};
constexpr const char* name_of(RecomputeKind kind) {
  return std::array{"cheap", "selective", "full", "none"}[static_cast<std::size_t>(kind)];
}

/// How tokens go to experts on other ranks.
enum class DispatchKind : std::uint8_t {
  plain,  ///< as they are
  lsh,    ///< as means of those that hash alike (LshOptions)
};

inline constexpr std::array dispatch_kinds{DispatchKind::plain, DispatchKind::lsh};
constexpr const char* name_of(DispatchKind kind) { return std::array{"plain", "lsh"}[static_cast<std::size_t>(kind)]; }

/// Which ranks share a packed sequence.
enum class SequenceGroupKind : std::uint8_t {
  fixed,      ///< the context ranks of the plan
  per_batch,  ///< in every micro-batch other groups of the ranks that share parameters, of as many as its documents
              ///< need
};

inline constexpr std::array sequence_group_kinds{SequenceGroupKind::fixed, SequenceGroupKind::per_batch};
constexpr const char* name_of(SequenceGroupKind groups) {
  return std::array{"fixed", "per_batch"}[static_cast<std::size_t>(groups)];
}

/// How large the shards of ranks are.
enum class ShardKind : std::uint8_t {
  even,      ///< equal
  by_ratio,  ///< as the ratios of the plan's stage say, down to none; equal where it has none
};

inline constexpr std::array shard_kinds{ShardKind::even, ShardKind::by_ratio};
constexpr const char* name_of(ShardKind kind) { return std::array{"even", "by_ratio"}[static_cast<std::size_t>(kind)]; }

/// Ranks that share parameters and gradients.
inline constexpr RankModes shard_modes = RankMode::cp | RankMode::dp;

/// The strategy of one layer. Degrees multiply to the ranks of the stage: tensor * context * data.
/// Ranks of a stage are numbered with tensor innermost (consecutive), then context, then data; strided tensor ranks are
/// outermost instead, around those that share parameters and gradients (DP inside TP in Galvatron's decision tree):
///
///     tensor 2, context 2, data 2     rank     0  1  2  3  4  5  6  7
///                                     tensor   0  1  0  1  0  1  0  1
///                                     context  0  0  1  1  0  0  1  1
///                                     data     0  0  0  0  1  1  1  1
///     strided                         tensor   0  0  0  0  1  1  1  1
///                                     context  0  1  0  1  0  1  0  1
///                                     data     0  0  1  1  0  0  1  1
///
/// Every group of ranks has therefore one stride, and so have data and context ranks together.
struct StrategySpec {
  int tensor = 1;
  SequenceKind sequence = SequenceKind::none;
  int context = 1;
  int data = 1;
  int zero = 0;           ///< ZeRO stage 0-3 over the data and context ranks
  int expert = 1;         ///< ranks that share the experts of a layer, where it has some
  int expert_tensor = 0;  ///< ranks that share each of its experts; 0: the tensor ranks
  int expert_nodes = 1;   ///< nodes that they lie in, to each of which a token goes once; 1: it goes to each expert
  DispatchKind dispatch = DispatchKind::plain;
  SequenceGroupKind groups = SequenceGroupKind::fixed;
  ShardKind shard_kind = ShardKind::even;
  RecomputeKind recompute = RecomputeKind::cheap;
  bool strided = false;  ///< tensor ranks lie `shards()` apart

  friend constexpr bool operator==(const StrategySpec&, const StrategySpec&) = default;
  /// Ranks that the layer runs on.
  [[nodiscard]] constexpr int ranks() const { return tensor * context * data; }
  /// Ranks that share parameters and gradients: the data and context ranks.
  [[nodiscard]] constexpr int shards() const { return context * data; }
  /// See galvatron::cuts_over_tensor and galvatron::exchanges_heads.
  [[nodiscard]] constexpr bool cuts_over_tensor() const { return galvatron::cuts_over_tensor(sequence); }
  [[nodiscard]] constexpr bool exchanges_heads() const { return galvatron::exchanges_heads(sequence); }
  /// Context ranks pass keys and values around a ring, and hold sequences in zigzag.
  [[nodiscard]] constexpr bool uses_ring() const {
    return sequence == SequenceKind::ring || (sequence == SequenceKind::megatron && context > 1);
  }
  /// How context ranks split sequences, and tensor ranks besides where `cut`.
  [[nodiscard]] constexpr StrategySpec with_cut(bool cut) const {
    StrategySpec out = *this;
    if (cut)
      out.sequence = exchanges_heads() ? SequenceKind::megatron_ulysses : SequenceKind::megatron;
    else
      out.sequence = exchanges_heads() ? SequenceKind::ulysses : uses_ring() ? SequenceKind::ring : SequenceKind::none;
    return out;
  }
  /// The ranks of a stage that begins at `first_rank`, numbered as above.
  [[nodiscard]] constexpr RankLayout rank_layout(int first_rank = 0) const {
    return stage_layout(tensor, context, data, strided, first_rank);
  }
  [[nodiscard]] constexpr StrategySpec without_experts() const {
    StrategySpec out = *this;
    out.expert = 1;
    out.expert_tensor = 0;
    out.expert_nodes = 1;
    out.dispatch = DispatchKind::plain;
    return out;
  }
  /// Without ZeRO and recomputation: strategies with equal degrees spread a layer alike.
  [[nodiscard]] constexpr StrategySpec degrees() const {
    StrategySpec out = *this;
    out.zero = 0;
    out.recompute = RecomputeKind::cheap;
    return out;
  }
  /// Those that decide where activations lie.
  [[nodiscard]] constexpr StrategySpec layout_degrees() const { return without_experts().degrees(); }
  /// Ranks that share each expert.
  [[nodiscard]] constexpr int etp() const { return expert_tensor == 0 ? tensor : expert_tensor; }
  /// Tokens go to the ranks of their experts and back. Else every rank has a part of all experts, as of an MLP.
  [[nodiscard]] constexpr bool exchanges_tokens() const { return expert > 1 || etp() != tensor; }
  /// Means of tokens go there instead.
  [[nodiscard]] constexpr bool compresses_tokens() const { return dispatch == DispatchKind::lsh; }
  /// Tokens go to a relay in each node, and from there to the ranks of their experts.
  [[nodiscard]] constexpr bool relays_tokens() const { return expert_nodes > 1; }
  /// Ranks among which tokens are exchanged.
  [[nodiscard]] constexpr int exchange_ranks() const { return etp() * expert; }
  /// The ranks of a stage for experts (Liu et al., "MoE parallel folding", arXiv 2504.14960): those that share an
  /// expert are neighbours, then come those with other experts, then those with the same ones.
  [[nodiscard]] constexpr RankLayout expert_layout(int first_rank = 0) const {
    if (!exchanges_tokens()) return rank_layout(first_rank);
    RankLayout out(first_rank);
    return out.append(RankMode::tp, etp(), 1)
        .append(RankMode::ep, expert, etp())
        .append(RankMode::dp, ranks() / exchange_ranks(), exchange_ranks());
  }
  /// How far apart the neighbours of a tensor group are.
  [[nodiscard]] constexpr int tensor_stride() const { return rank_layout().stride(RankMode::tp); }
  /// How far apart the neighbours of a context group are, and those of the data and context ranks together.
  [[nodiscard]] constexpr int shard_stride() const { return rank_layout().stride(shard_modes); }
  /// The tensor rank of the stage's rank `local`.
  [[nodiscard]] constexpr int tensor_rank(int local) const { return rank_layout().coordinate(RankMode::tp, local); }
  /// The place of the stage's rank `local` among those that share its parameters.
  [[nodiscard]] constexpr int shard(int local) const { return rank_layout().coordinate(shard_modes, local); }
};

/// `tp2 megatron cp2 ring dp4 zero3 recompute-full` without the parts that are 1 or the default (whole sequences,
/// ZeRO-0, cheap recomputation); a star for degrees that are open.
template <class = void>
std::string strategy_text(const StrategySpec& spec, bool open_tensor = false, bool open_context = false,
                          bool open_data = false) {
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : " ") + part; };
  const auto degree = [&add](const char* axis, int n, bool open) {
    if (open || n != 1) add(axis + (open ? std::string("*") : std::to_string(n)));
  };
  degree("tp", spec.tensor, open_tensor);
  if (spec.strided) add("strided");
  if (spec.cuts_over_tensor()) add("megatron");
  degree("cp", spec.context, open_context);
  if (spec.exchanges_heads() || spec.uses_ring()) add(spec.uses_ring() ? "ring" : "ulysses");
  degree("dp", spec.data, open_data);
  if (spec.zero != 0) add("zero" + std::to_string(spec.zero));
  if (spec.expert != 1) add("ep" + std::to_string(spec.expert));
  if (spec.expert_tensor != 0) add("etp" + std::to_string(spec.expert_tensor));
  if (spec.expert_nodes != 1) add("nodes" + std::to_string(spec.expert_nodes));
  if (spec.dispatch != DispatchKind::plain) add(name_of(spec.dispatch));
  if (spec.groups != SequenceGroupKind::fixed) add(std::string("groups-") + name_of(spec.groups));
  if (spec.shard_kind != ShardKind::even) add(std::string("shards-") + name_of(spec.shard_kind));
  if (spec.recompute != RecomputeKind::cheap) add(std::string("recompute-") + name_of(spec.recompute));
  return out.empty() ? "single" : out;
}
GALVATRON_IN_PLANNER(std::string strategy_text<>(const StrategySpec&, bool, bool, bool))

}  // namespace galvatron
