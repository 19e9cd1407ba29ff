#include <galvatron/strategy/decision_tree.hpp>

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron {
namespace {

TEST_CASE("the numbers of leaves are those of the Galvatron paper's rules") {
  struct Row {
    int ranks;
    std::size_t rules_1_2;
    std::size_t with_rule_3;
    std::size_t with_rule_4;
  };
  for (const Row& row :
       {Row{4, 13, 11, 22}, Row{8, 34, 22, 44}, Row{16, 73, 37, 74}, Row{32, 136, 56, 112}, Row{64, 229, 79, 158}}) {
    INFO(row.ranks << " ranks");
    CHECK(decision_tree(row.ranks, {.one_kind_of_data = false, .recompute = false}).size() == row.rules_1_2);
    CHECK(decision_tree(row.ranks, {.one_kind_of_data = true, .recompute = false}).size() == row.with_rule_3);
    CHECK(decision_tree(row.ranks, {.one_kind_of_data = true, .recompute = true}).size() == row.with_rule_4);
    CHECK(decision_tree(row.ranks, {.powers_of_two = true}).size() == row.with_rule_4);
  }
}

TEST_CASE("every leaf fills its ranks with distinct paradigms, and no leaf occurs twice") {
  for (const int ranks : {1, 6, 12, 16, 24}) {
    const std::vector<TreeLeaf> leaves = decision_tree(ranks, {.one_kind_of_data = false});
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      int product = leaves[i].pipeline;
      for (std::size_t a = 0; a < leaves[i].nesting.size(); ++a) {
        product *= leaves[i].nesting[a].degree;
        CHECK(leaves[i].nesting[a].degree >= 2);
        for (std::size_t b = 0; b < a; ++b) CHECK(leaves[i].nesting[a].paradigm != leaves[i].nesting[b].paradigm);
      }
      CHECK(product == ranks);
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(leaves[i] == leaves[j]);
    }
  }
}

TEST_CASE("degrees are any divisor unless powers of two are asked for") {
  const auto has_degree = [](const std::vector<TreeLeaf>& leaves, int degree) {
    return std::any_of(leaves.begin(), leaves.end(), [degree](const TreeLeaf& leaf) {
      return leaf.pipeline == degree || std::any_of(leaf.nesting.begin(), leaf.nesting.end(),
                                                    [degree](const Branch& b) { return b.degree == degree; });
    });
  };
  CHECK(has_degree(decision_tree(12), 3));
  CHECK(decision_tree(12, {.powers_of_two = true}).empty());  // 12 is no product of powers of two
  // One rank a stage 1, two or three ranks 3, six ranks 3 + 4 * 2: as for 4 and its divisors, with pairs in two orders.
  CHECK(decision_tree(6, {.recompute = false}).size() == 1 + 3 + 3 + 11);
}

TEST_CASE("leaves with one kind of data parallelism are strategies that the search looks at") {
  Space space = runnable_space();
  space.zero = {true, false, false, true};
  space.sequence = {SequenceKind::none};
  space.context.open = false;
  space.recompute = {RecomputeKind::none, RecomputeKind::full};
  for (const int ranks : {4, 8, 12, 16}) {
    std::vector<StrategySpec> from_tree;
    std::vector<StrategySpec> around;  // with tensor parallelism outermost
    for (const TreeLeaf& leaf : decision_tree(ranks)) {
      if (leaf.pipeline != 1) continue;
      if (const auto spec = spec_of(leaf)) {
        CHECK(is_legal(*spec));
        CHECK(spec->ranks() == ranks);
        StrategySpec neighbours = *spec;
        neighbours.strided = false;
        if (!spec->strided) from_tree.push_back(*spec);
        if (spec->strided) around.push_back(neighbours);
      }
    }
    const std::vector<StrategySpec> searched = strategies(space, ranks);
    CHECK(from_tree.size() == searched.size());
    for (const StrategySpec& spec : searched) {
      CHECK(std::count(from_tree.begin(), from_tree.end(), spec) == 1);
      CHECK(std::count(around.begin(), around.end(), spec) == (spec.tensor > 1 && spec.data > 1 ? 1 : 0));
    }
  }
}

TEST_CASE("divisors ascend") {
  CHECK(divisors(1) == std::vector<int>{1});
  CHECK(divisors(12) == std::vector<int>{1, 2, 3, 4, 6, 12});
  CHECK(divisors(36) == std::vector<int>{1, 2, 3, 4, 6, 9, 12, 18, 36});
  CHECK(divisors(12, true) == std::vector<int>{1, 2, 4});
  CHECK(divisors(2147483647).size() == 2);
}

}  // namespace
}  // namespace galvatron
