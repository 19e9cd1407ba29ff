// A case: the search problem of one pipeline degree, number of micro-batches and schedule, priced for a model on a
// cluster.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/stage_setting.hpp>
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

/// The strategy without ZeRO and recomputation: with equal degrees layers and activations are spread alike.
constexpr StrategySpec degrees_of(StrategySpec spec) {
  spec.zero = 0;
  spec.recompute = RecomputeKind::cheap;
  return spec;
}

/// Makes the choices of one kind of layers. Strategies of a block with the same degrees share most of what is to be
/// counted and priced: of ZeRO its passes depend on whether micro-batches add weight gradients or write them, and its
/// parameters do not depend on recomputation. Of an embedding and a head nothing depends on the latter. What strategies
/// one after the other share is done once.
class ChoiceMaker {
 public:
  /// @param programs  of the layer under all strategies that it is asked about
  constexpr ChoiceMaker(const cost::LayerPrograms& programs, const Space& space, const cost::Batch& batch,
                        const Cluster& cluster, cost::WorkPrices& prices)
      : layer_(programs.layer()),
        programs_(programs),
        space_(space),
        batch_(batch),
        cluster_(cluster),
        prices_(prices) {}

  /// All of a choice but its layout and tag; nothing where the layer cannot be spread so or another strategy replaces
  /// this one.
  constexpr std::optional<Choice> operator()(const StrategySpec& spec) {
    if (const StrategySpec degrees = degrees_of(spec); !(degrees == degrees_)) {
      degrees_ = degrees;
      fits_ = is_fit(layer_, spec, batch_.microbatch, batch_.sequence) &&
              !divides_samples_instead(spec, layer_, space_, batch_);
      for (Part& part : passes_) part.made = false;
      for (Part& part : parameters_) part.made = false;
    }
    if (!fits_) return std::nullopt;
    const bool is_block = layer_.kind == LayerKind::block;
    const int writes = spec.zero >= 2 && batch_.microbatches > 1 ? 1 : 0;  // of one micro-batch, all do
    Part& passes =
        passes_[static_cast<std::size_t>(is_block ? 2 * static_cast<int>(spec.recompute) + writes : spec.zero)];
    if (!passes.made) passes = part_of(cost::pass_counts(layer_, spec, batch_, programs_.of(spec, batch_)), spec);
    if (!is_block) return choice_of(passes, Part());
    const bool splits = batch_.splits_backward && splits_backward(layer_, spec);
    Part& parameters = parameters_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!parameters.made)
      parameters = part_of(cost::parameter_counts(layer_, spec, batch_, programs_.of(spec, batch_)), spec);
    return choice_of(passes, parameters);
  }

 private:
  // The passes of a layer or its parameters.
  struct Part {
    bool made = false;
    cost::LayerPrices prices;
    Choice bytes;  // its seconds are not set
    std::int64_t weights_workspace = 0;
  };

  [[nodiscard]] constexpr Part part_of(const cost::LayerCounts& counts, const StrategySpec& spec) const {
    Part out;
    out.made = true;
    out.prices = cost::layer_prices(counts, spec, cluster_, prices_);
    out.bytes.states = counts.states.count;
    out.bytes.stash = counts.stash.count;
    out.bytes.deferred = counts.deferred.count;
    out.bytes.forward_workspace = counts.forward_workspace.count;
    out.bytes.backward_workspace = counts.backward_workspace.count;
    out.bytes.input = counts.input.count;
    out.bytes.activation = counts.activation.count;
    out.bytes.pass_through = counts.pass_through.count;
    out.weights_workspace = counts.weights_workspace.count;
    return out;
  }
  [[nodiscard]] constexpr Choice choice_of(const Part& passes, const Part& parameters) const {
    const cost::LayerSeconds seconds = cost::layer_seconds(passes.prices + parameters.prices, cluster_);
    Choice choice = passes.bytes;
    choice.forward = seconds.forward.value;
    choice.backward = seconds.backward.value;
    choice.weights = seconds.weights.value;
    choice.synchronise = seconds.synchronise.value;
    choice.update = seconds.update.value;
    choice.states += parameters.bytes.states;
    choice.forward_workspace += parameters.bytes.forward_workspace;
    choice.backward_workspace = std::max(passes.bytes.backward_workspace + parameters.bytes.backward_workspace,
                                         passes.weights_workspace + parameters.weights_workspace - choice.activation);
    return choice;
  }

  const LayerSpec& layer_;
  const cost::LayerPrograms& programs_;
  const Space& space_;
  const cost::Batch& batch_;
  const Cluster& cluster_;
  cost::WorkPrices& prices_;
  StrategySpec degrees_{.tensor = 0};  // of the parts
  bool fits_ = false;
  // By what is recomputed, and whether all micro-batches write weight gradients; ends: by ZeRO.
  std::array<Part, std::max<std::size_t>(2 * recompute_kinds.size(), 4)> passes_{};
  std::array<Part, 8> parameters_{};  // by stage of ZeRO, and whether backward is split
};

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

/// The kinds of a model's layers with their programs under strategies of these settings. Cases share them, since
/// programs do not depend on degrees.
constexpr std::vector<cost::LayerPrograms> programs_of(const ModelSpec& model, const SearchOptions& options,
                                                       std::span<const StageSetting> settings, bool splits_backward) {
  std::vector<cost::LayerPrograms> out;
  const auto add = [&](const LayerSpec& layer) {
    for (const cost::LayerPrograms& made : out)
      if (made.layer().costs_like(layer)) return;
    out.emplace_back(layer);
  };
  add(model.embedding);
  for (const LayerSpec& block : model.blocks)
    if (!out.back().layer().costs_like(block)) add(block);  // mostly like the one before
  add(model.head);
  cost::Batch batch{.trainer = options.trainer};
  for (cost::LayerPrograms& programs : out)
    for (const bool splits : {false, true}) {
      if (splits && !splits_backward) continue;
      batch.splits_backward = splits;
      for (const StageSetting& setting : settings)
        for (const StrategySpec& spec : setting.specs) programs.add(spec, batch);
    }
  return out;
}

constexpr std::vector<int> equal_ranks(int stages, int ranks) {
  return std::vector<int>(static_cast<std::size_t>(stages), ranks);
}

/// The case of one setting and number of micro-batches, its schedule open but for whether it splits backward; empty
/// types when nothing fits.
/// @param programs  of the model's layers (programs_of)
constexpr Case make_case(const ModelSpec& model, const std::vector<cost::LayerPrograms>& programs,
                         const Cluster& cluster, const SearchOptions& options, const StageSetting& setting,
                         int microbatches, bool splits_backward) {
  Case out;
  out.specs = setting.specs;
  Problem& p = out.problem;
  p.objective.stages = setting.stages;
  p.objective.microbatches = microbatches;
  p.objective.weights = cost::pipeline_weights(ScheduleKind::one_f_one_b, setting.stages, microbatches);
  if (cost::stages_share_cores(cluster, setting.stages, setting.stages * setting.ranks)) {
    const schedule::CoreSharing sharing = cost::core_sharing(cluster, equal_ranks(setting.stages, setting.ranks));
    p.objective.alone = sharing.crowding(setting.ranks) / sharing.crowding();
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
    const auto of_layer = std::find_if(programs.begin(), programs.end(),
                                       [&](const cost::LayerPrograms& made) { return made.layer().costs_like(layer); });
    ChoiceMaker make_choice(*of_layer, options.space, batch, cluster, prices);
    for (std::size_t i = 0; i < setting.specs.size(); ++i) {
      const std::optional<Choice> choice = make_choice(setting.specs[i]);
      if (!choice) continue;
      type.push_back(*choice);
      type.back().layout = setting.layout[i];
      type.back().tag = static_cast<int>(i);
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
      p.deferred.push_back(microbatches_deferred(kind, stage, p.objective.microbatches));
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
  out.iteration =
      cost::iteration_seconds(cluster, c.schedule, stages, c.microbatches(),
                              detail::equal_ranks(c.stages(), cluster.devices / c.stages()), c.problem.chunks);
  out.peak = {cost.peak};
  return out;
}

}  // namespace galvatron::search
