// The choices of a layer type: which of them others dominate, what neighbours see of them, and those of tied ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// Whether `a` may stand for `b` in any assignment with so many micro-batches in flight without making it slower or
/// larger.
constexpr bool dominates(const Choice& a, const Choice& b, const Objective& objective, const Slots& slots,
                         bool memory_only = false) {
  if (a.layout != b.layout || a.input > b.input || a.pass_through > b.pass_through || a.activation > b.activation ||
      slots.kept(a) > slots.kept(b) || a.forward_workspace > b.forward_workspace ||
      a.backward_workspace > b.backward_workspace)
    return false;
  if (memory_only) return true;
  return dominates(objective.terms_of(a), objective.terms_of(b));
}

/// The choices, by index, that no other one dominates; of equals the first.
/// @param tag        only choices with this tag; all when it is negative
/// @param least      (choice) -> a number that is never larger of a choice than of one that it dominates
/// @param dominates  (a, b) whether a may stand for b, which has the same layout
template <class Least, class Dominates>
constexpr std::vector<std::int32_t> non_dominated_choices(const LayerType& type, int tag, Least least,
                                                          Dominates dominates) {
  struct Place {
    std::int32_t layout = 0;
    double least = 0;
    std::int32_t index = 0;
    constexpr auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> order;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(type.size()); ++i)
    if (const Choice& c = nth(type, i); tag < 0 || c.tag == tag) order.push_back({c.layout, least(c), i});
  std::sort(order.begin(), order.end());
  std::vector<std::int32_t> kept;
  std::ptrdiff_t first = 0;  // of those with the same layout
  std::ptrdiff_t same = 0;   // of them, of those with the same number: only these can be dominated by one that follows
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && order[i - 1].layout != order[i].layout) first = std::ssize(kept);
    if (i > 0 && (order[i - 1].layout != order[i].layout || order[i - 1].least != order[i].least))
      same = std::ssize(kept);
    const Choice& c = nth(type, order[i].index);
    if (std::any_of(kept.begin() + first, kept.end(), [&](std::int32_t j) { return dominates(nth(type, j), c); }))
      continue;
    kept.erase(
        std::remove_if(kept.begin() + same, kept.end(), [&](std::int32_t j) { return dominates(c, nth(type, j)); }),
        kept.end());
    kept.push_back(order[i].index);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

/// A strategy of tied ends: an embedding and a head that share a weight have one.
struct TiedEnds {
  int tag = -1;  ///< -1: the ends are not tied, each has any choice
  Choice first;
  Choice last;
};

/// The strategies of tied ends that no other dominates at both ends, in the order of `types`; one "any" without a tie.
constexpr std::vector<TiedEnds> tied_ends(const Problem& p, bool memory_only = false) {
  if (!p.tied || p.count() < 2) return {TiedEnds{}};
  const LayerType& last = p.on(p.stages() - 1).type_of(p.count() - 1);
  const Slots first_slots = p.slots_of(0, 0);
  const Slots last_slots = p.slots_of(p.stages() - 1, p.chunks - 1);
  std::vector<TiedEnds> kept;
  std::size_t at = 0;  // both types have their tags in ascending order
  for (const Choice& first : p.on(0).type_of(0)) {
    while (at < last.size() && last[at].tag < first.tag) ++at;
    if (at == last.size() || last[at].tag != first.tag) continue;
    const TiedEnds ends{first.tag, first, last[at]};
    const auto stands_for = [&](const TiedEnds& a, const TiedEnds& b) {
      return dominates(a.first, b.first, p.objective, first_slots, memory_only) &&
             dominates(a.last, b.last, p.objective, last_slots, memory_only);
    };
    if (std::any_of(kept.begin(), kept.end(), [&](const TiedEnds& other) { return stands_for(other, ends); })) continue;
    std::erase_if(kept, [&](const TiedEnds& other) { return stands_for(ends, other); });
    kept.push_back(ends);
  }
  return kept;
}

/// Drops the choices that others dominate on every stage, but for those of tied ends.
constexpr void drop_dominated_choices(Problem& p) {
  // What a layer keeps is linear in the slots between the least and the most: more is deferred only where all stages
  // have equally many micro-batches in flight.
  Slots least = p.slots.front();
  Slots most = least;
  for (const Slots& own : p.slots) {
    least = min(least, own);
    most = {std::max(most.flight, own.flight), std::max(most.deferred, own.deferred)};
  }
  for (std::size_t i = 0; i < p.types.size(); ++i) {
    const int type = static_cast<int>(i);
    if (p.tied && (p.layers.front() == type || p.layers.back() == type)) continue;
    LayerType kept;
    for (const std::int32_t j : non_dominated_choices(
             p.types[i], -1, [&](const Choice& c) { return p.objective.terms_of(c).time; },
             [&](const Choice& a, const Choice& b) {
               return dominates(a, b, p.objective, least) && dominates(a, b, p.objective, most);
             }))
      kept.push_back(nth(p.types[i], j));
    p.types[i] = std::move(kept);
  }
}

/// Drops the choices that others dominate on every stage, and those of tied ends that no assignment needs.
constexpr void drop_dominated(Problem& p) {
  if (p.tied && p.count() > 1) {
    const std::vector<TiedEnds> kept = tied_ends(p);
    const auto ends = [&p](int stage) -> Problem& {
      return p.on_devices.empty() ? p : nth(p.on_devices, p.device_kind(stage));
    };
    LayerType& first = nth(ends(0).types, p.layers.front());
    LayerType& last = nth(ends(p.stages() - 1).types, p.layers.back());
    first.clear();
    last.clear();
    for (const TiedEnds& one : kept) {
      first.push_back(one.first);
      last.push_back(one.last);
    }
  }
  for (Problem& own : p.on_devices) drop_dominated_choices(own);
  if (p.on_devices.empty()) drop_dominated_choices(p);
}

/// Choices of which the layers before and after them see the same.
struct ChoiceClass {
  int layout = 0;
  std::int64_t input = 0;
  std::int64_t pass_through = 0;
  std::int64_t activation = 0;
  std::int64_t forward_workspace =
      0;  ///< 0 where backward needs no less: then that is what bounds a re-layout after it
  std::vector<std::int32_t> choices;

  /// The same labels arrive at both.
  [[nodiscard]] constexpr bool begins_like(const ChoiceClass& other) const {
    return layout == other.layout && input == other.input && pass_through == other.pass_through;
  }
};

/// The choices of a layer type that no others dominate, divided into classes; those that begin alike are neighbours.
/// @param tag             only choices with that tag, or all when it is negative
/// @param most_workspace  only choices with no more bytes
constexpr std::vector<ChoiceClass> choice_classes(const LayerType& type, const Objective& objective, const Slots& slots,
                                                  int tag, std::int64_t most_workspace, bool memory_only) {
  std::vector<ChoiceClass> out;
  const auto order = [](const ChoiceClass& c) {
    return std::tie(c.layout, c.input, c.pass_through, c.activation, c.forward_workspace);
  };
  const auto least = [&](const Choice& c) {
    return memory_only ? static_cast<double>(slots.kept(c)) : objective.terms_of(c).time;
  };
  for (const std::int32_t i : non_dominated_choices(type, tag, least, [&](const Choice& a, const Choice& b) {
         return dominates(a, b, objective, slots, memory_only);
       })) {
    const Choice& c = nth(type, i);
    if (workspace_of(c) > most_workspace) continue;
    const std::int64_t workspace = c.forward_workspace > c.backward_workspace ? c.forward_workspace : 0;
    const ChoiceClass own{c.layout, c.input, c.pass_through, c.activation, workspace, {}};
    auto found = std::find_if(out.begin(), out.end(), [&](const ChoiceClass& k) { return order(k) == order(own); });
    if (found == out.end()) found = out.insert(out.end(), own);
    found->choices.push_back(i);
  }
  std::sort(out.begin(), out.end(), [&](const ChoiceClass& a, const ChoiceClass& b) { return order(a) < order(b); });
  return out;
}

}  // namespace galvatron::search
