// Problem: what the search decides, as plain figures. It knows no model, cluster or strategy, so that it can be solved
// by brute force as well, and the two answers compared.
//
// One problem is one pipeline degree P, one number of micro-batches m and one schedule. It has layers in the order of
// the data; each gets one of the choices of its type, and the layers are cut into P contiguous stages.
//
// With virtual stages (the interleaved schedule) the layers stand in the order of the ranks instead: those of all
// chunks of stage 0, then those of stage 1. The cuts are given then, and those of chunks, and what is searched are the
// strategies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cost/pipeline.hpp>

namespace galvatron::search {

/// One layer under one strategy. Seconds are those of one micro-batch on one rank, bytes those of one rank.
struct Choice {
  double forward = 0;
  double backward = 0;
  double weights = 0;                   ///< part of backward that may be deferred (see cost::StageSeconds)
  double synchronise = 0;               ///< once an iteration: gradients
  double update = 0;                    ///< once an iteration: optimizer
  std::int64_t states = 0;              ///< parameters, gradients, optimizer
  std::int64_t stash = 0;               ///< for each micro-batch in flight
  std::int64_t deferred = 0;            ///< besides, for each whose weight gradients are deferred
  std::int64_t forward_workspace = 0;   ///< transient
  std::int64_t backward_workspace = 0;  ///< transient, beyond the incoming gradient
  std::int64_t input = 0;               ///< the tensors from the layer before
  std::int64_t activation = 0;          ///< the tensors to the layer after
  std::int64_t pass_through = 0;        ///< of them, what a stage keeps once for all its layers of a layout
  int layout = 0;                       ///< of its activations; a change between neighbours is a re-layout
  int tag = 0;                          ///< the caller's name for the strategy, the same in every type

  [[nodiscard]] constexpr double seconds() const { return forward + backward; }
  [[nodiscard]] constexpr double once() const { return synchronise + update; }
  friend constexpr bool operator==(const Choice&, const Choice&) = default;
};

/// Transient bytes of a layer, but for changes of layout beside it.
constexpr std::int64_t workspace_of(const Choice& c) {
  return std::max(c.forward_workspace, c.activation + c.backward_workspace);
}

/// For how many micro-batches a stage keeps what its layers keep.
struct Slots {
  std::int64_t flight = 1;    ///< between forward and backward
  std::int64_t deferred = 0;  ///< of them, between the parts of a split backward
  friend constexpr bool operator==(const Slots&, const Slots&) = default;

  /// All that a layer keeps.
  [[nodiscard]] constexpr std::int64_t kept(const Choice& c) const {
    return c.states + flight * c.stash + deferred * c.deferred;
  }
};

/// Layers with the same choices.
using LayerType = std::vector<Choice>;

/// Seconds to move the tensors at the borders of a layer type, one way.
struct Moves {
  std::vector<double> relayout;  ///< (layouts from, layouts to) of the input; the gradient takes the way back
  std::vector<double> input;     ///< (layouts) from a neighbouring stage
  std::vector<double> output;    ///< (layouts) its gradient, from a neighbouring stage
};

/// Seconds of an iteration from the sums of its stages. `sum` adds the stages' ramps (seconds per micro-batch, less
/// what the schedule defers), `slowest` is the largest of their seconds per micro-batch, `once` the largest of what
/// stages do once an iteration; the weights are those of cost::pipeline_weights.
///
///     alone * (fill_drain * sum + steady * slowest) + once, and at least m * sum / P + once where stages share cores
///
/// On a machine with a core for each rank `alone` is 1. Where ranks share cores, seconds are those with every rank at
/// work; a stage that works while others wait is faster (`alone` < 1), and the work of all stages bounds the iteration
/// from below. GPipe may take longer: see cost::pipeline_seconds.
struct Objective {
  int stages = 1;
  int microbatches = 1;
  double alone = 1;
  bool shared = false;
  cost::PipelineWeights weights{};

  [[nodiscard]] constexpr double operator()(double sum, double slowest, double once) const {
    const double pipeline = alone * (weights.fill_drain * sum + weights.steady * slowest);
    return std::max(pipeline, shared ? microbatches * sum / stages : 0.0) + once;
  }
  /// What a layer adds to the ramp of its stage.
  [[nodiscard]] constexpr double ramp_of(const Choice& c) const { return c.seconds() - weights.deferred * c.weights; }
};

struct Problem {
  Objective objective;
  std::vector<LayerType> types;
  std::vector<int> layers;    ///< the type of every layer
  int leading = 0;            ///< layers that the first stage has in any case (an embedding)
  int trailing = 0;           ///< layers that the last stage has in any case (a head)
  bool tied = false;          ///< the first and the last layer must have choices of one tag
  std::vector<int> slots;     ///< micro-batches in flight, per stage; with chunks (stages, chunks)
  std::vector<int> deferred;  ///< of them between the parts of a split backward, per stage; empty: none
  int chunks = 1;             ///< virtual stages of a stage
  std::vector<int> in_chunk;  ///< of its stage, that a layer is in; empty: all in the first
  std::vector<int> cuts;      ///< (P + 1) first layer of every stage, then the number of layers; empty: to be searched
  int layouts = 1;
  std::vector<Moves> moves;                                        ///< of every type
  std::int64_t budget = std::numeric_limits<std::int64_t>::max();  ///< bytes of a rank
  std::int64_t fixed = 0;                                          ///< bytes of every rank, whatever the plan

  [[nodiscard]] constexpr int stages() const { return objective.stages; }
  [[nodiscard]] constexpr int count() const { return static_cast<int>(layers.size()); }
  [[nodiscard]] constexpr const Choice& choice(int layer, int index) const {
    return types[static_cast<std::size_t>(layers[static_cast<std::size_t>(layer)])][static_cast<std::size_t>(index)];
  }
  [[nodiscard]] constexpr const Moves& moves_of(int layer) const {
    return moves[static_cast<std::size_t>(layers[static_cast<std::size_t>(layer)])];
  }
  /// The input of `layer` from one layout to another.
  [[nodiscard]] constexpr double one_way(int layer, int from, int to) const {
    return moves_of(layer)
        .relayout[static_cast<std::size_t>(from) * static_cast<std::size_t>(layouts) + static_cast<std::size_t>(to)];
  }
  /// There in forward and back in backward.
  [[nodiscard]] constexpr double relayout_seconds(int layer, int from, int to) const {
    return one_way(layer, from, to) + one_way(layer, to, from);
  }
  /// What a stage that begins with `layer` waits for in forward.
  [[nodiscard]] constexpr double receive_input(int layer, int layout) const {
    return moves_of(layer).input[static_cast<std::size_t>(layout)];
  }
  /// What a stage that ends with `layer` waits for in backward.
  [[nodiscard]] constexpr double receive_gradient(int layer, int layout) const {
    return moves_of(layer).output[static_cast<std::size_t>(layout)];
  }
  /// Layers that may be moved between stages; every stage has at least one.
  [[nodiscard]] constexpr int movable() const { return count() - leading - trailing; }
  /// The chunk of a layer within its stage.
  [[nodiscard]] constexpr int chunk_of(int layer) const {
    return in_chunk.empty() ? 0 : in_chunk[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] constexpr Slots slots_of(int stage, int chunk) const {
    const auto i = static_cast<std::size_t>(stage);
    return {slots[i * static_cast<std::size_t>(chunks) + static_cast<std::size_t>(chunk)],
            deferred.empty() ? 0 : deferred[i]};
  }
  /// The least of a stage's chunks.
  [[nodiscard]] constexpr Slots least_slots(int stage) const {
    Slots least = slots_of(stage, 0);
    for (int chunk = 1; chunk < chunks; ++chunk) least.flight = std::min(least.flight, slots_of(stage, chunk).flight);
    return least;
  }
};

/// What the largest workspace of every stage is at least: the ends have their stages, and some of the other layers is
/// in any.
constexpr std::vector<std::int64_t> least_workspaces(const Problem& p) {
  std::vector<std::int64_t> of_type;
  for (const LayerType& type : p.types) {
    of_type.push_back(std::numeric_limits<std::int64_t>::max());
    for (const Choice& c : type) of_type.back() = std::min(of_type.back(), workspace_of(c));
  }
  const auto of_layer = [&](int layer) {
    return of_type[static_cast<std::size_t>(p.layers[static_cast<std::size_t>(layer)])];
  };
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = 0;
  for (int layer = p.leading; layer < p.count() - p.trailing; ++layer) {
    least = std::min(least, of_layer(layer));
    most = std::max(most, of_layer(layer));
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(p.stages()), p.stages() == 1 ? most : least);
  for (int layer = 0; layer < p.leading; ++layer) out.front() = std::max(out.front(), of_layer(layer));
  for (int layer = p.count() - p.trailing; layer < p.count(); ++layer)
    out.back() = std::max(out.back(), of_layer(layer));
  return out;
}

/// Whether `a` may stand for `b` in any assignment with so many micro-batches in flight without making it slower or
/// larger.
constexpr bool replaces(const Choice& a, const Choice& b, const Objective& objective, const Slots& slots,
                        bool memory_only = false) {
  const bool memory = a.layout == b.layout && a.input <= b.input && a.pass_through <= b.pass_through &&
                      a.activation <= b.activation && slots.kept(a) <= slots.kept(b) &&
                      a.forward_workspace <= b.forward_workspace && a.backward_workspace <= b.backward_workspace;
  return memory && (memory_only || (a.seconds() <= b.seconds() && a.once() <= b.once() &&
                                    objective.ramp_of(a) <= objective.ramp_of(b)));
}

/// The choices, by index, that are left when each one that another can replace is left out, of equals the first.
/// @param tag      only choices with this tag; all when it is negative
/// @param replace  (a, b) whether a may stand for b, which has the same layout
template <class Replace>
constexpr std::vector<std::int32_t> irreplaceable(const LayerType& type, int tag, Replace replace) {
  const auto of = [&](std::int32_t i) -> const Choice& { return type[static_cast<std::size_t>(i)]; };
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(type.size()); ++i)
    if (tag < 0 || of(i).tag == tag) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return of(a).layout != of(b).layout ? of(a).layout < of(b).layout : a < b;
  });
  std::vector<std::int32_t> kept;
  std::ptrdiff_t first = 0;  // of those with the same layout
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Choice& c = of(order[i]);
    if (i > 0 && of(order[i - 1]).layout != c.layout) first = std::ssize(kept);
    const auto begin = kept.begin() + first;
    if (std::any_of(begin, kept.end(), [&](std::int32_t j) { return replace(of(j), c); })) continue;
    kept.erase(std::remove_if(begin, kept.end(), [&](std::int32_t j) { return replace(c, of(j)); }), kept.end());
    kept.push_back(order[i]);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

/// Of tied ends, drops the tags whose choices at both ends are those of the tag before: strategies that differ in what
/// is recomputed, which is nothing there.
constexpr void drop_equal_ties(Problem& p) {
  LayerType& first = p.types[static_cast<std::size_t>(p.layers.front())];
  LayerType& last = p.types[static_cast<std::size_t>(p.layers.back())];
  int tags = 0;
  for (const LayerType* type : {&first, &last})
    for (const Choice& c : *type) tags = std::max(tags, c.tag + 1);
  std::vector<const Choice*> partner(static_cast<std::size_t>(tags), nullptr);
  for (const Choice& c : last) partner[static_cast<std::size_t>(c.tag)] = &c;
  std::vector<bool> dropped(static_cast<std::size_t>(tags), false);
  const auto equal = [](const Choice* a, const Choice* b) {
    if (a == nullptr || b == nullptr) return false;
    Choice same = *a;
    same.tag = b->tag;
    return same == *b;
  };
  const Choice* kept = nullptr;
  for (const Choice& c : first) {
    const auto tag = static_cast<std::size_t>(c.tag);
    if (equal(kept, &c) && equal(partner[static_cast<std::size_t>(kept->tag)], partner[tag]))
      dropped[tag] = true;
    else
      kept = &c;
  }
  const auto is_dropped = [&](const Choice& c) { return dropped[static_cast<std::size_t>(c.tag)]; };
  std::erase_if(first, is_dropped);
  std::erase_if(last, is_dropped);
}

/// Drops the choices that others replace on every stage; tied layers keep all that differ.
constexpr void drop_superfluous(Problem& p) {
  if (p.tied) drop_equal_ties(p);
  // What a layer keeps grows in a straight line from the one to the other: more is deferred only where all stages have
  // equally many micro-batches in flight.
  Slots least = p.slots_of(0, 0);
  Slots most = least;
  for (int stage = 0; stage < p.stages(); ++stage)
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const Slots own = p.slots_of(stage, chunk);
      least = {std::min(least.flight, own.flight), std::min(least.deferred, own.deferred)};
      most = {std::max(most.flight, own.flight), std::max(most.deferred, own.deferred)};
    }
  for (std::size_t i = 0; i < p.types.size(); ++i) {
    const int type = static_cast<int>(i);
    if (p.tied && (p.layers.front() == type || p.layers.back() == type)) continue;
    LayerType kept;
    for (const std::int32_t j : irreplaceable(p.types[i], -1, [&](const Choice& a, const Choice& b) {
           return replaces(a, b, p.objective, least) && replaces(a, b, p.objective, most);
         }))
      kept.push_back(p.types[i][static_cast<std::size_t>(j)]);
    p.types[i] = std::move(kept);
  }
}

/// Where stages begin when each gets an equal number of layers, the remainder going to the last ones.
inline std::vector<int> even_cuts(const Problem& p) {
  std::vector<int> first{0};
  const int each = p.movable() / p.stages();
  const int more = p.movable() % p.stages();
  int at = p.leading;
  for (int i = 0; i + 1 < p.stages(); ++i) {
    at += each + (i >= p.stages() - more ? 1 : 0);
    first.push_back(at);
  }
  first.push_back(p.count());
  return first;
}

struct StageCost {
  double forward = 0;  ///< seconds of a micro-batch, with what the stage receives
  double backward = 0;
  double weights = 0;
  double synchronise = 0;
  double update = 0;
  std::int64_t peak = 0;

  [[nodiscard]] constexpr double seconds() const { return forward + backward; }
  [[nodiscard]] constexpr double once() const { return synchronise + update; }
};

/// Which choice every layer has, and where the stages begin.
struct Assignment {
  std::vector<int> first;   ///< (P + 1) first layer of every stage, then the number of layers
  std::vector<int> choice;  ///< (layers)
};

/// One stage of an assignment: what the search's recurrences must agree with.
constexpr StageCost evaluate_stage(const Problem& problem, const Assignment& plan, int stage) {
  const int begin = plan.first[static_cast<std::size_t>(stage)];
  const int end = plan.first[static_cast<std::size_t>(stage) + 1];
  const auto at = [&](int layer) -> const Choice& {
    return problem.choice(layer, plan.choice[static_cast<std::size_t>(layer)]);
  };
  StageCost cost;
  std::int64_t workspace = 0;
  std::int64_t kept = problem.fixed + problem.slots_of(stage, 0).flight * at(begin).pass_through;
  if (stage > 0) {
    kept += at(begin).input;
    cost.forward += problem.receive_input(begin, at(begin).layout);
  }
  if (stage + 1 < problem.stages()) {
    kept += at(end - 1).activation;
    cost.backward += problem.receive_gradient(end - 1, at(end - 1).layout);
  }
  for (int layer = begin; layer < end; ++layer) {
    const Choice& c = at(layer);
    cost.forward += c.forward;
    cost.backward += c.backward;
    cost.weights += c.weights;
    cost.synchronise += c.synchronise;
    cost.update += c.update;
    const int chunk = problem.chunk_of(layer);
    kept += problem.slots_of(stage, chunk).kept(c);
    workspace = std::max({workspace, c.forward_workspace, c.activation + c.backward_workspace});
    if (layer + 1 < end && problem.chunk_of(layer + 1) != chunk) {  // other stages are between these two
      const Choice& next = at(layer + 1);
      kept += c.activation + next.input + problem.slots_of(stage, chunk + 1).flight * next.pass_through;
      cost.forward += problem.receive_input(layer + 1, next.layout);
      cost.backward += problem.receive_gradient(layer, c.layout);
    } else if (layer + 1 < end && at(layer + 1).layout != c.layout) {
      const Choice& next = at(layer + 1);
      cost.forward += problem.one_way(layer + 1, c.layout, next.layout);
      cost.backward += problem.one_way(layer + 1, next.layout, c.layout);
      kept += problem.slots_of(stage, chunk).flight * next.pass_through;
      workspace = std::max({workspace, c.forward_workspace + c.activation, c.activation + next.input});
    }
  }
  cost.peak = kept + workspace;
  return cost;
}

struct Evaluation {
  double seconds = 0;
  std::int64_t peak = 0;  ///< of the fullest stage
  std::vector<StageCost> stages;
};

/// An assignment and what it takes.
struct Solution {
  Assignment plan;
  Evaluation cost;
};

/// A whole assignment.
constexpr Evaluation evaluate(const Problem& problem, const Assignment& plan) {
  Evaluation out;
  double sum = 0;
  double slowest = 0;
  double once = 0;
  for (int stage = 0; stage < problem.stages(); ++stage) {
    const StageCost cost = evaluate_stage(problem, plan, stage);
    sum += cost.seconds() - problem.objective.weights.deferred * cost.weights;
    slowest = std::max(slowest, cost.seconds());
    once = std::max(once, cost.once());
    out.peak = std::max(out.peak, cost.peak);
    out.stages.push_back(cost);
  }
  out.seconds = problem.objective(sum, slowest, once);
  return out;
}

}  // namespace galvatron::search
