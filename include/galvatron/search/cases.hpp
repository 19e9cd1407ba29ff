// Cases: from a model, a cluster and options to search problems, one for each pipeline degree, number of micro-batches
// and schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/parallel.hpp>
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

/// Checks options against model and cluster and fills in the defaults. Errors (usage): figures below 1, a sequence that
/// is too long, micro-batches that do not divide the batch, forced degrees that do not divide the
/// devices, no schedule.
inline Result<SearchOptions> completed(SearchOptions options, const ModelSpec& model, const Cluster& cluster) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (model.blocks.empty()) return usage_error("the model " + model.name + " has no layers");
  if (options.sequence == 0) options.sequence = model.positions();
  if (options.memory.count == 0) options.memory = cluster.device.memory;
  if (options.global_batch < 1 || options.global_batch > (1 << 30))
    return usage_error("the global batch is " + text(options.global_batch) + ": give 1 to 2^30 samples");
  if (model.takes_images() && options.sequence != model.positions())
    return usage_error("the sequence has " + text(options.sequence) + " tokens: " + model.name +
                       " takes images, which are " + text(model.positions()) + " tokens; leave the sequence out");
  if (options.sequence < 1 || options.sequence > model.positions())
    return usage_error("the sequence has " + text(options.sequence) + " tokens: " + model.name + " takes 1 to " +
                       text(model.positions()));
  for (const LayerSpec& block : model.blocks)
    for (const TokenRatio& ratio : {block.tokens, block.memory, block.passing})
      if (!ratio.divides(options.sequence))
        return usage_error("the sequence has " + text(options.sequence) + " tokens: a layer of " + model.name +
                           " works on " + text(ratio.part) + "/" + text(ratio.whole) + " of them; give a multiple of " +
                           text(ratio.whole / std::gcd(ratio.part, ratio.whole)));
  if (options.memory.count < 1)
    return usage_error("the memory budget is " + text(options.memory.count) + " bytes: give a positive size");
  if (cluster.devices < 1) return usage_error("the cluster " + cluster.name + " has no devices");
  if (options.microbatches < 0 || (options.microbatches > 0 && options.global_batch % options.microbatches != 0))
    return usage_error(text(options.microbatches) + " micro-batches do not divide the global batch of " +
                       text(options.global_batch) + ": choose a divisor");
  if (options.trainer != cost::Trainer::galvatron)
    for (const LayerSpec& block : model.blocks)
      if (!block.is_plain_block())
        return usage_error("the model " + model.name + " has other blocks than GPT's and Llama's, so that only this " +
                           "library's own runtime can be planned for; leave --trainer out");
  const std::pair<const char*, const DegreeRange*> axes[] = {{"pp", &options.space.pipeline},
                                                             {"tp", &options.space.tensor},
                                                             {"cp", &options.space.context},
                                                             {"dp", &options.space.data}};
  std::int64_t forced = 1;
  for (const auto& [name, range] : axes) {
    if (range->forced == 0) continue;
    forced *= range->forced;
    if (forced <= cluster.devices && cluster.devices % forced == 0) continue;
    std::string valid;
    for (const int degree : divisors(cluster.devices)) valid += (valid.empty() ? "" : ", ") + text(degree);
    return usage_error("--space " + std::string(name) + "=" + text(range->forced) +
                       (forced == range->forced ? "" : " and what else is forced, " + text(forced) + " together,") +
                       " does not divide the " + text(cluster.devices) + " devices of " + cluster.name +
                       ": force degrees whose product is one of " + valid);
  }
  if (options.schedules.empty()) return usage_error("no schedule is allowed: name gpipe, 1f1b, interleaved or zb-h1");
  return options;
}

namespace detail {

/// What all cases of one pipeline degree share.
struct StageSetting {
  int stages = 1;
  int ranks = 1;  // of a stage
  std::vector<StrategySpec> specs;
  std::vector<int> layout;            // of each spec
  std::vector<StrategySpec> like;     // a spec of each layout
  std::vector<cost::Relayout> moves;  // (layouts, layouts)

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
      for (const StrategySpec& to : like) moves.push_back(cost::relayout_of(of(from), of(to)));
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

/// The moves at the borders of each kind of layer; equal borders are priced once.
constexpr std::vector<Moves> make_moves(const std::vector<const LayerSpec*>& kinds, const StageSetting& setting,
                                        const cost::Batch& batch, const Cluster& cluster, int ranks) {
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
    for (const cost::Relayout& move : setting.moves) out.relayout.push_back(price.relayout(move).value);
    for (const StrategySpec& spec : setting.like) out.receive.push_back(price.receive(spec).value);
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
                          .overlap = cost::can_overlap(cluster)};
  cost::WorkPrices prices(batch.precision, cluster, cost::busy_ranks(cluster, ranks));
  // Kinds of layers: the model's layers are few kinds, many times.
  std::vector<const LayerSpec*> kinds;
  const auto kind_of = [&](const LayerSpec& layer) {
    for (std::size_t i = 0; i < kinds.size(); ++i)
      if (kinds[i]->costs_like(layer)) return static_cast<int>(i);
    kinds.push_back(&layer);
    LayerType type;
    for (std::size_t i = 0; i < setting.specs.size(); ++i) {
      if (!is_fit(layer, setting.specs[i], batch.microbatch, batch.sequence) ||
          divides_samples_instead(setting.specs[i], layer, options.space, batch))
        continue;
      Choice choice = make_choice(layer, setting.specs[i], batch, cluster, prices);
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

  p.moves = make_moves(kinds, setting, batch, cluster, ranks);
  return out;
}

}  // namespace detail

namespace detail {

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
  const int each = p.chunk_layers();
  made.order.push_back(0);
  for (int stage = 0; stage < p.stages(); ++stage) {
    p.cuts.push_back(stage == 0 ? 0 : static_cast<int>(made.order.size()));
    for (int chunk = 0; chunk < virtual_stages; ++chunk)
      for (int k = 0; k < each; ++k) made.order.push_back(p.leading + (chunk * p.stages() + stage) * each + k);
  }
  made.order.push_back(p.count() - 1);
  p.cuts.push_back(p.count());
  for (std::size_t i = 0; i < layers.size(); ++i) p.layers[i] = layers[static_cast<std::size_t>(made.order[i])];
  return made;
}

}  // namespace detail

/// All cases in which every layer has a strategy. GPipe beside 1F1B is left out where stages have devices of their own:
/// it is never faster there and never smaller. Without a pipeline, or with one micro-batch, schedules are all the same.
/// Virtual stages: every number above 1 that cuts the blocks into equal chunks.
inline std::vector<Case> make_cases(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options) {
  std::vector<Case> cases;
  const auto allowed = [&](ScheduleKind kind) {
    return std::find(options.schedules.begin(), options.schedules.end(), kind) != options.schedules.end();
  };
  std::vector<int> counts;
  for (const int m : divisors(static_cast<int>(options.global_batch)))
    if (options.microbatches == 0 || options.microbatches == m) counts.push_back(m);
  // What fits no layer with the whole batch as one micro-batch fits none with more of them.
  std::vector<const LayerSpec*> kinds{&model.embedding, &model.head};
  for (const LayerSpec& block : model.blocks)
    if (std::none_of(kinds.begin(), kinds.end(), [&](const LayerSpec* kind) { return kind->costs_like(block); }))
      kinds.push_back(&block);
  std::vector<int> degrees = pipeline_degrees(options.space, cluster.devices);
  std::erase_if(degrees, [&](int stages) { return stages > static_cast<int>(model.blocks.size()); });
  std::vector<detail::StageSetting> settings(degrees.size());
  in_parallel(degrees.size(), options.threads, [&](std::size_t i) {
    std::vector<StrategySpec> specs = strategies(options.space, cluster.devices / degrees[i]);
    std::erase_if(specs, [&](const StrategySpec& spec) {
      return std::none_of(kinds.begin(), kinds.end(), [&](const LayerSpec* kind) {
        return is_fit(*kind, spec, options.global_batch, options.sequence);
      });
    });
    settings[i] = detail::StageSetting(degrees[i], cluster.devices / degrees[i], std::move(specs));
  });
  if (options.one_strategy) settings = detail::one_by_one(settings);
  // First those that do not split backward, then, if a schedule does, those that do.
  const std::size_t each = settings.size() * counts.size();
  std::vector<Case> made(allowed(ScheduleKind::zb_h1) ? 2 * each : each);
  in_parallel(made.size(), options.threads, [&](std::size_t i) {
    made[i] = detail::make_case(model, cluster, options, settings[i % each / counts.size()], counts[i % counts.size()],
                                i >= each);
  });
  const auto add = [&](Case one, ScheduleKind kind, int chunks) {
    cases.push_back(detail::with_schedule(std::move(one), kind, chunks, options.even_stages));
  };
  for (std::size_t i = 0; i < each; ++i) {
    Case& one = made[i];
    if (one.problem.types.empty()) continue;
    const int stages = one.stages();
    const int m = one.microbatches();
    if (stages == 1) {
      const ScheduleKind kind = allowed(ScheduleKind::one_f_one_b) ? ScheduleKind::one_f_one_b
                                : allowed(ScheduleKind::gpipe)     ? ScheduleKind::gpipe
                                : allowed(ScheduleKind::zb_h1)     ? ScheduleKind::zb_h1
                                                                   : ScheduleKind::one_f_one_b;
      add(std::move(splits_backward(kind) ? made[each + i] : one), kind, 1);
      continue;
    }
    if (allowed(ScheduleKind::zb_h1)) add(std::move(made[each + i]), ScheduleKind::zb_h1, 1);
    std::vector<std::pair<ScheduleKind, int>> schedules;  // with virtual stages
    if (allowed(ScheduleKind::one_f_one_b)) schedules.emplace_back(ScheduleKind::one_f_one_b, 1);
    const bool gpipe_differs = m > 1 && one.problem.objective.shared;
    if (allowed(ScheduleKind::gpipe) && (gpipe_differs || !allowed(ScheduleKind::one_f_one_b)))
      schedules.emplace_back(ScheduleKind::gpipe, 1);
    if (allowed(ScheduleKind::interleaved) && m % stages == 0 && one.problem.movable() % stages == 0)
      for (const int chunks : divisors(one.problem.movable() / stages))
        if (chunks > 1) schedules.emplace_back(ScheduleKind::interleaved, chunks);
    if (schedules.empty()) continue;
    for (std::size_t k = 0; k + 1 < schedules.size(); ++k) add(one, schedules[k].first, schedules[k].second);
    add(std::move(one), schedules.back().first, schedules.back().second);
  }
  return cases;
}

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
