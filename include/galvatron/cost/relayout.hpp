// What it costs to move activations from one layout to another, and from one stage to the next.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <galvatron/strategy/layout.hpp>

namespace galvatron::cost {

namespace detail {

/// HeldRegions by parts and by data ranks, for who asks of all ranks.
class RegionTable {
 public:
  constexpr explicit RegionTable(const HeldRegions& held) : held_(held) {
    for (int part = 0; part < layout().parts; ++part)
      for (int piece = 0; piece < layout().pieces(); ++piece) tokens_.push_back(held.of({.part = part}, piece));
    for (int data = 0; data < layout().data; ++data) samples_.push_back(held.of({.data = data}, 0));
  }

  [[nodiscard]] constexpr const ActivationLayout& layout() const { return held_.layout(); }
  [[nodiscard]] constexpr ActivationLayout::Place place(int rank) const { return held_.place(rank); }
  [[nodiscard]] constexpr Region of(const ActivationLayout::Place& at, int piece) const {
    const Region& tokens = tokens_[static_cast<std::size_t>(at.part * layout().pieces() + piece)];
    const Region& samples = samples_[static_cast<std::size_t>(at.data)];
    return {tokens.sequence_begin, tokens.sequence_end, samples.batch_begin, samples.batch_end};
  }

 private:
  const HeldRegions& held_;
  std::vector<Region> tokens_;   // (parts, pieces)
  std::vector<Region> samples_;  // (data ranks)
};

/// Tokens that `rank` wants in `to` and has already in `from`.
/// @tparam Regions  HeldRegions or RegionTable
template <class Regions>
constexpr std::int64_t kept_tokens(const Regions& from, const Regions& to, int rank) {
  if (!from.layout().holds(rank)) return 0;
  const ActivationLayout::Place had = from.place(rank);
  const ActivationLayout::Place wanted = to.place(rank);
  std::int64_t sum = 0;
  for (int i = 0; i < from.layout().pieces(); ++i)
    for (int j = 0; j < to.layout().pieces(); ++j) {
      const Region both = intersection(from.of(had, i), to.of(wanted, j));
      if (both.batch_end <= both.batch_begin) return 0;  // other samples in every piece
      if (!both.empty()) sum += both.tokens();
    }
  return sum;
}

/// Whether every rank keeps the same number of tokens: of the parts of samples and of sequences that a rank has before
/// and after, one contains the other, or each half of a sequence has one of the two chunks that a rank holds in zigzag.
constexpr bool keep_alike(const ActivationLayout& from, const ActivationLayout& to) {
  if (from.outer > 1 || to.outer > 1) {  // only where samples are all with every rank, and tokens likewise or unmoved
    const auto innermost = [](const ActivationLayout& a) { return (a.replicas > 1) == (a.outer > 1); };
    const bool unmoved =
        from.parts == to.parts && from.zigzag == to.zigzag && from.cut == to.cut && innermost(from) && innermost(to);
    return (from.data == 1 || to.data == 1) && (from.parts == 1 || to.parts == 1 || unmoved);
  }
  const auto nested = [](int a, int b) { return a % b == 0 || b % a == 0; };
  if (!nested(from.data, to.data)) return false;
  if (from.parts == 1 || to.parts == 1) return true;
  const auto halves = [](const ActivationLayout& a, const ActivationLayout& b) {
    return a.parts == 2 && !a.zigzag && b.zigzag && b.cut == 1;
  };
  if (halves(from, to) || halves(to, from)) return true;
  if (from.data != to.data || from.zigzag != to.zigzag) return false;
  return from.cut > 1 || to.cut > 1 ? from.parts / from.cut == to.parts / to.cut : nested(from.parts, to.parts);
}

}  // namespace detail

namespace detail {

/// Of the ranks of `to`, the least tokens that one has in both of two layouts without ratios. O(ranks), or where both
/// are the ranks of one stage in their usual order, O of a period of the data ranks. Of more than 1,024 ranks some are
/// asked, evenly spread: another may have a little less.
constexpr std::int64_t least_kept(const HeldRegions& before, const HeldRegions& after) {
  const ActivationLayout& from = before.layout();
  const ActivationLayout& to = after.layout();
  // Samples are cut alike in each of the parts of the batch that both cuts have in common.
  const bool repeats =
      from.first_rank == to.first_rank && from.ranks() == to.ranks() && from.outer == 1 && to.outer == 1;
  const int end = to.first_rank + to.ranks() / (repeats ? std::gcd(from.data, to.data) : 1);
  constexpr int most_asked = 1 << 10;
  const int step = (end - to.first_rank - 1) / most_asked + 1;
  const RegionTable had(before);
  const RegionTable wanted(after);
  std::int64_t least = after.tokens({});
  for (int rank = to.first_rank; rank < end && least > 0; rank += step)
    least = std::min(least, kept_tokens(had, wanted, rank));
  return least;
}

}  // namespace detail

/// Tokens that the busiest rank receives from others when activations move from `from` to `to`; both have the same
/// batch and sequence. Ranks that both layouts have keep what they need. Without ratios see detail::least_kept.
constexpr std::int64_t most_received(const ActivationLayout& from, const ActivationLayout& to) {
  const HeldRegions before(from);
  const HeldRegions after(to);
  if (!from.is_uneven() && !to.is_uneven()) return after.tokens({}) - detail::least_kept(before, after);
  std::int64_t most = 0;
  for (int rank = to.first_rank; rank < to.first_rank + to.ranks(); ++rank)
    most = std::max(most, after.tokens(after.place(rank)) - detail::kept_tokens(before, after, rank));
  return most;
}

/// A move inside a stage, whatever the size of the micro-batch that both layouts divide evenly; with ratios of theirs.
struct Relayout {
  double share = 0;  ///< of the micro-batch's tokens that the busiest rank receives
  int span = 1;      ///< tokens stay inside aligned runs of so many ranks
  friend constexpr auto operator<=>(const Relayout&, const Relayout&) = default;
};

/// Moves between two layouts, both ways.
struct Relayouts {
  Relayout forward;
  Relayout back;
};

/// Nothing moves where layouts agree. Both have the same ranks. In a run of lcm(replicas * parts) ranks of the two lie
/// the same samples before and after; under strided tensor ranks in as large a part of the stage as both hold whole.
constexpr Relayouts relayouts_between(ActivationLayout from, ActivationLayout to) {
  if (from == to) return {};
  if (from.is_uneven() || to.is_uneven()) {
    const double tokens = static_cast<double>(to.batch) * static_cast<double>(to.sequence);
    return {{static_cast<double>(most_received(from, to)) / tokens, to.ranks()},
            {static_cast<double>(most_received(to, from)) / tokens, to.ranks()}};
  }
  const auto copies = [](const ActivationLayout& a) { return a.replicas > 1 ? a.outer : 1; };
  const int runs = std::gcd(copies(from), copies(to));
  for (ActivationLayout* layout : {&from, &to}) {
    layout->replicas /= runs;
    layout->outer /= runs;
  }
  const bool strided = from.outer > 1 || to.outer > 1;
  const int span = strided ? from.ranks() : std::lcm(from.replicas * from.parts, to.replicas * to.parts);
  // Elsewhere the batch is cut outermost: a common factor of the data degrees makes blocks of ranks that do the same. A
  // common factor of the replicas, which are innermost, makes neighbours that do the same.
  const int blocks = strided ? 1 : std::gcd(from.data, to.data);
  const int neighbours = strided ? 1 : std::gcd(from.replicas, to.replicas);
  for (ActivationLayout* layout : {&from, &to}) {
    layout->data /= blocks;
    layout->replicas /= neighbours;
  }
  // Sizes that every degree divides, and chunks of a zigzag: twice the number of ranks.
  from.batch = to.batch = from.sequence = to.sequence = std::int64_t{2} * from.ranks();
  const double all = static_cast<double>(from.batch) * static_cast<double>(from.sequence) * blocks;
  const HeldRegions before(from);
  const HeldRegions after(to);
  const auto least_kept = [&] {
    if (detail::keep_alike(from, to)) return detail::kept_tokens(before, after, to.first_rank);
    // Where layouts differ much a rank in the middle keeps nothing.
    const int middle = to.first_rank + to.ranks() / 2;
    for (const int rank : {middle, middle - 1, middle / 2 + 1})
      if (to.holds(rank) && detail::kept_tokens(before, after, rank) == 0) return std::int64_t{0};
    return detail::least_kept(before, after);
  };
  const std::int64_t kept = least_kept();
  const auto move = [&](const HeldRegions& wanted) {
    return Relayout{static_cast<double>(wanted.tokens({}) - kept) / all, span};
  };
  return {move(after), move(before)};
}
constexpr Relayout relayout_of(const ActivationLayout& from, const ActivationLayout& to) {
  return relayouts_between(from, to).forward;
}

}  // namespace galvatron::cost
