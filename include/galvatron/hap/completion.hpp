// What completes a program costs at least, from the layouts of the tensors that are live.
//
// Operations are taken backwards. The least cost of an operation and of all that follows it, for each layout of an
// operand, is divided evenly over the operands that are computed; a tensor's bound is the sum of its readers' parts. No
// part of the cost is counted twice, so the bounds of all live tensors together, and those of operations that read
// sources alone, are at most what a completion costs. Where every operation has one computed operand and every tensor
// one reader the bound is exact.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/hap/instance.hpp>
#include <galvatron/hap/prices.hpp>

namespace galvatron::hap {

class Completion {
 public:
  Completion(const Instance& instance, const RatioPoint& point)
      : instance_(instance), parts_(instance.items().size()), sources_(instance.items().size() + 1, 0.0) {
    for (std::size_t i = parts_.size(); i-- > 0;) add(i, point);
  }

  /// Of a tensor that is there in layouts a and b, by the operations behind `item`.
  [[nodiscard]] double seconds(int tensor, std::size_t item, Layout a, Layout b) const {
    double out = 0;
    for (const Instance::Use& use : instance_.uses(tensor))
      if (use.item > item) out += std::min(part(use, a), part(use, b));
    return out;
  }
  /// Of the operations from `item` on that read sources alone.
  [[nodiscard]] double seconds_of_sources(std::size_t item) const { return sources_[item]; }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static std::size_t index(Layout layout) { return static_cast<std::size_t>(layout.code + 2); }

  [[nodiscard]] double part(const Instance::Use& use, Layout layout) const {
    const std::vector<double>& own = parts_[use.item][use.operand];
    return own.empty() ? 0 : own[index(layout)];
  }
  void add(std::size_t i, const RatioPoint& point) {
    const Instance::Item& item = instance_.items()[i];
    std::vector<std::size_t> operands;  // of tensors that are computed, each once
    for (std::size_t p = 0; p < item.node->inputs.size(); ++p)
      if (const int tensor = item.node->inputs[p];
          !instance_.is_source(tensor) &&
          std::ranges::none_of(operands, [&](std::size_t q) { return item.node->inputs[q] == tensor; }))
        operands.push_back(p);
    parts_[i].resize(item.node->inputs.size());
    for (const std::size_t p : operands)
      parts_[i][p].assign(static_cast<std::size_t>(instance_.graph().tensor(item.node->inputs[p]).rank()) + 2,
                          infinity);
    double least = infinity;
    for (std::size_t r = 0; r < item.rules.size(); ++r) {
      auto [fits, terms] = instance_.loads(i, item.rules[r]);
      if (!fits) continue;
      terms += item.terms[r];
      const double cost = point.seconds(terms) + behind(i, item.rules[r].result, point);
      least = std::min(least, cost);
      for (const std::size_t p : operands) {
        double& own = parts_[i][p][index(item.rules[r].operands[p])];
        own = std::min(own, cost / static_cast<double>(operands.size()));
      }
    }
    sources_[i] = sources_[i + 1] + (operands.empty() ? least : 0);
  }
  // Of the result of an item, wherever it is communicated to.
  [[nodiscard]] double behind(std::size_t i, Layout result, const RatioPoint& point) const {
    const int tensor = instance_.items()[i].node->output;
    if (tensor == instance_.graph().loss) return result == partial_sums ? 0 : infinity;
    double out = seconds(tensor, i, result, result);
    if (!instance_.can_communicate(tensor)) return out;
    for (const Layout to : instance_.targets(tensor))
      if (collective_between(result, to))
        out = std::min(
            out, point.seconds(instance_.prices().communicating(tensor, result, to)) + seconds(tensor, i, result, to));
    return out;
  }

  const Instance& instance_;
  std::vector<std::vector<std::vector<double>>> parts_;  // by item, operand and layout
  std::vector<double> sources_;
};

}  // namespace galvatron::hap
