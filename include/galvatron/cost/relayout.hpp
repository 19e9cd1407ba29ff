// What it costs to move activations from one layout to another, and from one stage to the next.
#pragma once

#include <cstdint>
#include <numeric>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::cost {

/// What the busiest rank of a move receives from others.
struct Traffic {
  std::int64_t tokens = 0;
  int peers = 0;
};

namespace detail {

/// Tokens that `rank` wants in `to` and has already in `from`.
constexpr std::int64_t kept_tokens(const HeldRegions& from, const HeldRegions& to, int rank) {
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

/// Parts of sequences of `from`, times parts of the batch, in which lies what `rank` wants in `to`.
constexpr int sources(const ActivationLayout& from, const ActivationLayout& to, int rank) {
  const Region want = to.region(rank);
  const std::int64_t samples = from.batch / from.data;
  const auto columns = static_cast<int>((want.batch_end - 1) / samples - want.batch_begin / samples + 1);
  int rows = 0;
  for (int part = 0; part < from.parts; ++part) {
    bool touched = false;
    for (int i = 0; i < from.pieces(); ++i)
      for (int j = 0; j < to.pieces(); ++j) {
        const Region have = from.region(from.rank_at({.part = part}), i);
        const Region piece = to.region(rank, j);
        touched |= have.sequence_begin < piece.sequence_end && piece.sequence_begin < have.sequence_end;
      }
    rows += touched ? 1 : 0;
  }
  return columns * rows;
}

}  // namespace detail

/// The busiest receiver when activations move from `from` to `to`; both have the same batch and sequence. Ranks that
/// both layouts have keep what they need. O(ranks), or where both are the ranks of one stage in their usual order, O of
/// a period of the data ranks. Of more than 1,024 ranks some are asked, evenly spread: the busiest may have a little
/// more.
constexpr Traffic busiest_receiver(const ActivationLayout& from, const ActivationLayout& to) {
  const HeldRegions before(from);
  const HeldRegions after(to);
  std::int64_t most = 0;
  int busiest = to.first_rank;
  const std::int64_t want = after.tokens();
  // Samples are cut alike in each of the parts of the batch that both cuts have in common.
  const bool repeats =
      from.first_rank == to.first_rank && from.ranks() == to.ranks() && from.outer == 1 && to.outer == 1;
  const int end = to.first_rank + to.ranks() / (repeats ? std::gcd(from.data, to.data) : 1);
  constexpr int most_asked = 1 << 10;
  const int step = (end - to.first_rank - 1) / most_asked + 1;
  for (int rank = to.first_rank; rank < end && most < want; rank += step) {
    const std::int64_t lacking = want - detail::kept_tokens(before, after, rank);
    if (lacking <= most) continue;
    most = lacking;
    busiest = rank;
  }
  if (most == 0) return {};
  return {most, detail::sources(from, to, busiest) - (most < want ? 1 : 0)};
}

/// A move inside a stage, whatever the size of the micro-batch that both layouts divide evenly.
struct Relayout {
  double share = 0;  ///< of the micro-batch's tokens that the busiest rank receives
  int span = 1;      ///< tokens stay inside aligned runs of so many ranks
  friend constexpr bool operator==(const Relayout&, const Relayout&) = default;
};

namespace detail {

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

/// Nothing moves where layouts agree. Both have the same ranks. In a run of lcm(replicas * parts) ranks of the two lie
/// the same samples before and after; under strided tensor ranks in as large a part of the stage as both hold whole.
constexpr Relayout relayout_of(ActivationLayout from, ActivationLayout to) {
  if (from == to) return {};
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
  from.data /= blocks;
  to.data /= blocks;
  const int neighbours = strided ? 1 : std::gcd(from.replicas, to.replicas);
  from.replicas /= neighbours;
  to.replicas /= neighbours;
  // Sizes that every degree divides, and chunks of a zigzag: twice the number of ranks.
  from.batch = to.batch = from.sequence = to.sequence = std::int64_t{2} * from.ranks();
  const double all = static_cast<double>(from.batch) * static_cast<double>(from.sequence) * blocks;
  const HeldRegions before(from);
  const HeldRegions after(to);
  const std::int64_t want = after.tokens();
  if (detail::keep_alike(from, to))
    return {static_cast<double>(want - detail::kept_tokens(before, after, to.first_rank)) / all, span};
  // No rank lacks more than all that it wants, and where layouts differ much a rank in the middle does.
  const int middle = to.first_rank + to.ranks() / 2;
  for (const int rank : {middle, middle - 1, middle / 2 + 1})
    if (to.holds(rank) && detail::kept_tokens(before, after, rank) == 0) return {static_cast<double>(want) / all, span};
  return {static_cast<double>(busiest_receiver(from, to).tokens) / all, span};
}

/// The send that a rank waits for; `hidden` elements a token.
/// @param span  ranks of the run inside which its peers are, 0: anywhere
constexpr op::Work move_work(const Traffic& traffic, std::int64_t hidden, Precision precision, int span = 0) {
  return {.kind = op::Kind::send,
          .m = traffic.tokens * hidden * element_bytes(precision),
          .n = traffic.peers,
          .k = span,
          .times = traffic.tokens > 0 ? 1 : 0};
}

}  // namespace galvatron::cost
