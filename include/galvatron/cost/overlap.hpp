// Overlap: how long work takes of which some computes while some communicates.
//
// Work of one overlap number happens in turns: in each of them its computations run beside its messages, and a turn
// takes the longer of the two, a little more where they slow each other down. Ring attention is such work: while a
// rank attends to one block of keys, the next block is on its way. Work without a number runs alone.
#pragma once

#include <array>
#include <cstddef>

#include <galvatron/core/units.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::cost {

/// Seconds of two things that happen at the same time and take `slowdown` times as long while they do; never more than
/// one after the other. Source: Galvatron (arXiv 2211.13878), its cost estimator.
constexpr Seconds side_by_side(Seconds a, Seconds b, double slowdown) {
  const Seconds longer = max(a, b);
  const Seconds shorter = min(a, b);
  return min(longer + shorter * (slowdown - 1), longer + shorter);
}

/// Adds up priced work.
class Elapsed {
 public:
  /// `seconds` of all executions of `work` together.
  constexpr void add(const op::Work& work, Seconds seconds) {
    (is_communication(work.kind) ? communicates_ : computes_)[work.overlap] += seconds;
  }
  [[nodiscard]] constexpr Seconds total(double slowdown) const {
    Seconds sum = computes_[0] + communicates_[0];
    for (std::size_t i = 1; i < computes_.size(); ++i) sum += side_by_side(computes_[i], communicates_[i], slowdown);
    return sum;
  }
  /// What messages add to the time of the computations.
  [[nodiscard]] constexpr Seconds communication(double slowdown) const {
    Seconds sum = communicates_[0];
    for (std::size_t i = 1; i < computes_.size(); ++i)
      sum += side_by_side(computes_[i], communicates_[i], slowdown) - computes_[i];
    return sum;
  }

 private:
  std::array<Seconds, op::overlaps + 1> computes_{};
  std::array<Seconds, op::overlaps + 1> communicates_{};
};

}  // namespace galvatron::cost
