// What a trainer can be told, as limits of a search.
#pragma once

#include <algorithm>
#include <cstddef>

#include <galvatron/cost/trainer.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron::search {

/// The part of a search's space and schedules that its trainer can be told. Kinds of which none is left are those of
/// the trainer.
inline SearchOptions within_trainer(SearchOptions options) {
  const cost::Expressible& told = options.trainer.expressible;
  Space& space = options.space;
  if (told.target != OneForAll::no) {
    if (space.one_for_all == OneForAll::no || space.one_for_all == OneForAll::uniform) space.one_for_all = told.target;
    space.strided = false;
    space.by_nodes = false;
    space.spread = false;
  }
  const auto keep = [](auto& items, const auto& known) {
    std::erase_if(items, [&](auto item) { return std::ranges::find(known, item) == known.end(); });
    if (items.empty()) items.assign(known.begin(), known.end());
  };
  keep(options.schedules, told.schedules);
  keep(space.sequence, told.sequence);
  keep(space.recompute, told.recompute);
  for (std::size_t stage = 0; stage < space.zero.size(); ++stage) space.zero[stage] &= told.zero[stage];
  if (std::ranges::find(space.zero, true) == space.zero.end()) space.zero = told.zero;
  if (!told.tensor) space.tensor = {.open = false};
  if (!told.context) space.context = {.open = false};
  if (!told.pipeline) space.pipeline = {.open = false};
  if (!told.experts) space.expert = space.expert_tensor = {.open = false};
  return options;
}

/// True when a search may choose what its trainer cannot be told.
inline bool leaves_trainer(const SearchOptions& options) {
  const SearchOptions within = within_trainer(options);
  return within.space != options.space || within.schedules != options.schedules;
}

}  // namespace galvatron::search
