// Problem: what the search decides, as plain figures. It knows no model, cluster or strategy, so that brute force can
// solve it as well.
//
// One problem is one pipeline degree P, one number of micro-batches m and one schedule. It has layers in the order of
// the data; each gets one of the choices of its type, and the layers are cut into P contiguous stages. With virtual
// stages (the interleaved schedule) the layers stand in the order of the ranks instead: those of all chunks of stage 0,
// then those of stage 1. The cuts are given then, and those of chunks, and what is searched are the strategies. So it
// is with zb-v, whose first stage has the last layer: the solver, to which the last layer is on the last stage, does
// not open such a problem, and its uniform plans are evaluated.
//
// Stages may have devices that differ. Then each kind of device has a problem of its own, whose choices, moves and
// fixed bytes are those on it, and which agrees with the whole in all else.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/cost/pipeline.hpp>

namespace galvatron::search {

inline constexpr double infinite = std::numeric_limits<double>::infinity();          ///< seconds
inline constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();  ///< bytes or labels

/// The item of a list that a stage, layer, choice, ... has by its number, an int.
template <class List>
constexpr auto& nth(List& list, int number) {
  return list[static_cast<std::size_t>(number)];
}

/// The first of [first, last] for which a rule holds, which does for the last one and for all behind the first.
template <class Number, class Rule>
constexpr Number first_where(Number first, Number last, const Rule& rule) {
  while (first < last) {
    const Number middle = first + (last - first) / 2;
    if (rule(middle))
      last = middle;
    else
      first = middle + 1;
  }
  return first;
}

/// So many of `all`, the first and the last among them, evenly spread.
template <class T>
constexpr std::vector<T> some_of(const std::vector<T>& all, std::size_t wanted) {
  if (all.size() <= wanted) return all;
  std::vector<T> out;
  for (std::size_t k = 0; k < wanted; ++k) out.push_back(all[k * (all.size() - 1) / (wanted - 1)]);
  return out;
}

/// One layer under one strategy. Seconds are those of one micro-batch on one rank, bytes those of one rank.
struct Choice {
  double forward = 0;
  double backward = 0;
  double weights = 0;                   ///< part of backward that may be deferred (see cost::StageSeconds)
  double synchronise = 0;               ///< once an iteration: gradients
  double update = 0;                    ///< once an iteration: optimizer
  double link = 0;                      ///< of a link that all stages share, between host and devices
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
  std::uint64_t kind = 0;               ///< one bit, where kinds of strategies cost: see Objective::kind_seconds

  [[nodiscard]] constexpr double seconds() const { return forward + backward; }
  [[nodiscard]] constexpr double per_iteration() const { return synchronise + update; }
  friend constexpr bool operator==(const Choice&, const Choice&) = default;
};

/// Transient bytes of a layer, but for re-layouts of its input and output.
constexpr std::int64_t workspace_of(const Choice& c) {
  return std::max(c.forward_workspace, c.activation + c.backward_workspace);
}

/// For how many micro-batches a stage keeps what its layers keep.
struct Slots {
  std::int64_t flight = 1;    ///< between forward and backward
  std::int64_t deferred = 0;  ///< of them, between the parts of a split backward
  friend constexpr bool operator==(const Slots&, const Slots&) = default;
  friend constexpr Slots min(const Slots& a, const Slots& b) {
    return {std::min(a.flight, b.flight), std::min(a.deferred, b.deferred)};
  }

  /// All that a layer keeps.
  [[nodiscard]] constexpr std::int64_t kept(const auto& c) const {
    return c.states + flight * c.stash + deferred * c.deferred;
  }
};

/// Layers with the same choices.
using LayerType = std::vector<Choice>;

/// Seconds to move the tensors at the borders of a layer type, one way.
struct Moves {
  std::vector<double> relayout;         ///< (layouts from, layouts to) of the input; the gradient takes the way back
  std::vector<double> input;            ///< (layouts) from a neighbouring stage
  std::vector<double> output;           ///< (layouts) its gradient, from a neighbouring stage
  std::vector<double> input_across{};   ///< (layouts) as `input`, from a stage on other devices
  std::vector<double> output_across{};  ///< (layouts) as `output`
};

/// What a choice, a layer or a stage adds to the objective.
struct Terms {
  double time = 0;           ///< T: seconds of a micro-batch
  double fill = 0;           ///< T - deferred W: of them, what counts while the pipeline fills and drains
  double per_iteration = 0;  ///< U: seconds once an iteration
  double link = 0;           ///< H: seconds of an iteration on the link that all stages share
  std::uint64_t kinds = 0;   ///< of strategies, a set of bits
  friend constexpr auto operator<=>(const Terms&, const Terms&) = default;

  /// Layers, one after the other.
  constexpr Terms& operator+=(const Terms& other) {
    time += other.time;
    fill += other.fill;
    per_iteration += other.per_iteration;
    link += other.link;
    kinds |= other.kinds;
    return *this;
  }
  friend constexpr Terms operator+(Terms a, const Terms& b) { return a += b; }
  /// Stages beside each other: the slowest, all that fills, the largest per-iteration cost.
  friend constexpr Terms joined(const Terms& a, const Terms& b) {
    return {std::max(a.time, b.time), a.fill + b.fill, std::max(a.per_iteration, b.per_iteration), a.link + b.link,
            a.kinds | b.kinds};
  }
  /// T, F and U are all that there is.
  [[nodiscard]] constexpr bool has_three() const { return link == 0 && kinds == 0; }
  /// Whether `a` may stand for `b` whatever else an assignment has.
  friend constexpr bool dominates(const Terms& a, const Terms& b) {
    return a.time <= b.time && a.fill <= b.fill && a.per_iteration <= b.per_iteration && a.link <= b.link &&
           (a.kinds & ~b.kinds) == 0;
  }
  /// With a share of the per-iteration cost that counts as seconds of a micro-batch.
  [[nodiscard]] constexpr double time_with(double share) const { return time + share * per_iteration; }
  /// The least of both in every number.
  friend constexpr Terms min(const Terms& a, const Terms& b) {
    return {std::min(a.time, b.time), std::min(a.fill, b.fill), std::min(a.per_iteration, b.per_iteration),
            std::min(a.link, b.link), a.kinds & b.kinds};
  }
};

/// Seconds of an iteration, of stages with the terms T_i, F_i = T_i - deferred W_i (the seconds that the schedule may
/// defer), U_i and H_i, and with n kinds of strategies:
///
///     alone (fill_drain sum_i F_i + steady max_i T_i) + max_i U_i + kind_seconds (n - 1)
///     and at least m / P sum_i F_i + max_i U_i + kind_seconds (n - 1) where stages share cores
///     and at least         sum_i H_i + max_i U_i + kind_seconds (n - 1)
///
/// with the weights of cost::pipeline_weights. On a machine with a core for each rank `alone` is 1. Where ranks share
/// cores, seconds are those with every rank at work; a stage that works while others wait is faster (`alone` < 1), and
/// the work of all stages bounds the iteration from below. GPipe may take longer: see cost::pipeline_seconds.
struct Objective {
  int stages = 1;
  int microbatches = 1;
  double alone = 1;
  bool shared = false;
  bool has_link = false;    ///< some choice has traffic on the shared link
  double kind_seconds = 0;  ///< of every kind of strategies beyond the first; for at most 64 kinds
  cost::PipelineWeights weights{};

  /// @param all  of all stages, joined
  [[nodiscard]] constexpr double operator()(const Terms& all) const {
    const double pipeline = alone * (weights.fill_drain * all.fill + weights.steady * all.time);
    return std::max({pipeline, shared ? microbatches * all.fill / stages : 0.0, all.link}) + all.per_iteration +
           kind_seconds * std::max(0, std::popcount(all.kinds) - 1);
  }
  /// The seconds T that count as much as one second of per-iteration cost, if every stage had them.
  [[nodiscard]] constexpr double share_of_iteration() const {
    const double pipeline = alone * (stages * weights.fill_drain + weights.steady);
    return 1 / (stages == 1 && shared ? std::max<double>(pipeline, microbatches) : pipeline);
  }
  /// What a choice adds to its stage. With one stage all of the objective is one sum: time then has all of it.
  [[nodiscard]] constexpr Terms terms_of(const Choice& c) const {
    const double link = microbatches * c.link;
    const std::uint64_t kind = kind_seconds > 0 ? c.kind : 0;
    if (stages > 1) return {c.seconds(), c.seconds() - weights.deferred * c.weights, c.per_iteration(), link, kind};
    const double all = c.seconds() + share_of_iteration() * c.per_iteration();
    return {all, all, 0, has_link ? link + c.per_iteration() : 0, kind};
  }
};

struct Problem {
  Objective objective;
  std::vector<LayerType> types;
  std::vector<int> layers;    ///< the type of every layer
  int leading = 0;            ///< layers that the first stage has in any case (an embedding)
  int trailing = 0;           ///< layers that the last stage has in any case (a head)
  bool tied = false;          ///< the first and the last layer must have choices of one tag
  std::vector<Slots> slots;   ///< (stages, chunks)
  int chunks = 1;             ///< virtual stages of a stage
  int buffers = 1;            ///< for what each of them sends, each way (message_buffers)
  bool turns = false;         ///< zb-v: the second chunks follow from the last stage to the first
  std::vector<int> in_chunk;  ///< of its stage, that a layer is in; empty: all in the first
  std::vector<int> cuts;      ///< (P + 1) first layer of every stage, then the number of layers; empty: to be searched
  int layouts = 1;
  std::vector<Moves> moves;         ///< of every type
  std::int64_t budget = unlimited;  ///< bytes of a rank
  std::int64_t fixed = 0;           ///< bytes of every rank, whatever the plan
  std::vector<Problem> on_devices;  ///< of each kind of device, where they differ: its types, moves, layouts and
                                    ///< `fixed` stand in place of those here, which are then empty
  std::vector<int> devices_of;      ///< (stages) which of them
  int across_before = -1;           ///< of one kind of device: the stage that follows one on other devices, if any
  int across_after = -1;            ///< and the stage before one

  [[nodiscard]] constexpr int stages() const { return objective.stages; }
  [[nodiscard]] constexpr int count() const { return static_cast<int>(layers.size()); }
  [[nodiscard]] constexpr int device_kinds() const {
    return on_devices.empty() ? 1 : static_cast<int>(on_devices.size());
  }
  /// Of a stage.
  [[nodiscard]] constexpr int device_kind(int stage) const { return devices_of.empty() ? 0 : nth(devices_of, stage); }
  /// The problem of a kind of device, and of a stage's.
  [[nodiscard]] constexpr Problem& of_kind(int kind) { return on_devices.empty() ? *this : nth(on_devices, kind); }
  [[nodiscard]] constexpr const Problem& of_kind(int kind) const {
    return on_devices.empty() ? *this : nth(on_devices, kind);
  }
  [[nodiscard]] constexpr const Problem& on(int stage) const { return of_kind(device_kind(stage)); }
  [[nodiscard]] constexpr const Choice& choice(int layer, int index) const { return nth(type_of(layer), index); }
  [[nodiscard]] constexpr const LayerType& type_of(int layer) const { return nth(types, nth(layers, layer)); }
  [[nodiscard]] constexpr const Moves& moves_of(int layer) const { return nth(moves, nth(layers, layer)); }
  /// The input of `layer` from one layout to another.
  [[nodiscard]] constexpr double one_way(int layer, int from, int to) const {
    return nth(moves_of(layer).relayout, from * layouts + to);
  }
  /// There in forward and back in backward.
  [[nodiscard]] constexpr double relayout_seconds(int layer, int from, int to) const {
    return one_way(layer, from, to) + one_way(layer, to, from);
  }
  /// What `stage`, which begins with `layer`, waits for in forward.
  [[nodiscard]] constexpr double receive_input(int stage, int layer, int layout) const {
    return nth(stage == across_before ? moves_of(layer).input_across : moves_of(layer).input, layout);
  }
  /// What `stage`, which ends with `layer`, waits for in backward.
  [[nodiscard]] constexpr double receive_gradient(int stage, int layer, int layout) const {
    return nth(stage == across_after ? moves_of(layer).output_across : moves_of(layer).output, layout);
  }
  /// Layers that may be moved between stages; every stage has at least one.
  [[nodiscard]] constexpr int movable() const { return count() - leading - trailing; }
  /// The chunk of a layer within its stage.
  [[nodiscard]] constexpr int chunk_of(int layer) const { return in_chunk.empty() ? 0 : nth(in_chunk, layer); }
  [[nodiscard]] constexpr Slots slots_of(int stage, int chunk) const { return nth(slots, stage * chunks + chunk); }
  /// Of a layer on a stage.
  [[nodiscard]] constexpr Slots slots_at(int stage, int layer) const { return slots_of(stage, chunk_of(layer)); }
};

/// Where stages begin when each gets an equal number of layers, the remainder going to the last ones.
constexpr std::vector<int> even_cuts(const Problem& p) {
  const int each = p.movable() / p.stages();
  const int without_more = p.stages() - p.movable() % p.stages();
  std::vector<int> first{0};
  for (int i = 1; i < p.stages(); ++i) first.push_back(p.leading + i * each + std::max(0, i - without_more));
  first.push_back(p.count());
  return first;
}

struct StageCost {
  double forward = 0;  ///< seconds of a micro-batch, with what the stage receives
  double backward = 0;
  double weights = 0;
  double synchronise = 0;
  double update = 0;
  double link = 0;          ///< of an iteration
  std::uint64_t kinds = 0;  ///< of its layers
  std::int64_t peak = 0;

  [[nodiscard]] constexpr double seconds() const { return forward + backward; }
  [[nodiscard]] constexpr double per_iteration() const { return synchronise + update; }
};

/// Which choice every layer has, and where the stages begin.
struct Assignment {
  std::vector<int> first;   ///< (P + 1) first layer of every stage, then the number of layers
  std::vector<int> choice;  ///< (layers)
};

/// One stage of an assignment: what the search's recurrences must agree with.
constexpr StageCost evaluate_stage(const Problem& whole, const Assignment& plan, int stage) {
  const Problem& problem = whole.on(stage);
  const int begin = nth(plan.first, stage);
  const int end = nth(plan.first, stage + 1);
  const auto at = [&](int layer) -> const Choice& { return problem.choice(layer, nth(plan.choice, layer)); };
  StageCost cost;
  std::int64_t workspace = 0;
  std::int64_t kept = problem.fixed + problem.slots_of(stage, 0).flight * at(begin).pass_through;
  if (stage > 0) {
    kept += problem.buffers * at(begin).input;
    cost.forward += problem.receive_input(stage, begin, at(begin).layout);
  }
  if (problem.turns ? stage > 0 : stage + 1 < problem.stages()) {
    kept += problem.buffers * at(end - 1).activation;
    cost.backward += problem.receive_gradient(stage, end - 1, at(end - 1).layout);
  }
  for (int layer = begin; layer < end; ++layer) {
    const Choice& c = at(layer);
    cost.forward += c.forward;
    cost.backward += c.backward;
    cost.weights += c.weights;
    cost.synchronise += c.synchronise;
    cost.update += c.update;
    cost.link += problem.objective.microbatches * c.link;
    cost.kinds |= c.kind;
    const int chunk = problem.chunk_of(layer);
    kept += problem.slots_of(stage, chunk).kept(c);
    workspace = std::max(workspace, workspace_of(c));
    if (layer + 1 == end) break;
    const Choice& next = at(layer + 1);
    const bool new_chunk = problem.chunk_of(layer + 1) != chunk;
    const bool new_layout = next.layout != c.layout;
    if (new_chunk || new_layout) kept += problem.slots_at(stage, layer + 1).flight * next.pass_through;
    if (new_chunk)
      kept += problem.buffers * (c.activation + next.input);
    else if (new_layout)
      workspace = std::max({workspace, c.forward_workspace + c.activation, c.activation + next.input});
    // Other stages are between two chunks, but where the second one turns.
    if (new_chunk && !(problem.turns && stage + 1 == problem.stages())) {
      cost.forward += problem.receive_input(stage, layer + 1, next.layout);
      cost.backward += problem.receive_gradient(stage, layer, c.layout);
    } else if (new_layout) {
      cost.forward += problem.one_way(layer + 1, c.layout, next.layout);
      cost.backward += problem.one_way(layer + 1, next.layout, c.layout);
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
  Terms all;
  for (int stage = 0; stage < problem.stages(); ++stage) {
    const StageCost cost = evaluate_stage(problem, plan, stage);
    const double fill = cost.seconds() - problem.objective.weights.deferred * cost.weights;
    all = joined(all, {cost.seconds(), fill, cost.per_iteration(), cost.link, cost.kinds});
    out.peak = std::max(out.peak, cost.peak);
    out.stages.push_back(cost);
  }
  out.seconds = problem.objective(all);
  return out;
}
constexpr Solution evaluated(const Problem& problem, Assignment plan) {
  Evaluation cost = evaluate(problem, plan);
  return {std::move(plan), std::move(cost)};
}

}  // namespace galvatron::search
