// A model as a directed acyclic graph of layers (Boost.Graph, which is included by this header alone).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>

#include <galvatron/model/spec.hpp>

namespace galvatron {

/// What an edge between two layers means.
enum class EdgeKind : std::uint8_t {
  activation,  ///< the output of one layer is the input of the other: (S, B, H)
  memory,      ///< the encoder's output is what the cross attention of a decoder layer reads
  parameters,  ///< both layers use the same table (V, H): a tied head
};

struct GraphLayer {
  int index = 0;  ///< 0 the embedding, 1..L the blocks, L + 1 the head
  LayerSpec layer;
};

struct GraphEdge {
  EdgeKind kind = EdgeKind::activation;
};

/// Vertices are numbered by GraphLayer::index.
using ModelGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, GraphLayer, GraphEdge>;

/// The graph of a model: a chain, or an encoder's chain whose end feeds every layer of the decoder's chain. Both chains
/// begin at the embedding.
inline ModelGraph model_graph(const ModelSpec& model) {
  ModelGraph graph;
  int index = 0;
  const auto add = [&](const LayerSpec& layer) { return boost::add_vertex(GraphLayer{index++, layer}, graph); };
  const auto embedding = add(model.embedding);
  auto last = embedding;
  auto encoder_end = embedding;
  for (const LayerSpec& block : model.blocks) {
    const auto next = add(block);
    if (block.begins_decoder) {
      encoder_end = last;
      last = embedding;
    }
    boost::add_edge(last, next, GraphEdge{EdgeKind::activation}, graph);
    if (block.memory.any()) boost::add_edge(encoder_end, next, GraphEdge{EdgeKind::memory}, graph);
    last = next;
  }
  const auto head = add(model.head);
  boost::add_edge(last, head, GraphEdge{EdgeKind::activation}, graph);
  if (model.head.tied) boost::add_edge(embedding, head, GraphEdge{EdgeKind::parameters}, graph);
  return graph;
}

/// The indices of the layers such that every layer comes after those that it depends on.
inline std::vector<int> topological_order(const ModelGraph& graph) {
  std::vector<ModelGraph::vertex_descriptor> reversed;
  boost::topological_sort(graph, std::back_inserter(reversed));
  std::vector<int> order;
  order.reserve(reversed.size());
  for (auto at = reversed.rbegin(); at != reversed.rend(); ++at) order.push_back(graph[*at].index);
  return order;
}

}  // namespace galvatron
