// A bound for problems of one stage that knows the largest workspace.
//
// A stage needs what its layers keep and the largest of their workspaces. Fast choices often have large ones (ZeRO-3
// gathers the parameters of a layer, a head its logits), which bounds that take the least of all workspaces miss. Here
// the largest is guessed: if it lies between w and w', choices beyond w' are not there, and w is taken of the memory.
// Every assignment belongs to one of the guesses, so that the least of their bounds holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>

namespace galvatron::search {

constexpr std::int64_t workspace_of(const Choice& c) {
  return std::max(c.forward_workspace, c.activation + c.backward_workspace);
}

/// The least sum over all layers of seconds + once_share * once in a problem of one stage, or less; infinite when
/// nothing fits.
inline double least_with_workspace(const Problem& problem, double once_share) {
  constexpr std::size_t most_guesses = 12;
  std::vector<char> used(problem.types.size(), 0);
  for (const int type : problem.layers) used[static_cast<std::size_t>(type)] = 1;
  std::vector<std::int64_t> sizes;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();  // what Segments takes of the memory
  for (std::size_t i = 0; i < problem.types.size(); ++i)
    for (const Choice& c : problem.types[i])
      if (used[i] != 0) sizes.push_back(workspace_of(c));
  for (int layer = problem.leading; layer < problem.count() - problem.trailing; ++layer) {
    if (layer > problem.leading &&
        problem.layers[static_cast<std::size_t>(layer)] == problem.layers[static_cast<std::size_t>(layer) - 1])
      continue;
    for (const Choice& c : problem.types[static_cast<std::size_t>(problem.layers[static_cast<std::size_t>(layer)])])
      least = std::min(least, workspace_of(c));
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());

  double out = Segments::infinite;
  const std::size_t guesses = std::min(most_guesses, sizes.size());
  std::size_t from = 0;  // the smallest that the largest workspace may be
  for (std::size_t k = 1; k <= guesses; ++k) {
    const std::size_t to = k * sizes.size() / guesses;
    Problem guess = problem;
    bool possible = true;
    for (std::size_t i = 0; i < used.size() && possible; ++i) {
      if (used[i] == 0) continue;
      std::erase_if(guess.types[i], [&](const Choice& c) { return workspace_of(c) > sizes[to - 1]; });
      possible = !guess.types[i].empty();
    }
    guess.budget -= std::max<std::int64_t>(0, sizes[from] - least);
    from = to;
    if (possible) out = std::min(out, Segments(guess, once_share).seconds(0, 0, guess.count()));
  }
  return out;
}

}  // namespace galvatron::search
