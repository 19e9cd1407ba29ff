// Calibration: what measured steps have taught about the figures of a cluster, as one factor for each term of a price.
// The figures stay what they are; pricing multiplies. A factor of 1 is what every cluster begins with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/op/kind.hpp>

namespace galvatron {

/// What a price is made of, so far as a factor of its own can correct it. All seconds of a cluster belong to one term.
enum class CostTerm : std::uint8_t {
  products,            ///< op::gemms
  attention,           ///< op::attentions
  memory_bound,        ///< op::memory_bound, but for the optimizer's
  optimizer,           ///< AdamW and the gradient norm
  host,                ///< launches of operations, where the trainer has a floor for them (RuntimeTraits::host)
  all_reduce_in_node,  ///< collectives whose ranks share a node
  gather_in_node,      ///< all-gather, reduce-scatter and broadcast
  all_to_all_in_node,
  send_in_node,  ///< between pipeline stages, and moves between layouts
  all_reduce_across_nodes,
  gather_across_nodes,
  all_to_all_across_nodes,
  send_across_nodes
};
inline constexpr int cost_term_count = static_cast<int>(CostTerm::send_across_nodes) + 1;
inline constexpr auto cost_terms = [] {
  std::array<CostTerm, cost_term_count> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<CostTerm>(i);
  return out;
}();

constexpr const char* name_of(CostTerm term) {
  return std::array{"products",
                    "attention",
                    "memory_bound",
                    "optimizer",
                    "host",
                    "all_reduce_in_node",
                    "gather_in_node",
                    "all_to_all_in_node",
                    "send_in_node",
                    "all_reduce_across_nodes",
                    "gather_across_nodes",
                    "all_to_all_across_nodes",
                    "send_across_nodes"}[static_cast<std::size_t>(term)];
}

/// The term of a kind that is no communication.
constexpr CostTerm term_of(op::Kind kind) {
  if (op::is_gemm(kind)) return CostTerm::products;
  if (op::is_attention(kind)) return CostTerm::attention;
  return kind == op::Kind::adamw || kind == op::Kind::adamw_bf16 || kind == op::Kind::norm_squared
             ? CostTerm::optimizer
             : CostTerm::memory_bound;
}
/// The term of a communication inside a node, or across nodes.
constexpr CostTerm term_of(op::Kind communication, bool across) {
  using enum CostTerm;
  switch (communication) {
    case op::Kind::all_reduce:
      return across ? all_reduce_across_nodes : all_reduce_in_node;
    case op::Kind::all_to_all:
      return across ? all_to_all_across_nodes : all_to_all_in_node;
    case op::Kind::send:
      return across ? send_across_nodes : send_in_node;
    default:
      return across ? gather_across_nodes : gather_in_node;
  }
}

/// Groups of these terms, with what no factor of a cluster corrects: what a prediction's uncertainty is made of, and
/// what is measured together.
enum class PriceTerm : std::uint8_t { products, attention, memory_bound, inside_node, across_nodes, trainer };
inline constexpr std::array price_terms{PriceTerm::products,    PriceTerm::attention,    PriceTerm::memory_bound,
                                        PriceTerm::inside_node, PriceTerm::across_nodes, PriceTerm::trainer};

constexpr const char* name_of(PriceTerm term) {
  return std::array{
      "products", "attention", "memory_bound", "inside_node", "across_nodes", "trainer"}[static_cast<std::size_t>(
      term)];
}

/// The term that a factor of a cluster's calibration belongs to; launches by the host are the trainer's.
constexpr PriceTerm price_term_of(CostTerm term) {
  if (term == CostTerm::products) return PriceTerm::products;
  if (term == CostTerm::attention) return PriceTerm::attention;
  if (term == CostTerm::host) return PriceTerm::trainer;
  if (term < CostTerm::host) return PriceTerm::memory_bound;
  return term < CostTerm::all_reduce_across_nodes ? PriceTerm::inside_node : PriceTerm::across_nodes;
}

/// What is known of one term.
struct CalibratedTerm {
  double factor = 1;      ///< of its seconds: above 1 the machine is slower than the figures
  double spread = 0;      ///< relative standard deviation of the factor; 0: nothing was learned
  double resolution = 0;  ///< 0: the factor is what was assumed before; 1: the runs alone say it
  friend bool operator==(const CalibratedTerm&, const CalibratedTerm&) = default;
};

struct Calibration {
  std::string date;     ///< of the calibration, YYYY-MM-DD; empty without a calibration
  std::string cluster;  ///< whose figures the factors are of
  std::string trainer;  ///< whose steps were measured
  std::string runs;     ///< the file with the measured steps
  int steps = 0;        ///< how many plans it had
  double noise = 0;     ///< relative standard deviation of what the factors leave unexplained
  std::array<CalibratedTerm, cost_term_count> terms{};

  friend bool operator==(const Calibration&, const Calibration&) = default;
  [[nodiscard]] constexpr const CalibratedTerm& term(CostTerm which) const {
    return terms[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] constexpr CalibratedTerm& term(CostTerm which) { return terms[static_cast<std::size_t>(which)]; }
  [[nodiscard]] constexpr double factor(CostTerm which) const { return term(which).factor; }
  [[nodiscard]] constexpr bool exists() const { return !date.empty(); }
};

}  // namespace galvatron
