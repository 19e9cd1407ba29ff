// The graph of a model: its layers' forward passes (model/layers.hpp) as they are, one after the other.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/hap/check.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/extent.hpp>

namespace galvatron::hap {

namespace detail {

/// Adds the layers of a model to a graph. Throws Failure (usage) for what HAP has no operation for.
class ModelGraph {
 public:
  ModelGraph(const ModelSpec& model, std::int64_t batch, std::int64_t sequence)
      : model_(model), batch_(batch), sequence_(sequence) {}

  Graph build() {
    for (int number = 0; number < model_.layers(); ++number) add_layer(number);
    out_.loss = loss_;
    return std::move(out_);
  }

 private:
  using Shape = std::vector<std::int64_t>;

  [[noreturn]] void fail(const char* what) const {
    refuse(model_.name, ": layer ", number_, " has ", what,
           ", for which HAP's graph has no operation; models of the GPT, BERT, Llama and ViT families have one");
  }

  void add_layer(int number) {
    number_ = number;
    const LayerSpec& layer = model_.layer(number);
    const forward::Graph graph = forward_of(layer);
    if (graph.inputs[1] >= 0 || graph.outputs[1] >= 0 || !layer.is_in_chain()) fail("several inputs or outputs");
    prefix_ = number == 0 ? "embedding." : number + 1 == model_.layers() ? "head." : text_of("block", number, ".");
    nodes_ = 0;
    tensors_.assign(static_cast<std::size_t>(graph.tensor_count), -1);
    weights_.assign(static_cast<std::size_t>(graph.weight_count), -1);
    if (graph.takes_data) {
      const Shape shape = with_width(graph, graph.inputs[0]);
      at(tensors_, graph.inputs[0]) = out_.add(Operation::placeholder, {}, "data", shape);
    } else if (graph.inputs[0] >= 0) {
      at(tensors_, graph.inputs[0]) = activation_;
    }
    const std::size_t first = out_.nodes.size();
    for (int i = 0; i < graph.node_count; ++i) add_node(graph, graph.node(i));
    for (std::size_t i = first; i < out_.nodes.size(); ++i) out_.nodes[i].layer = number;
    if (graph.outputs[0] >= 0) activation_ = at(tensors_, graph.outputs[0]);
  }

  static int& at(std::vector<int>& ids, int i) { return ids[static_cast<std::size_t>(i)]; }

  [[nodiscard]] Shape rows(const forward::Graph& graph, int tensor) const {
    const std::int64_t tokens = graph.layer.tokens.of(sequence_);
    switch (graph.rows(tensor)) {
      case forward::Rows::tokens:
        return {batch_, tokens};
      case forward::Rows::patches:
        return {batch_, tokens - 1};
      case forward::Rows::first_tokens:
      case forward::Rows::samples:
        return {batch_};
      default:
        fail("rows that are no tokens of its own");
    }
  }
  [[nodiscard]] Shape with_width(const forward::Graph& graph, int tensor) const {
    Shape out = rows(graph, tensor);
    out.push_back(graph.width(tensor).extent);
    return out;
  }
  // A parameter, where it is first read. The head of tied ends has the embedding's table.
  int parameter(const forward::Graph& graph, int weight) {
    int& id = at(weights_, weight);
    if (id >= 0) return id;
    const forward::WeightSpec& spec = graph.weight(weight);
    if (spec.is_table && graph.layer.tied && table_ >= 0) return id = table_;
    const bool vector = spec.columns == forward::Width{1};
    id = out_.add(Operation::parameter, {}, prefix_ + std::string(name_of(spec.name)),
                  vector ? Shape{spec.rows.extent} : Shape{spec.rows.extent, spec.columns.extent});
    out_.tensors[static_cast<std::size_t>(id)].split = spec.rows.split ? 0 : spec.columns.split ? 1 : -1;
    if (spec.is_table) table_ = id;
    return id;
  }
  int add(Operation operation, std::vector<int> inputs, Shape shape) {
    const std::string name = text_of(prefix_, row_of(operation).name, ".", nodes_++);
    return out_.add(operation, std::move(inputs), name, std::move(shape));
  }

  void add_node(const forward::Graph& graph, const forward::Node& node) {
    const auto weight = [&](std::size_t i) { return parameter(graph, node.weights[i]); };
    const int x = node.inputs[0] < 0 ? -1 : at(tensors_, node.inputs[0]);
    const int y = node.inputs[1] < 0 ? -1 : at(tensors_, node.inputs[1]);
    if (node.operation == forward::Kind::cross_entropy) return add_loss(graph, node, x);
    const Shape shape = with_width(graph, node.output);
    int& out = at(tensors_, node.output);
    switch (node.operation) {
      case forward::Kind::norm: {
        std::vector<int> inputs{x, weight(0)};
        if (node.weights[1] >= 0) inputs.push_back(weight(1));
        out = add(Operation::layer_norm, std::move(inputs), shape);
        break;
      }
      case forward::Kind::linear:
        out = add(Operation::linear, {x, weight(0)}, shape);
        mark_heads(graph, node, out);
        if (node.weights[1] >= 0) {
          mark_split(graph, node, out);
          out = add(Operation::add_bias, {out, weight(1)}, shape);
        }
        break;
      case forward::Kind::activation:
        out = add(activation_of(node.activation), {x}, shape);
        break;
      case forward::Kind::add:
        out = add(Operation::add, {x, y}, shape);
        break;
      case forward::Kind::multiply:
        out = add(Operation::multiply, {x, y}, shape);
        break;
      case forward::Kind::rotate:
        out = add(Operation::rotate, {x}, shape);
        break;
      case forward::Kind::attend:
        if (node.weights[0] >= 0) fail("biases of attention by distance");
        if (graph.layer.window > 0) fail("attention within windows");
        if (graph.layer.window_within(sequence_) > 0) fail("attention within a sliding window");
        if (graph.layer.score_cap > 0) fail("attention with soft-capped scores");
        out = add(Operation::self_attention, {x}, shape);
        break;
      case forward::Kind::look_up: {
        const int ids = out_.add(Operation::placeholder, {}, "tokens", rows(graph, node.output));
        out = add(Operation::embedding, {ids, weight(0)}, shape);
        break;
      }
      case forward::Kind::add_positions:
      case forward::Kind::add_segment:
        out = add(Operation::add_rows, {x, weight(0)}, shape);
        break;
      case forward::Kind::prepend:
        out = add(Operation::prepend, {x, weight(0)}, shape);
        break;
      case forward::Kind::first_token:
        out = add(Operation::first_token, {x}, shape);
        break;
      case forward::Kind::mean:
      case forward::Kind::end_of_text:  // as much work, and the same placements
        out = add(Operation::mean_token, {x}, shape);
        break;
      case forward::Kind::experts:
        out = add_experts(graph, node, x);
        break;
      case forward::Kind::norm_heads:
        fail("norms of queries and keys");
      default:
        fail("an operation of another family");
    }
    mark_heads(graph, node, out);
    mark_split(graph, node, out);
  }
  // Dispatches tokens to the slots [E, C, h] of their experts, and combines what these give; C is an expert's capacity.
  int add_experts(const forward::Graph& graph, const forward::Node& node, int x) {
    const LayerSpec& layer = graph.layer;
    if (node.weights[4] >= 0) fail("gains of residuals");
    const Shape tokens = out_.tensor(x).shape;
    const auto weight_of_experts = [&](int weight) {
      int& id = at(weights_, weight);
      const forward::WeightSpec& spec = graph.weight(weight);
      return id = out_.add(Operation::parameter, {}, prefix_ + std::string(name_of(spec.name)),
                           {layer.experts, spec.rows.extent / layer.experts, spec.columns.extent});
    };
    int scores = add(Operation::linear, {x, parameter(graph, node.weights[0])}, {tokens[0], tokens[1], layer.experts});
    if (node.weights[3] >= 0)
      scores = add(Operation::add_bias, {scores, parameter(graph, node.weights[3])}, out_.tensor(scores).shape);
    const double most = layer.router.capacity > 0 ? layer.router.capacity : program::default_expert_imbalance;
    const double fair = static_cast<double>(tokens[0] * tokens[1] * layer.active_experts);
    const auto slots = static_cast<std::int64_t>(std::ceil(fair * most / static_cast<double>(layer.experts)));
    const auto of_slots = [&](Operation operation, std::vector<int> inputs, std::int64_t width) {
      const int id = add(operation, std::move(inputs), {layer.experts, slots, width});
      out_.tensors[static_cast<std::size_t>(id)].samples = 1;
      return id;
    };
    const int in = weight_of_experts(node.weights[1]);
    const int y = weight_of_experts(node.weights[2]);
    const int sent = of_slots(Operation::dispatch, {x, scores}, tokens[2]);
    const int u = of_slots(Operation::expert_linear, {sent, in}, out_.tensor(in).shape[1]);
    const int g = of_slots(activation_of(node.activation), {u}, layer.ffn);
    const int made = of_slots(Operation::expert_linear, {g, y}, tokens[2]);
    return add(Operation::combine, {made, scores}, tokens);
  }
  static Operation activation_of(ActivationKind activation) {
    if (inputs_of(activation) == 2) return Operation::gated;
    return activation == ActivationKind::relu ? Operation::relu : Operation::gelu;
  }
  // What tensor ranks share of an activation is its width.
  void mark_split(const forward::Graph& graph, const forward::Node& node, int tensor) {
    Tensor& own = out_.tensors[static_cast<std::size_t>(tensor)];
    if (graph.width(node.output).split) own.split = own.rank() - 1;
  }
  // Fused projections, and what attention makes of them, are cut by heads.
  void mark_heads(const forward::Graph& graph, const forward::Node& node, int tensor) {
    const bool fused = graph.width(node.output).sections[2] > 0;
    if (fused || node.operation == forward::Kind::attend)
      out_.tensors[static_cast<std::size_t>(tensor)].heads = graph.layer.kv_heads;
  }
  // Logits over the table, and the sum of the rows' losses.
  void add_loss(const forward::Graph& graph, const forward::Node& node, int x) {
    const int table = parameter(graph, node.weights[0]);
    Shape shape = out_.tensor(x).shape;
    shape.back() = graph.layer.vocabulary;
    const auto split = [&](int tensor) {
      out_.tensors[static_cast<std::size_t>(tensor)].split = static_cast<int>(shape.size()) - 1;
      return tensor;
    };
    int logits = split(add(Operation::linear, {x, table}, shape));
    if (node.weights[1] >= 0)
      logits = split(add(Operation::add_bias, {logits, parameter(graph, node.weights[1])}, shape));
    loss_ = out_.add(Operation::cross_entropy, {logits}, "loss", {});
  }

  const ModelSpec& model_;
  std::int64_t batch_;
  std::int64_t sequence_;
  Graph out_;
  int number_ = 0;  // of the layer
  std::string prefix_;
  int nodes_ = 0;  // of the layer
  int activation_ = -1;
  int table_ = -1;
  int loss_ = -1;
  std::vector<int> tensors_;  // of the layer, in the graph
  std::vector<int> weights_;
};

}  // namespace detail

/// The graph of a step of a model on `batch` samples of `sequence` tokens. Throws Failure (usage): a layer that HAP's
/// operations cannot say, or a graph that is too large.
inline Graph graph_of(const ModelSpec& model, std::int64_t batch, std::int64_t sequence) {
  Graph out = detail::ModelGraph(model, batch, sequence).build();
  if (const std::string wrong = problem_of(out); !wrong.empty()) refuse(model.name, ": ", wrong);
  return out;
}

}  // namespace galvatron::hap
