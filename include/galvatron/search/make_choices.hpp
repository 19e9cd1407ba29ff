// The strategies that a stage may have, and the choices of a layer: what it costs and keeps under each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/layer_pricer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/fronts.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search::detail {

/// What all cases of one pipeline degree share.
struct StageSetting {
  int stages = 1;
  int ranks = 1;  // of a stage
  std::vector<StrategySpec> specs;
  std::vector<int> same_block;        // of each spec, the first that is the same for a block without experts
  std::vector<int> same_end;          // and for an embedding or a head
  std::vector<int> layout;            // of each spec
  std::vector<StrategySpec> like;     // a spec of each layout
  std::vector<cost::Relayout> moves;  // all that differ, ascending
  std::vector<int> move;              // (layouts, layouts) which of them

  constexpr StageSetting() = default;
  /// @param candidates  for a stage of so many ranks
  constexpr StageSetting(int stage_count, int stage_ranks, std::vector<StrategySpec> candidates)
      : stages(stage_count), ranks(stage_ranks), specs(std::move(candidates)) {
    std::vector<ActivationLayout> layouts;
    std::array<std::array<int, 4 * recompute_kinds.size()>, 2> first{};  // from 1, of specs with the layout of the last
    for (const StrategySpec& spec : specs) {
      const std::size_t i = same_end.size();
      if (i == 0 || !(spec.layout_degrees() == specs[i - 1].layout_degrees())) first = {};
      const auto first_of = [i](int& of) { return (of == 0 ? of = static_cast<int>(i) + 1 : of) - 1; };
      const int zero = spec.zero * static_cast<int>(recompute_kinds.size());
      same_block.push_back(first_of(nth(first[0], zero + static_cast<int>(spec.recompute))));
      same_end.push_back(first_of(nth(first[1], zero)));
      const ActivationLayout wanted = activation_layout(spec, 0, 1, 1);
      std::size_t at = layouts.size();  // most have the layout of the one before
      while (at > 0 && !(layouts[at - 1] == wanted)) --at;
      if (at == 0) {
        layouts.push_back(wanted);
        like.push_back(spec);
        at = layouts.size();
      }
      layout.push_back(static_cast<int>(at) - 1);
    }
    // Between the layouts of a stage are tens of thousands of moves, of which a few hundred differ.
    const std::size_t count = layouts.size();
    std::vector<cost::Relayout> all(count * count);
    for (std::size_t from = 0; from < count; ++from)
      for (std::size_t to = 0; to < from; ++to) {
        const cost::Relayouts both = cost::relayouts_between(layouts[from], layouts[to]);
        all[from * count + to] = both.forward;
        all[to * count + from] = both.back;
      }
    moves = all;
    sort_unique(moves);
    for (const cost::Relayout& one : all)
      move.push_back(static_cast<int>(std::ranges::lower_bound(moves, one) - moves.begin()));
  }
};

/// Whether samples can be divided where `spec` divides sequences: the strategy with context ranks as data ranks. It has
/// the same tokens, states and gradients on every rank and no messages of context ranks, so `spec` is not needed.
constexpr bool divides_samples_instead(const StrategySpec& spec, const LayerSpec& layer, const Space& space,
                                       const cost::Batch& batch) {
  if (spec.context == 1) return false;
  StrategySpec other = spec;
  other.data = spec.data * spec.context;
  other.context = 1;
  other.sequence = spec.cuts_over_tensor() ? SequenceKind::megatron : SequenceKind::none;
  return space.context.allows(1) && space.data.allows(other.data) &&
         is_fit(layer, other, batch.microbatch, batch.sequence) &&
         (spec.tensor == 1 || spec.cuts_over_tensor() ||
          std::find(space.sequence.begin(), space.sequence.end(), SequenceKind::none) != space.sequence.end());
}

/// Whether 64 bits count the bytes of the largest tensor of a rank, which no device has anyway.
constexpr bool has_countable_bytes(const StrategySpec& spec, const LayerSpec& layer, const cost::Batch& batch) {
  const std::int64_t widest = std::max({layer.ffn, layer.hidden, layer.vocabulary, layer.heads * batch.sequence});
  const std::int64_t samples = batch.microbatch / spec.data;  // it divides them
  return static_cast<double>(samples) * static_cast<double>(batch.sequence) * static_cast<double>(widest) < 0x1p56;
}

/// What an embedding and a head with copies of a tied table cost where these are on the two sides of a link.
struct TiedPrices {
  const Link* ends = nullptr;
  std::vector<double> embedding;  ///< Choice::synchronise of its choices
  std::vector<double> head;       ///< and of the head's
};

/// The choices of one kind of layers, by the strategies of a setting that it can have and that no other one replaces.
/// @param same  of each strategy, the one that stands for it; empty: each for itself
/// @param tied  their links given; what an embedding and a head cost is added
constexpr LayerType make_choices(const cost::LayerPrograms& programs, const StageSetting& setting,
                                 std::span<const int> same, const Space& space, const cost::Batch& batch,
                                 const Cluster& cluster, cost::WorkPrices& prices, cost::PassPrices& passes,
                                 std::span<TiedPrices> tied) {
  const LayerSpec& layer = programs.layer();
  cost::LayerPricer price(programs, batch, cluster, prices, passes);
  StrategySpec degrees{.tensor = 0};  // of which the layer fits, or not
  bool fits = false;
  LayerType out;
  for (std::size_t i = 0; i < setting.specs.size(); ++i) {
    if (!same.empty() && same[i] != static_cast<int>(i)) continue;
    const StrategySpec spec = layer.experts == 0 ? setting.specs[i].without_experts() : setting.specs[i];
    if (!(spec.degrees() == degrees)) {
      degrees = spec.degrees();
      fits = is_fit(layer, spec, batch.microbatch, batch.sequence) &&
             !divides_samples_instead(spec, layer, space, batch) && has_countable_bytes(spec, layer, batch);
    }
    if (!fits) continue;
    const cost::PricedLayer priced = price(spec);
    const cost::LayerBytes& bytes = priced.bytes;
    const cost::LayerSeconds seconds = cost::layer_seconds(priced.prices, cluster);
    out.push_back(
        {.forward = seconds.forward.value,
         .backward = seconds.backward.value,
         .weights = seconds.weights.value,
         .synchronise = seconds.synchronise.value,
         .update = seconds.update.value,
         .states = bytes.states.count,
         .stash = bytes.stash.count,
         .deferred = bytes.deferred.count,
         .forward_workspace = bytes.forward_workspace.count,
         .backward_workspace = max(bytes.backward_workspace, bytes.weights_workspace - bytes.activation).count,
         .input = bytes.input.count,
         .activation = bytes.activation.count,
         .pass_through = bytes.pass_through.count,
         .layout = setting.layout[i],
         .tag = static_cast<int>(i)});
    if (layer.kind == LayerKind::block) continue;
    for (TiedPrices& over : tied)
      (layer.kind == LayerKind::head ? over.head : over.embedding)
          .push_back(cost::layer_seconds(price.over(*over.ends, spec, priced).prices, cluster).synchronise.value);
  }
  return out;
}

}  // namespace galvatron::search::detail
