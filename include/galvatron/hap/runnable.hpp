// Programs that a plan can run: each layer of a model has one strategy over all devices, and HAP's collectives go
// between the layouts of such strategies.
//
//   spread    between operations         products                                  collectives of a layer
//   data      samples (G0)               parameters whole                          none
//   tensor    whole (I)                  heads, hidden units, vocabulary sharded   all-reduce of partial sums
//   megatron  tokens (G1)                the same                                  reduce-scatter, all-gather
//
// Tensors lie where the library's own strategies have them (program/emitter.hpp): those of a split width on their last
// dimension, others as above. The search is HAP's over these choices: a shortest path over layers at each corner of the
// ratios (ratios.hpp), with the bytes of a device as further labels.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/memory.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/program.hpp>
#include <galvatron/hap/rules.hpp>

namespace galvatron::hap {

/// How a layer lies on all devices; `experts` is `data` with each expert on one device.
enum class Spread : std::uint8_t { data, tensor, megatron, experts };
inline constexpr std::array spreads{Spread::data, Spread::tensor, Spread::megatron, Spread::experts};

/// Whether a layer of a model can be spread so.
using LayerCanRun = std::function<bool(int layer, Spread spread)>;

/// A program with its ratios, and the strategies that run it.
struct RunnableAnswer {
  Answer answer;                ///< without a bound: of programs of this kind it is the best, in memory a good one
  std::vector<Spread> spreads;  ///< of the layers
};

namespace detail {

/// What one layer does.
struct LayerSteps {
  Program steps;
  Terms terms;
  int output = -1;            ///< tensor that the next layer reads; -1: the loss
  Layout leaves = replicate;  ///< that it has then
  bool may_move = true;       ///< it has not been communicated yet
};

/// Steps of layers in HAP's terms.
class SpreadLayer {
 public:
  /// @param least_pieces  shards are of dimensions with so many pieces at least
  SpreadLayer(const Prices& prices, std::int64_t least_pieces) : prices_(prices), least_pieces_(least_pieces) {
    const Graph& graph = prices.graph();
    makers_.assign(graph.tensors.size(), nullptr);
    readers_.resize(graph.tensors.size(), -1);
    for (const Node& node : graph.nodes) {
      makers_[at(node.output)] = &node;
      layers_ = std::max(layers_, node.layer + 1);
      for (const int input : node.inputs)
        if (!is_source_tensor(input)) readers_[at(input)] = std::max(readers_[at(input)], node.layer);
    }
  }

  [[nodiscard]] int layers() const { return layers_; }
  [[nodiscard]] bool has_experts(int layer) const {
    return std::ranges::any_of(prices_.graph().nodes, [layer](const Node& node) {
      return node.layer == layer && node.operation == Operation::dispatch;
    });
  }
  /// The layout of the table of tied ends.
  void set_tied(Layout layout) { tied_ = layout; }
  /// Nothing where HAP has no rule for an operation of the layer in these layouts, or too few pieces for the devices.
  /// @param before  the layer before; null: this is the first
  [[nodiscard]] std::optional<LayerSteps> operator()(int layer, Spread spread, const LayerSteps* before) const {
    LayerSteps out;
    std::map<int, std::vector<Layout>> held;
    if (before != nullptr && before->output >= 0) {
      held[before->output] = {before->leaves};
      const Layout wanted = between(before->output, spread);
      if (wanted != before->leaves) {
        if (!before->may_move || !has_pieces(before->output, wanted)) return std::nullopt;
        move(out, before->output, before->leaves, wanted);
        held[before->output].push_back(wanted);
      }
    }
    for (const Node& node : prices_.graph().nodes) {
      if (node.layer != layer || hap::is_source(node.operation)) continue;
      if (!place(node, spread, held, out)) return std::nullopt;
      if (readers_[at(node.output)] > layer) {
        out.output = node.output;
        out.leaves = held[node.output].back();
        out.may_move = held[node.output].size() == 1;
      }
    }
    return out;
  }

 private:
  using Held = std::map<int, std::vector<Layout>>;
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] bool is_source_tensor(int tensor) const {
    return makers_[at(tensor)] != nullptr && hap::is_source(makers_[at(tensor)]->operation);
  }
  [[nodiscard]] const Tensor& tensor(int id) const { return prices_.graph().tensor(id); }
  [[nodiscard]] bool has_pieces(int id, Layout layout) const {
    return !layout.is_shard() || (layout.code < tensor(id).rank() && tensor(id).pieces(layout.code) >= least_pieces_);
  }
  /// Where an activation lies between operations.
  [[nodiscard]] Layout between(int id, Spread spread) const {
    if (spread == Spread::data) return shard(tensor(id).samples);
    if (spread == Spread::experts) return shard(0);  // slots by experts, all else by samples
    if (tensor(id).split >= 0) return shard(tensor(id).split);
    return spread == Spread::megatron && tensor(id).rank() > 2 ? shard(1) : replicate;
  }
  void move(LayerSteps& out, int id, Layout from, Layout to) const {
    out.steps.push_back({Step::Kind::communicate, id, to, from});
    out.terms += prices_.communicating(id, from, to);
  }

  // Whether an operand can be had in a layout, and whether that takes a collective.
  struct Operand {
    bool exists = false;
    bool moves = false;
  };
  [[nodiscard]] Operand operand(int id, Layout wanted, Spread spread, const Held& held) const {
    const Node& maker = *makers_[at(id)];
    if (!has_pieces(id, wanted)) return {};
    if (const auto known = held.find(id); known != held.end()) {
      if (std::ranges::count(known->second, wanted) > 0) return {true, false};
      const bool may = !hap::is_source(maker.operation) && known->second.size() == 1 &&
                       collective_between(known->second.front(), wanted).has_value();
      return {may, true};
    }
    if (maker.operation == Operation::parameter) {
      if (spread == Spread::experts) return {wanted == (tensor(id).rank() == 3 ? shard(0) : replicate), false};
      const bool splits = spread != Spread::data && tensor(id).split >= 0;
      return {wanted == (splits ? shard(tensor(id).split) : replicate), false};
    }
    return {maker.operation == Operation::placeholder && wanted != partial_sums, false};
  }
  bool place(const Node& node, Spread spread, Held& held, LayerSteps& out) const {
    const bool is_loss = node.output == prices_.graph().loss;
    const std::vector<Rule> rules = rules_of(prices_.graph(), node, prices_.dialect());
    const Rule* best = nullptr;
    int least = std::numeric_limits<int>::max();
    for (const Rule& rule : rules) {
      int moves = 0;
      bool exists = has_pieces(node.output, rule.result);
      for (std::size_t i = 0; exists && i < node.inputs.size(); ++i) {
        const Operand one = operand(node.inputs[i], rule.operands[i], spread, held);
        exists = one.exists;
        moves += one.moves ? 1 : 0;
      }
      if (is_loss) exists = exists && rule.result == partial_sums;
      // Partial sums are added at once, slots go to their experts, and nothing else is computed elsewhere than the
      // strategy does.
      const bool leaves = !is_loss && rule.result != between(node.output, spread);
      const bool goes =
          rule.result == partial_sums || (spread == Spread::experts && node.operation == Operation::dispatch);
      exists = exists && (!leaves || goes);
      // Of rules that take as many collectives the one whose work is sharded.
      const int rank = 2 * (moves + (leaves ? 1 : 0)) + (rule.sharded ? 0 : 1);
      if (!exists || rank >= least) continue;
      best = &rule;
      least = rank;
    }
    if (best == nullptr) return false;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const int id = node.inputs[i];
      const Layout wanted = best->operands[i];
      std::vector<Layout>& own = held[id];
      if (std::ranges::count(own, wanted) > 0) continue;
      if (is_source_tensor(id)) {
        if (const auto known = loaded_before(id, node.layer)) {
          if (*known != wanted) return false;
        } else {
          out.steps.push_back({Step::Kind::load, id, wanted, replicate});
          out.terms += prices_.loading(*makers_[at(id)], wanted);
        }
      } else {
        move(out, id, own.front(), wanted);
      }
      own.push_back(wanted);
    }
    out.steps.push_back({Step::Kind::compute, node.output, best->result, replicate});
    out.terms += prices_.computing(node, *best);
    held[node.output] = {best->result};
    if (const Layout wanted = between(node.output, spread); best->result != wanted && !is_loss) {
      if (!has_pieces(node.output, wanted)) return false;
      move(out, node.output, best->result, wanted);
      held[node.output].push_back(wanted);
    }
    return true;
  }
  // A table that both ends read is loaded by the first layer. Its layout is that of the head if both have one spread.
  [[nodiscard]] std::optional<Layout> loaded_before(int id, int layer) const {
    for (const Node& node : prices_.graph().nodes)
      if (node.layer < layer && std::ranges::count(node.inputs, id) > 0) return tied_;
    return std::nullopt;
  }

  const Prices& prices_;
  std::int64_t least_pieces_;
  int layers_ = 0;
  Layout tied_ = replicate;
  std::vector<const Node*> makers_;  // by tensor
  std::vector<int> readers_;         // the last layer that reads a tensor
};

/// The search over spreads.
class RunnableSearch {
 public:
  RunnableSearch(const Prices& prices, std::int64_t least_pieces, bool is_tied, const LayerCanRun& can_run)
      : prices_(prices), layer_(prices, least_pieces), is_tied_(is_tied), can_run_(can_run) {}

  std::optional<RunnableAnswer> best() {
    for (const Spread embedding : spreads) {
      // Of tied ends the embedding decides for both.
      layer_.set_tied(embedding == Spread::tensor || embedding == Spread::megatron ? shard(0) : replicate);
      for (const Ratios& ratios : corner_ratios(prices_.devices().flops)) search(embedding, ratios);
    }
    return std::move(best_);
  }

 private:
  struct Label {
    Terms terms;
    double seconds = 0;
    std::size_t before = 0;  ///< label of the layer before
    Spread spread{};
    LayerSteps steps;
  };

  void search(Spread embedding, const Ratios& ratios) {
    const RatioPoint point = point_of(prices_.devices(), ratios);
    std::vector<std::vector<Label>> labels(static_cast<std::size_t>(layer_.layers()));
    for (int number = 0; number < layer_.layers(); ++number) {
      std::vector<Label>& own = labels[static_cast<std::size_t>(number)];
      const bool is_last = number + 1 == layer_.layers();
      for (const Spread spread : spreads) {
        if ((number == 0 || (is_last && is_tied_)) && spread != embedding) continue;
        if ((spread == Spread::experts && !layer_.has_experts(number)) || !can_run_(number, spread)) continue;
        if (number == 0) {
          if (auto steps = layer_(number, spread, nullptr))
            add(own, {steps->terms, 0, 0, spread, std::move(*steps)}, point);
          continue;
        }
        const std::vector<Label>& before = labels[static_cast<std::size_t>(number - 1)];
        // What a layer does depends on the spread of the one before only.
        std::map<Spread, std::optional<LayerSteps>> by_border;
        for (std::size_t i = 0; i < before.size(); ++i) {
          auto [known, is_new] = by_border.try_emplace(before[i].spread);
          if (is_new) known->second = layer_(number, spread, &before[i].steps);
          if (!known->second) continue;
          Label label{before[i].terms, 0, i, spread, *known->second};
          label.terms += label.steps.terms;
          add(own, std::move(label), point);
        }
      }
    }
    for (std::size_t i = 0; i < labels.back().size(); ++i) offer(labels, i, ratios);
  }
  // Keeps what no label of the same spread is better than.
  static void add(std::vector<Label>& labels, Label label, const RatioPoint& point) {
    label.seconds = point.seconds(label.terms);
    const auto as_good = [](const Label& a, const Label& b) {
      return a.spread == b.spread && a.seconds <= b.seconds && a.terms.whole_bytes <= b.terms.whole_bytes &&
             a.terms.sharded_bytes <= b.terms.sharded_bytes;
    };
    for (const Label& other : labels)
      if (as_good(other, label)) return;
    std::erase_if(labels, [&](const Label& other) { return as_good(label, other); });
    labels.push_back(std::move(label));
  }
  void offer(const std::vector<std::vector<Label>>& labels, std::size_t last, const Ratios& ratios) {
    const Devices& devices = prices_.devices();
    const Terms& terms = labels.back()[last].terms;
    Ratios own = ratios;
    if (!fits(devices, terms, own)) {
      const auto found = RatiosInMemory(devices)(terms);
      if (!found || !fits(devices, terms, *found)) return;
      own = *found;
    }
    const double seconds = point_of(devices, own).seconds(terms);
    if (best_ && seconds >= best_->answer.seconds) return;
    best_.emplace();
    best_->answer.ratios = std::move(own);
    best_->answer.seconds = seconds;
    best_->spreads.resize(labels.size());
    std::vector<const LayerSteps*> steps(labels.size());
    for (std::size_t number = labels.size(), label = last; number-- > 0; label = labels[number][label].before) {
      best_->spreads[number] = labels[number][label].spread;
      steps[number] = &labels[number][label].steps;
    }
    for (const LayerSteps* of_layer : steps)
      best_->answer.program.insert(best_->answer.program.end(), of_layer->steps.begin(), of_layer->steps.end());
  }

  const Prices& prices_;
  SpreadLayer layer_;
  bool is_tied_;
  const LayerCanRun& can_run_;
  std::optional<RunnableAnswer> best_;
};

}  // namespace detail

/// The fastest program that a plan of one stage can run, with its ratios, within the devices' memory. Nothing where
/// none fits, or the model has too few samples, heads or hidden units for the devices.
/// @param prices   of a model's graph
/// @param is_tied  the head has the embedding's table, and its spread
/// @param can_run  what strategies the layers can have
inline std::optional<RunnableAnswer> best_runnable(
    const Prices& prices, bool is_tied, const LayerCanRun& can_run = [](int, Spread) { return true; }) {
  return detail::RunnableSearch(prices, static_cast<std::int64_t>(prices.devices().count()), is_tied, can_run).best();
}

}  // namespace galvatron::hap
