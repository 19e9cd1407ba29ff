#include <galvatron/model/graph.hpp>

#include <cstddef>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/zoo.hpp>

namespace galvatron {
namespace {

TEST_CASE("a model is a chain from the embedding to the head") {
  const ModelSpec model = find_model("llama-tiny").value();
  const ModelGraph graph = model_graph(model);
  CHECK(boost::num_vertices(graph) == 6);
  CHECK(boost::num_edges(graph) == 5);
  CHECK(topological_order(graph) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(graph[0].layer == model.embedding);
  CHECK(graph[3].layer == model.blocks[2]);
  CHECK(graph[5].layer == model.head);
}

TEST_CASE("a tied head depends on the embedding's table too") {
  const ModelGraph graph = model_graph(find_model("gpt2-tiny").value());
  CHECK(boost::num_edges(graph) == 6);
  const auto [edge, found] = boost::edge(0, 5, graph);
  REQUIRE(found);
  CHECK(graph[edge].kind == EdgeKind::parameters);
  CHECK(boost::in_degree(5, graph) == 2);
}

TEST_CASE("an encoder's output feeds every layer of its decoder") {
  const ModelSpec model =
      t5("t5", {.encoder_layers = 3, .decoder_layers = 2, .hidden = 64, .heads = 4, .ffn = 128, .vocabulary = 100});
  const ModelGraph graph = model_graph(model);
  const auto kind = [&graph](int from, int to) {
    const auto [edge, found] = boost::edge(static_cast<std::size_t>(from), static_cast<std::size_t>(to), graph);
    REQUIRE(found);
    return graph[edge].kind;
  };
  CHECK(boost::num_edges(graph) == 9);
  for (const auto& [from, to] : {std::pair{0, 1}, {1, 2}, {2, 3}, {0, 4}, {4, 5}, {5, 6}})
    CHECK(kind(from, to) == EdgeKind::activation);
  CHECK(kind(3, 4) == EdgeKind::memory);
  CHECK(kind(3, 5) == EdgeKind::memory);
  CHECK(kind(0, 6) == EdgeKind::parameters);
  CHECK(topological_order(graph).size() == 7);
}

TEST_CASE("a graph that is not numbered in order is still ordered by its edges") {
  ModelGraph graph(3);
  for (std::size_t i = 0; i < 3; ++i) graph[i].index = static_cast<int>(i);
  boost::add_edge(2, 0, GraphEdge{}, graph);
  boost::add_edge(0, 1, GraphEdge{}, graph);
  CHECK(topological_order(graph) == std::vector<int>{2, 0, 1});
}

}  // namespace
}  // namespace galvatron
