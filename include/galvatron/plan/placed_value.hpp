// PlacedValue: a value on any ranks of the world, and what of it one rank gives another when it moves to other ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/strategy/layout.hpp>

namespace galvatron {

/// `layout` numbers the ranks from 0 and is not in zigzag. The first token of the value is token `first` of the
/// sequence that both sides of a move have in common.
struct PlacedValue {
  std::span<const int> ranks;
  ActivationLayout layout;
  std::int64_t first = 0;

  /// The number of a rank of the world; -1: it has nothing of the value.
  [[nodiscard]] int local(int rank) const {
    const auto found = std::ranges::find(ranks, rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  [[nodiscard]] int world(int local) const { return ranks[static_cast<std::size_t>(local)]; }
  /// What a rank holds, in the common sequence.
  [[nodiscard]] Region region(int local) const {
    Region out = layout.region(local);
    out.sequence_begin += first;
    out.sequence_end += first;
    return out;
  }
  /// The same of all ranks.
  [[nodiscard]] std::vector<Region> regions() const {
    std::vector<Region> out;
    for (int local = 0; local < layout.ranks(); ++local) out.push_back(region(local));
    return out;
  }
};

/// What `sender` of `from` gives `receiver` of `to`, both by their numbers there; empty for most. Of replicas that hold
/// what a rank wants, that rank itself gives it if it is one of them, and else the replicas take turns.
inline Region moved_between(const PlacedValue& from, const PlacedValue& to, int sender, int receiver) {
  const Region moved = intersection(from.region(sender), to.region(receiver));
  if (moved.empty() || from.layout.replicas == 1) return moved;
  const ActivationLayout::Place own = from.layout.place(sender);
  if (const int same = from.local(to.world(receiver)); same >= 0)
    if (const ActivationLayout::Place place = from.layout.place(same); place.part == own.part && place.data == own.data)
      return same == sender ? moved : Region{};
  return own.replica == receiver % from.layout.replicas ? moved : Region{};
}

}  // namespace galvatron
