// Whether a graph is one: operands that exist, in topological order, of shapes that fit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/rules.hpp>

namespace galvatron::hap {

inline constexpr double most_elements = 1e15;  ///< of a tensor
inline constexpr int most_dimensions = 60;

namespace detail {

using Shape = std::vector<std::int64_t>;

inline std::string shape_text(const Shape& shape) {
  return "[" + joined(shape, ", ", [](std::int64_t extent) { return std::to_string(extent); }) + "]";
}

inline Shape with_last(Shape shape, std::int64_t extent) {
  shape.back() = extent;
  return shape;
}

// The shape of a node's result; what is wrong with its operands goes to `wrong`. All operands exist.
inline Shape result_shape(const Graph& graph, const Node& node, std::string& wrong) {
  if (is_source(node.operation)) return graph.tensor(node.output).shape;
  const auto shape = [&](std::size_t i) -> const Shape& { return graph.tensor(node.inputs[i]).shape; };
  const Shape& x = shape(0);
  const auto require = [&](bool holds, const char* otherwise) {
    if (!holds && wrong.empty()) wrong = otherwise;
    return wrong.empty();
  };
  const auto vectors = [&](std::size_t first) {
    for (std::size_t i = first; i < node.inputs.size(); ++i)
      require(!x.empty() && shape(i) == Shape{x.back()}, "further operands are vectors as long as the last dimension");
  };
  switch (node.operation) {
    case Operation::linear:
    case Operation::linear_bias: {
      const Shape& w = shape(1);
      if (!require(!x.empty() && w.size() == 2 && w[1] == x.back(), "the weight is [o, i] for an operand of [.., i]"))
        return {};
      if (node.operation == Operation::linear_bias) require(shape(2) == Shape{w[0]}, "the bias is [o]");
      return with_last(x, w[0]);
    }
    case Operation::add:
    case Operation::multiply:
      require(shape(0) == shape(1), "both operands have one shape");
      return x;
    case Operation::add_bias:
      vectors(1);
      return x;
    case Operation::layer_norm:
      require(!x.empty(), "the operand has a dimension to normalise");
      vectors(1);
      return x;
    case Operation::gated:
      if (!require(!x.empty() && x.back() % 2 == 0, "the last dimension is gate and up")) return {};
      return with_last(x, x.back() / 2);
    case Operation::sum:
      return {};
    case Operation::cross_entropy:
      require(!x.empty(), "the operand has logits");
      return {};
    case Operation::attention:
      require(x.size() == 3 && shape(1) == x && shape(2) == x, "q, k and v have one shape [b, s, h]");
      return x;
    case Operation::self_attention: {
      const Shape& y = graph.tensor(node.output).shape;
      const bool fits = x.size() == 3 && y.size() == 3 && y[2] < x[2] && (x[2] - y[2]) % 2 == 0;
      return require(fits, "the operand is [b, s, queries + 2 keys] for a result of [b, s, queries]")
                 ? Shape{x[0], x[1], y[2]}
                 : Shape{};
    }
    case Operation::mha_fused:
      require(x.size() == 3, "the operand is [L, N, E]");
      return x;
    case Operation::transpose01: {
      if (!require(x.size() >= 2, "the operand has two dimensions at least")) return {};
      Shape out = x;
      std::swap(out[0], out[1]);
      return out;
    }
    case Operation::embedding: {
      if (!require(shape(1).size() == 2, "the table is [V, H]")) return {};
      Shape out = x;
      out.push_back(shape(1)[1]);
      return out;
    }
    case Operation::add_rows:
      require(x.size() == 3 && shape(1).size() == 2 && shape(1)[1] == x[2], "the table is [.., h] for [b, s, h]");
      return x;
    case Operation::prepend:
      if (!require(x.size() == 3 && shape(1) == Shape{1, x[2]}, "the token is [1, h] for [b, s, h]")) return {};
      return {x[0], x[1] + 1, x[2]};
    case Operation::dispatch: {
      const Shape& y = graph.tensor(node.output).shape;
      const bool fits = x.size() == 3 && shape(1).size() == 3 && shape(1)[0] == x[0] && shape(1)[1] == x[1] &&
                        y.size() == 3 && y[0] == shape(1)[2];
      return require(fits, "tokens [b, s, h] with scores [b, s, E] go to slots [E, C, h]") ? Shape{y[0], y[1], x[2]}
                                                                                           : Shape{};
    }
    case Operation::expert_linear: {
      const Shape& w = shape(1);
      const bool fits = x.size() == 3 && w.size() == 3 && w[0] == x[0] && w[2] == x[2];
      return require(fits, "the weight is [E, o, i] for slots [E, C, i]") ? with_last(x, w[1]) : Shape{};
    }
    case Operation::combine: {
      const Shape& scores = shape(1);
      const bool fits = x.size() == 3 && scores.size() == 3 && scores[2] == x[0];
      return require(fits, "slots [E, C, h] go to tokens by scores [b, s, E]") ? with_last(scores, x[2]) : Shape{};
    }
    case Operation::convolution:
    case Operation::pool: {
      const bool is_pool = node.operation == Operation::pool;
      const Shape& y = graph.tensor(node.output).shape;
      const bool fits = x.size() == 4 && y.size() == 4 && (is_pool || (shape(1).size() == 4 && shape(1)[1] == x[1]));
      if (!require(fits, "the operand is [b, i, h, w], a weight [o, i, k, l], and the result has four dimensions"))
        return {};
      return {x[0], is_pool ? x[1] : shape(1)[0], y[2], y[3]};
    }
    case Operation::flatten: {
      if (!require(x.size() >= 2, "the operand has two dimensions at least")) return {};
      Shape out{x[0], 1};
      for (std::size_t i = 1; i < x.size(); ++i) out[1] *= x[i];
      return out;
    }
    case Operation::first_token:
    case Operation::mean_token:
      if (!require(x.size() == 3, "the operand is [b, s, h]")) return {};
      return {x[0], x[2]};
    default:
      return x;
  }
}

}  // namespace detail

/// What is wrong with a graph, in words that begin with an operation or tensor; empty when nothing is.
inline std::string problem_of(const Graph& graph) {
  const auto quoted = [&](int id) { return "\"" + galvatron::detail::one_line(graph.tensor(id).name, 40) + "\""; };
  for (int id = 0; id < static_cast<int>(graph.tensors.size()); ++id) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.rank() > most_dimensions || tensor.elements() > most_elements)
      return text_of("tensor ", quoted(id), " has ", tensor.rank(), " dimensions and ",
                     galvatron::detail::formatted("%g", tensor.elements()), " elements; at most ", most_dimensions,
                     " and 1e15 are");
    if (std::ranges::any_of(tensor.shape, [](std::int64_t extent) { return extent < 1; }))
      return text_of("tensor ", quoted(id), " is ", detail::shape_text(tensor.shape), "; extents are at least 1");
  }
  std::vector<char> made(graph.tensors.size(), 0);
  for (const Node& node : graph.nodes) {
    const OperationRow& row = row_of(node.operation);
    const std::string name = text_of("operation ", row.name, " of ", quoted(node.output));
    if (node.inputs.size() < row.least_operands || node.inputs.size() > row.most_operands)
      return text_of(name, " has ", node.inputs.size(), " operands; it takes ", row.least_operands,
                     row.most_operands > row.least_operands ? text_of(" to ", row.most_operands) : "");
    for (const int input : node.inputs)
      if (made[static_cast<std::size_t>(input)] == 0)
        return text_of(name, " reads ", quoted(input), ", which no operation before it makes; list operations in ",
                       "topological order");
    if (made[static_cast<std::size_t>(node.output)] != 0)
      return text_of(name, ": another operation makes this tensor already");
    made[static_cast<std::size_t>(node.output)] = 1;
    std::string wrong;
    const detail::Shape result = detail::result_shape(graph, node, wrong);
    if (!wrong.empty()) return text_of(name, ": ", wrong);
    const Tensor& out = graph.tensor(node.output);
    const bool scalar = result.empty() && out.elements() == 1;
    if (result != out.shape && !scalar)
      return text_of(name, " is ", detail::shape_text(out.shape), ", and its operands make ",
                     detail::shape_text(result));
  }
  if (graph.loss < 0 ||
      std::ranges::none_of(
          graph.nodes, [&](const Node& node) { return node.output == graph.loss && !is_source(node.operation); }))
    return "no operation computes the loss";
  return {};
}

}  // namespace galvatron::hap
