// Nodes between which tokens travel on their way to experts: how many of them a token goes to, and how much memory
// ranks have for it when a token goes to each of them once (runtime/expert_exchange.hpp).
#pragma once

#include <cstdint>

#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::program {

namespace detail {

/// The probability that none of k different ones of `all` is one of `own`.
constexpr double misses(std::int64_t all, std::int64_t own, std::int64_t k) {
  double out = 1;
  for (std::int64_t i = 0; i < k; ++i) {
    if (all - own - i <= 0) return 0;
    out *= static_cast<double>(all - own - i) / static_cast<double>(all - i);
  }
  return out;
}
/// Binomial coefficient.
constexpr double choose(std::int64_t n, std::int64_t k) {
  double out = 1;
  for (std::int64_t i = 0; i < k; ++i) out *= static_cast<double>(n - i) / static_cast<double>(i + 1);
  return k > n ? 0 : out;
}

}  // namespace detail

/// The mean number of nodes, of those that share the experts equally, that the k experts of a token lie in, all choices
/// of its router being equally likely: N (1 - C(E - E/N, k) / C(E, k)). A router that chooses groups of experts first
/// (DeepSeek-V2, arXiv 2405.04434, section 2.2.2) goes to fewer, where groups and nodes divide each other.
constexpr double nodes_of_token(const LayerSpec& layer, std::int64_t nodes) {
  const std::int64_t experts = layer.experts;
  const std::int64_t k = layer.active_experts;
  const std::int64_t groups = layer.router.groups;
  const std::int64_t top = layer.router.top_groups;
  const auto found = [&](std::int64_t all, std::int64_t own) { return 1 - detail::misses(all, own, k); };
  if (top < groups && groups % nodes == 0) {
    const std::int64_t of_node = groups / nodes;
    double sum = 0;
    for (std::int64_t own = 0; own <= of_node && own <= top; ++own)
      sum += detail::choose(of_node, own) * detail::choose(groups - of_node, top - own) / detail::choose(groups, top) *
             found(top * experts / groups, own * experts / groups);
    return static_cast<double>(nodes) * sum;
  }
  if (top < groups && nodes % groups == 0) {
    const std::int64_t of_groups = nodes / groups * top;
    return static_cast<double>(of_groups) * found(top * experts / groups, experts / nodes);
  }
  return static_cast<double>(nodes) * found(experts, experts / nodes);
}

/// Nodes whose ranks exchange tokens, equally many in each.
struct ExchangeNodes {
  std::int64_t count = 1;   ///< 1: tokens go to the ranks of their experts directly
  std::int64_t tokens = 0;  ///< that a rank can send to all nodes, and that its memory as a relay is for
  std::int64_t rows = 0;    ///< of experts, that its memory as a relay is for
};

/// @param tokens     of a rank
/// @param imbalance  the stated one of experts: of what relays have memory for, over the mean
constexpr ExchangeNodes exchange_nodes(const LayerSpec& layer, const StrategySpec& spec, std::int64_t tokens,
                                       double imbalance) {
  if (!spec.relays_tokens() || layer.experts == 0) return {};
  const std::int64_t nodes = spec.expert_nodes;
  const std::int64_t k = layer.active_experts;
  const std::int64_t here = layer.experts / nodes;
  const auto stated = [imbalance](double mean, std::int64_t most) {
    const auto wanted = static_cast<std::int64_t>(mean * imbalance) + 1;
    return wanted < most ? wanted : most;
  };
  const double sent = static_cast<double>(tokens) * nodes_of_token(layer, nodes);
  return {.count = nodes,
          .tokens = stated(sent, tokens * nodes),
          .rows = stated(static_cast<double>(tokens * k), tokens * nodes * (k < here ? k : here))};
}

}  // namespace galvatron::program
