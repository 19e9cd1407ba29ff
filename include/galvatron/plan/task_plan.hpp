// What a plan of waves says about the parts of a multi-task model: their layers, and what they read of each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
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
  // Layers on the same ranks, those with most parameters first.
  struct Group {
    const LayerRanks* place;
    std::vector<std::pair<double, int>> layers;  // parameters, number
    std::size_t next = 0;
  };
  std::vector<Group> groups;
  std::size_t left = 0;
  const LayerSpec* counted = nullptr;  // equal layers are common
  double elements = 0;
  for (int i = static_cast<int>(plan.layers.size()); i-- > 0;) {
    const LayerRanks& place = plan.places[static_cast<std::size_t>(i)];
    const LayerSpec& layer = plan.layers[static_cast<std::size_t>(i)];
    if (place.idle) continue;
    if (counted == nullptr || *counted != layer) elements = static_cast<double>(parameters(layer));
    counted = &layer;
    auto group = std::ranges::find_if(groups, [&](const Group& g) { return g.place->by_tensor == place.by_tensor; });
    if (group == groups.end()) group = groups.insert(group, Group{&place, {}});
    group->layers.emplace_back(elements, i);
    ++left;
  }
  for (Group& group : groups)
    std::ranges::stable_sort(group.layers, std::greater(), [](const auto& layer) { return layer.first; });
  std::vector<double> clocks(static_cast<std::size_t>(plan.ranks));
  std::vector<int> out;
  while (out.size() < left) {
    Group* first = nullptr;
    std::tuple<double, double, int> least;
    for (Group& group : groups) {
      if (group.next == group.layers.size()) continue;
      double free_at = 0;
      for (const auto& ranks : group.place->by_tensor)
        for (const int rank : ranks) free_at = std::max(free_at, clocks[static_cast<std::size_t>(rank)]);
      const auto& [size, number] = group.layers[group.next];
      const std::tuple key(free_at, -size, -number);
      if (first != nullptr && !(key < least)) continue;
      first = &group;
      least = key;
    }
    const auto& [size, number] = first->layers[first->next++];
    const double end =
        std::get<0>(least) + (plan.places[static_cast<std::size_t>(number)].strategy.data > 1 ? size : 0.0);
    for (const auto& ranks : first->place->by_tensor)
      for (const int rank : ranks) clocks[static_cast<std::size_t>(rank)] = end;
    out.push_back(number);
  }
  return out;
}

/// The program, the slots that it takes of each part, and the lanes of the edges.
inline void add_program(const WavePlan& waves, TaskPlan& plan) {
  std::vector<std::vector<int>> reads(plan.parts.size());
  for (const PartEdge& edge : plan.edges) reads[static_cast<std::size_t>(edge.to)].push_back(edge.from);
  plan.program = task_program(waves, plan.order, static_cast<int>(plan.model.tasks.size()), reads);
  std::vector<std::vector<int>> readers(plan.parts.size());
  for (const PartEdge& edge : plan.edges) readers[static_cast<std::size_t>(edge.from)].push_back(edge.to);
  // A micro-batch has left a slot when its gradients have been taken by the parts that made what was read: as many
  // backward passes as these, and its own.
  std::vector<int> live(plan.parts.size());
  std::vector<std::vector<int>> awaited;  // of each part, by micro-batch
  for (const PartPlan& part : plan.parts) awaited.emplace_back(static_cast<std::size_t>(part.microbatches));
  const auto awaited_of = [&](int part, int microbatch) -> int& {
    return awaited[static_cast<std::size_t>(part)][static_cast<std::size_t>(microbatch)];
  };
  const auto done = [&](int part, int microbatch) {
    if (--awaited_of(part, microbatch) == 0) --live[static_cast<std::size_t>(part)];
  };
  for (const TaskInstruction& instruction : plan.program) {
    const auto i = static_cast<std::size_t>(instruction.part);
    if (instruction.op == TaskInstruction::Op::forward) {
      awaited_of(instruction.part, instruction.microbatch) = 1 + static_cast<int>(reads[i].size());
      plan.parts[i].slots = std::max(plan.parts[i].slots, ++live[i]);
      continue;
    }
    done(instruction.part, instruction.microbatch);
    for (const int reader : readers[i]) done(reader, instruction.microbatch);
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

}  // namespace galvatron::train
