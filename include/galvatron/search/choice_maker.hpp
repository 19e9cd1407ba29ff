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
#include <galvatron/cost/layer_pricer.hpp>
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
  std::vector<int> same_block;        // of each spec, the first that is the same for a block without experts
  std::vector<int> same_end;          // and for an embedding or a head
  std::vector<int> layout;            // of each spec
  std::vector<StrategySpec> like;     // a spec of each layout
  std::vector<cost::Relayout> moves;  // all that differ
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

/// Makes the choices of one kind of layers.
class ChoiceMaker {
 public:
  /// The parameters are those of cost::LayerPricer.
  constexpr ChoiceMaker(const cost::LayerPrograms& programs, const Space& space, const cost::Batch& batch,
                        const Cluster& cluster, cost::WorkPrices& prices, cost::PassPrices& passes)
      : layer_(programs.layer()),
        space_(space),
        batch_(batch),
        cluster_(cluster),
        price_(programs, batch, cluster, prices, passes) {}

  /// All of a choice but its layout and tag; nothing where the layer cannot be spread so or another strategy replaces
  /// this one.
  constexpr std::optional<Choice> operator()(StrategySpec spec) {
    if (layer_.experts == 0) spec = spec.without_experts();
    if (const StrategySpec degrees = spec.degrees(); !(degrees == degrees_)) {
      degrees_ = degrees;
      fits_ = is_fit(layer_, spec, batch_.microbatch, batch_.sequence) &&
              !divides_samples_instead(spec, layer_, space_, batch_) && has_countable_bytes(spec);
    }
    if (!fits_) return std::nullopt;
    const auto [prices, bytes] = price_(spec);
    const cost::LayerSeconds seconds = cost::layer_seconds(prices, cluster_);
    return Choice{.forward = seconds.forward.value,
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
                  .pass_through = bytes.pass_through.count};
  }
  /// Choice::synchronise of the choice made last, of an embedding or a head whose copies of a tied table are on the two
  /// sides of `ends`.
  [[nodiscard]] constexpr double synchronise_over(const Link& ends, const StrategySpec& spec) {
    return cost::layer_seconds(price_.over(ends, spec).prices, cluster_).synchronise.value;
  }

 private:
  // Whether 64 bits count the bytes of the largest tensor of a rank, which no device has anyway.
  [[nodiscard]] constexpr bool has_countable_bytes(const StrategySpec& spec) const {
    const std::int64_t widest =
        std::max({layer_.ffn, layer_.hidden, layer_.vocabulary, layer_.heads * batch_.sequence});
    const std::int64_t samples = batch_.microbatch / spec.data;  // it divides them
    const double tokens = static_cast<double>(samples) * static_cast<double>(batch_.sequence);
    return tokens * static_cast<double>(widest) < 0x1p56;
  }

  const LayerSpec& layer_;
  const Space& space_;
  const cost::Batch& batch_;
  const Cluster& cluster_;
  cost::LayerPricer price_;
  StrategySpec degrees_{.tensor = 0};  // of which the layer fits, or not
  bool fits_ = false;
};

}  // namespace galvatron::search::detail
