// HAP's search for a program at given ratios (A*), for both cost models.
//
// A node is what has been executed, with the layouts of the tensors that are still read; an edge is one more
// instruction. With stages it has a cost up to the last collective, and pending work behind it: r flops on every device
// and s flops of which device j computes B_j, so (r + s B_j) / F_j seconds of device j.
//
// Pruning. The paper compares the cost up to the last collective alone, and so may drop the better of two programs that
// differ in the work behind it. Whatever follows, the stage of program a ends at most max_j (pending_a,j - pending_b,j)
// later behind its collective than that of b, so a is as good as b wherever
//
//     cost_a + max_j (pending_a,j - pending_b,j) <= cost_b
//
// which holds in particular where a's cost and all its pending seconds are at most b's.
//
// Bound. What is left takes at least, without communication, max_j (pending_j + least seconds of device j).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <galvatron/hap/instance.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/program.hpp>

namespace galvatron::hap {

/// When a program of the same properties is dropped.
enum class Pruning : std::uint8_t {
  pending,  ///< with the work behind the last collective, as above
  paper,    ///< by the cost up to the last collective alone, for comparison: with stages the answer may not be the best
};

namespace detail {

class AStar {
 public:
  AStar(const Instance& instance, const Ratios& ratios, CostModel model, Pruning pruning)
      : instance_(instance),
        ratios_(ratios),
        model_(model),
        pruning_(pruning),
        point_(point_of(instance.prices().devices(), ratios)) {
    const std::vector<double>& flops = instance.prices().devices().flops;
    for (std::size_t j = 0; j < flops.size(); ++j) devices_.emplace_back(1 / flops[j], ratios[j] / flops[j]);
    std::ranges::sort(devices_);
    devices_.erase(std::ranges::unique(devices_).begin(), devices_.end());
    for (const Instance::Item& item : instance.items()) least_.push_back(least_of(least_.size(), item));
  }

  /// Nothing where there is no program, or where more than `most` nodes would be opened.
  std::optional<Answer> operator()(std::size_t most) {
    push(Node{std::string(2 * instance_.graph().tensors.size(), nothing), 0, 0, 0, -1, {}});
    for (std::size_t opened = 0; !queue_.empty() && opened < most; ++opened) {
      const auto [bound, at] = queue_.top();
      queue_.pop();
      const std::size_t number = static_cast<std::size_t>(-at);
      if (is_stale(number)) continue;
      if (made(nodes_[number].key, instance_.graph().loss)) return answer(number, bound);
      open(number);
    }
    return std::nullopt;
  }

 private:
  struct Node {
    std::string key;  // of every tensor two letters: the layouts that it has, see below
    double cost = 0;
    double replicated = 0;  // pending flops
    double sharded = 0;
    std::int64_t parent = -1;
    std::vector<Step> steps;  // from the parent
  };
  // What the operations that are not executed cost at least.
  struct Least {
    double seconds = 0;
    double replicated = 0;
    double sharded = 0;
  };
  // Letters: nothing yet; a layout; no second one, as it was not communicated; a layout that nobody reads any more.
  static constexpr char nothing = 0;
  static constexpr char unread = 1;
  static constexpr char first = 4;
  static char letter(Layout layout) { return static_cast<char>(layout.code + first); }
  static Layout layout_of(char letter) { return {static_cast<std::int16_t>(letter - first)}; }
  static std::size_t place(int tensor) { return static_cast<std::size_t>(2 * tensor); }
  static bool made(const std::string& key, int tensor) { return key[place(tensor)] != nothing; }
  static bool has(const std::string& key, int tensor, Layout layout) {
    return key[place(tensor)] == letter(layout) || key[place(tensor) + 1] == letter(layout);
  }

  [[nodiscard]] Least least_of(std::size_t i, const Instance::Item& item) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Least out{infinity, infinity, infinity};
    double computing = infinity;
    bool shards = false;
    for (std::size_t r = 0; r < item.rules.size(); ++r) {
      const auto [fits, loads] = instance_.loads(i, item.rules[r]);
      if (!fits) continue;
      Terms terms = loads;
      terms += item.terms[r];
      computing = std::min(computing, point_.seconds(terms));
      out.seconds = std::min(out.seconds, loads.seconds);
      shards = shards || item.rules[r].sharded;
    }
    if (model_ == CostModel::operations) return {computing, 0, 0};
    if (item.rules.empty()) return out;
    const double flops = item.terms.front().sharded_flops + item.terms.front().replicated_flops;
    out.replicated = shards ? 0 : flops;
    out.sharded = shards ? flops : 0;
    return out;
  }
  [[nodiscard]] double pending_seconds(double replicated, double sharded) const {
    double out = -std::numeric_limits<double>::infinity();
    for (const auto& [of_all, of_share] : devices_) out = std::max(out, replicated * of_all + sharded * of_share);
    return out;
  }
  [[nodiscard]] double bound_of(const Node& node) const {
    Least sum{node.cost, node.replicated, node.sharded};
    for (std::size_t i = 0; i < least_.size(); ++i) {
      if (made(node.key, instance_.items()[i].node->output)) continue;
      sum.seconds += least_[i].seconds;
      sum.replicated += least_[i].replicated;
      sum.sharded += least_[i].sharded;
    }
    return sum.seconds + pending_seconds(sum.replicated, sum.sharded);
  }
  [[nodiscard]] bool covers(const Node& a, const Node& b) const {
    if (pruning_ == Pruning::paper) return a.cost <= b.cost;
    return a.cost + pending_seconds(a.replicated - b.replicated, a.sharded - b.sharded) <= b.cost;
  }
  [[nodiscard]] bool is_stale(std::size_t number) const {
    const auto at = open_.find(nodes_[number].key);
    return at == open_.end() || std::ranges::find(at->second, number) == at->second.end();
  }
  void push(Node node) {
    std::vector<std::size_t>& own = open_[node.key];
    for (const std::size_t other : own)
      if (covers(nodes_[other], node)) return;
    std::erase_if(own, [&](std::size_t other) { return covers(node, nodes_[other]); });
    const double bound = bound_of(node);
    if (bound == std::numeric_limits<double>::infinity()) return;
    own.push_back(nodes_.size());
    // Of equal bounds the node that was made last comes first: it is the deepest.
    queue_.emplace(bound, -static_cast<std::int64_t>(nodes_.size()));
    nodes_.push_back(std::move(node));
  }

  void open(std::size_t number) {
    const bool any_order = model_ == CostModel::stages;
    const std::string key = nodes_[number].key;
    std::size_t executed = 0;
    for (std::size_t i = 0; i < instance_.items().size(); ++i) {
      const int output = instance_.items()[i].node->output;
      if (made(key, output)) {
        executed = i + 1;
        continue;
      }
      compute(number, i);
      if (!any_order) break;
    }
    for (std::size_t i = any_order ? 0 : std::max<std::size_t>(executed, 1) - 1; i < executed; ++i)
      communicate(number, instance_.items()[i].node->output);
  }
  void compute(std::size_t number, std::size_t i) {
    const Instance::Item& item = instance_.items()[i];
    const std::string key = nodes_[number].key;
    for (std::size_t r = 0; r < item.rules.size(); ++r) {
      const Rule& rule = item.rules[r];
      Node next{key,
                nodes_[number].cost,
                nodes_[number].replicated,
                nodes_[number].sharded,
                static_cast<std::int64_t>(number),
                {}};
      if (item.node->output == instance_.graph().loss && rule.result != partial_sums) continue;
      if (!load(next, *item.node, rule)) continue;
      const Terms& terms = item.terms[r];
      if (model_ == CostModel::stages) {
        next.replicated += terms.replicated_flops;
        next.sharded += terms.sharded_flops;
      } else {
        next.cost += point_.seconds(terms);
      }
      next.key[place(item.node->output)] = letter(rule.result);
      next.steps.push_back({Step::Kind::compute, item.node->output, rule.result, replicate});
      if (drop_unread(next.key)) push(std::move(next));
    }
  }
  // Loads what an operation reads and nobody has loaded; false where a layout that it reads is not there.
  bool load(Node& next, const hap::Node& node, const Rule& rule) const {
    for (std::size_t p = 0; p < node.inputs.size(); ++p) {
      const int tensor = node.inputs[p];
      if (instance_.is_source(tensor) && !made(next.key, tensor)) {
        if (rule.operands[p] == partial_sums) return false;
        next.key[place(tensor)] = letter(rule.operands[p]);
        next.cost += instance_.prices().loading(instance_.maker(tensor), rule.operands[p]).seconds;
        next.steps.push_back({Step::Kind::load, tensor, rule.operands[p], replicate});
      }
      if (!has(next.key, tensor, rule.operands[p])) return false;
    }
    return true;
  }
  void communicate(std::size_t number, int tensor) {
    const std::string key = nodes_[number].key;
    const char from = key[place(tensor)];
    if (from < first - 2 || key[place(tensor) + 1] != nothing || !instance_.can_communicate(tensor)) return;
    for (const Layout to : instance_.targets(tensor)) {
      const auto kind = collective_between(layout_of(from), to);
      if (!kind) continue;
      Node next{key,
                nodes_[number].cost,
                nodes_[number].replicated,
                nodes_[number].sharded,
                static_cast<std::int64_t>(number),
                {}};
      const Terms terms = instance_.prices().communicating(tensor, layout_of(from), to);
      next.cost += point_.seconds(terms);
      if (*kind != Collective::slice && model_ == CostModel::stages) {
        next.cost += pending_seconds(next.replicated, next.sharded);
        next.replicated = next.sharded = 0;
      }
      next.key[place(tensor) + 1] = letter(to);
      next.steps.push_back({Step::Kind::communicate, tensor, to, layout_of(from)});
      if (drop_unread(next.key)) push(std::move(next));
    }
  }
  // Forgets layouts that no operation to come reads; false where one can read none.
  bool drop_unread(std::string& key) const {
    for (int tensor = 0; tensor < static_cast<int>(instance_.graph().tensors.size()); ++tensor) {
      char& a = key[place(tensor)];
      char& b = key[place(tensor) + 1];
      if (a == nothing || a == unread || tensor == instance_.graph().loss) continue;
      LayoutSet useful;
      bool is_read = false;
      for (const Instance::Use& use : instance_.uses(tensor)) {
        const Instance::Item& item = instance_.items()[use.item];
        if (made(key, item.node->output)) continue;
        is_read = true;
        for (const Rule& rule : item.rules) useful.insert(rule.operands[use.operand]);
      }
      if (!is_read) {
        a = unread;
        b = nothing;
        continue;
      }
      const bool can_move = b == nothing && instance_.can_communicate(tensor);
      if (can_move) continue;
      const bool has_a = useful.has(layout_of(a));
      const bool has_b = b != nothing && b != unread && useful.has(layout_of(b));
      if (!has_a && !has_b) return false;
      const char one = has_a ? a : b;
      const char other = has_a && has_b ? b : unread;
      a = std::max(one, other);  // the order does not matter any more
      b = std::min(one, other);
    }
    return true;
  }
  [[nodiscard]] Answer answer(std::size_t number, double seconds) const {
    std::vector<std::size_t> path;
    for (auto at = static_cast<std::int64_t>(number); at >= 0; at = nodes_[static_cast<std::size_t>(at)].parent)
      path.push_back(static_cast<std::size_t>(at));
    Answer out;
    out.ratios = ratios_;
    out.seconds = out.bound = seconds;
    for (auto at = path.rbegin(); at != path.rend(); ++at)
      for (const Step& step : nodes_[*at].steps) out.program.push_back(step);
    return out;
  }

  const Instance& instance_;
  const Ratios& ratios_;
  CostModel model_;
  Pruning pruning_;
  RatioPoint point_;
  std::vector<std::pair<double, double>> devices_;  // (1 / F_j, B_j / F_j), each kind once
  std::vector<Least> least_;                        // by item
  std::vector<Node> nodes_;
  std::unordered_map<std::string, std::vector<std::size_t>> open_;  // by key: nodes that no other covers
  std::priority_queue<std::pair<double, std::int64_t>, std::vector<std::pair<double, std::int64_t>>, std::greater<>>
      queue_;
};

}  // namespace detail

/// The best program at these ratios. Nothing where the loss is never a partial sum, or where more than `most` nodes
/// would be opened.
inline std::optional<Answer> a_star(const Instance& instance, const Ratios& ratios, CostModel model,
                                    std::size_t most = 2'000'000, Pruning pruning = Pruning::pending) {
  return detail::AStar(instance, ratios, model, pruning)(most);
}

/// HAP's alternation with its cost by stages: A* and the exact ratios of the program's stages in turn.
inline std::optional<Answer> alternate_stages(const Instance& instance, std::size_t most = 2'000'000) {
  const std::vector<double>& flops = instance.prices().devices().flops;
  auto best = a_star(instance, proportional_ratios(flops), CostModel::stages, most);
  while (best) {
    const std::vector<Stage> stages = value_or_throw(stages_of(instance.prices(), best->program));
    Answer next{optimal_ratios(flops, stages).front(), best->program, 0, 0};
    next.seconds = seconds_of(stages, flops, next.ratios);
    if (const auto found = a_star(instance, next.ratios, CostModel::stages, most);
        found && found->seconds < next.seconds)
      next = *found;
    if (!(next.seconds < best->seconds * (1 - 1e-12))) break;
    next.bound = 0;
    best = std::move(next);
  }
  return best;
}

}  // namespace galvatron::hap
