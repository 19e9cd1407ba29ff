// A model's graph for Boost.Graph, which is included by this header alone.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/model/graph.hpp>

namespace galvatron {

/// The graph with its nodes in an order in which each comes behind those that it reads. Errors (usage): a cycle, an
/// input that is no node.
inline Result<ModelGraph> topological_order(const ModelGraph& graph) {
  using Boost = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
  const auto refuse = [&graph](const char* why) { return usage_error("the graph of model " + graph.name + " " + why); };
  Boost edges(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const NodeOutput& input : graph.nodes[i].inputs) {
      if (input.node >= static_cast<int>(graph.nodes.size())) return refuse("has an input that is no node");
      if (input.node >= 0) boost::add_edge(i, static_cast<std::size_t>(input.node), edges);
    }
  std::vector<std::size_t> order;  // what a node reads comes out before it
  try {
    boost::topological_sort(edges, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    return refuse("has a cycle: a layer reads what follows from its own output");
  }
  std::vector<int> number(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<int>(i);
  ModelGraph out;
  out.name = graph.name;
  for (const std::size_t old : order) {
    out.nodes.push_back(graph.nodes[old]);
    for (NodeOutput& input : out.nodes.back().inputs)
      if (input.node >= 0) input.node = number[static_cast<std::size_t>(input.node)];
  }
  return out;
}

}  // namespace galvatron
