#include <galvatron/model/graph.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/check.hpp>
#include <galvatron/model/topological_order.hpp>
#include <galvatron/model/zoo.hpp>

namespace galvatron {
namespace {

// The graph of a chain, and of a model that was one: nodes are numbered as the plan numbers layers.
ModelGraph graph_of(const ModelSpec& model) {
  ModelGraph out;
  out.name = model.name;
  std::array<NodeOutput, most_parts> held{};
  const auto add = [&](LayerSpec layer) {
    const BundlePlace place = layer.place;
    const int number = static_cast<int>(out.nodes.size());
    layer.place = {};
    ModelGraph::Node node{layer, {}};
    for (std::size_t k = 0; k < 2 && number > 0; ++k)
      if (place.inputs[k] >= 0) node.inputs[k] = held[static_cast<std::size_t>(place.inputs[k])];
    for (int k = 0; k < 2; ++k)
      if (const int part = place.outputs[static_cast<std::size_t>(k)]; part >= 0 && layer.kind != LayerKind::head)
        held[static_cast<std::size_t>(part)] = {number, k};
    out.nodes.push_back(node);
  };
  add(model.embedding);
  for (const LayerSpec& block : model.blocks) add(block);
  add(model.head);
  return out;
}

using Parts = std::array<std::int16_t, 2>;

/// The layers of a GPT as nodes, without edges.
struct Nodes {
  ModelSpec model = gpt("gpt", {.layers = 4, .hidden = 64, .heads = 4, .vocabulary = 100, .positions = 32});
  ModelGraph graph{.name = "graph", .nodes = {}};

  NodeOutput embedding() {
    LayerSpec layer = model.embedding;
    layer.tied = false;
    return {graph.add(layer)};
  }
  NodeOutput block(NodeOutput x) { return {graph.add(model.blocks[0], x)}; }
  NodeOutput block(NodeOutput x, NodeOutput memory) {
    LayerSpec layer = model.blocks[0];
    layer.memory = all_tokens;
    return {graph.add(layer, x, memory)};
  }
  void head(NodeOutput x, double weight = 1) {
    LayerSpec layer = model.head;
    layer.tied = false;
    layer.loss_weight = weight;
    graph.add(layer, x);
  }
  [[nodiscard]] std::string refused() const {
    const auto chain = chain_of(graph);
    return chain ? "" : chain.error().message;
  }
};

TEST_CASE("a chain of layers is the model that it was") {
  for (const char* name : {"llama-tiny", "gpt2-tiny", "bert-tiny", "swin-tiny", "t5-tiny", "vit-tiny"}) {
    INFO(name);
    const auto model = find_model(name);
    if (!model) continue;
    CHECK(chain_of(graph_of(*model)).value() == *model);
  }
}

TEST_CASE("a loss inside of a model reads what the next block reads too") {
  Nodes n;
  NodeOutput x = n.block(n.block(n.embedding()));
  n.head(x, 0.25);
  n.head(n.block(x));
  const ModelSpec model = checked(chain_of(n.graph).value()).value();
  REQUIRE(model.blocks.size() == 4);
  const LayerSpec& loss = model.blocks[2];
  CHECK(loss.kind == LayerKind::head);
  CHECK(loss.loss_weight == 0.25);
  CHECK(loss.place.arrives == 0);
  CHECK(loss.passes(0));
  CHECK(loss.pass_through_elements(32) == 0);
  const LayerSpec& behind = model.blocks[3];
  CHECK(behind.place.arrives == -1);
  CHECK(behind.pass_through_elements(32) == 32 * 64);
  CHECK(model.blocks[0].is_in_chain());
  CHECK(model.head.is_in_chain());
}

TEST_CASE("a second embedding keeps what it does not read") {
  Nodes n;
  const NodeOutput first = n.embedding();
  const NodeOutput second = n.embedding();
  n.head(n.block(n.block(first, second)));
  const ModelSpec model = checked(chain_of(n.graph).value()).value();
  const LayerSpec& embedding = model.blocks[0];
  CHECK(embedding.kind == LayerKind::embedding);
  CHECK(embedding.keeps_unread());
  CHECK(embedding.place.outputs == Parts{1, -1});
  CHECK(embedding.output_elements(32) == 2 * 32 * 64);
  CHECK(model.blocks[1].place.inputs == Parts{0, 1});
  CHECK(model.blocks[1].place.arrives == 1);
  CHECK(model.blocks[2].ends(1));  // all readers of a value are alike: it ends behind the last one
  CHECK(model.blocks[2].output_elements(32) == 32 * 64);
}

TEST_CASE("graphs that make no chain are refused with the node") {
  Nodes none;
  CHECK(none.refused().find("a model begins with an embedding") != std::string::npos);
  Nodes unread;
  const NodeOutput x = unread.block(unread.embedding());
  unread.block(x);
  unread.head(x);
  CHECK(unread.refused().find("(node 2): nothing reads what it makes") != std::string::npos);
  Nodes early;
  early.embedding();
  early.block({3});
  early.head({1});
  CHECK(early.refused().find("(node 0): nothing reads") != std::string::npos);
  Nodes many;
  std::vector<NodeOutput> values{many.embedding()};
  for (int i = 0; i < most_parts; ++i) values.push_back(many.embedding());
  NodeOutput y = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) y = many.block(y, values[i]);
  many.head(y);
  CHECK(many.refused().find("(node 4): more than 4 values") != std::string::npos);
}

TEST_CASE("Boost.Graph orders nodes by what they read, and finds cycles") {
  Nodes n;
  n.graph.nodes.resize(4);
  n.graph.nodes[3].layer = n.model.embedding;
  n.graph.nodes[1] = {n.model.blocks[0], {NodeOutput{3}}};
  n.graph.nodes[0] = {n.model.blocks[0], {NodeOutput{1}}};
  n.graph.nodes[2] = {n.model.head, {NodeOutput{0}}};
  CHECK(n.refused() != "");
  const ModelGraph ordered = topological_order(n.graph).value();
  CHECK(chain_of(ordered).value().blocks.size() == 2);
  CHECK(ordered.nodes[0].layer.kind == LayerKind::embedding);
  n.graph.nodes[1].inputs[1] = {0};
  CHECK(topological_order(n.graph).error().message.find("has a cycle") != std::string::npos);
  n.graph.nodes[1].inputs[1] = {9};
  CHECK(topological_order(n.graph).error().message.find("no node") != std::string::npos);
}

}  // namespace
}  // namespace galvatron
