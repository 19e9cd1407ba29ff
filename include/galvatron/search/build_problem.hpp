// From a model, a cluster and options to search problems: the strategies that a stage may have, what every layer costs
// under them, and a case for each pipeline degree, number of micro-batches and schedule.
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
#include <galvatron/search/choice_maker.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/stage_setting.hpp>
#include <galvatron/search/tuning.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

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

/// So many of `counts`, the first and the last among them, evenly spread.
inline std::vector<int> some_of(const std::vector<int>& counts, std::size_t wanted) {
  if (counts.size() <= wanted) return counts;
  std::vector<int> out;
  for (std::size_t k = 0; k < wanted; ++k) out.push_back(counts[k * (counts.size() - 1) / (wanted - 1)]);
  return out;
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

/// All cases in which every layer has a strategy. GPipe beside 1F1B is left out where stages have devices of their own:
/// it is never faster there and never smaller. Without a pipeline, or with one micro-batch, schedules are all the same.
/// Virtual stages: every number above 1 that cuts the blocks into equal chunks. Where that would be very many choices,
/// degrees that only an embedding or a head can have are left out (on tens of thousands of devices they are most of
/// all, and hardly any plan has them), and if there are still too many, some of the numbers of micro-batches.
/// @param executor  shares the work; the cases are the same with any
/// @param narrowed  whether numbers of micro-batches were left out
template <class Executor>
std::vector<Case> make_cases(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options,
                             Executor& executor, bool* narrowed = nullptr) {
  std::vector<Case> cases;
  const auto allowed = [&](ScheduleKind kind) {
    return std::find(options.schedules.begin(), options.schedules.end(), kind) != options.schedules.end();
  };
  std::vector<int> counts;
  for (const int m : divisors(static_cast<int>(options.global_batch)))
    if (options.microbatches == 0 || options.microbatches == m) counts.push_back(m);
  // What fits no layer with the whole batch as one micro-batch fits none with more of them. Strided tensor ranks are
  // for blocks and for the ends beside them: degrees that only an embedding or a head can have are left out.
  std::vector<const LayerSpec*> kinds{&model.embedding, &model.head};
  for (const LayerSpec& block : model.blocks)
    if (std::none_of(kinds.begin(), kinds.end(), [&](const LayerSpec* kind) { return kind->costs_like(block); }))
      kinds.push_back(&block);
  std::vector<int> degrees = pipeline_degrees(options.space, cluster.devices);
  const OneForAll trainer = options.space.one_for_all;
  const bool even = options.even_stages || needs_equal_stages(trainer);
  const int layers = static_cast<int>(model.blocks.size());
  std::erase_if(degrees,
                [&](int stages) { return stages > layers || (needs_equal_stages(trainer) && layers % stages != 0); });
  std::vector<std::vector<StrategySpec>> specs(degrees.size());
  const auto keep_fit = [&](std::size_t i, bool for_ends) {
    std::erase_if(specs[i], [&](const StrategySpec& spec) {
      return !can_give(trainer, spec, degrees[i], options.precision) ||
             !std::all_of(kinds.begin(), kinds.end(),
                          [&](const LayerSpec* kind) { return can_split_heads(trainer, *kind, spec); }) ||
             std::none_of(kinds.begin() + (spec.strided || !for_ends ? 2 : 0), kinds.end(), [&](const LayerSpec* kind) {
               return is_fit(*kind, spec, options.global_batch, options.sequence);
             });
    });
  };
  // Numbers of virtual stages that are tried.
  const auto chunk_counts = [&](int stages) {
    std::vector<int> out;
    if (stages == 1 || !allowed(ScheduleKind::interleaved) || (layers % stages != 0 && even)) return out;
    for (const int chunks : divisors((layers + stages - 1) / stages))
      if (chunks > 1 && stages * chunks <= layers) out.push_back(chunks);
    return out;
  };
  const auto choices = [&] {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < specs.size(); ++i)
      sum += specs[i].size() * (1 + (allowed(ScheduleKind::zb_h1) ? 1 : 0) + chunk_counts(degrees[i]).size());
    return sum * kinds.size() * counts.size();
  };
  executor.each(degrees.size(), [&](std::size_t i) {
    specs[i] = strategies(options.space, cluster.devices / degrees[i], cluster.devices_per_node);
    keep_fit(i, true);
  });
  const std::size_t most =
      tuning::most_choices * static_cast<std::size_t>(options.effort) / static_cast<std::size_t>(options.shares);
  if (choices() > most) {
    executor.each(degrees.size(), [&](std::size_t i) { keep_fit(i, false); });
    const std::size_t each = choices() / counts.size();
    const std::size_t wanted = std::max(tuning::few, most / std::max<std::size_t>(1, each));
    if (narrowed != nullptr) *narrowed = counts.size() > wanted;
    counts = detail::some_of(counts, wanted);
  }
  std::vector<detail::StageSetting> settings(degrees.size());
  executor.each(degrees.size(), [&](std::size_t i) {
    settings[i] = detail::StageSetting(degrees[i], cluster.devices / degrees[i], std::move(specs[i]));
  });
  if (options.one_strategy) settings = detail::one_by_one(settings);
  // First those that do not split backward, then, if a schedule does, those that do.
  const std::size_t each = settings.size() * counts.size();
  const std::vector<cost::LayerPrograms> programs =
      detail::programs_of(model, options, settings, allowed(ScheduleKind::zb_h1));
  std::vector<Case> made(allowed(ScheduleKind::zb_h1) ? 2 * each : each);
  executor.each(made.size(), [&](std::size_t i) {
    if (options.interrupted()) return;
    made[i] = detail::make_case(model, programs, cluster, options, settings[i % each / counts.size()],
                                counts[i % counts.size()], i >= each);
  });
  const auto add = [&](Case one, ScheduleKind kind, int chunks) {
    cases.push_back(detail::with_schedule(std::move(one), kind, chunks, even));
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
    // Stages that do not divide the layers have virtual stages of one size but for fewer than P that lack a layer; of
    // others the formula does not hold: see cost::PipelineWeights.
    if (m % stages == 0)
      for (const int chunks : chunk_counts(stages)) schedules.emplace_back(ScheduleKind::interleaved, chunks);
    if (schedules.empty()) continue;
    for (std::size_t k = 0; k + 1 < schedules.size(); ++k) add(one, schedules[k].first, schedules[k].second);
    add(std::move(one), schedules.back().first, schedules.back().second);
  }
  return cases;
}

}  // namespace galvatron::search
