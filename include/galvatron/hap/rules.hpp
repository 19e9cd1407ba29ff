// What each operation takes and in which layouts it can be computed: tables, one row an operation and one row a rule.
//
// A rule has the layouts of the operands, and the layout of the result that the same instruction then makes on every
// device (HAP, section 4.2). Rows name dimensions of the tensor they stand for; `each` is one row for every dimension.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <galvatron/hap/graph.hpp>

namespace galvatron::hap {

/// Which counts and rules serve.
enum class Dialect : std::uint8_t {
  paper,     ///< bytes, latencies, products that reduce
  released,  ///< those of the authors' program: elements in place of bytes, no latencies, other counts, fewer rules
};

/// Flops of one forward pass, from the shapes.
enum class Count : std::uint8_t {
  elements,     ///< `flops` for every element of the first operand
  product,      ///< `flops` for every multiplication: elements of x times o
  attention,    ///< 4 b s^2 h: Q K^T and P V
  experts,      ///< `flops` for every multiplication of each expert: elements of x times o
  convolution,  ///< `flops` for every multiplication: elements of the result times i k l
  fused_heads,  ///< 4 b s^2 of the result's width
  mha_fused,    ///< 6 L N E L + 5 L L N, which leaves the projections out
};

struct OperationRow {
  Operation operation;
  std::string_view name;
  std::size_t least_operands;
  std::size_t most_operands;
  Count count;
  double flops;
  double released_flops;      ///< 0: the same
  bool keeps_layout = false;  ///< the released program cannot communicate its result
};

inline constexpr auto operation_rows = std::to_array<OperationRow>({
    {Operation::placeholder, "placeholder", 0, 0, Count::elements, 0, 0},
    {Operation::parameter, "parameter", 0, 0, Count::elements, 0, 0},
    {Operation::linear, "linear", 2, 2, Count::product, 2, 3},
    {Operation::linear_bias, "linear_bias", 3, 3, Count::product, 2, 3},
    {Operation::relu, "relu", 1, 1, Count::elements, 3, 0, true},
    {Operation::gelu, "gelu", 1, 1, Count::elements, 8, 0},
    {Operation::sigmoid, "sigmoid", 1, 1, Count::elements, 3, 0, true},
    {Operation::dropout, "dropout", 1, 1, Count::elements, 3, 0, true},
    {Operation::scale, "scale", 1, 1, Count::elements, 1, 0},
    {Operation::rotate, "rotate", 1, 1, Count::elements, 3, 0},
    {Operation::add, "add", 2, 2, Count::elements, 1, 0},
    {Operation::multiply, "multiply", 2, 2, Count::elements, 1, 0},
    {Operation::add_bias, "add_bias", 2, 2, Count::elements, 1, 0},
    {Operation::gated, "gated", 1, 1, Count::elements, 3, 0},
    {Operation::sum, "sum", 1, 1, Count::elements, 1, 0, true},
    {Operation::layer_norm, "layer_norm", 1, 3, Count::elements, 10, 0},
    {Operation::attention, "attention", 3, 3, Count::attention, 0, 0},
    {Operation::self_attention, "self_attention", 1, 1, Count::fused_heads, 0, 0},
    {Operation::mha_fused, "mha_fused", 5, 5, Count::mha_fused, 0, 0},
    {Operation::transpose01, "transpose01", 1, 1, Count::elements, 1, 0, true},
    {Operation::embedding, "embedding", 2, 2, Count::elements, 0, 0},
    {Operation::add_rows, "add_rows", 2, 2, Count::elements, 1, 0},
    {Operation::prepend, "prepend", 2, 2, Count::elements, 0, 0},
    {Operation::first_token, "first_token", 1, 1, Count::elements, 0, 0},
    {Operation::mean_token, "mean_token", 1, 1, Count::elements, 1, 0},
    {Operation::cross_entropy, "cross_entropy", 1, 1, Count::elements, 5, 0},
    {Operation::dispatch, "dispatch", 2, 2, Count::elements, 1, 0},
    {Operation::expert_linear, "expert_linear", 2, 2, Count::experts, 2, 0},
    {Operation::combine, "combine", 2, 2, Count::elements, 2, 0},
    {Operation::convolution, "convolution", 2, 2, Count::convolution, 2, 0},
    {Operation::pool, "pool", 1, 1, Count::elements, 1, 0},
    {Operation::flatten, "flatten", 1, 1, Count::elements, 0, 0},
});

constexpr const OperationRow& row_of(Operation operation) {
  return operation_rows[static_cast<std::size_t>(operation)];
}
static_assert([] {
  for (std::size_t i = 0; i < operation_rows.size(); ++i)
    if (static_cast<std::size_t>(operation_rows[i].operation) != i) return false;
  return true;
}());

inline std::optional<Operation> operation_named(std::string_view name) {
  for (const OperationRow& row : operation_rows)
    if (row.name == name) return row.operation;
  return std::nullopt;
}

/// A layout in a row of the table of rules.
enum class Place : std::int8_t {
  none,  ///< no such operand; or as the operand before it
  whole,
  partial,
  dim0,  ///< sharded on dimension 0 of the tensor
  dim1,
  dim2,
  last,           ///< on its last dimension
  each,           ///< on dimension d, for all d of the first operand
  each_but_last,  ///< the same without its last
  swapped,        ///< on 1 - d for d = 0 and 1, else on d
};

struct RuleRow {
  Operation operation;
  std::array<Place, 5> operands;  ///< those that are left out are as the one before
  Place result;
  bool released = true;  ///< the released program has it
};

inline constexpr auto rule_rows = [] {
  using enum Operation;
  using P = Place;
  return std::to_array<RuleRow>({
      {linear, {P::whole}, P::whole},
      {linear, {P::each_but_last, P::whole}, P::each_but_last},
      {linear, {P::whole, P::dim0}, P::last},
      {linear, {P::last, P::dim1}, P::partial, false},
      {linear_bias, {P::whole}, P::whole},
      {linear_bias, {P::each_but_last, P::whole}, P::each_but_last},
      {linear_bias, {P::whole, P::dim0}, P::last},
      {relu, {P::whole}, P::whole},
      {relu, {P::each}, P::each},
      {gelu, {P::whole}, P::whole},
      {gelu, {P::each}, P::each},
      {sigmoid, {P::whole}, P::whole},
      {sigmoid, {P::each}, P::each},
      {dropout, {P::whole}, P::whole},
      {dropout, {P::each}, P::each},
      {scale, {P::whole}, P::whole},
      {scale, {P::each}, P::each},
      {scale, {P::partial}, P::partial},
      {rotate, {P::whole}, P::whole},
      {rotate, {P::each}, P::each},
      {rotate, {P::partial}, P::partial},
      {add, {P::whole}, P::whole},
      {add, {P::each}, P::each},
      {add, {P::partial}, P::partial},
      {multiply, {P::whole}, P::whole},
      {multiply, {P::each}, P::each},
      {add_bias, {P::whole}, P::whole},
      {add_bias, {P::each_but_last, P::whole}, P::each_but_last},
      {add_bias, {P::last, P::dim0}, P::last},
      {gated, {P::whole}, P::whole},
      {gated, {P::each}, P::each},
      {sum, {P::whole}, P::whole},
      {sum, {P::each}, P::partial},
      {sum, {P::partial}, P::partial},
      {layer_norm, {P::whole}, P::whole},
      {layer_norm, {P::each_but_last, P::whole}, P::each_but_last},
      {attention, {P::whole}, P::whole},
      {attention, {P::dim0}, P::dim0},
      {attention, {P::dim2}, P::dim2},
      {self_attention, {P::whole}, P::whole},
      {self_attention, {P::dim0}, P::dim0},
      {self_attention, {P::dim2}, P::dim2},
      {mha_fused, {P::whole}, P::whole},
      {mha_fused, {P::dim1, P::whole}, P::dim1},
      {transpose01, {P::whole}, P::whole},
      {transpose01, {P::each}, P::swapped},
      {transpose01, {P::partial}, P::partial},
      {embedding, {P::whole}, P::whole},
      {embedding, {P::each, P::whole}, P::each},
      {embedding, {P::whole, P::dim1}, P::last},
      {embedding, {P::whole, P::dim0}, P::partial},
      {add_rows, {P::whole}, P::whole},
      {add_rows, {P::each_but_last, P::whole}, P::each_but_last},
      {add_rows, {P::last, P::dim1}, P::last},
      {prepend, {P::whole}, P::whole},
      {prepend, {P::dim0, P::whole}, P::dim0},
      {prepend, {P::dim2, P::dim1}, P::dim2},
      {first_token, {P::whole}, P::whole},
      {first_token, {P::dim0}, P::dim0},
      {first_token, {P::dim2}, P::dim1},
      {first_token, {P::partial}, P::partial},
      {mean_token, {P::whole}, P::whole},
      {mean_token, {P::dim0}, P::dim0},
      {mean_token, {P::dim1}, P::partial},
      {mean_token, {P::dim2}, P::dim1},
      {mean_token, {P::partial}, P::partial},
      {cross_entropy, {P::whole}, P::whole},
      {cross_entropy, {P::each_but_last}, P::partial},
      {dispatch, {P::whole}, P::whole, false},
      {dispatch, {P::dim0}, P::dim1, false},
      {dispatch, {P::dim2, P::whole}, P::dim2, false},
      {expert_linear, {P::whole}, P::whole, false},
      {expert_linear, {P::dim0}, P::dim0, false},
      {expert_linear, {P::dim1, P::whole}, P::dim1, false},
      {expert_linear, {P::whole, P::dim1}, P::dim2, false},
      {expert_linear, {P::dim2}, P::partial, false},
      {combine, {P::whole}, P::whole, false},
      {combine, {P::dim1, P::dim0}, P::dim0, false},
      {combine, {P::dim0, P::whole}, P::partial, false},
      {combine, {P::dim2, P::whole}, P::dim2, false},
      {combine, {P::partial, P::whole}, P::partial, false},
      {convolution, {P::whole}, P::whole, false},
      {convolution, {P::dim0, P::whole}, P::dim0, false},
      {convolution, {P::whole, P::dim0}, P::dim1, false},
      {convolution, {P::dim1}, P::partial, false},
      {pool, {P::whole}, P::whole, false},
      {pool, {P::dim0}, P::dim0, false},
      {pool, {P::dim1}, P::dim1, false},
      {flatten, {P::whole}, P::whole, false},
      {flatten, {P::dim0}, P::dim0, false},
      {flatten, {P::dim1}, P::dim1, false},
      {flatten, {P::partial}, P::partial, false},
  });
}();

/// One way to compute a node.
struct Rule {
  std::vector<Layout> operands;
  Layout result;
  bool sharded = false;  ///< device j computes the share B_j; otherwise all of it
};

namespace detail {

// The layout that a row's word means for a tensor; nothing where the tensor has no such dimension.
inline std::optional<Layout> placed(Place place, int rank, int dimension) {
  int at = 0;
  switch (place) {
    case Place::none:
    case Place::whole:
      return replicate;
    case Place::partial:
      return partial_sums;
    case Place::dim0:
      break;
    case Place::dim1:
      at = 1;
      break;
    case Place::dim2:
      at = 2;
      break;
    case Place::last:
      at = rank - 1;
      break;
    case Place::each:
    case Place::each_but_last:
      at = dimension;
      break;
    case Place::swapped:
      at = dimension < 2 ? 1 - dimension : dimension;
      break;
  }
  if (at < 0 || at >= rank) return std::nullopt;
  return shard(at);
}

}  // namespace detail

/// All rules of a node, in the order of the table.
inline std::vector<Rule> rules_of(const Graph& graph, const Node& node, Dialect dialect) {
  std::vector<Rule> out;
  for (const RuleRow& row : rule_rows) {
    if (row.operation != node.operation || (dialect == Dialect::released && !row.released)) continue;
    const int rank = graph.tensor(node.inputs.front()).rank();
    const bool is_each = row.operands[0] == Place::each;
    const int count = is_each ? rank : row.operands[0] == Place::each_but_last ? rank - 1 : 1;
    for (int d = 0; d < count; ++d) {
      Rule rule;
      bool exists = true;
      Place place = Place::none;
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (i < row.operands.size() && row.operands[i] != Place::none) place = row.operands[i];
        const auto layout = detail::placed(place, graph.tensor(node.inputs[i]).rank(), d);
        exists = exists && layout;
        rule.operands.push_back(layout.value_or(replicate));
        rule.sharded = rule.sharded || rule.operands.back().is_shard();
      }
      const auto result = detail::placed(row.result, graph.tensor(node.output).rank(), d);
      if (!exists || !result) continue;
      rule.result = *result;
      out.push_back(std::move(rule));
    }
  }
  return out;
}

/// Flops of a node's forward pass (../../data: README of the cases; layers add what they need).
inline double forward_flops(const Graph& graph, const Node& node, Dialect dialect) {
  const OperationRow& row = row_of(node.operation);
  if (node.inputs.empty()) return 0;
  const Tensor& x = graph.tensor(node.inputs.front());
  const bool released = dialect == Dialect::released && row.released_flops > 0;
  const double flops = released ? row.released_flops : row.flops;
  const auto extent = [&](const Tensor& t, std::size_t d) { return static_cast<double>(t.shape[d]); };
  switch (row.count) {
    case Count::elements:
      return flops * x.elements();
    case Count::product: {
      const double product = flops * x.elements() * extent(graph.tensor(node.inputs[1]), 0);
      const bool adds = node.operation == Operation::linear_bias && dialect == Dialect::paper;
      return product + (adds ? graph.tensor(node.output).elements() : 0);
    }
    case Count::experts:
      return flops * x.elements() * extent(graph.tensor(node.inputs[1]), 1);
    case Count::convolution: {
      const Tensor& w = graph.tensor(node.inputs[1]);
      return flops * graph.tensor(node.output).elements() * w.elements() / extent(w, 0);
    }
    case Count::attention:
      return 4 * x.elements() * extent(x, 1);
    case Count::fused_heads:
      return 4 * graph.tensor(node.output).elements() * extent(x, 1);
    case Count::mha_fused: {
      const double l = extent(x, 0);
      return 6 * x.elements() * l + 5 * l * l * extent(x, 1);
    }
  }
  return 0;
}

/// Collectives and what else may be done to a tensor's layout.
enum class Collective : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, slice };
inline constexpr std::size_t priced_collectives = 4;  ///< a slice is free
inline constexpr std::array<std::string_view, 5> collective_names = {"all_reduce", "all_gather", "reduce_scatter",
                                                                     "all_to_all", "slice"};
constexpr std::string_view name_of(Collective collective) {
  return collective_names[static_cast<std::size_t>(collective)];
}

/// What makes layout `to` of layout `from`; nothing where none does.
constexpr std::optional<Collective> collective_between(Layout from, Layout to) {
  if (from == to || to == partial_sums) return std::nullopt;
  if (from == partial_sums) return to == replicate ? Collective::all_reduce : Collective::reduce_scatter;
  if (from == replicate) return Collective::slice;
  return to == replicate ? Collective::all_gather : Collective::all_to_all;
}

/// `all_gather(2)`, `all_to_all(0,2)`, `all_reduce`.
inline std::string text_of_move(Layout from, Layout to) {
  const auto collective = collective_between(from, to);
  if (!collective) return "none";
  std::string out(name_of(*collective));
  const std::string a = std::to_string(from.code);
  const std::string b = std::to_string(to.code);
  switch (*collective) {
    case Collective::all_reduce:
      return out;
    case Collective::all_gather:
      return out + "(" + a + ")";
    case Collective::reduce_scatter:
    case Collective::slice:
      return out + "(" + b + ")";
    case Collective::all_to_all:
      return out + "(" + a + "," + b + ")";
  }
  return out;
}

/// Whether a node's result may be communicated.
constexpr bool can_communicate(Operation operation, Dialect dialect) {
  return !is_source(operation) && !(dialect == Dialect::released && row_of(operation).keeps_layout);
}

}  // namespace galvatron::hap
