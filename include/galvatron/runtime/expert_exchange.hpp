// ExpertExchange: which rows go to which ranks where tokens travel to their experts, and where they lie there.
//
// A rank has its rows in the order of the experts. A rank of experts gets those for its experts from all ranks of the
// group, in the order of experts, then of ranks, then of rows. What exceeds its memory comes in more rounds, of whose
// number all ranks know from the counts of all:
//
//     order at a rank of experts   | expert 0: rank 0, rank 1, .. | expert 1: rank 0, .. | ..
//     rounds                       | capacity rows        | capacity rows        | rest |
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>

namespace galvatron::runtime {

class ExpertExchange {
 public:
  /// @param offsets   (ranks, experts + 1): where the rows of an expert begin in the order of each rank
  /// @param experts   of the whole layer  @param parts  ranks that share an expert: each gets its rows
  /// @param capacity  rows that a rank of experts computes at a time
  /// @param rank      in the group; rank part + parts * i has a part of run i of the experts
  ExpertExchange(std::vector<std::int32_t> offsets, std::int64_t experts, std::int64_t parts, std::int64_t capacity,
                 std::int64_t rank)
      : offsets_(std::move(offsets)),
        experts_(experts),
        parts_(parts),
        capacity_(std::max<std::int64_t>(capacity, 1)),
        rank_(rank),
        ranks_(static_cast<std::int64_t>(offsets_.size()) / (experts + 1)),
        local_(experts * parts / ranks_) {
    std::int64_t most = 0;
    for (std::int64_t run = 0; run * parts_ < ranks_; ++run) most = std::max(most, total(run));
    rounds_ = std::max(1, static_cast<int>(divide_up(most, capacity_)));  // of no rows too: gradients are zeros
  }

  [[nodiscard]] int rounds() const { return rounds_; }
  /// Rows that this rank sends in all rounds.
  [[nodiscard]] std::int64_t sent_rows() const { return offset(rank_, experts_); }
  /// Rows that the experts here get in a round.
  [[nodiscard]] std::int64_t rows(int round) const {
    return std::clamp<std::int64_t>(total(rank_ / parts_) - round * capacity_, 0, capacity_);
  }
  /// Where the rows of each expert of this rank begin in a round, and the end of the last.
  [[nodiscard]] std::vector<std::int32_t> own_offsets(int round) const {
    std::vector<std::int32_t> out;
    std::int64_t before = 0;
    for (std::int64_t e = 0; e <= local_; ++e) {
      out.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(before - round * capacity_, 0, capacity_)));
      for (std::int64_t rank = 0; e < local_ && rank < ranks_; ++rank)
        before += count(rank, rank_ / parts_ * local_ + e);
    }
    return out;
  }
  /// Calls f(peer, first row in this rank's order, rows) for the rows that this rank sends in a round, and gets back.
  template <class F>
  void for_each_sent(int round, const F& f) const {
    for (std::int64_t run = 0; run * parts_ < ranks_; ++run)
      for_each_block(run, round, [&](std::int64_t source, std::int64_t row, std::int64_t, std::int64_t rows) {
        if (source != rank_) return;
        for (std::int64_t part = 0; part < parts_; ++part) f(run * parts_ + part, part, row, rows);
      });
  }
  /// Calls f(peer, first row in the order here, rows) for the rows that this rank gets in a round, and sends back.
  template <class F>
  void for_each_received(int round, const F& f) const {
    for_each_block(
        rank_ / parts_, round,
        [&](std::int64_t source, std::int64_t, std::int64_t place, std::int64_t rows) { f(source, place, rows); });
  }

 private:
  [[nodiscard]] std::int64_t offset(std::int64_t rank, std::int64_t expert) const {
    return offsets_[static_cast<std::size_t>(rank * (experts_ + 1) + expert)];
  }
  [[nodiscard]] std::int64_t count(std::int64_t rank, std::int64_t expert) const {
    return offset(rank, expert + 1) - offset(rank, expert);
  }
  /// Rows for a run of experts.
  [[nodiscard]] std::int64_t total(std::int64_t run) const {
    std::int64_t sum = 0;
    for (std::int64_t rank = 0; rank < ranks_; ++rank)
      sum += offset(rank, (run + 1) * local_) - offset(rank, run * local_);
    return sum;
  }
  /// Calls f(source, row in its order, place in the round, rows) for the rows of a run of experts in a round.
  template <class F>
  void for_each_block(std::int64_t run, int round, const F& f) const {
    const std::int64_t first = round * capacity_;
    std::int64_t before = 0;
    for (std::int64_t e = run * local_; e < (run + 1) * local_; ++e)
      for (std::int64_t source = 0; source < ranks_; ++source) {
        const std::int64_t rows = count(source, e);
        const std::int64_t from = std::max(before, first);
        const std::int64_t to = std::min(before + rows, first + capacity_);
        if (from < to) f(source, offset(source, e) + from - before, from - first, to - from);
        before += rows;
      }
  }

  std::vector<std::int32_t> offsets_;
  std::int64_t experts_, parts_, capacity_, rank_, ranks_;
  std::int64_t local_;  ///< experts of a rank
  int rounds_ = 0;
};

}  // namespace galvatron::runtime
