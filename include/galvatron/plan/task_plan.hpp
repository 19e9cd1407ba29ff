// What a plan of waves says about the parts of a multi-task model: their layers, what they read of each other, and the
// memory of a rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/plan/placed_value.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::train {

/// A part, and what of the model it is.
struct PartPlan {
  WavePart where;
  int wave = 0;
  std::vector<LayerSpec> layers;
  int number = 0;            ///< of its first layer in the model
  std::int64_t batch = 0;    ///< samples of a micro-batch over all its data ranks
  int microbatches = 1;      ///< of a step
  int slots = 1;             ///< micro-batches between their passes, at the most
  std::int64_t tokens = 0;   ///< of a sample
  std::int64_t targets = 0;  ///< of a language loss: the last tokens of a sample, which have targets
  int source = -1;           ///< of an embedding, and of a projection that reads where texts end: which of the task's
                             ///< inputs; of a loss the one with targets
  std::int64_t predictions = 1;  ///< of a loss: its terms of a sample
  std::vector<int> reads;        ///< edges that end here
  std::vector<int> feeds;        ///< edges that begin here

  [[nodiscard]] bool has_loss() const { return layers.back().kind == LayerKind::head; }
  /// The last layer reads where texts end.
  [[nodiscard]] bool reads_ends() const { return layers.back().end_token != no_token; }
  [[nodiscard]] ActivationLayout layout(std::int64_t of_tokens) const {
    return activation_layout(where.strategy, 0, batch, of_tokens);
  }
  /// Elements that a rank holds of a value of so many tokens and of a width.
  [[nodiscard]] std::int64_t elements(int local, std::int64_t of_tokens, std::int64_t width) const {
    return layout(of_tokens).region(local).tokens() * width;
  }
  [[nodiscard]] std::int64_t elements(int local, const BundlePart& part) const {
    return part.tokens.any() ? elements(local, part.tokens.of(tokens), part.width) : 0;
  }
  /// Elements of the gradients at a rank's borders, at the most.
  [[nodiscard]] std::int64_t border(int local) const {
    std::int64_t most = 0;
    for (const LayerSpec& layer : layers) {
      const auto sum = [&](auto part_of) {
        std::int64_t all = 0;
        for (int p = 0; p < most_parts; ++p) all += elements(local, (layer.*part_of)(p));
        return all;
      };
      most = std::max({most, sum(&LayerSpec::before), sum(&LayerSpec::after)});
    }
    return most;
  }
  /// What goes on; of a loss nothing.
  [[nodiscard]] BundlePart output() const { return has_loss() ? BundlePart{} : layers.back().after(0); }
};

/// What one part reads of another.
struct PartEdge {
  int from = 0;
  int to = 0;
  std::int64_t tokens = 0;  ///< of a sample
  std::int64_t width = 0;
  std::int64_t first = 0;  ///< where they begin in the sequence of the reader
  bool memory = false;     ///< cross attention reads it
  /// Messages have a lane for each slot of their writer: outputs of `from`, and behind these gradients of `to`.
  int lane = 0;

  [[nodiscard]] std::int64_t elements(const PartPlan& part, int local) const {
    return part.elements(local, tokens, width);
  }
};

/// A plan of waves for all ranks.
struct TaskPlan {
  int ranks = 1;
  TaskOrder order = TaskOrder::in_waves;
  std::vector<PartPlan> parts;  ///< in the order of the waves
  std::vector<PartEdge> edges;
  std::vector<LayerSpec> layers;           ///< of the model
  std::vector<LayerRanks> places;          ///< of the layers
  std::vector<std::int64_t> layer_tokens;  ///< that go through each layer in a step
  std::vector<TaskInstruction> program;
  std::vector<int> reductions;  ///< layers in the order in which their gradients are reduced
  MultiTaskModel model;

  [[nodiscard]] const PartPlan& part(int i) const { return parts[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const PartEdge& edge(int i) const { return edges[static_cast<std::size_t>(i)]; }
  /// True where a rank that is not of the part has shards of its layer `i` that the part's passes need (ZeRO-2/3).
  [[nodiscard]] bool assists(const PartPlan& part, std::size_t i, int rank) const {
    const LayerRanks& place = places[static_cast<std::size_t>(part.number) + i];
    return place.strategy.zero >= 2 && place.holds(rank) &&
           std::ranges::find(part.where.ranks, rank) == part.where.ranks.end();
  }
  /// Both ends of an edge.
  [[nodiscard]] PlacedValue written(const PartEdge& edge) const {
    const PartPlan& from = part(edge.from);
    return {from.where.ranks, from.layout(edge.tokens), edge.first};
  }
  [[nodiscard]] PlacedValue read(const PartEdge& edge) const {
    const PartPlan& to = part(edge.to);
    return {to.where.ranks, to.layout(edge.memory ? edge.tokens : to.tokens), 0};
  }
};

namespace detail {

/// Edges between parts, from the graphs of their tasks.
inline void add_edges(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, TaskPlan& plan) {
  const auto is_of = [&plan](int i, int task, int pass) {
    return plan.part(i).where.task == task && plan.part(i).where.pass == pass;
  };
  const auto add = [&plan](PartEdge edge) {
    const PartPlan& from = plan.part(edge.from);
    edge.tokens = from.output().tokens.of(from.tokens);
    edge.width = from.output().width;
    const auto number = static_cast<int>(plan.edges.size());
    plan.edges.push_back(edge);
    plan.parts[static_cast<std::size_t>(edge.from)].feeds.push_back(number);
    plan.parts[static_cast<std::size_t>(edge.to)].reads.push_back(number);
  };
  const auto last_part = [&](int task, int pass) {
    int out = -1;
    for (int i = 0; i < static_cast<int>(plan.parts.size()); ++i)
      if (is_of(i, task, pass)) out = i;
    return out;
  };
  for (int i = 0; i < static_cast<int>(plan.parts.size()); ++i) {
    const WavePart where = plan.part(i).where;
    const TaskGraph& graph = graphs[static_cast<std::size_t>(where.task)];
    const TaskPass& pass = graph.pass(where.pass);
    if (where.first > 0) {
      int before = i - 1;
      while (!is_of(before, where.task, where.pass)) --before;
      add({.from = before, .to = i});
    } else {
      std::int64_t first = 0;
      for (const int read : pass.inputs) {
        add({.from = last_part(where.task, read), .to = i, .first = first});
        const TaskPass& from = graph.pass(read);
        first += model.component(from.component).tokens_behind(from.tokens);
      }
    }
    if (pass.memory >= 0 && std::ranges::any_of(plan.part(i).layers, [](const LayerSpec& l) { return l.memory.any(); }))
      add({.from = last_part(where.task, pass.memory), .to = i, .memory = true});
  }
}

/// Layers on sets of ranks that differ are reduced side by side as far as they can: next comes the layer whose ranks
/// are free first, of several the one with most parameters.
inline std::vector<int> reduction_order(const TaskPlan& plan) {
  std::vector<double> clocks(static_cast<std::size_t>(plan.ranks));
  std::vector<int> left;
  for (int i = static_cast<int>(plan.layers.size()); i-- > 0;)
    if (!plan.places[static_cast<std::size_t>(i)].idle) left.push_back(i);
  const auto free_at = [&](int layer) {
    double out = 0;
    for (const auto& ranks : plan.places[static_cast<std::size_t>(layer)].by_tensor)
      for (const int rank : ranks) out = std::max(out, clocks[static_cast<std::size_t>(rank)]);
    return out;
  };
  std::vector<int> out;
  while (!left.empty()) {
    const auto next = std::ranges::min_element(left, {}, [&](int layer) {
      return std::pair(free_at(layer), -parameters(plan.layers[static_cast<std::size_t>(layer)]));
    });
    const LayerRanks& place = plan.places[static_cast<std::size_t>(*next)];
    const double end =
        free_at(*next) +
        (place.strategy.data > 1 ? static_cast<double>(parameters(plan.layers[static_cast<std::size_t>(*next)])) : 0.0);
    for (const auto& ranks : place.by_tensor)
      for (const int rank : ranks) clocks[static_cast<std::size_t>(rank)] = end;
    out.push_back(*next);
    left.erase(next);
  }
  return out;
}

/// The program, the slots that it takes of each part, and the lanes of the edges.
inline void add_program(const WavePlan& waves, TaskPlan& plan) {
  std::vector<std::vector<int>> reads(plan.parts.size());
  for (const PartEdge& edge : plan.edges) reads[static_cast<std::size_t>(edge.to)].push_back(edge.from);
  plan.program = task_program(waves, plan.order, static_cast<int>(plan.model.tasks.size()), reads);
  std::vector<int> live(plan.parts.size());
  for (const TaskInstruction& instruction : plan.program) {
    const auto i = static_cast<std::size_t>(instruction.part);
    live[i] += instruction.op == TaskInstruction::Op::forward ? 1 : -1;
    plan.parts[i].slots = std::max(plan.parts[i].slots, live[i]);
  }
  int lane = 0;
  for (PartEdge& edge : plan.edges) {
    edge.lane = lane;
    lane += plan.part(edge.from).slots + plan.part(edge.to).slots;
  }
}

inline PartPlan part_plan(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, const WavePart& where,
                          int microbatches) {
  const TaskSpec& task = model.task(where.task);
  const TaskGraph& graph = graphs[static_cast<std::size_t>(where.task)];
  const TaskPass& pass = graph.pass(where.pass);
  PartPlan out{.where = where,
               .layers = {},
               .number = model.first_layer(pass.component) + where.first,
               .batch = task.batch / microbatches,
               .microbatches = microbatches,
               .tokens = pass.tokens,
               .source = pass.source,
               .reads = {},
               .feeds = {}};
  for (int i = where.first; i <= where.last; ++i) out.layers.push_back(layer_of(model, graph, pass, i));
  if (!out.has_loss()) return out;
  out.predictions = predictions(model, task, graph);
  out.targets = out.predictions;
  out.source = static_cast<int>(task.inputs.size()) - 1;
  return out;
}

}  // namespace detail

/// The plan of waves for this model. Errors (usage): those of checked(), check_waves() and layer_ranks().
template <class = void>
Result<TaskPlan> task_plan(const MultiTaskModel& model, const WavePlan& waves, TaskOrder order) {
  auto graphs = task_graphs(model);
  if (!graphs) return tl::unexpected<Error>(std::move(graphs.error()));
  if (auto right = check_waves(model, *graphs, waves); !right) return tl::unexpected<Error>(std::move(right.error()));
  auto places = layer_ranks(model, *graphs, waves);
  if (!places) return tl::unexpected<Error>(std::move(places.error()));
  TaskPlan out{.ranks = waves.ranks,
               .order = order,
               .parts = {},
               .edges = {},
               .layers = {},
               .places = std::move(*places),
               .layer_tokens = {},
               .program = {},
               .reductions = {},
               .model = model};
  for (const Component& component : model.components)
    out.layers.insert(out.layers.end(), component.layers.begin(), component.layers.end());
  out.layer_tokens.resize(out.layers.size());
  for (std::size_t wave = 0; wave < waves.waves.size(); ++wave)
    for (const WavePart& where : waves.waves[wave].parts) {
      PartPlan& part =
          out.parts.emplace_back(detail::part_plan(model, *graphs, where, waves.microbatches_of(where.task)));
      part.wave = static_cast<int>(wave);
      for (std::size_t i = 0; i < part.layers.size(); ++i)
        out.layer_tokens[static_cast<std::size_t>(part.number) + i] += part.batch * part.microbatches * part.tokens;
    }
  detail::add_edges(model, *graphs, out);
  detail::add_program(waves, out);
  out.reductions = detail::reduction_order(out);
  return out;
}
GALVATRON_IN_PLANNER(Result<TaskPlan> task_plan<>(const MultiTaskModel&, const WavePlan&, TaskOrder))

/// Bytes of the elements, as a region of the arena takes them.
inline Bytes region_bytes(std::int64_t elements, std::int64_t element) { return {aligned_bytes(elements * element)}; }

/// What a rank does and keeps for layer `i` of a part; its parameters are parameter_counts'.
inline cost::LayerCounts pass_counts(const TaskPlan& plan, const PartPlan& part, std::size_t i, Precision precision) {
  StrategySpec spec = part.where.strategy;
  spec.zero = plan.places[static_cast<std::size_t>(part.number) + i].strategy.zero;
  return cost::layer_counts(
      part.layers[i], spec,
      {.microbatch = part.batch, .sequence = part.tokens, .precision = precision, .stages = 2, .overlap = false});
}
/// The states of a layer of the model on each rank that keeps it, and what is done to them once a step.
inline cost::LayerCounts parameter_counts(const TaskPlan& plan, std::size_t layer, Precision precision) {
  const StrategySpec& spec = plan.places[layer].strategy;
  return cost::layer_counts(plan.layers[layer], spec,
                            {.microbatch = spec.data,
                             .sequence = plan.layers[layer].positions,
                             .precision = precision,
                             .stages = 2,
                             .overlap = false});
}

/// What whole parameters and gradients of a part's layer `i` take more in the workspace (ZeRO-2/3) where the ranks of
/// all its parts pad them further than the part's own.
inline Bytes padding_of(const TaskPlan& plan, const PartPlan& part, std::size_t i, Precision precision) {
  const StrategySpec& all = plan.places[static_cast<std::size_t>(part.number) + i].strategy;
  Bytes out;
  if (all.zero < 2) return out;
  for (const ParameterPart parameters : parameter_parts) {
    const auto elements = [&](int data) {
      return parameter_layout(part.layers[i], parameters, all.tensor, data).elements;
    };
    const std::int64_t more = std::max<std::int64_t>(elements(all.data) - elements(part.where.strategy.data), 0);
    out += region_bytes(more, element_bytes(precision)) + region_bytes(more, sizeof(float));
  }
  return out;
}

/// The memory of a rank. The workspace is for the largest part, its gradients at the borders included.
/// @param library  the device's library workspace
inline cost::StageMemory memory_of(const TaskPlan& plan, Precision precision, int rank, Bytes library) {
  const std::int64_t e = element_bytes(precision);
  cost::StageMemory out;
  out.library = library;
  out.states = region_bytes(static_cast<std::int64_t>(plan.model.tasks.size()), sizeof(double));
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.places[i].holds(rank)) out.states += parameter_counts(plan, i, precision).states;
  std::vector<Bytes> stash(plan.model.tasks.size());
  for (const PartPlan& part : plan.parts) {
    const auto found = std::ranges::find(part.where.ranks, rank);
    if (found == part.where.ranks.end()) {
      for (std::size_t i = 0; i < part.layers.size(); ++i) {
        if (!plan.assists(part, i, rank)) continue;
        const cost::LayerCounts counts = pass_counts(plan, part, i, precision);
        out.workspace = max(out.workspace, max(counts.forward_workspace, counts.backward_workspace) +
                                               padding_of(plan, part, i, precision));
      }
      continue;
    }
    const auto local = static_cast<int>(found - part.where.ranks.begin());
    Bytes kept;  // of a slot
    kept += region_bytes(part.elements(local, part.output()), e);
    Bytes transient;
    for (std::size_t i = 0; i < part.layers.size(); ++i) {
      const cost::LayerCounts counts = pass_counts(plan, part, i, precision);
      kept += counts.stash;
      transient = max(transient,
                      max(counts.forward_workspace, counts.backward_workspace) + padding_of(plan, part, i, precision));
    }
    for (const int edge : part.reads)
      if (plan.edge(edge).memory) kept += region_bytes(plan.edge(edge).elements(part, local), e);
    stash[static_cast<std::size_t>(part.where.task)] += kept * part.slots;
    if (part.feeds.size() > 1) transient = max(transient, region_bytes(part.elements(local, part.output()), e));
    out.workspace = max(out.workspace, transient + region_bytes(part.border(local), e));
  }
  for (const Bytes& of_task : stash)
    out.stash = plan.order == TaskOrder::in_sequence ? max(out.stash, of_task) : out.stash + of_task;
  return out;
}

}  // namespace galvatron::train
