// The strategies that a stage may have, and the choices of a layer: what it costs and keeps under each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/options.hpp>
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
  std::vector<int> layout;            // of each spec
  std::vector<StrategySpec> like;     // a spec of each layout
  std::vector<cost::Relayout> moves;  // all that differ
  std::vector<int> move;              // (layouts, layouts) which of them

  constexpr StageSetting() = default;
  /// @param candidates  for a stage of so many ranks
  constexpr StageSetting(int stage_count, int stage_ranks, std::vector<StrategySpec> candidates)
      : stages(stage_count), ranks(stage_ranks), specs(std::move(candidates)) {
    std::vector<ActivationLayout> layouts;
    for (const StrategySpec& spec : specs) {
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
    std::vector<std::pair<cost::Relayout, int>> known;  // ascending, with its number
    move.reserve(layouts.size() * layouts.size());
    for (const ActivationLayout& from : layouts)
      for (const ActivationLayout& to : layouts) {
        const cost::Relayout one = cost::relayout_of(from, to);
        auto at = std::lower_bound(known.begin(), known.end(), std::pair(one, 0));
        if (at == known.end() || !(at->first == one)) {
          at = known.insert(at, {one, static_cast<int>(moves.size())});
          moves.push_back(one);
        }
        move.push_back(at->second);
      }
  }
};

/// Whether samples can be divided where `spec` divides sequences: the strategy with context ranks as data ranks. It has
/// the same tokens, states and gradients on every rank and no messages inside the layer, so `spec` is not needed.
constexpr bool divides_samples_instead(const StrategySpec& spec, const LayerSpec& layer, const Space& space,
                                       const cost::Batch& batch) {
  if (spec.context == 1) return false;
  StrategySpec other = spec;
  other.data = spec.data * spec.context;
  other.context = 1;
  other.sequence = SequenceKind::none;
  return space.context.allows(1) && space.data.allows(other.data) &&
         is_fit(layer, other, batch.microbatch, batch.sequence) &&
         (spec.tensor == 1 ||
          std::find(space.sequence.begin(), space.sequence.end(), SequenceKind::none) != space.sequence.end());
}

/// Makes the choices of one kind of layers. Strategies of a block with the same degrees, one after the other, share
/// most of what is to be counted and priced: of ZeRO its passes depend on whether micro-batches add weight gradients or
/// write them, and its parameters do not depend on recomputation, nor does anything of an embedding and a head.
class ChoiceMaker {
 public:
  /// @param programs  of the layer under all strategies that it is asked about
  constexpr ChoiceMaker(const cost::LayerPrograms& programs, const Space& space, const cost::Batch& batch,
                        const Cluster& cluster, cost::WorkPrices& prices)
      : programs_(programs), space_(space), batch_(batch), cluster_(cluster), prices_(prices) {}

  /// All of a choice but its layout and tag; nothing where the layer cannot be spread so or another strategy replaces
  /// this one.
  constexpr std::optional<Choice> operator()(StrategySpec spec) {
    if (layer_.experts == 0) spec = spec.without_experts();
    if (const StrategySpec degrees = spec.degrees(); !(degrees == degrees_)) {
      degrees_ = degrees;
      fits_ = is_fit(layer_, spec, batch_.microbatch, batch_.sequence) &&
              !divides_samples_instead(spec, layer_, space_, batch_) && has_countable_bytes(spec);
      passes_ = {};
      parameters_ = {};
    }
    if (!fits_) return std::nullopt;
    const bool is_block = layer_.kind == LayerKind::block;
    const int writes = spec.zero >= 2 && batch_.microbatches > 1 ? 1 : 0;  // of one micro-batch, all do
    std::optional<Part>& passes = nth(passes_, is_block ? 2 * static_cast<int>(spec.recompute) + writes : spec.zero);
    if (!passes) passes = part_of(cost::pass_counts(spec, batch_, programs_.of(spec, batch_)), spec);
    if (!is_block) return choice_of(*passes, Part());
    const bool splits = batch_.splits_backward && splits_backward(layer_, spec);
    std::optional<Part>& parameters = parameters_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!parameters) parameters = part_of(cost::parameter_counts(spec, batch_, programs_.of(spec, batch_)), spec);
    return choice_of(*passes, *parameters);
  }

 private:
  // The passes of a layer or its parameters.
  struct Part {
    cost::LayerPrices prices;
    Choice bytes;  // its seconds are not set
    std::int64_t weights_workspace = 0;
  };

  // Whether 64 bits count the bytes of the largest tensor of a rank, which no device has anyway.
  [[nodiscard]] constexpr bool has_countable_bytes(const StrategySpec& spec) const {
    const std::int64_t widest =
        std::max({layer_.ffn, layer_.hidden, layer_.vocabulary, layer_.heads * batch_.sequence});
    const std::int64_t samples = batch_.microbatch / spec.data;  // it divides them
    const double tokens = static_cast<double>(samples) * static_cast<double>(batch_.sequence);
    return tokens * static_cast<double>(widest) < 0x1p56;
  }
  [[nodiscard]] constexpr Part part_of(const cost::LayerCounts& counts, const StrategySpec& spec) const {
    return {.prices = cost::layer_prices(counts, spec, cluster_, prices_),
            .bytes = {.states = counts.states.count,
                      .stash = counts.stash.count,
                      .deferred = counts.deferred.count,
                      .forward_workspace = counts.forward_workspace.count,
                      .backward_workspace = counts.backward_workspace.count,
                      .input = counts.input.count,
                      .activation = counts.activation.count,
                      .pass_through = counts.pass_through.count},
            .weights_workspace = counts.weights_workspace.count};
  }
  [[nodiscard]] constexpr Choice choice_of(const Part& passes, const Part& parameters) const {
    const cost::LayerSeconds seconds = cost::layer_seconds(passes.prices + parameters.prices, cluster_);
    Choice choice = passes.bytes;
    choice.forward = seconds.forward.value;
    choice.backward = seconds.backward.value;
    choice.weights = seconds.weights.value;
    choice.synchronise = seconds.synchronise.value;
    choice.update = seconds.update.value;
    choice.states += parameters.bytes.states;
    choice.forward_workspace += parameters.bytes.forward_workspace;
    choice.backward_workspace = std::max(passes.bytes.backward_workspace + parameters.bytes.backward_workspace,
                                         passes.weights_workspace + parameters.weights_workspace - choice.activation);
    return choice;
  }

  const cost::LayerPrograms& programs_;
  const LayerSpec& layer_ = programs_.layer();
  const Space& space_;
  const cost::Batch& batch_;
  const Cluster& cluster_;
  cost::WorkPrices& prices_;
  StrategySpec degrees_{.tensor = 0};  // of the parts
  bool fits_ = false;
  // By what is recomputed, and whether all micro-batches write weight gradients; ends: by ZeRO.
  std::array<std::optional<Part>, std::max<std::size_t>(2 * recompute_kinds.size(), 4)> passes_{};
  std::array<std::optional<Part>, 8> parameters_{};  // by stage of ZeRO, and whether backward is split
};

}  // namespace galvatron::search::detail
