// A graph as searches see it: the operations that the loss needs, in an order with few tensors in between, with their
// rules and prices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/program.hpp>
#include <galvatron/hap/rules.hpp>

namespace galvatron::hap {

/// A set of layouts of a tensor.
class LayoutSet {
 public:
  constexpr void insert(Layout layout) { bits_ |= bit(layout); }
  [[nodiscard]] constexpr bool has(Layout layout) const { return (bits_ & bit(layout)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr std::uint64_t bit(Layout layout) { return std::uint64_t{1} << (layout.code + 2); }
  std::uint64_t bits_ = 0;
};

class Instance {
 public:
  /// An operation and what it may be computed by.
  struct Item {
    const Node* node = nullptr;
    std::vector<Rule> rules;
    std::vector<Terms> terms;  ///< of computing by each rule; sources are extra
  };
  /// A place where a tensor is read.
  struct Use {
    std::size_t item = 0;
    std::size_t operand = 0;
  };

  /// @param least_pieces  shards are of dimensions with so many pieces at least. Prices are of fractions of a
  /// dimension;
  ///                      with as many as there are devices each of them can have a share.
  explicit Instance(const Prices& prices, std::int64_t least_pieces = 0)
      : prices_(prices), least_pieces_(least_pieces) {
    const Graph& graph = prices.graph();
    makers_.assign(graph.tensors.size(), nullptr);
    for (const Node& node : graph.nodes) makers_[at(node.output)] = &node;
    order();
    uses_.resize(graph.tensors.size());
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (std::size_t p = 0; p < items_[i].node->inputs.size(); ++p)
        uses_[at(items_[i].node->inputs[p])].push_back({i, p});
  }

  [[nodiscard]] const Prices& prices() const { return prices_; }
  [[nodiscard]] const Graph& graph() const { return prices_.graph(); }
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }
  [[nodiscard]] const Node& maker(int tensor) const { return *makers_[at(tensor)]; }
  [[nodiscard]] bool is_source(int tensor) const { return hap::is_source(maker(tensor).operation); }
  [[nodiscard]] const std::vector<Use>& uses(int tensor) const { return uses_[at(tensor)]; }
  [[nodiscard]] bool can_communicate(int tensor) const {
    return hap::can_communicate(maker(tensor).operation, prices_.dialect());
  }
  /// Layouts that a tensor may be communicated to.
  [[nodiscard]] std::vector<Layout> targets(int tensor) const {
    std::vector<Layout> out{replicate};
    for (int d = 0; d < graph().tensor(tensor).rank(); ++d)
      if (is_allowed(tensor, shard(d))) out.push_back(shard(d));
    return out;
  }
  /// Layouts that some operation behind `item` takes.
  [[nodiscard]] LayoutSet useful_after(int tensor, std::size_t item) const {
    LayoutSet out;
    for (const Use& use : uses(tensor))
      if (use.item > item)
        for (const Rule& rule : items_[use.item].rules) out.insert(rule.operands[use.operand]);
    return out;
  }
  [[nodiscard]] std::size_t uses_after(int tensor, std::size_t item) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(uses(tensor), [&](const Use& use) { return use.item > item; }));
  }
  /// What loading the sources costs that `item` reads first, by this rule; whether it reads each in one layout.
  [[nodiscard]] std::pair<bool, Terms> loads(std::size_t item, const Rule& rule) const {
    const Node& node = *items_[item].node;
    std::pair<bool, Terms> out{true, {}};
    for (std::size_t p = 0; p < node.inputs.size(); ++p) {
      const int tensor = node.inputs[p];
      if (!is_source(tensor)) continue;
      if (rule.operands[p] == partial_sums) out.first = false;
      const Use& first = uses(tensor).front();
      if (first.item != item) continue;
      if (first.operand == p)
        out.second += prices_.loading(maker(tensor), rule.operands[p]);
      else if (rule.operands[first.operand] != rule.operands[p])
        out.first = false;
    }
    return out;
  }
  /// Seconds that the operations from `item` on take at least: computing and loading, without communication.
  [[nodiscard]] std::vector<double> rest_seconds(const RatioPoint& point) const {
    std::vector<double> out(items_.size() + 1, 0.0);
    for (std::size_t i = items_.size(); i-- > 0;) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t r = 0; r < items_[i].rules.size(); ++r) {
        auto [fits, terms] = loads(i, items_[i].rules[r]);
        terms += items_[i].terms[r];
        if (fits) least = std::min(least, point.seconds(terms));
      }
      out[i] = out[i + 1] + least;
    }
    return out;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  [[nodiscard]] bool is_allowed(int tensor, Layout layout) const {
    return !layout.is_shard() || graph().tensor(tensor).pieces(layout.code) >= least_pieces_;
  }
  [[nodiscard]] std::vector<char> needed() const {
    std::vector<char> out(graph().tensors.size(), 0);
    out[at(graph().loss)] = 1;
    for (auto node = graph().nodes.rbegin(); node != graph().nodes.rend(); ++node)
      if (out[at(node->output)] != 0)
        for (const int input : node->inputs) out[at(input)] = 1;
    return out;
  }
  // Of the operations whose operands are there, the one after which fewest tensors are live; the first of equals.
  void order() {
    const std::vector<char> need = needed();
    std::vector<const Node*> waiting;
    std::vector<int> left(graph().tensors.size(), 0);  // reads to come
    std::vector<char> made(graph().tensors.size(), 0);
    for (const Node& node : graph().nodes) {
      if (need[at(node.output)] == 0) continue;
      if (hap::is_source(node.operation))
        made[at(node.output)] = 1;
      else
        waiting.push_back(&node);
      for (const int input : node.inputs) ++left[at(input)];
    }
    std::vector<char> live(graph().tensors.size(), 0);
    const auto growth = [&](const Node& node) {
      int out = left[at(node.output)] > 0 ? 1 : 0;
      for (std::size_t p = 0; p < node.inputs.size(); ++p) {
        const int input = node.inputs[p];
        const auto reads = std::ranges::count(node.inputs, input);
        if (std::ranges::find(node.inputs, input) != node.inputs.begin() + static_cast<std::ptrdiff_t>(p)) continue;
        const bool stays = left[at(input)] > reads;
        out += (stays ? 1 : 0) - (live[at(input)] != 0 ? 1 : 0);
      }
      return out;
    };
    while (!waiting.empty()) {
      std::size_t best = waiting.size();
      int least = std::numeric_limits<int>::max();
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        const Node& node = *waiting[i];
        if (!std::ranges::all_of(node.inputs, [&](int input) { return made[at(input)] != 0; })) continue;
        if (const int grown = growth(node); grown < least) {
          least = grown;
          best = i;
        }
      }
      const Node& node = *waiting[best];
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(best));
      for (const int input : node.inputs) live[at(input)] = --left[at(input)] > 0 ? 1 : 0;
      made[at(node.output)] = live[at(node.output)] = 1;
      Item item;
      item.node = &node;
      item.rules = rules_of(graph(), node, prices_.dialect());
      std::erase_if(item.rules, [&](const Rule& rule) {
        bool allowed = is_allowed(node.output, rule.result);
        for (std::size_t p = 0; p < rule.operands.size(); ++p)
          allowed = allowed && is_allowed(node.inputs[p], rule.operands[p]);
        return !allowed;
      });
      for (const Rule& rule : item.rules) item.terms.push_back(prices_.computing(node, rule));
      items_.push_back(std::move(item));
    }
  }

  const Prices& prices_;
  std::int64_t least_pieces_;
  std::vector<const Node*> makers_;  // by tensor
  std::vector<Item> items_;
  std::vector<std::vector<Use>> uses_;  // by tensor
};

/// How one operation is executed in a program: its rule, and the layout that its result is communicated to.
struct Decision {
  std::size_t rule = 0;
  Layout moved = replicate;  ///< the rule's result where it is not
};

/// The program of decisions, one for each item: sources are loaded where they are first read, and nothing is
/// communicated that nobody reads.
inline Program program_of(const Instance& instance, const std::vector<Decision>& decisions) {
  const auto rule_of = [&](std::size_t i) -> const Rule& { return instance.items()[i].rules[decisions[i].rule]; };
  Program out;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const Node& node = *instance.items()[i].node;
    const Rule& rule = rule_of(i);
    for (std::size_t p = 0; p < node.inputs.size(); ++p) {
      const Instance::Use& first = instance.uses(node.inputs[p]).front();
      if (instance.is_source(node.inputs[p]) && first.item == i && first.operand == p)
        out.push_back({Step::Kind::load, node.inputs[p], rule.operands[p], replicate});
    }
    out.push_back({Step::Kind::compute, node.output, rule.result, replicate});
    if (decisions[i].moved == rule.result) continue;
    const auto& uses = instance.uses(node.output);
    if (std::ranges::any_of(
            uses, [&](const Instance::Use& use) { return rule_of(use.item).operands[use.operand] != rule.result; }))
      out.push_back({Step::Kind::communicate, node.output, decisions[i].moved, rule.result});
  }
  return out;
}

}  // namespace galvatron::hap
