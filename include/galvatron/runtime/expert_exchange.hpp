// ExpertExchange: which rows go to which ranks where tokens travel to their experts, and where they lie there.
//
// A rank has its rows in the order of the experts. A rank of experts gets those for its experts from all ranks of the
// group, in the order of experts, then of ranks, then of rows. What exceeds its memory comes in more rounds, of whose
// number all ranks know from the counts of all:
//
//     order at a rank of experts   | expert 0: rank 0, rank 1, .. | expert 1: rank 0, .. | ..
//     rounds                       | capacity rows        | capacity rows        | rest |
//
// Where the ranks lie in several nodes, a token may go to each node once, whatever experts it has there: to the relay,
// the rank of that node with the sender's place in its own, which sends a row on to each of them (DeepEP, DeepSeek-AI
// 2025, does so). A relay has rows in the order of experts, then of the nodes that sent them, so that they arrive in
// the order above. Two nodes of two ranks, and a token of rank 0 with experts on ranks 2 and 3:
//
//     direct     0 -----> 2           by nodes    0 -----> 2 (the relay: itself the rank of one)
//                0 -----> 3                                2 --> 3
//
// Relays have memory for stated numbers of tokens and rows. What exceeds them, or needs several rounds, goes directly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/program/expert_nodes.hpp>

namespace galvatron::runtime {

using program::ExchangeNodes;

class ExpertExchange {
 public:
  /// @param offsets   (ranks, experts + 1): where the rows of an expert begin in the order of each rank. With several
  ///                  nodes (ranks, experts + 1 + nodes + 1): behind them where the tokens for a node begin
  /// @param experts   of the whole layer  @param parts  ranks that share an expert: each gets its rows
  /// @param capacity  rows that a rank of experts computes at a time
  /// @param rank      in the group; rank part + parts * i has a part of run i of the experts
  ExpertExchange(std::vector<std::int32_t> offsets, std::int64_t experts, std::int64_t parts, std::int64_t capacity,
                 std::int64_t rank, const ExchangeNodes& nodes = {})
      : offsets_(std::move(offsets)),
        experts_(experts),
        parts_(parts),
        capacity_(std::max<std::int64_t>(capacity, 1)),
        rank_(rank),
        nodes_(nodes.count),
        width_(experts + 1 + (nodes_ > 1 ? nodes_ + 1 : 0)),
        ranks_(static_cast<std::int64_t>(offsets_.size()) / width_),
        local_(experts * parts / ranks_) {
    std::int64_t most = 0;
    for (std::int64_t run = 0; run * parts_ < ranks_; ++run) most = std::max(most, total(run));
    rounds_ = std::max(1, static_cast<int>(divide_up(most, capacity_)));  // of no rows too: gradients are zeros
    by_nodes_ = nodes_ > 1 && rounds_ == 1;
    for (std::int64_t i = 0; i < ranks_ && by_nodes_; ++i)
      by_nodes_ = std::max(tokens_of(i), tokens_at(i)) <= nodes.tokens && rows_at(i) <= nodes.rows;
    if (by_nodes_) find_relayed();
  }

  [[nodiscard]] int rounds() const { return rounds_; }
  /// Tokens go to relays; else rows go to the ranks of their experts themselves.
  [[nodiscard]] bool by_nodes() const { return by_nodes_; }
  /// Rows that this rank sends to experts in all rounds: of its own tokens, or those that it relays.
  [[nodiscard]] std::int64_t sent_rows() const { return by_nodes_ ? rows_at(rank_) : offset(rank_, experts_); }
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
  /// Calls f(peer, part, first row, rows) for the rows that this rank sends in a round, and gets back; the first row is
  /// in this rank's order, or in that in which it relays.
  template <class F>
  void for_each_sent(int round, const F& f) const {
    for (std::int64_t run = 0; run * parts_ < ranks_; ++run)
      for_each_block(run, round, [&](const Block& block) {
        if (sender(run, block.source) != rank_) return;
        const std::int64_t first = (by_nodes_ ? relayed(block) : offset(block.source, block.expert)) + block.first;
        for (std::int64_t part = 0; part < parts_; ++part) f(run * parts_ + part, part, first, block.rows);
      });
  }
  /// Calls f(peer, first row in the order here, rows) for the rows that this rank gets in a round, and sends back.
  template <class F>
  void for_each_received(int round, const F& f) const {
    const std::int64_t run = rank_ / parts_;
    for_each_block(run, round, [&](const Block& block) { f(sender(run, block.source), block.place, block.rows); });
  }

  // By nodes: tokens of this rank go to relays, and come to it as one. Both ways the same.

  /// Tokens that this rank sends to all nodes.
  [[nodiscard]] std::int64_t sent_tokens() const { return tokens_of(rank_); }
  /// Tokens that come here.
  [[nodiscard]] std::int64_t relayed_tokens() const { return tokens_at(rank_); }
  /// The first expert of this rank's node, and how many it has.
  [[nodiscard]] std::int64_t first_expert() const { return node_of(rank_) * node_experts(); }
  [[nodiscard]] std::int64_t node_experts() const { return experts_ / nodes_; }
  /// Calls f(relay, first token, tokens) for what this rank sends, in the order of nodes.
  template <class F>
  void for_each_relay(const F& f) const {
    for (std::int64_t node = 0; node < nodes_; ++node)
      f(node * node_ranks() + rank_ % node_ranks(), token_offset(rank_, node), tokens(rank_, node));
  }
  /// Calls f(source, first token here, tokens) for what comes to this rank, in the order of nodes.
  template <class F>
  void for_each_relayed(const F& f) const {
    std::int64_t first = 0;
    for (std::int64_t node = 0; node < nodes_; ++node) {
      const std::int64_t source = node * node_ranks() + rank_ % node_ranks();
      f(source, first, tokens(source, node_of(rank_)));
      first += tokens(source, node_of(rank_));
    }
  }

 private:
  /// Rows of a source for an expert in a round: the first of them, and their place in the round.
  struct Block {
    std::int64_t source, expert, first, place, rows;
  };

  [[nodiscard]] std::int64_t offset(std::int64_t rank, std::int64_t expert) const {
    return offsets_[static_cast<std::size_t>(rank * width_ + expert)];
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
  /// Calls f(block) for the rows of a run of experts in a round.
  template <class F>
  void for_each_block(std::int64_t run, int round, const F& f) const {
    const std::int64_t first = round * capacity_;
    std::int64_t before = 0;
    for (std::int64_t e = run * local_; e < (run + 1) * local_; ++e)
      for (std::int64_t source = 0; source < ranks_; ++source) {
        const std::int64_t rows = count(source, e);
        const std::int64_t from = std::max(before, first);
        const std::int64_t to = std::min(before + rows, first + capacity_);
        if (from < to) f(Block{source, e, from - before, from - first, to - from});
        before += rows;
      }
  }

  // ---- nodes

  [[nodiscard]] std::int64_t node_ranks() const { return ranks_ / nodes_; }
  [[nodiscard]] std::int64_t node_of(std::int64_t rank) const { return rank / node_ranks(); }
  [[nodiscard]] std::int64_t token_offset(std::int64_t rank, std::int64_t node) const {
    return offset(rank, experts_ + 1 + node);
  }
  [[nodiscard]] std::int64_t tokens(std::int64_t rank, std::int64_t node) const {
    return token_offset(rank, node + 1) - token_offset(rank, node);
  }
  /// Tokens that a rank sends to all nodes.
  [[nodiscard]] std::int64_t tokens_of(std::int64_t rank) const { return token_offset(rank, nodes_); }
  /// Tokens and rows that come to a rank as a relay.
  [[nodiscard]] std::int64_t tokens_at(std::int64_t relay) const {
    std::int64_t sum = 0;
    for (std::int64_t source = relay % node_ranks(); source < ranks_; source += node_ranks())
      sum += tokens(source, node_of(relay));
    return sum;
  }
  [[nodiscard]] std::int64_t rows_at(std::int64_t relay) const {
    const std::int64_t first = node_of(relay) * node_experts();
    std::int64_t sum = 0;
    for (std::int64_t source = relay % node_ranks(); source < ranks_; source += node_ranks())
      sum += offset(source, first + node_experts()) - offset(source, first);
    return sum;
  }
  /// The rank from which a run of experts gets the rows of a source.
  [[nodiscard]] std::int64_t sender(std::int64_t run, std::int64_t source) const {
    return by_nodes_ ? node_of(run * parts_) * node_ranks() + source % node_ranks() : source;
  }
  /// Where the rows of a source for an expert begin among those that this rank relays.
  [[nodiscard]] std::int64_t relayed(const Block& block) const {
    return relayed_[static_cast<std::size_t>((block.expert - first_expert()) * nodes_ + node_of(block.source))];
  }
  void find_relayed() {
    std::int64_t before = 0;
    for (std::int64_t e = first_expert(); e < first_expert() + node_experts(); ++e)
      for (std::int64_t source = rank_ % node_ranks(); source < ranks_; source += node_ranks()) {
        relayed_.push_back(before);
        before += count(source, e);
      }
  }

  std::vector<std::int32_t> offsets_;
  std::int64_t experts_, parts_, capacity_, rank_;
  std::int64_t nodes_;
  std::int64_t width_;  ///< offsets of a rank
  std::int64_t ranks_;
  std::int64_t local_;  ///< experts of a rank
  int rounds_ = 0;
  bool by_nodes_ = false;
  std::vector<std::int64_t> relayed_;  ///< (experts of a node, nodes)
};

}  // namespace galvatron::runtime
