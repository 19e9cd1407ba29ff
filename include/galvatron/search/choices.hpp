// The choices of a layer type: which of them others dominate, what neighbours see of them, and those of tied ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/search/fronts.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// What decides whether one choice dominates another, computed once for each.
struct ChoiceFigures {
  std::int32_t layout = 0;
  Terms terms;
  std::array<std::int64_t, 7> bytes{};  ///< kept in each of two numbers of slots, then what does not depend on these
  std::int32_t index = 0;               ///< of the choice in its type

  constexpr ChoiceFigures(const Choice& c, const Objective& objective, const Slots& least, const Slots& most,
                          std::int32_t number)
      : layout(c.layout),
        terms(objective.terms_of(c)),
        bytes{least.kept(c), most.kept(c), c.backward_workspace, c.forward_workspace,
              c.activation,  c.input,      c.pass_through},
        index(number) {}
  /// None is behind one that it dominates.
  friend constexpr auto operator<=>(const ChoiceFigures&, const ChoiceFigures&) = default;
  /// In both numbers of slots, and so in all between them.
  friend constexpr bool dominates(const ChoiceFigures& a, const ChoiceFigures& b) {
    for (std::size_t i = 0; i < a.bytes.size(); ++i)
      if (a.bytes[i] > b.bytes[i]) return false;
    return a.layout == b.layout && dominates(a.terms, b.terms);
  }
};

/// The choices, by index, that no other one with their layout dominates in both numbers of slots and so in all between
/// them; of equals the first.
/// @param tag  only choices with this tag; all when it is negative
constexpr std::vector<std::int32_t> non_dominated_choices(const LayerType& type, const Objective& objective,
                                                          const Slots& least, const Slots& most, int tag = -1) {
  std::vector<std::vector<ChoiceFigures>> of_layout;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(type.size()); ++i) {
    const Choice& c = nth(type, i);
    if (tag >= 0 && c.tag != tag) continue;
    of_layout.resize(std::max(of_layout.size(), static_cast<std::size_t>(c.layout) + 1));
    nth(of_layout, c.layout).emplace_back(c, objective, least, most, i);
  }
  std::vector<std::int32_t> out;
  for (std::vector<ChoiceFigures>& all : of_layout) {
    std::sort(all.begin(), all.end());
    keep_non_dominated(all);
    for (const ChoiceFigures& one : all) out.push_back(one.index);
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

/// Of the first and the last.
using EndFigures = std::pair<ChoiceFigures, ChoiceFigures>;
constexpr bool dominates(const EndFigures& a, const EndFigures& b) {
  return dominates(a.first, b.first) && dominates(a.second, b.second);
}

/// The strategies of tied ends that no other dominates at both ends, in the order of `types`; one "any" without a tie.
constexpr std::vector<TiedEnds> tied_ends(const Problem& p) {
  if (!p.tied || p.count() < 2) return {TiedEnds{}};
  const LayerType& first = p.on(0).type_of(0);
  const LayerType& last = p.on(p.stages() - 1).type_of(p.count() - 1);
  const auto figures = [&](const LayerType& type, std::size_t index, const Slots& slots) {
    return ChoiceFigures(type[index], p.objective, slots, slots, static_cast<std::int32_t>(index));
  };
  std::vector<EndFigures> kept;
  std::size_t at = 0;  // both types have their tags in ascending order
  for (std::size_t i = 0; i < first.size(); ++i) {
    while (at < last.size() && last[at].tag < first[i].tag) ++at;
    if (at < last.size() && last[at].tag == first[i].tag)
      kept.emplace_back(figures(first, i, p.slots_at(0, 0)),
                        figures(last, at, p.slots_at(p.stages() - 1, p.count() - 1)));
  }
  std::sort(kept.begin(), kept.end());
  keep_non_dominated(kept);
  std::ranges::sort(kept, {}, [](const EndFigures& ends) { return ends.first.index; });
  std::vector<TiedEnds> out;
  for (const EndFigures& ends : kept) {
    const Choice& one = nth(first, ends.first.index);
    out.push_back({one.tag, one, nth(last, ends.second.index)});
  }
  return out;
}

/// Drops the choices that others dominate on every stage, and those of tied ends that no assignment needs.
constexpr void drop_dominated(Problem& p) {
  if (p.tied && p.count() > 1) {
    const std::vector<TiedEnds> kept = tied_ends(p);
    LayerType& first = nth(p.of_kind(p.device_kind(0)).types, p.layers.front());
    LayerType& last = nth(p.of_kind(p.device_kind(p.stages() - 1)).types, p.layers.back());
    first.clear();
    last.clear();
    for (const TiedEnds& one : kept) {
      first.push_back(one.first);
      last.push_back(one.last);
    }
  }
  // What a layer keeps is linear in the slots between the least and the most: more is deferred only where all stages
  // have equally many micro-batches in flight.
  Slots least = p.slots.front();
  Slots most = least;
  for (const Slots& own : p.slots) {
    least = min(least, own);
    most = {std::max(most.flight, own.flight), std::max(most.deferred, own.deferred)};
  }
  for (int kind = 0; kind < p.device_kinds(); ++kind)
    for (LayerType& type : p.of_kind(kind).types) {
      const auto number = &type - p.of_kind(kind).types.data();
      if (p.tied && (p.layers.front() == number || p.layers.back() == number)) continue;
      LayerType kept;
      for (const std::int32_t j : non_dominated_choices(type, p.objective, least, most)) kept.push_back(nth(type, j));
      type = std::move(kept);
    }
}

/// Choices of which the layers before and after them see the same.
struct ChoiceClass {
  int layout = 0;
  std::int64_t input = 0;
  std::int64_t pass_through = 0;
  std::int64_t activation = 0;
  std::int64_t forward_workspace = 0;  ///< 0 where backward needs no less: then that bounds a re-layout after it
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
                                                  int tag, std::int64_t most_workspace) {
  std::vector<ChoiceClass> out;
  const auto order = [](const ChoiceClass& c) {
    return std::tie(c.layout, c.input, c.pass_through, c.activation, c.forward_workspace);
  };
  for (const std::int32_t i : non_dominated_choices(type, objective, slots, slots, tag)) {
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
