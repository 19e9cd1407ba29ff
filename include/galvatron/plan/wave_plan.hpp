// WavePlan: where and when the passes of a multi-task model run, as data, and what of it makes no sense.
//
// A part is a run of layers of one pass of a task on a set of ranks. Parts of a wave are on different ranks and run
// side by side; waves follow each other (the instructions of a step: task_program.hpp):
//
//     tasks in sequence   F(task 0) .. B(task 0) .. F(task 1) .. B(task 1) ..            reduce, update
//     tasks in waves      F(wave 0) F(wave 1) .. F(wave n)  B(wave n) .. B(wave 0)       reduce, update
//
// Parameters of a layer lie on the union of the sets of its parts; their gradients are reduced over it once a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// A run of layers of a pass on some ranks.
struct WavePart {
  int task = 0;
  int pass = 0;   ///< of the task's graph
  int first = 0;  ///< layers [first, last] of the component
  int last = 0;
  std::vector<int> ranks;   ///< in the order of the strategy's numbering, any of the plan's
  StrategySpec strategy{};  ///< of all these layers: tensor and data ranks; ZeRO is the plan's

  friend bool operator==(const WavePart&, const WavePart&) = default;
};

struct Wave {
  std::vector<WavePart> parts;
  friend bool operator==(const Wave&, const Wave&) = default;
};

struct WavePlan {
  int ranks = 1;
  int zero = 0;  ///< ZeRO stage of every layer over the ranks that keep it
  std::vector<Wave> waves{};
  std::vector<int> microbatches{};  ///< of each task; empty: its batch is done at once
  int in_flight = 1;                ///< micro-batches of a task between forward and backward pass, at the most

  [[nodiscard]] int microbatches_of(int task) const {
    return microbatches.empty() ? 1 : microbatches[static_cast<std::size_t>(task)];
  }
  friend bool operator==(const WavePlan&, const WavePlan&) = default;
};

/// In which order a step does the passes of its tasks.
enum class TaskOrder : std::uint8_t {
  in_sequence,  ///< a task's forward and backward passes before those of the next
  in_waves,     ///< all forward waves, then all backward waves in reverse
};
inline constexpr TaskOrder in_sequence = TaskOrder::in_sequence;
inline constexpr TaskOrder in_waves = TaskOrder::in_waves;

/// The policy of a trainer of several tasks.
template <TaskOrder how>
struct Tasks {
  static constexpr TaskOrder order = how;
};

/// Whether a task's batch may be done in micro-batches: its loss is a sum over samples.
inline bool has_microbatches(const MultiTaskModel& model, const TaskGraph& graph) {
  return model.component(graph.passes.back().component).layers.back().head != HeadKind::contrastive;
}

/// All parts in the order of the waves.
inline std::vector<WavePart> parts_of(const WavePlan& plan) {
  std::vector<WavePart> out;
  for (const Wave& wave : plan.waves) out.insert(out.end(), wave.parts.begin(), wave.parts.end());
  return out;
}

/// Tasks one after the other, each with all its passes whole and on all ranks: a part a wave.
/// @param strategy  of all layers
inline WavePlan plan_in_sequence(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs,
                                 const StrategySpec& strategy) {
  WavePlan out{.ranks = strategy.ranks(), .zero = strategy.zero};
  StrategySpec spread = strategy;
  spread.zero = 0;
  for (int task = 0; task < static_cast<int>(graphs.size()); ++task)
    for (int pass = 0; pass < static_cast<int>(graphs[static_cast<std::size_t>(task)].passes.size()); ++pass) {
      const Component& own = model.component(graphs[static_cast<std::size_t>(task)].pass(pass).component);
      WavePart part{.task = task,
                    .pass = pass,
                    .first = 0,
                    .last = static_cast<int>(own.layers.size()) - 1,
                    .ranks = {},
                    .strategy = spread};
      for (int rank = 0; rank < out.ranks; ++rank) part.ranks.push_back(rank);
      out.waves.push_back({{std::move(part)}});
    }
  return out;
}

/// Passes of one depth side by side, of all tasks, with equal numbers of data ranks as far as their batches divide; as
/// many waves as it takes. For models whose passes take equally long: a planner that knows prices does better.
inline WavePlan plan_by_levels(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, int ranks) {
  struct Ready {
    int task, pass;
  };
  std::vector<std::vector<Ready>> levels;
  for (int task = 0; task < static_cast<int>(graphs.size()); ++task) {
    std::vector<std::size_t> depths;
    for (const TaskPass& pass : graphs[static_cast<std::size_t>(task)].passes) {
      std::size_t depth = pass.memory < 0 ? 0 : depths[static_cast<std::size_t>(pass.memory)] + 1;
      for (const int read : pass.inputs) depth = std::max(depth, depths[static_cast<std::size_t>(read)] + 1);
      if (levels.size() <= depth) levels.resize(depth + 1);
      levels[depth].push_back({task, static_cast<int>(depths.size())});
      depths.push_back(depth);
    }
  }
  WavePlan out{.ranks = ranks};
  for (const auto& level : levels)
    for (std::size_t first = 0; first < level.size(); first += static_cast<std::size_t>(ranks)) {
      const std::size_t count = std::min(level.size() - first, static_cast<std::size_t>(ranks));
      Wave& wave = out.waves.emplace_back();
      int next = 0;
      for (const auto& [task, pass] : std::span(level).subspan(first, count)) {
        int share = ranks / static_cast<int>(count);
        while (model.task(task).batch % share != 0) --share;
        const Component& own = model.component(graphs[static_cast<std::size_t>(task)].pass(pass).component);
        WavePart& part = wave.parts.emplace_back(WavePart{.task = task,
                                                          .pass = pass,
                                                          .first = 0,
                                                          .last = static_cast<int>(own.layers.size()) - 1,
                                                          .ranks = {},
                                                          .strategy = {.data = share}});
        for (int i = 0; i < share; ++i) part.ranks.push_back(next++);
      }
    }
  return out;
}

/// The ranks that keep the parameters of a layer, by tensor rank, and how.
struct LayerRanks {
  std::vector<std::vector<int>> by_tensor;  ///< [tensor rank]: world ranks, ascending; equally many
  StrategySpec strategy{};                  ///< the kinds of its parts, with the degrees of the union
  bool idle = false;  ///< no part uses it: its parameters stay as they are, sharded over all ranks

  [[nodiscard]] bool holds(int rank) const {
    return std::ranges::any_of(by_tensor, [rank](const auto& list) { return std::ranges::binary_search(list, rank); });
  }
  [[nodiscard]] int tensor_rank(int rank) const {
    for (std::size_t t = 0; t < by_tensor.size(); ++t)
      if (std::ranges::binary_search(by_tensor[t], rank)) return static_cast<int>(t);
    return -1;
  }
  /// The ranks with other parts of the same parameters.
  [[nodiscard]] std::vector<int> tensor_group(int rank) const {
    const auto& own = by_tensor[static_cast<std::size_t>(tensor_rank(rank))];
    const auto place = std::ranges::lower_bound(own, rank) - own.begin();
    std::vector<int> out;
    for (const auto& list : by_tensor) out.push_back(list[static_cast<std::size_t>(place)]);
    return out;
  }
  /// The ranks with the same part.
  [[nodiscard]] const std::vector<int>& shards(int rank) const {
    return by_tensor[static_cast<std::size_t>(tensor_rank(rank))];
  }
};

namespace detail {

class WavePlanCheck {
 public:
  WavePlanCheck(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, const WavePlan& plan)
      : model_(model), graphs_(graphs), plan_(plan), parts_(parts_of(plan)) {}

  Result<void> run() const {
    if (plan_.ranks < 1) return usage_error("a plan of waves has at least one rank");
    if (plan_.zero < 0 || plan_.zero > 3) return usage_error("a ZeRO stage is 0, 1, 2 or 3");
    if (auto right = check_microbatches(); !right) return right;
    for (std::size_t wave = 0; wave < plan_.waves.size(); ++wave)
      if (auto right = check_wave(wave); !right) return right;
    for (const WavePart& part : parts_)
      if (auto right = check_part(part); !right) return right;
    return check_order();
  }
  /// Where the parameters of each layer of the model lie, by its number. Errors (usage): parts of a layer that do not
  /// fit together.
  Result<std::vector<LayerRanks>> layer_ranks() const {
    std::vector<LayerRanks> out(
        static_cast<std::size_t>(model_.first_layer(static_cast<int>(model_.components.size()))));
    std::vector<std::vector<const WavePart*>> parts(out.size());
    for (const WavePart& part : parts_)
      for (int i = part.first; i <= part.last; ++i)
        parts[static_cast<std::size_t>(model_.first_layer(component_of(part)) + i)].push_back(&part);
    for (std::size_t layer = 0; layer < out.size(); ++layer)
      if (auto united = unite(parts[layer], out[layer]); !united)
        return tl::unexpected<Error>(std::move(united.error()));
    return out;
  }

 private:
  [[nodiscard]] const TaskGraph& graph(const WavePart& part) const {
    return graphs_[static_cast<std::size_t>(part.task)];
  }
  // Of a micro-batch.
  [[nodiscard]] std::int64_t samples_of(const WavePart& part) const {
    return model_.task(part.task).batch / plan_.microbatches_of(part.task);
  }
  [[nodiscard]] int component_of(const WavePart& part) const { return graph(part).pass(part.pass).component; }
  [[nodiscard]] std::string text(const WavePart& part) const {
    return "the part of layers " + std::to_string(part.first) + " to " + std::to_string(part.last) + " of \"" +
           model_.component(component_of(part)).name + "\" for task \"" + model_.task(part.task).name + "\" ";
  }
  [[nodiscard]] Result<void> check_microbatches() const {
    if (plan_.in_flight < 1) return usage_error("a plan of waves has at least one micro-batch in flight");
    if (plan_.microbatches.empty()) return {};
    if (plan_.microbatches.size() != graphs_.size())
      return usage_error("a plan of waves has numbers of micro-batches of " +
                         std::to_string(plan_.microbatches.size()) + " tasks, and the model has " +
                         std::to_string(graphs_.size()));
    for (int task = 0; task < static_cast<int>(graphs_.size()); ++task) {
      const int count = plan_.microbatches_of(task);
      const std::string where =
          "the plan does the task \"" + model_.task(task).name + "\" in " + std::to_string(count) + " micro-batches, ";
      if (count < 1 || model_.task(task).batch % count != 0)
        return usage_error(where + "which do not divide its batch of " + std::to_string(model_.task(task).batch));
      if (count > 1 && !has_microbatches(model_, graphs_[static_cast<std::size_t>(task)]))
        return usage_error(where + "and a contrastive loss compares the whole batch");
    }
    return {};
  }
  [[nodiscard]] Result<void> check_wave(std::size_t number) const {
    std::vector<int> used;
    for (const WavePart& part : plan_.waves[number].parts) {
      if (part.task < 0 || part.task >= static_cast<int>(graphs_.size()) || part.pass < 0 ||
          part.pass >= static_cast<int>(graph(part).passes.size()))
        return usage_error("wave " + std::to_string(number) + " has a part of a task or a pass that there is not");
      for (const int rank : part.ranks) {
        if (rank < 0 || rank >= plan_.ranks)
          return usage_error(text(part) + "is on rank " + std::to_string(rank) + " of " + std::to_string(plan_.ranks));
        if (std::ranges::find(used, rank) != used.end())
          return usage_error("wave " + std::to_string(number) + " uses rank " + std::to_string(rank) + " twice");
        used.push_back(rank);
      }
    }
    return {};
  }
  [[nodiscard]] Result<void> check_part(const WavePart& part) const {
    const TaskPass& pass = graph(part).pass(part.pass);
    const auto layers = static_cast<int>(model_.component(pass.component).layers.size());
    if (part.first < 0 || part.last < part.first || part.last >= layers)
      return usage_error(text(part) + "is not one of the component's " + std::to_string(layers) + " layers");
    const StrategySpec& s = part.strategy;
    if (s.ranks() != static_cast<int>(part.ranks.size()))
      return usage_error(text(part) + "has " + std::to_string(part.ranks.size()) + " ranks, and its strategy " +
                         strategy_text(s) + " takes " + std::to_string(s.ranks()));
    if (const auto why = why_illegal(s); !why.empty())
      return usage_error(text(part) + "has the strategy " + strategy_text(s) + ": " + std::string(why));
    if (s.context > 1 || s.strided || s.zero > 0 || s.exchanges_tokens() || s.shard_kind != ShardKind::even)
      return usage_error(text(part) + "has the strategy " + strategy_text(s) +
                         ": parts have tensor and data ranks, in that order, and ZeRO is the plan's");
    for (int i = part.first; i <= part.last; ++i)
      if (const auto why = why_unfit(layer_of(model_, graph(part), pass, i), s, samples_of(part), pass.tokens);
          !why.empty())
        return usage_error(text(part) + "(" + strategy_text(s) + ", batch " + std::to_string(samples_of(part)) + ", " +
                           std::to_string(pass.tokens) + " tokens): " + std::string(why));
    return {};
  }
  /// Every layer of every pass once, behind what it reads.
  [[nodiscard]] Result<void> check_order() const {
    std::vector<std::vector<int>> done;  // [task][pass]: layers
    for (const TaskGraph& graph : graphs_) done.emplace_back(graph.passes.size(), 0);
    const auto layers = [this](int task, int pass) {
      const TaskGraph& graph = graphs_[static_cast<std::size_t>(task)];
      return static_cast<int>(model_.component(graph.pass(pass).component).layers.size());
    };
    for (std::size_t wave = 0; wave < plan_.waves.size(); ++wave) {
      for (const WavePart& part : plan_.waves[wave].parts) {
        auto& own = done[static_cast<std::size_t>(part.task)];
        if (own[static_cast<std::size_t>(part.pass)] != part.first)
          return usage_error(text(part) + "in wave " + std::to_string(wave) + " does not follow the " +
                             std::to_string(own[static_cast<std::size_t>(part.pass)]) + " layers before it");
        const TaskPass& pass = graph(part).pass(part.pass);
        std::vector<int> reads = pass.inputs;
        if (pass.memory >= 0) reads.push_back(pass.memory);
        for (const int read : reads)
          if (own[static_cast<std::size_t>(read)] != layers(part.task, read))
            return usage_error(text(part) + "in wave " + std::to_string(wave) + " reads a component that is not done");
      }
      for (const WavePart& part : plan_.waves[wave].parts)
        done[static_cast<std::size_t>(part.task)][static_cast<std::size_t>(part.pass)] = part.last + 1;
    }
    for (int task = 0; task < static_cast<int>(done.size()); ++task)
      for (int pass = 0; pass < static_cast<int>(done[static_cast<std::size_t>(task)].size()); ++pass)
        if (done[static_cast<std::size_t>(task)][static_cast<std::size_t>(pass)] != layers(task, pass))
          return usage_error("the plan leaves out layers of task \"" + model_.task(task).name + "\"");
    return {};
  }
  [[nodiscard]] Result<void> unite(const std::vector<const WavePart*>& parts, LayerRanks& out) const {
    if (parts.empty()) {
      out = {{{}}, {.data = plan_.ranks, .zero = plan_.ranks > 1 ? 3 : 0}, true};
      for (int rank = 0; rank < plan_.ranks; ++rank) out.by_tensor.front().push_back(rank);
      return {};
    }
    const StrategySpec& first = parts.front()->strategy;
    std::vector<int> tensor_ranks(static_cast<std::size_t>(plan_.ranks), -1);
    for (const WavePart* part : parts) {
      const StrategySpec& s = part->strategy;
      if (s.tensor != first.tensor || s.sequence != first.sequence)
        return usage_error(text(*part) + "has the strategy " + strategy_text(s) + ", and another part of it " +
                           strategy_text(first) + ": tensor degree and sequence split are a layer's");
      for (std::size_t i = 0; i < part->ranks.size(); ++i) {
        const int tensor = s.tensor_rank(static_cast<int>(i));
        int& known = tensor_ranks[static_cast<std::size_t>(part->ranks[i])];
        if (known < 0) known = tensor;
        if (known != tensor)
          return usage_error(text(*part) + "needs other rows of parameters on rank " + std::to_string(part->ranks[i]) +
                             " than another part of it");
      }
    }
    out.by_tensor.resize(static_cast<std::size_t>(first.tensor));
    for (int rank = 0; rank < plan_.ranks; ++rank)
      if (const int tensor = tensor_ranks[static_cast<std::size_t>(rank)]; tensor >= 0)
        out.by_tensor[static_cast<std::size_t>(tensor)].push_back(rank);
    for (const auto& list : out.by_tensor)
      if (list.size() != out.by_tensor.front().size())
        return usage_error(text(*parts.front()) + "and others keep its parameters on unequally many ranks for each " +
                           "tensor rank: place parts so that tensor groups stay together");
    out.strategy = first;
    out.strategy.data = static_cast<int>(out.by_tensor.front().size());
    out.strategy.zero = out.strategy.data > 1 ? plan_.zero : 0;
    return {};
  }

  const MultiTaskModel& model_;
  const std::vector<TaskGraph>& graphs_;
  const WavePlan& plan_;
  std::vector<WavePart> parts_;
};

}  // namespace detail

/// No error when the plan runs every layer of every task once, behind what it reads, on strategies that fit. Errors
/// (usage), one line each.
inline Result<void> check_waves(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs,
                                const WavePlan& plan) {
  return detail::WavePlanCheck(model, graphs, plan).run();
}
/// Where the parameters of each layer lie, by its number. The plan is right. Errors (usage): parts of a layer whose
/// tensor degree or sequence split differ, or that need other rows of its parameters on one rank.
inline Result<std::vector<LayerRanks>> layer_ranks(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs,
                                                   const WavePlan& plan) {
  return detail::WavePlanCheck(model, graphs, plan).layer_ranks();
}

}  // namespace galvatron
