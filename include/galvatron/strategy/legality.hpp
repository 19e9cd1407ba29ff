// What is a strategy and what is nonsense, said once: the search filters with these rules, Strategy<> asserts them, and
// readers of plans print them.
#pragma once

#include <cstdint>
#include <string_view>

#include <galvatron/model/forward.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/ratios.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// More ranks than this are refused, so that products of degrees stay far from overflow.
inline constexpr std::int64_t most_ranks = std::int64_t{1} << 24;

namespace detail {

constexpr bool has_too_many_ranks(const StrategySpec& s) {
  const std::int64_t tensor_and_context = std::int64_t{s.tensor} * s.context;
  return tensor_and_context > most_ranks || s.data > most_ranks || tensor_and_context * s.data > most_ranks;
}
constexpr bool spreads_experts_evenly(const StrategySpec& s) {
  return !s.exchanges_tokens() || s.ranks() % (std::int64_t{s.etp()} * s.expert) == 0;
}
constexpr bool is_split_over_context(SequenceKind kind) { return exchanges_heads(kind) || kind == SequenceKind::ring; }

}  // namespace detail

// The rules, in the order in which they are told. A static_assert needs its sentence as a literal, hence a macro:
// RULE(broken, sentence) for the strategy `s`.
#define GALVATRON_STRATEGY_RULES(RULE, s)                                                                              \
  RULE((s).tensor < 1 || (s).context < 1 || (s).data < 1 || (s).expert < 1,                                            \
       "every degree of a strategy is at least 1.")                                                                    \
  RULE((s).zero < 0 || (s).zero > 3, "a ZeRO stage is 0, 1, 2 or 3.")                                                  \
  RULE(::galvatron::detail::has_too_many_ranks(s), "a strategy spreads a layer over at most 16777216 ranks.")          \
  RULE((s).zero > 0 && (s).data == 1 && (s).context == 1,                                                              \
       "ZeRO shards states over data- and context-parallel ranks: a stage above 0 needs a data degree of at least "    \
       "2, or a context degree.")                                                                                      \
  RULE((s).cuts_over_tensor() && (s).tensor == 1,                                                                      \
       "Megatron sequence parallelism splits tokens over the tensor-parallel ranks: it needs a tensor degree of at "   \
       "least 2.")                                                                                                     \
  RULE(::galvatron::detail::is_split_over_context((s).sequence) && (s).context == 1,                                   \
       "Ulysses and ring attention split sequences over context-parallel ranks: they need a context degree of at "     \
       "least 2.")                                                                                                     \
  RULE((s).context > 1 && (s).sequence == ::galvatron::SequenceKind::none,                                             \
       "context parallelism needs to know how sequences are split: choose Ulysses or ring.")                           \
  RULE((s).strided && ((s).tensor == 1 || (s).shards() == 1),                                                          \
       "strided tensor-parallel ranks lie around data- and context-parallel ranks: they need a tensor degree of at "   \
       "least 2 and a data or context degree.")                                                                        \
  RULE((s).expert_tensor < 0, "the tensor degree of experts is at least 1.")                                           \
  RULE(!::galvatron::detail::spreads_experts_evenly(s),                                                                \
       "experts are spread over the ranks of a stage: the expert degree times the tensor degree of experts divides "   \
       "their number.")                                                                                                \
  RULE((s).expert_nodes < 1 || (s).expert % (s).expert_nodes != 0,                                                     \
       "nodes have equally many of the ranks that exchange the tokens of experts: their number divides the expert "    \
       "degree.")                                                                                                      \
  RULE((s).relays_tokens() && (s).dispatch != ::galvatron::DispatchKind::plain,                                        \
       "means of tokens go to the ranks of experts directly: compressed dispatch has one node of experts.")            \
  RULE((s).exchanges_tokens() && (s).strided,                                                                          \
       "ranks that exchange the tokens of experts are neighbours: tensor-parallel ranks are not strided then.")        \
  RULE((s).groups == ::galvatron::SequenceGroupKind::per_batch &&                                                      \
           (!::galvatron::detail::is_split_over_context((s).sequence) || (s).cuts_over_tensor()),                      \
       "groups of every batch share sequences over context-parallel ranks: choose Ulysses or ring.")                   \
  RULE((s).groups == ::galvatron::SequenceGroupKind::per_batch && ((s).zero < 3 || (s).strided),                       \
       "groups of every batch change over all ranks that share parameters: they need ZeRO-3, and no strided tensor "   \
       "ranks.")                                                                                                       \
  RULE((s).groups == ::galvatron::SequenceGroupKind::per_batch && (s).exchanges_tokens(),                              \
       "ranks that exchange the tokens of experts have equally many tokens: groups of every batch have none.")         \
  RULE((s).groups == ::galvatron::SequenceGroupKind::per_batch && (s).shard_kind != ::galvatron::ShardKind::even,      \
       "groups of every batch deal out tokens themselves: shards are even.")                                           \
  RULE((s).dispatch != ::galvatron::DispatchKind::plain && !(s).exchanges_tokens(),                                    \
       "compressed dispatch is of tokens that go to experts on other ranks: it needs an expert degree of at least 2, " \
       "or a tensor degree of experts that is not the layer's.")

/// Why no layer at all can be spread like this; empty when the strategy is legal.
constexpr std::string_view why_illegal(const StrategySpec& spec) {
#define GALVATRON_RETURN_SENTENCE(broken, sentence) \
  if (broken) return sentence;
  GALVATRON_STRATEGY_RULES(GALVATRON_RETURN_SENTENCE, spec)
#undef GALVATRON_RETURN_SENTENCE
  return {};
}

constexpr bool is_legal(const StrategySpec& spec) { return why_illegal(spec).empty(); }

/// Tensor ranks share query heads and key/value heads equally. Ulysses gives each of its ranks a part of both in turn;
/// where there are fewer key/value heads than ranks, each is copied to equally many.
constexpr bool splits_heads_evenly(const LayerSpec& layer, const StrategySpec& spec) {
  if (layer.heads % spec.tensor != 0 || layer.kv_heads % spec.tensor != 0) return false;
  if (!spec.exchanges_heads()) return true;
  const std::int64_t heads = layer.heads / spec.tensor;
  const std::int64_t kv_heads = layer.kv_heads / spec.tensor;
  return heads % spec.context == 0 && (kv_heads % spec.context == 0 || spec.context % kv_heads == 0);
}

/// Layers whose tokens all attend to each other, and that have as many as all that crosses their borders, may split
/// them over context ranks.
constexpr bool splits_over_context(const LayerSpec& layer) {
  for (int i = 0; i < most_parts; ++i)
    for (const BundlePart& part : {layer.before(i), layer.after(i)})
      if (part.tokens.any() && part.tokens != layer.tokens) return false;
  return !layer.memory.any() && !layer.target.any() && !layer.merges && layer.window == 0 &&
         layer.position != PositionKind::relative && layer.patch_width == 0 && layer.head != HeadKind::classifier &&
         layer.head != HeadKind::contrastive;
}

/// Ring attention lays out sequences in two chunks a rank.
constexpr bool splits_sequence_evenly(const StrategySpec& spec, std::int64_t sequence) {
  const std::int64_t cut = spec.cuts_over_tensor() ? spec.tensor : 1;
  return sequence % (cut * spec.context * (spec.uses_ring() ? 2 : 1)) == 0;
}

/// The tensor degree divides every width, and every section of one, that tensor ranks share equally.
constexpr bool splits_widths_evenly(const forward::Graph& graph, int tensor, bool even_heads = true,
                                    bool even_widths = true) {
  const auto divides = [=](const forward::Width& width) {
    if (!(width.head_groups > 0 ? even_heads : even_widths)) return true;
    for (const std::int64_t section : width.sections)
      if (section % tensor != 0) return false;
    return !width.split || width.extent % tensor == 0;
  };
  for (int i = 0; i < graph.tensor_count; ++i)
    if (!divides(graph.width(i))) return false;
  for (int i = 0; i < graph.weight_count; ++i)
    if (!divides(graph.weight(i).rows) || !divides(graph.weight(i).columns)) return false;
  return true;
}

/// Tokens of a sequence are cut by these ratios, which the strategy takes.
constexpr bool cuts_tokens_by_ratio(const StrategySpec& spec, const RankRatios& ratios) {
  return !ratios.tokens.empty() && (spec.cuts_over_tensor() || spec.context > 1);
}
/// The same of heads, over tensor ranks or in the core of Ulysses.
constexpr bool cuts_heads_by_ratio(const StrategySpec& spec, const RankRatios& ratios) {
  return !ratios.heads.empty() && (spec.tensor > 1 || spec.exchanges_heads());
}

/// Why tensor and context ranks cannot share a layer by these ratios, which the strategy takes; empty when they can.
constexpr std::string_view why_no_shares(const LayerSpec& layer, const StrategySpec& spec, const RankRatios& ratios) {
  if (cuts_tokens_by_ratio(spec, ratios)) {
    if (layer.patch_width > 0 || layer.class_token || layer.window > 0 || layer.merges ||
        layer.head == HeadKind::classifier || layer.head == HeadKind::contrastive)
      return "ranks have equally many tokens of images and of what is classified: leave the ratios of tokens out.";
    if (layer.experts > 0 && (spec.cuts_over_tensor() || spec.exchanges_tokens()))
      return "tensor ranks, and ranks that exchange tokens, have equally many of those that are routed to experts: "
             "leave the ratios of tokens out.";
  }
  if (layer.kind != LayerKind::block || spec.tensor == 1) return {};
  if (layer.forward_pass == nullptr || (ratios.heads.empty() && ratios.widths.empty())) return {};
  // What tensors of an operation share is cut alike.
  const forward::Graph graph = layer.forward_pass(layer);
  for (int i = 0; i < graph.node_count; ++i) {
    const forward::Node& node = graph.node(i);
    std::int64_t units = 0;
    const auto differs = [&](int tensor) {
      if (tensor < 0 || !graph.width(tensor).split) return false;
      const forward::Width& width = graph.width(tensor);
      if (forward::is_attention(node.operation) && width.head_groups == 0) return true;
      if (units == 0) units = width.units();
      return units != width.units() && (node.operation != forward::Kind::linear);
    };
    bool alike = !differs(node.output);
    for (const int input : node.inputs) alike = alike && !differs(input);
    if (node.operation == forward::Kind::linear) {
      const forward::WeightSpec& weight = graph.weight(node.weights[0]);
      if (weight.columns.split) alike = alike && weight.columns.units() == graph.width(node.inputs[0]).units();
    }
    if (!alike)
      return "tensor ranks share the widths of the layer's operations by ratios if they are cut alike: those of heads "
             "by Builder::heads, others in sections of one size.";
  }
  return {};
}

/// Why this layer cannot be spread like this, for micro-batches of `samples` samples (of all data ranks together) of
/// `sequence` tokens, of which the layer may work on a share; empty when it can. The strategy is legal. The vocabulary
/// is padded and needs no divisibility.
/// @param of_stage  ratios of the stage's ranks: what strategies with shards by ratio cut so needs none either
constexpr std::string_view why_unfit(const LayerSpec& layer, const StrategySpec& spec, std::int64_t samples,
                                     std::int64_t sequence, const RankRatios& of_stage = {}) {
  const RankRatios ratios = of_stage.of(spec);
  const bool even_tokens = !cuts_tokens_by_ratio(spec, ratios);
  const bool even_heads = !cuts_heads_by_ratio(spec, ratios);
  const bool even_widths = ratios.widths.empty() || spec.tensor == 1;
  if (samples < 1) return "a micro-batch has at least one sample.";
  if (sequence < 1) return "a sequence has at least one token.";
  if (sequence > layer.positions) return "the sequence is longer than the model's positions.";
  if (!layer.tokens.divides(sequence) || !layer.memory.divides(sequence) || !layer.target.divides(sequence))
    return "the sequence does not give every layer a whole number of tokens.";
  if ((layer.patch_width > 0 || layer.window > 0) && sequence != layer.positions)
    return "an image is a sequence of all the model's positions.";
  if (layer.kind == LayerKind::block) {
    if (even_heads && !splits_heads_evenly(layer, spec)) {
      if (layer.heads % spec.tensor == 0 && layer.kv_heads % spec.tensor == 0)
        return "Ulysses exchanges heads: tensor times context degree divides the query heads, and the key/value heads "
               "of a tensor rank are a multiple or a divisor of the context degree.";
      return layer.heads % spec.tensor != 0 ? "the tensor degree does not divide the attention heads."
                                            : "the tensor degree does not divide the key/value heads.";
    }
    if (layer.forward_pass != nullptr &&
        !splits_widths_evenly(layer.forward_pass(layer), spec.tensor, even_heads, even_widths))
      return "the tensor degree does not divide a width of the layer that tensor ranks share.";
    if (even_widths && (layer.shared_ffn % spec.tensor != 0 || (layer.experts == 0 && layer.ffn % spec.tensor != 0)))
      return "the tensor degree does not divide the width of the MLP.";
    if (layer.experts > 0 && layer.ffn % spec.etp() != 0)
      return "the tensor degree of experts does not divide their width.";
    if (layer.experts > 0 && layer.experts % spec.expert != 0) return "the expert degree does not divide the experts.";
    if (layer.experts > 0 && spec.exchanges_tokens() && spec.tensor > 1 &&
        layer.tokens.of(sequence) / spec.context * (samples / spec.data) % spec.tensor != 0)
      return "tensor ranks share the tokens that go to experts: the tensor degree divides those of a rank.";
    if (layer.merges && spec.cuts_over_tensor() && side_of_square(layer.tokens.of(sequence)) % spec.tensor != 0)
      return "Megatron sequence parallelism gives every rank whole rows of an image whose tokens are merged: the "
             "tensor degree divides the rows of the merged image.";
  }
  if (layer.kind == LayerKind::block && layer.query_key_norm == QueryKeyNorm::all && spec.tensor > 1)
    return "a norm of all queries and of all keys of a token needs them on one rank: the tensor degree is 1.";
  if (spec.context > 1 && !splits_over_context(layer))
    return "context parallelism splits plain self-attention: not images, windows, relative positions or cross "
           "attention.";
  if (layer.kind == LayerKind::head && layer.head == HeadKind::contrastive && spec.sequence != SequenceKind::none)
    return "a contrastive loss needs the two rows of a sample on one rank: sequences are not split.";
  if (spec.uses_ring() && layer.window_within(sequence) > 0)
    return "ring attention takes keys and values around to all queries: layers with a sliding window that is shorter "
           "than the sequence have Ulysses or whole sequences.";
  const std::int64_t tokens = layer.tokens.of(sequence);
  if (even_tokens && tokens % spec.context != 0) return "the context degree does not divide the sequence.";
  if (const std::string_view why = why_no_shares(layer, spec, ratios); !why.empty()) return why;
  for (int i = 0; i < most_parts && even_tokens; ++i)
    if (!splits_sequence_evenly(spec, layer.before(i).tokens.of(sequence)) ||
        !splits_sequence_evenly(spec, layer.after(i).tokens.of(sequence)))
      return spec.sequence == SequenceKind::ring
                 ? "ring attention gives a rank two chunks of a sequence: twice the context degree divides it."
                 : "Megatron sequence parallelism needs a sequence that the tensor degree divides; with Ulysses, the "
                   "product of both degrees; with ring attention, twice that.";
  if (samples % spec.data != 0) return "the data degree does not divide the samples of a micro-batch.";
  return {};
}

constexpr bool is_fit(const LayerSpec& layer, const StrategySpec& spec, std::int64_t samples, std::int64_t sequence,
                      const RankRatios& ratios = {}) {
  return why_unfit(layer, spec, samples, sequence, ratios).empty();
}

/// True when zb-h1 defers the weight gradients of a layer: of blocks that keep all that backward needs. Of a layer
/// that recomputes it the second part would recompute it once more, or keep it after all: its backward comes in one
/// part, as that of the embedding, whose input has no gradient, and of the head, whose backward is done in forward. So
/// does that of a frozen layer: the products of adapters are too few to fill a bubble with.
constexpr bool splits_backward(RecomputeKind recompute) {
  return recompute == RecomputeKind::cheap || recompute == RecomputeKind::none;
}
constexpr bool splits_backward(const LayerSpec& layer, const StrategySpec& spec) {
  return (layer.is_plain_block() || layer.forward_pass != nullptr) && !layer.frozen && splits_backward(spec.recompute);
}

}  // namespace galvatron
