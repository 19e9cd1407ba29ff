// What it costs to move activations from one layout to another, and from one stage to the next.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/work.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::cost {

/// True when a layer with layout `to` cannot use the output of one with layout `from` as it lies.
constexpr bool needs_relayout(const ActivationLayout& from, const ActivationLayout& to) { return !(from == to); }

/// What the busiest rank of a move receives from others.
struct Traffic {
  std::int64_t tokens = 0;
  int peers = 0;
};

/// The busiest receiver when activations move from `from` to `to`; both have the same batch and sequence. Ranks that
/// both layouts have keep what they need. O(ranks).
constexpr Traffic busiest_receiver(const ActivationLayout& from, const ActivationLayout& to) {
  Traffic busiest;
  const std::int64_t samples = from.batch / from.data;
  const std::int64_t tokens = from.sequence_cut ? from.sequence / from.tensor : from.sequence;
  for (int rank = to.first_rank; rank < to.first_rank + to.ranks(); ++rank) {
    const Region want = to.region(rank);
    const std::int64_t kept = from.holds(rank) ? [&] {
      const Region both = intersection(from.region(rank), want);
      return both.empty() ? std::int64_t{0} : both.tokens();
    }()
                                               : 0;
    const std::int64_t lacking = want.tokens() - kept;
    if (lacking <= busiest.tokens) continue;
    const std::int64_t columns = (want.batch_end - 1) / samples - want.batch_begin / samples + 1;
    const std::int64_t rows = (want.sequence_end - 1) / tokens - want.sequence_begin / tokens + 1;
    busiest = {lacking, static_cast<int>(columns * rows - (kept > 0 ? 1 : 0))};
  }
  return busiest;
}

/// The send that a rank waits for; `hidden` elements a token.
constexpr Work move_work(const Traffic& traffic, std::int64_t hidden, Precision precision) {
  return {.kind = WorkKind::send,
          .m = traffic.tokens * hidden * element_bytes(precision),
          .n = traffic.peers,
          .times = traffic.tokens > 0 ? 1 : 0};
}

/// The largest share of a micro-batch's tokens that a rank receives, for any micro-batch that both layouts divide
/// evenly: shares do not depend on the size. Both degrees multiply to the ranks of the stage.
constexpr double relayout_share(ActivationLayout from, ActivationLayout to) {
  if (from.data == to.data && from.sequence_cut == to.sequence_cut) return 0;
  // Sizes that every degree divides: the number of ranks.
  from.batch = to.batch = from.sequence = to.sequence = from.ranks();
  const double all = static_cast<double>(from.batch) * static_cast<double>(from.sequence);
  return static_cast<double>(busiest_receiver(from, to).tokens) / all;
}

}  // namespace galvatron::cost
