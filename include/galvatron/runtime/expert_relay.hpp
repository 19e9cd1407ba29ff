// ExpertRelay: a rank's part in an exchange by nodes (runtime/expert_exchange.hpp), around the messages of rows.
//
//   source   tokens (T, H) -> those with experts in each node, with their choices and weights
//   relay    -> tokens of its sources -> rows in the order of the node's experts -> [to their ranks, and back]
//            -> sum of a token's rows, by their weights                     (ExpertSteps sends and gets rows)
//   source   -> sum over nodes (T, H)
//
// Sums are in fp32, in the order of a token's choices and then of nodes. Gradients go the same way: those of the output
// as tokens, those of tokens as sums, and those of weights as numbers that are zero but for one node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/expert_exchange.hpp>
#include <galvatron/runtime/expert_messages.hpp>

namespace galvatron::runtime {

/// What the tokens that a rank sends have to do with nodes, made when they are routed, in one piece of memory.
struct TokenNodes {
  View<std::int32_t> order;   ///< (tokens to all nodes): token times the nodes plus the node, in the order of nodes
  View<std::int32_t> places;  ///< (T, nodes) of those in that order; -1: the token does not go there
  View<std::int32_t> chosen;  ///< (T, k) experts; -1: dropped

  TokenNodes(View<std::int32_t> all, std::int64_t tokens, std::int64_t nodes, std::int64_t active)
      : order(all.slice(0, tokens * nodes)),
        places(all.slice(tokens * nodes, tokens * nodes)),
        chosen(all.slice(2 * tokens * nodes, tokens * active)) {}
};

/// @tparam T  of activations
template <class D, class T>
class ExpertRelay {
 public:
  /// Memory of a step: see Letter::packed_rows and those behind it.
  struct Memory {
    View<T> tokens;
    View<T> rows;
    View<std::int32_t> numbers;
    View<float> weights;
  };

  /// @param plan   none on a device that only counts
  /// @param rows   T of this rank
  ExpertRelay(Context<D>& context, const LayerSpec& layer, const ExchangeNodes& nodes,
              const std::optional<ExpertExchange>& plan, std::int64_t rows, const TokenNodes& of_tokens,
              const Memory& memory)
      : c_(context),
        plan_(plan),
        k_(layer.active_experts),
        h_(layer.hidden),
        nodes_(nodes.count),
        tokens_(rows),
        sent_(plan ? plan->sent_tokens() : nodes.tokens),
        relayed_(plan ? plan->relayed_tokens() : nodes.tokens),
        rows_(plan ? plan->sent_rows() : rows * k_),
        order_({.experts = layer.experts / nodes.count, .active = k_, .first = plan ? plan->first_expert() : 0}),
        of_tokens_(of_tokens),
        sent_tokens_(memory.tokens.slice(0, sent_ * h_)),
        relayed_tokens_(memory.tokens.slice(nodes.tokens * h_, relayed_ * h_)),
        relayed_rows_(memory.rows),
        row_weights_(memory.weights.slice(2 * nodes.tokens * k_, nodes.rows)),
        row_gradients_(memory.weights.slice(2 * nodes.tokens * k_ + nodes.rows, nodes.rows * context.spec.etp())),
        sent_weights_(memory.weights.slice(0, sent_ * k_)),
        relayed_weights_(memory.weights.slice(nodes.tokens * k_, relayed_ * k_)),
        sent_choices_(memory.numbers.slice(0, sent_ * k_)),
        relayed_choices_(memory.numbers.slice(nodes.tokens * k_, relayed_ * k_)),
        row_order_(memory.numbers.slice(2 * nodes.tokens * k_, relayed_ * k_)),
        row_places_(memory.numbers.slice(3 * nodes.tokens * k_, relayed_ * k_)),
        row_bounds_(memory.numbers.slice(4 * nodes.tokens * k_, order_.experts + 1)) {}

  /// Rows that this rank relays.
  [[nodiscard]] std::int64_t rows() const { return rows_; }

  /// Tokens (T, H), with their weights (T, k), to relays, and what comes to this one as rows of experts.
  View<T> relay(View<const T> tokens, View<const float> weights) {
    gather(h_, tokens, sent_tokens_);
    gather(k_, View<const std::int32_t>(of_tokens_.chosen), sent_choices_);
    gather(k_, weights, sent_weights_);
    deliver(true, [&](const auto& message) {
      message(sent_tokens_, relayed_tokens_, h_);
      message(sent_choices_, relayed_choices_, k_);
      message(sent_weights_, relayed_weights_, k_);
    });
    c_.device.order_choices(order_, relayed_, View<const std::int32_t>(relayed_choices_), View<const float>{},
                            row_order_, row_places_, row_bounds_);
    c_.device.gather_rows(k_, h_, rows_, View<const std::int32_t>(row_order_), View<const T>(relayed_tokens_),
                          relayed_rows_.slice(0, rows_ * h_));
    return relayed_rows_.slice(0, rows_ * h_);
  }
  /// Weights of those rows.
  View<float> relay_weights() {
    const View<float> out = row_weights_.slice(0, rows_);
    c_.device.gather_rows(1, 1, rows_, View<const std::int32_t>(row_order_), View<const float>(relayed_weights_), out);
    return out;
  }
  /// (parts, rows): their gradients come here.
  View<float> row_gradients() const { return row_gradients_; }

  /// The rows (rows, H) that experts gave, times their weights, to the sums (T, H).
  void combine(View<const T> rows, View<T> sums) {
    combine_here(rows, View<const float>(relayed_weights_));
    deliver(false, [&](const auto& message) { message(sent_tokens_, relayed_tokens_, h_); });
    combine_nodes(sums);
  }
  /// The same without weights, and the gradients of weights (rows) to those of this rank's (T, k).
  void combine_gradients(View<const T> rows, View<T> sums, View<const float> row_gradients, View<float> gradients) {
    combine_here(rows, {});
    c_.device.combine_rows(relayed_ * k_, 1, 1, View<const std::int32_t>(row_places_), View<const float>{},
                           row_gradients, relayed_weights_);
    deliver(false, [&](const auto& message) {
      message(sent_tokens_, relayed_tokens_, h_);
      message(sent_weights_, relayed_weights_, k_);
    });
    combine_nodes(sums);
    c_.device.combine_rows(tokens_, nodes_, k_, View<const std::int32_t>(of_tokens_.places), View<const float>{},
                           View<const float>(sent_weights_), gradients);
  }

 private:
  template <class U>
  void gather(std::int64_t width, View<const U> from, View<U> to) {
    c_.device.gather_rows(nodes_, width, sent_, View<const std::int32_t>(of_tokens_.order), from, to);
  }
  void combine_here(View<const T> rows, View<const float> weights) {
    c_.device.combine_rows(relayed_, k_, h_, View<const std::int32_t>(row_places_), weights, rows, relayed_tokens_);
  }
  void combine_nodes(View<T> sums) {
    c_.device.combine_rows(tokens_, nodes_, h_, View<const std::int32_t>(of_tokens_.places), View<const float>{},
                           View<const T>(sent_tokens_), sums);
  }
  /// Calls what(message), which calls message(at the source, at the relay, width) for all that goes together.
  void deliver(bool to_relays, const auto& what) {
    if (!plan_) return count(what);
    ExpertMessages messages = expert_messages(c_);
    what([&](const auto& source, const auto& relay, std::int64_t width) {
      plan_->for_each_relay([&](std::int64_t peer, std::int64_t first, std::int64_t count) {
        if (to_relays)
          messages.send(peer, source, width, first, count);
        else
          messages.receive(peer, source, width, first, count);
      });
      plan_->for_each_relayed([&](std::int64_t peer, std::int64_t first, std::int64_t count) {
        if (to_relays)
          messages.receive(peer, relay, width, first, count);
        else
          messages.send(peer, relay, width, first, count);
      });
    });
    messages.deliver();
  }
  void count(const auto& what) {
    std::int64_t bytes = 0;
    what([&]<class U>(View<U> source, const auto&, std::int64_t) {
      bytes += source.count * static_cast<std::int64_t>(sizeof(U));
    });
    const std::int64_t apart = c_.experts.size() / nodes_;
    std::vector<int> ranks;
    for (std::int64_t i = c_.experts.rank() % apart; i < c_.experts.size(); i += apart)
      ranks.push_back(c_.experts.ranks()[static_cast<std::size_t>(i)]);
    count_exchange<std::byte>(c_.world.group(ranks), bytes);
  }

  Context<D>& c_;
  const std::optional<ExpertExchange>& plan_;
  std::int64_t k_, h_, nodes_;
  std::int64_t tokens_;   ///< T
  std::int64_t sent_;     ///< tokens to all nodes
  std::int64_t relayed_;  ///< tokens that come here
  std::int64_t rows_;
  device::ChoiceOrder order_;
  TokenNodes of_tokens_;
  View<T> sent_tokens_, relayed_tokens_, relayed_rows_;
  View<float> row_weights_, row_gradients_, sent_weights_, relayed_weights_;
  View<std::int32_t> sent_choices_, relayed_choices_, row_order_, row_places_, row_bounds_;
};

}  // namespace galvatron::runtime
