// The choices of a layer type: which of them others dominate, what neighbours see of them, and those of tied ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// What decides whether one choice dominates another with its layout, computed once for each.
struct ChoiceFigures {
  std::array<std::int64_t, 7> bytes{};  ///< kept in each of two numbers of slots, then what does not depend on these
  Terms terms;                          ///< none where memory alone counts
  std::int32_t index = 0;               ///< of the choice in its type

  constexpr ChoiceFigures(const Choice& c, const Objective& objective, const Slots& least, const Slots& most,
                          bool memory_only, std::int32_t number = 0)
      : bytes{least.kept(c), most.kept(c), c.backward_workspace, c.forward_workspace,
              c.activation,  c.input,      c.pass_through},
        index(number) {
    if (!memory_only) terms = objective.terms_of(c);
  }
  /// In both numbers of slots, and so in all between them.
  [[nodiscard]] constexpr bool stands_for(const ChoiceFigures& other) const {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] > other.bytes[i]) return false;
    return dominates(terms, other.terms);
  }
};

/// Whether `a` may stand for `b` in any assignment with so many micro-batches in flight without making it slower or
/// larger.
constexpr bool dominates(const Choice& a, const Choice& b, const Objective& objective, const Slots& slots,
                         bool memory_only = false) {
  const auto figures = [&](const Choice& c) { return ChoiceFigures(c, objective, slots, slots, memory_only); };
  return a.layout == b.layout && figures(a).stands_for(figures(b));
}

/// The choices, by index, that no other one with their layout dominates in both numbers of slots and so in all between
/// them; of equals the first.
/// @param tag  only choices with this tag; all when it is negative
constexpr std::vector<std::int32_t> non_dominated_choices(const LayerType& type, const Objective& objective,
                                                          const Slots& least, const Slots& most, int tag = -1,
                                                          bool memory_only = false) {
  struct Place {
    double number = 0;  // never larger of a choice than of one that it dominates
    std::int32_t index = 0;
    constexpr bool operator<(const Place& other) const {
      return number != other.number ? number < other.number : index < other.index;
    }
  };
  std::vector<std::vector<Place>> of_layout;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(type.size()); ++i) {
    const Choice& c = nth(type, i);
    if (tag >= 0 && c.tag != tag) continue;
    const auto layout = static_cast<std::size_t>(c.layout);
    if (layout >= of_layout.size()) of_layout.resize(layout + 1);
    of_layout[layout].push_back({memory_only ? static_cast<double>(least.kept(c)) : objective.terms_of(c).time, i});
  }
  std::vector<std::int32_t> out;
  std::vector<ChoiceFigures> kept;  // of those with the same layout
  for (std::vector<Place>& order : of_layout) {
    std::sort(order.begin(), order.end());
    kept.clear();
    std::ptrdiff_t same = 0;  // of them, of those with the same number: only these can be dominated by one that follows
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && order[i - 1].number != order[i].number) same = std::ssize(kept);
      const ChoiceFigures own(nth(type, order[i].index), objective, least, most, memory_only, order[i].index);
      if (std::any_of(kept.begin(), kept.end(), [&](const ChoiceFigures& other) { return other.stands_for(own); }))
        continue;
      kept.erase(std::remove_if(kept.begin() + same, kept.end(),
                                [&](const ChoiceFigures& other) { return own.stands_for(other); }),
                 kept.end());
      kept.push_back(own);
    }
    for (const ChoiceFigures& one : kept) out.push_back(one.index);
  }
  std::sort(out.begin(), out.end());
  return out;
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
    for (const std::int32_t j : non_dominated_choices(p.types[i], p.objective, least, most))
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
  for (const std::int32_t i : non_dominated_choices(type, objective, slots, slots, tag, memory_only)) {
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
