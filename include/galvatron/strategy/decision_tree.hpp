// Galvatron's decision tree: the pipeline outermost, then an ordered nesting of paradigms inside a stage.
//
//   8 ranks
//   +- pipeline 1 ...
//   +- pipeline 2, stages of 4 ranks
//   |  +- DP 4
//   |  +- DP 2 > TP 2    the first paradigm is the outermost: the last one gets consecutive, best connected ranks
//   |  |  +- keep activations
//   |  |  +- recompute
//   |  +- ...
//   +- pipeline 4 ...
//
// Source: Miao et al., "Galvatron", VLDB 2023 (arXiv 2211.13878), section 3.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// Divisors of n >= 1 in ascending order; with `powers_of_two` only those that are.
constexpr std::vector<int> divisors(int n, bool powers_of_two = false) {
  std::vector<int> low;
  std::vector<int> high;
  const auto wanted = [powers_of_two](int d) { return !powers_of_two || (d & (d - 1)) == 0; };
  for (int d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    if (wanted(d)) low.push_back(d);
    if (d != n / d && wanted(n / d)) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// A way to fill the ranks of a stage.
enum class Paradigm : std::uint8_t {
  data,          ///< replicas
  sharded_data,  ///< ZeRO 3
  tensor,
};

struct Branch {
  Paradigm paradigm = Paradigm::data;
  int degree = 2;
  friend constexpr bool operator==(const Branch&, const Branch&) = default;
};

/// A leaf of the tree: one strategy of one layer.
struct TreeLeaf {
  int pipeline = 1;
  std::vector<Branch> nesting;  ///< outermost first; degrees of at least 2 that multiply to ranks / pipeline
  bool recompute = false;
  friend bool operator==(const TreeLeaf&, const TreeLeaf&) = default;
};

/// Rules 1 (pipeline outermost) and 2 (ordered nestings of distinct paradigms) always hold.
struct TreeRules {
  bool one_kind_of_data = true;  ///< rule 3: never DP and sharded DP in one strategy
  bool recompute = true;         ///< rule 4: every leaf with and without recomputation
  bool powers_of_two = false;    ///< degrees; otherwise any divisor
};

namespace detail {

inline void grow_nestings(int ranks, const TreeRules& rules, std::vector<Branch>& nesting,
                          std::vector<std::vector<Branch>>& out) {
  if (ranks == 1) {
    out.push_back(nesting);
    return;
  }
  for (const Paradigm paradigm : {Paradigm::data, Paradigm::sharded_data, Paradigm::tensor}) {
    bool allowed = true;
    for (const Branch& outer : nesting)
      if (outer.paradigm == paradigm ||
          (rules.one_kind_of_data && outer.paradigm != Paradigm::tensor && paradigm != Paradigm::tensor))
        allowed = false;
    if (!allowed) continue;
    for (const int degree : divisors(ranks, rules.powers_of_two)) {
      if (degree < 2) continue;
      nesting.push_back({paradigm, degree});
      grow_nestings(ranks / degree, rules, nesting, out);
      nesting.pop_back();
    }
  }
}

}  // namespace detail

/// All leaves for `ranks` >= 1 ranks.
inline std::vector<TreeLeaf> decision_tree(int ranks, const TreeRules& rules = {}) {
  std::vector<TreeLeaf> leaves;
  for (const int pipeline : divisors(ranks, rules.powers_of_two)) {
    std::vector<std::vector<Branch>> nestings;
    std::vector<Branch> nesting;
    detail::grow_nestings(ranks / pipeline, rules, nesting, nestings);
    for (const auto& branches : nestings) {
      leaves.push_back({pipeline, branches, false});
      if (rules.recompute) leaves.push_back({pipeline, branches, true});
    }
  }
  return leaves;
}

/// The strategy that a leaf stands for; nestings with two kinds of data parallelism have none.
inline std::optional<StrategySpec> spec_of(const TreeLeaf& leaf) {
  StrategySpec spec;
  spec.recompute = leaf.recompute ? RecomputeKind::full : RecomputeKind::none;
  for (const Branch& branch : leaf.nesting) {
    if (branch.paradigm == Paradigm::tensor) {
      spec.tensor = branch.degree;
    } else {
      if (spec.data > 1) return std::nullopt;
      spec.strided = spec.tensor > 1;  // around these data ranks
      spec.data = branch.degree;
      spec.zero = branch.paradigm == Paradigm::sharded_data ? 3 : 0;
    }
  }
  return spec;
}

}  // namespace galvatron
