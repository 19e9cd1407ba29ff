// Contraction: a graph of operators becomes MetaOps, runs of equal operators, with levels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/spindle/problem.hpp>

namespace galvatron::spindle {

/// An operator of the graph: one layer in one task's pass, say.
struct Operator {
  std::string kind;  ///< operators of one kind and input size take equally long
  std::int64_t input_size = 0;
  std::vector<int> after;  ///< operators whose outputs it reads, by their numbers
};

/// A run of equal operators, each of which is the only reader of the one before it.
struct Run {
  std::vector<int> operators;  ///< in the order of execution
  std::vector<int> after;      ///< runs, ascending
  int level = 0;               ///< the longest way to it
};

/// The runs of a graph, in the order of their first operators. An edge is contracted where it is the only one out of
/// its beginning and the only one into its end, and both have the same kind and input size (Spindle, section 3.1).
/// Errors (usage): an input that is no operator, or a cycle.
inline Result<std::vector<Run>> contract(const std::vector<Operator>& graph) {
  std::vector<std::vector<int>> after(graph.size());
  std::vector<int> readers(graph.size(), 0);
  for (std::size_t i = 0; i < graph.size(); ++i)
    for (const int before : graph[i].after) {
      if (before < 0 || static_cast<std::size_t>(before) >= graph.size())
        return usage_error(text_of("operator ", i, " reads operator ", before, ", of ", graph.size()));
      if (std::ranges::count(after[i], before) > 0) continue;  // an operand that is read twice is one edge
      after[i].push_back(before);
      ++readers[static_cast<std::size_t>(before)];
    }
  if (depths_of(after).size() != graph.size()) return usage_error("the operators read each other in a cycle");

  // Whether operator i goes on the run of its only input.
  const auto goes_on = [&](std::size_t i) {
    if (after[i].size() != 1) return false;
    const auto before = static_cast<std::size_t>(after[i].front());
    return readers[before] == 1 && graph[before].kind == graph[i].kind &&
           graph[before].input_size == graph[i].input_size;
  };
  std::vector<int> next(graph.size(), -1);
  for (std::size_t i = 0; i < graph.size(); ++i)
    if (goes_on(i)) next[static_cast<std::size_t>(after[i].front())] = static_cast<int>(i);
  std::vector<Run> out;
  std::vector<int> run_of(graph.size(), -1);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (goes_on(i)) continue;
    Run& run = out.emplace_back();
    for (int at = static_cast<int>(i); at >= 0; at = next[static_cast<std::size_t>(at)]) {
      run.operators.push_back(at);
      run_of[static_cast<std::size_t>(at)] = static_cast<int>(out.size()) - 1;
    }
  }
  std::vector<std::vector<int>> runs_after;
  for (Run& run : out) {
    for (const int before : after[static_cast<std::size_t>(run.operators.front())])
      run.after.push_back(run_of[static_cast<std::size_t>(before)]);
    std::ranges::sort(run.after);
    run.after.erase(std::unique(run.after.begin(), run.after.end()), run.after.end());
    runs_after.push_back(run.after);
  }
  const std::vector<int> depths = depths_of(runs_after);
  for (std::size_t r = 0; r < out.size(); ++r) out[r].level = depths[r];
  return out;
}

}  // namespace galvatron::spindle
