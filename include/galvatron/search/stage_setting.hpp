// StageSetting: the strategies that a stage of so many ranks may have, and the moves between their layouts.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/cost/relayout.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search::detail {

/// Numbers moves inside a stage in the order of their first appearance; equal ones have one number. Between the layouts
/// of a stage are tens of thousands, of which a few hundred differ.
class MoveNumbers {
 public:
  constexpr int operator()(const cost::Relayout& move) {
    if (2 * moves_.size() >= places_.size()) {
      places_.assign(std::max<std::size_t>(64, 2 * places_.size()), -1);
      for (std::size_t i = 0; i < moves_.size(); ++i) place_of(moves_[i]) = static_cast<int>(i);
    }
    int& number = place_of(move);
    if (number < 0) {
      number = static_cast<int>(moves_.size());
      moves_.push_back(move);
    }
    return number;
  }
  [[nodiscard]] constexpr std::vector<cost::Relayout>& moves() { return moves_; }

 private:
  // Where the number of a move is or belongs: a hash table with open addressing, whose size is a power of two.
  constexpr int& place_of(const cost::Relayout& move) {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(move.share) + static_cast<std::uint64_t>(move.span);
    const std::size_t last = places_.size() - 1;
    std::size_t at = (bits * 0x9e3779b97f4a7c15u >> 32) & last;
    while (places_[at] >= 0 && !(moves_[static_cast<std::size_t>(places_[at])] == move)) at = (at + 1) & last;
    return places_[at];
  }

  std::vector<cost::Relayout> moves_;
  std::vector<int> places_;  // numbers, or -1
};

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
    MoveNumbers number;
    move.reserve(layouts.size() * layouts.size());
    for (const ActivationLayout& from : layouts)
      for (const ActivationLayout& to : layouts) move.push_back(number(cost::relayout_of(from, to)));
    moves = std::move(number.moves());
  }
};

/// A setting for each strategy alone, so that a case has no other.
inline std::vector<StageSetting> one_by_one(const std::vector<StageSetting>& settings) {
  std::vector<StageSetting> out;
  for (const StageSetting& setting : settings)
    for (const StrategySpec& spec : setting.specs) out.emplace_back(setting.stages, setting.ranks, std::vector{spec});
  return out;
}

}  // namespace galvatron::search::detail
