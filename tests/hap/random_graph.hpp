// Random graphs and devices, and the enumeration of all programs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/hap/check.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/program.hpp>

namespace galvatron::test {

using Random = std::mt19937_64;

inline int draw(Random& random, int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); }
/// Log-uniform.
inline double draw_between(Random& random, double least, double most) {
  return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
}

inline hap::Devices random_devices(Random& random, int most = 5) {
  hap::Devices out;
  const int count = draw(random, 1, most);
  const int kinds = draw(random, 1, count);
  std::vector<double> speeds;
  const double middle = draw_between(random, 1e11, 1e14);
  for (int k = 0; k < kinds; ++k) speeds.push_back(middle * draw_between(random, 0.3, 3));
  for (int j = 0; j < count; ++j) out.flops.push_back(speeds[static_cast<std::size_t>(j % kinds)]);
  for (double& rate : out.bandwidth) rate = draw_between(random, 1e9, 1e11);
  if (draw(random, 0, 1) == 1)
    for (double& wait : out.latency) wait = draw_between(random, 1e-6, 1e-4);
  return out;
}

inline hap::Ratios random_ratios(Random& random, std::size_t count) {
  hap::Ratios out;
  double sum = 0;
  for (std::size_t j = 0; j < count; ++j) sum += out.emplace_back(draw(random, 0, 4) == 0 ? 0 : draw(random, 1, 20));
  if (sum == 0) return hap::even_ratios(count);
  for (double& ratio : out) ratio /= sum;
  return out;
}

/// @param operations  beside sources and the last sum
inline hap::Graph random_graph(Random& random, int operations) {
  using enum hap::Operation;
  hap::Graph graph;
  const auto extent = [&] {
    return std::int64_t{1} << (draw(random, 0, 4) == 0 ? draw(random, 0, 4) : draw(random, 5, 11));
  };
  const std::int64_t width = extent();
  std::vector<std::int64_t> shape{extent(), width};
  if (draw(random, 0, 3) == 0) shape.insert(shape.begin(), extent());
  std::vector<int> tensors;  // all of this shape but for some products
  for (int i = draw(random, 1, 2); i > 0; --i)
    tensors.push_back(graph.add(placeholder, {}, "x" + std::to_string(i), shape));
  int square = -1;  // a weight that several products share
  const auto pick = [&] {
    return tensors[static_cast<std::size_t>(draw(random, 0, static_cast<int>(tensors.size()) - 1))];
  };
  for (int i = 0; i < operations; ++i) {
    const std::string name = "t" + std::to_string(i);
    const int x = draw(random, 0, 2) == 0 ? pick() : tensors.back();
    const std::vector<std::int64_t> own = graph.tensor(x).shape;
    switch (draw(random, 0, 7)) {
      case 0:
      case 1: {
        const bool shares = own.back() == width && draw(random, 0, 2) == 0;
        const std::int64_t outputs = shares ? width : extent();
        int w = square;
        if (!shares || square < 0) w = graph.add(parameter, {}, "w" + std::to_string(i), {outputs, own.back()});
        if (shares) square = w;
        std::vector<std::int64_t> result = own;
        result.back() = outputs;
        tensors.push_back(graph.add(linear, {x, w}, name, result));
        break;
      }
      case 2:
        tensors.push_back(graph.add(gelu, {x}, name, own));
        break;
      case 3:
        tensors.push_back(graph.add(scale, {x}, name, own));
        break;
      case 4:
        tensors.push_back(graph.add(layer_norm, {x}, name, own));
        break;
      case 5:
        if (own.size() == 3) {
          tensors.push_back(graph.add(attention, {x, x, x}, name, own));
          break;
        }
        [[fallthrough]];
      default: {
        std::vector<int> alike;
        for (const int t : tensors)
          if (graph.tensor(t).shape == own) alike.push_back(t);
        const int y = alike[static_cast<std::size_t>(draw(random, 0, static_cast<int>(alike.size()) - 1))];
        tensors.push_back(graph.add(add, {x, y}, name, own));
      }
    }
  }
  graph.loss = graph.add(sum, {tensors.back()}, "loss", {});
  return graph;
}

/// Prices all programs of a graph, one after the other, without any pruning: instructions one by one, on devices one by
/// one.
class Enumeration {
 public:
  Enumeration(const hap::Prices& prices, hap::Ratios ratios, hap::CostModel model)
      : prices_(prices), ratios_(std::move(ratios)), model_(model), graph_(prices.graph()) {
    need_.assign(graph_.tensors.size(), false);
    need_[at(graph_.loss)] = true;
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node)
      for (const int input : node->inputs)
        if (need_[at(node->output)]) need_[at(input)] = true;
    held_.resize(graph_.tensors.size());
    pending_.assign(ratios_.size(), 0);
  }

  /// The least seconds of all programs; infinite if there is none.
  double operator()() {
    extend(0, -1);
    return best_;
  }
  [[nodiscard]] std::int64_t programs() const { return programs_; }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] bool has(int tensor, hap::Layout layout) const {
    return std::ranges::count(held_[at(tensor)], layout) > 0;
  }
  [[nodiscard]] double slowest() const { return *std::ranges::max_element(pending_); }

  // With what each operation takes, the order does not matter: one of all is enough.
  void extend(double cost, int last) {
    if (!held_[at(graph_.loss)].empty()) {
      ++programs_;
      if (has(graph_.loss, hap::partial_sums)) best_ = std::min(best_, cost + slowest());
      return;
    }
    const bool any_order = model_ == hap::CostModel::stages;
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      const hap::Node& node = graph_.node(i);
      if (!need_[at(node.output)] || hap::is_source(node.operation)) continue;
      if (!held_[at(node.output)].empty()) {
        if (any_order || i == last) move(cost, i);
        continue;
      }
      for (const hap::Rule& rule : hap::rules_of(graph_, node, prices_.dialect())) load(cost, i, rule, 0);
      if (!any_order) break;
    }
  }
  void load(double cost, int i, const hap::Rule& rule, std::size_t operand) {
    const hap::Node& node = graph_.node(i);
    if (operand == node.inputs.size()) return compute(cost, i, rule);
    const int tensor = node.inputs[operand];
    const hap::Layout layout = rule.operands[operand];
    if (has(tensor, layout)) return load(cost, i, rule, operand + 1);
    const hap::Node& maker = *std::ranges::find(graph_.nodes, tensor, &hap::Node::output);
    if (!hap::is_source(maker.operation) || !held_[at(tensor)].empty() || layout == hap::partial_sums) return;
    held_[at(tensor)].push_back(layout);
    load(cost + prices_.loading(maker, layout).seconds, i, rule, operand + 1);
    held_[at(tensor)].pop_back();
  }
  void compute(double cost, int i, const hap::Rule& rule) {
    const hap::Node& node = graph_.node(i);
    const std::vector<double> before = pending_;
    const double flops = 3 * hap::forward_flops(graph_, node, prices_.dialect());
    for (std::size_t j = 0; j < pending_.size(); ++j)
      pending_[j] += flops * (rule.sharded ? ratios_[j] : 1) / prices_.devices().flops[j];
    held_[at(node.output)].push_back(rule.result);
    if (model_ == hap::CostModel::operations) {
      const double own = slowest();
      pending_.assign(pending_.size(), 0);
      extend(cost + own, i);
    } else {
      extend(cost, i);
    }
    held_[at(node.output)].pop_back();
    pending_ = before;
  }
  void move(double cost, int i) {
    const int tensor = graph_.node(i).output;
    std::vector<hap::Layout>& held = held_[at(tensor)];
    if (held.size() != 1 || !hap::can_communicate(graph_.node(i).operation, prices_.dialect())) return;
    const hap::Layout from = held.front();
    std::vector<hap::Layout> targets{hap::replicate};
    for (int d = 0; d < graph_.tensor(tensor).rank(); ++d) targets.push_back(hap::shard(d));
    for (const hap::Layout to : targets) {
      const auto kind = hap::collective_between(from, to);
      if (!kind) continue;
      const hap::Terms terms = prices_.communicating(tensor, from, to);
      const std::vector<double> before = pending_;
      double grown = cost + terms.seconds + terms.ratio_seconds * *std::ranges::max_element(ratios_);
      if (*kind != hap::Collective::slice && model_ == hap::CostModel::stages) {
        grown += slowest();
        pending_.assign(pending_.size(), 0);
      }
      held.push_back(to);
      extend(grown, i);
      held.pop_back();
      pending_ = before;
    }
  }

  const hap::Prices& prices_;
  hap::Ratios ratios_;
  hap::CostModel model_;
  const hap::Graph& graph_;
  std::vector<bool> need_;
  std::vector<std::vector<hap::Layout>> held_;
  std::vector<double> pending_;
  double best_ = std::numeric_limits<double>::infinity();
  std::int64_t programs_ = 0;
};

}  // namespace galvatron::test
