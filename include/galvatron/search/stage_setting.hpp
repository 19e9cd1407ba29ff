// StageSetting: the strategies that a stage may have, their layouts, and the relayouts between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <galvatron/cost/relayout.hpp>
#include <galvatron/strategy/layout.hpp>
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
    const auto less = [](const std::pair<cost::Relayout, int>& a, const cost::Relayout& b) {
      return a.first.share != b.share ? a.first.share < b.share : a.first.span < b.span;
    };
    move.reserve(layouts.size() * layouts.size());
    for (const ActivationLayout& from : layouts)
      for (const ActivationLayout& to : layouts) {
        const cost::Relayout one = cost::relayout_of(from, to);
        auto at = std::lower_bound(known.begin(), known.end(), one, less);
        if (at == known.end() || !(at->first == one)) {
          at = known.insert(at, {one, static_cast<int>(moves.size())});
          moves.push_back(one);
        }
        move.push_back(at->second);
      }
  }
};

}  // namespace galvatron::search::detail
