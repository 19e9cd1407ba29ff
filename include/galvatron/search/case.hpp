// A case: the search problem of one pipeline degree, number of micro-batches and schedule, priced for a model on a
// cluster.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron::search {

/// A problem with what its figures stand for. Choice::tag indexes `specs`.
struct Case {
  Problem problem;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::vector<StrategySpec> specs;
  std::vector<int> order;  ///< the layer of the model that each layer of the problem is; empty: the same

  [[nodiscard]] constexpr int layer(int index) const {
    return order.empty() ? index : order[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] constexpr int stages() const { return problem.stages(); }
  [[nodiscard]] constexpr int microbatches() const { return problem.objective.microbatches; }
};

namespace detail {

/// What all cases of one pipeline degree share.
struct StageSetting {
  int stages = 1;
  int ranks = 1;  // of a stage
  std::vector<StrategySpec> specs;
  std::vector<int> layout;            // of each spec
  std::vector<StrategySpec> like;     // a spec of each layout
  std::vector<cost::Relayout> moves;  // all that differ
  std::vector<int> move;              // (layouts, layouts) which of them

  constexpr StageSetting() = default;
  /// @param candidates  for a stage of so many ranks
  constexpr StageSetting(int stage_count, int stage_ranks, std::vector<StrategySpec> candidates)
      : stages(stage_count), ranks(stage_ranks), specs(std::move(candidates)) {
    const auto of = [](const StrategySpec& s) { return activation_layout(s, 0, 1, 1); };
    for (const StrategySpec& spec : specs) {
      const auto same =
          std::find_if(like.begin(), like.end(), [&](const StrategySpec& s) { return of(s) == of(spec); });
      layout.push_back(static_cast<int>(same - like.begin()));
      if (same == like.end()) like.push_back(spec);
    }
    for (const StrategySpec& from : like)
      for (const StrategySpec& to : like) {
        const cost::Relayout needed = cost::relayout_of(of(from), of(to));
        const auto same = std::find(moves.begin(), moves.end(), needed);
        move.push_back(static_cast<int>(same - moves.begin()));
        if (same == moves.end()) moves.push_back(needed);
      }
  }
};

/// A setting for each strategy alone, so that a case has no other.
inline std::vector<StageSetting> one_by_one(const std::vector<StageSetting>& settings) {
  std::vector<StageSetting> out;
  for (const StageSetting& setting : settings)
    for (const StrategySpec& spec : setting.specs) out.emplace_back(setting.stages, setting.ranks, std::vector{spec});
  return out;
}

/// Whether samples can be divided where `spec` divides sequences: the strategy with context ranks as data ranks. It has
/// the same tokens, states and gradients on every rank and no messages inside the layer, so `spec` is not needed.
constexpr bool divides_samples_instead(const StrategySpec& spec, const LayerSpec& layer, const Space& space,
                                       const cost::Batch& batch) {
  if (spec.context == 1) return false;
  StrategySpec other = spec;
  other.data = spec.data * spec.context;
  other.context = 1;
  other.sequence = SequenceKind::none;
  return space.context.allows(1) && space.data.allows(other.data) &&
         is_fit(layer, other, batch.microbatch, batch.sequence) &&
         (spec.tensor == 1 ||
          std::find(space.sequence.begin(), space.sequence.end(), SequenceKind::none) != space.sequence.end());
}

constexpr bool is_but_for_recompute(StrategySpec a, const StrategySpec& b) {
  a.recompute = b.recompute;
  return a == b;
}

constexpr Choice make_choice(const LayerSpec& layer, const StrategySpec& spec, const cost::Batch& batch,
                             const Cluster& cluster, cost::WorkPrices& prices) {
  const cost::LayerCounts counts = cost::layer_counts(layer, spec, batch);
  const cost::LayerSeconds seconds = cost::layer_seconds(counts, spec, cluster, prices);
  Choice choice;
  choice.forward = seconds.forward.value;
  choice.backward = seconds.backward.value;
  choice.weights = seconds.weights.value;
  choice.synchronise = seconds.synchronise.value;
  choice.update = seconds.update.value;
  choice.states = counts.states.count;
  choice.stash = counts.stash.count;
  choice.postponed = counts.postponed.count;
  choice.forward_workspace = counts.forward_workspace.count;
  choice.backward_workspace =
      std::max(counts.backward_workspace.count, counts.weights_workspace.count - counts.activation.count);
  choice.input = counts.input.count;
  choice.activation = counts.activation.count;
  choice.carried = counts.carried.count;
  return choice;
}

/// Numbers the layouts of a problem's choices anew, without gaps. Returns what their numbers were.
constexpr std::vector<int> number_layouts(Problem& p) {
  std::vector<int> number(static_cast<std::size_t>(p.layouts), -1);
  for (const LayerType& type : p.types)
    for (const Choice& choice : type) number[static_cast<std::size_t>(choice.layout)] = 0;
  std::vector<int> used;
  for (std::size_t i = 0; i < number.size(); ++i)
    if (number[i] == 0) {
      number[i] = static_cast<int>(used.size());
      used.push_back(static_cast<int>(i));
    }
  for (LayerType& type : p.types)
    for (Choice& choice : type) choice.layout = number[static_cast<std::size_t>(choice.layout)];
  p.layouts = static_cast<int>(used.size());
  return used;
}

/// The moves at the borders of each kind of layer, between these layouts of the setting; equal borders and moves are
/// priced once.
constexpr std::vector<Moves> make_moves(const std::vector<const LayerSpec*>& kinds, const StageSetting& setting,
                                        const std::vector<int>& layouts, const cost::Batch& batch,
                                        const Cluster& cluster, int ranks) {
  struct Border {
    std::int64_t elements = 0;
    std::vector<double> relayout;
    std::vector<double> receive;
  };
  std::vector<Border> borders;
  const auto border = [&](std::int64_t elements) -> const Border& {
    for (const Border& made : borders)
      if (made.elements == elements) return made;
    const cost::MovePricer price(batch, elements, cluster, ranks);
    Border& out = borders.emplace_back();
    out.elements = elements;
    std::vector<double> seconds;
    for (const cost::Relayout& move : setting.moves) seconds.push_back(price.relayout(move).value);
    for (const int from : layouts) {
      const auto row = static_cast<std::size_t>(from) * setting.like.size();
      for (const int to : layouts)
        out.relayout.push_back(seconds[static_cast<std::size_t>(setting.move[row + static_cast<std::size_t>(to)])]);
      out.receive.push_back(price.receive(setting.like[static_cast<std::size_t>(from)]).value);
    }
    return out;
  };
  std::vector<Moves> out;
  for (const LayerSpec* kind : kinds) {
    Moves moves;
    moves.output = border(kind->output_elements(batch.sequence)).receive;
    const Border& in = border(kind->input_elements(batch.sequence));
    moves.relayout = in.relayout;
    moves.input = in.receive;
    out.push_back(std::move(moves));
  }
  return out;
}

/// The case of one setting and number of micro-batches, its schedule open but for whether it splits backward; empty
/// types when nothing fits.
constexpr Case make_case(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options,
                         const StageSetting& setting, int microbatches, bool splits_backward) {
  Case out;
  out.specs = setting.specs;
  Problem& p = out.problem;
  p.objective.stages = setting.stages;
  p.objective.microbatches = microbatches;
  p.objective.weights = cost::pipeline_weights(ScheduleKind::one_f_one_b, setting.stages, microbatches);
  if (cost::stages_share_cores(cluster, setting.stages, setting.ranks)) {
    const cost::CoreSharing sharing = cost::core_sharing(cluster, setting.ranks);
    p.objective.alone = sharing.crowding(setting.ranks) / sharing.crowding(setting.stages * setting.ranks);
    p.objective.shared = true;
  }
  p.leading = p.trailing = 1;
  p.tied = model.head.tied;
  p.budget = options.memory.count;
  p.fixed = cluster.device.library_workspace.count;
  p.layouts = static_cast<int>(setting.like.size());

  const int ranks = setting.stages * setting.ranks;
  const cost::Batch batch{.microbatch = options.global_batch / microbatches,
                          .sequence = options.sequence,
                          .precision = options.precision,
                          .microbatches = microbatches,
                          .stages = setting.stages,
                          .splits_backward = splits_backward,
                          .trainer = options.trainer,
                          .overlap = cost::can_overlap(cluster),
                          .moments = options.moments};
  cost::WorkPrices prices(batch.precision, cluster, cost::busy_ranks(cluster, ranks));
  // Kinds of layers: the model's layers are few kinds, many times.
  std::vector<const LayerSpec*> kinds;
  const auto kind_of = [&](const LayerSpec& layer) {
    for (std::size_t i = 0; i < kinds.size(); ++i)
      if (kinds[i]->costs_like(layer)) return static_cast<int>(i);
    kinds.push_back(&layer);
    LayerType type;
    bool fits = false;
    for (std::size_t i = 0; i < setting.specs.size(); ++i) {
      // What is recomputed makes no difference to whether a layer can be spread so, nor to an embedding and a head.
      const bool alike = i > 0 && is_but_for_recompute(setting.specs[i - 1], setting.specs[i]);
      if (!alike)
        fits = is_fit(layer, setting.specs[i], batch.microbatch, batch.sequence) &&
               !divides_samples_instead(setting.specs[i], layer, options.space, batch);
      if (!fits) continue;
      Choice choice = alike && layer.kind != LayerKind::block
                          ? type.back()
                          : make_choice(layer, setting.specs[i], batch, cluster, prices);
      choice.layout = setting.layout[i];
      choice.tag = static_cast<int>(i);
      type.push_back(choice);
    }
    p.types.push_back(std::move(type));
    return static_cast<int>(kinds.size()) - 1;
  };
  p.layers.push_back(kind_of(model.embedding));
  const LayerSpec* previous = nullptr;
  for (const LayerSpec& block : model.blocks) {  // comparing with the layer before saves most look-ups
    p.layers.push_back(previous != nullptr && previous->costs_like(block) ? p.layers.back() : kind_of(block));
    previous = &block;
  }
  p.layers.push_back(kind_of(model.head));
  if (std::any_of(p.types.begin(), p.types.end(), [](const LayerType& t) { return t.empty(); })) {
    p.types.clear();
    return out;
  }

  p.moves = make_moves(kinds, setting, number_layouts(p), batch, cluster, ranks);
  return out;
}

/// A case with one schedule; with virtual stages its layers in the order of the ranks (see problem.hpp).
inline Case with_schedule(Case made, ScheduleKind kind, int virtual_stages, bool even_stages) {
  Problem& p = made.problem;
  made.schedule = kind;
  p.chunks = virtual_stages;
  p.objective.weights = cost::pipeline_weights(kind, p.stages(), p.objective.microbatches, virtual_stages);
  if (!cost::is_followed_on_shared_cores(kind)) {  // see cost::iteration_seconds
    p.objective.alone = 1;
    p.objective.shared = false;
  }
  for (int stage = 0; stage < p.stages(); ++stage)
    for (int chunk = 0; chunk < virtual_stages; ++chunk)
      p.slots.push_back(
          microbatches_in_flight(kind, p.stages(), stage, p.objective.microbatches, virtual_stages, chunk));
  if (splits_backward(kind))
    for (int stage = 0; stage < p.stages(); ++stage)
      p.postponed.push_back(microbatches_postponed(kind, stage, p.objective.microbatches));
  if (kind != ScheduleKind::interleaved) {
    if (even_stages) p.cuts = even_cuts(p);
    return made;
  }
  const std::vector<int> layers = p.layers;
  const auto add = [&](int layer, int chunk) {
    made.order.push_back(layer);
    p.in_chunk.push_back(chunk);
  };
  const auto first = [&, all = p.stages() * virtual_stages](int index) {
    return p.leading + first_layer_of_virtual_stage(p.movable(), all, index);
  };
  add(0, 0);
  for (int stage = 0; stage < p.stages(); ++stage) {
    p.cuts.push_back(stage == 0 ? 0 : static_cast<int>(made.order.size()));
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      const int index = chunk * p.stages() + stage;
      for (int layer = first(index); layer < first(index + 1); ++layer) add(layer, chunk);
    }
  }
  add(p.count() - 1, virtual_stages - 1);
  p.cuts.push_back(p.count());
  for (std::size_t i = 0; i < layers.size(); ++i) p.layers[i] = layers[static_cast<std::size_t>(made.order[i])];
  return made;
}

}  // namespace detail

/// The candidate that an assignment of a case stands for; its seconds by the full pipeline model.
inline Candidate candidate_of(const Case& c, const Assignment& plan, const Evaluation& cost, const Cluster& cluster) {
  Candidate out;
  out.stages = c.stages();
  out.microbatches = c.microbatches();
  out.schedule = c.schedule;
  out.virtual_stages = c.problem.chunks;
  const auto spec = [&](int layer) {
    return c.specs[static_cast<std::size_t>(c.problem.choice(layer, plan.choice[static_cast<std::size_t>(layer)]).tag)];
  };
  for (int i = 0; i < out.stages; ++i)
    out.first_block.push_back(std::max(0, plan.first[static_cast<std::size_t>(i)] - c.problem.leading));
  const int last = c.problem.count() - 1;
  out.embedding = spec(0);
  out.head = spec(last);
  out.blocks.resize(static_cast<std::size_t>(last) - 1);
  for (int layer = 1; layer < last; ++layer) out.blocks[static_cast<std::size_t>(c.layer(layer)) - 1] = spec(layer);
  std::vector<cost::StageSeconds> stages;
  for (const StageCost& s : cost.stages)
    stages.push_back({{s.forward}, {s.backward}, {s.synchronise}, {s.update}, {s.weights}});
  out.iteration = cost::iteration_seconds(cluster, c.schedule, stages, c.microbatches(), cluster.devices / c.stages(),
                                          c.problem.chunks);
  out.peak = {cost.peak};
  return out;
}

}  // namespace galvatron::search
