// From a model, a cluster and options to search problems: the strategies that a stage may have, what every layer costs
// under them, and a case for each pipeline degree, number of micro-batches and schedule.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/search/case.hpp>
#include <galvatron/search/fronts.hpp>
#include <galvatron/search/make_choices.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/tuning.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

namespace detail {

/// The kinds of a model's layers, few and many times, with their programs, which all cases share: they do not depend on
/// degrees.
struct LayerKinds {
  std::vector<cost::LayerPrograms> programs;  ///< of the embedding, of the blocks that differ, of the head
  std::vector<int> of;                        ///< every layer

  explicit constexpr LayerKinds(const ModelSpec& model) {
    for (int i = 0; i < model.layers(); ++i) {
      const LayerSpec& layer = model.layer(i);
      const auto is_like = [&](const cost::LayerPrograms& kind) { return kind.layer().costs_like(layer); };
      const auto same = std::ranges::find_if(programs, is_like);
      of.push_back(static_cast<int>(same - programs.begin()));
      if (same == programs.end()) programs.emplace_back(layer);
    }
  }
  /// Makes the programs under the strategies of these settings.
  constexpr void lower(const SearchOptions& options, std::span<const StageSetting> settings, bool splits_backward) {
    const cost::Batch batch{.splits_backward = splits_backward, .trainer = &options.trainer.traits};
    for (cost::LayerPrograms& kind : programs)
      for (const StageSetting& setting : settings)
        for (const StrategySpec& spec : setting.specs) kind.add(spec, batch);
  }
};

/// The moves at the borders of each kind of layer, between these layouts of the setting; equal borders and moves are
/// priced once.
constexpr std::vector<Moves> make_moves(const LayerKinds& kinds, const StageSetting& setting,
                                        const std::vector<int>& layouts, const cost::Batch& batch,
                                        const Cluster& cluster) {
  const auto all = static_cast<int>(setting.like.size());
  std::vector<std::pair<std::int64_t, Moves>> borders;  // elements, and moves to layers that they are the input of
  const auto border = [&](std::int64_t elements) -> const Moves& {
    for (const auto& [known, moves] : borders)
      if (known == elements) return moves;
    const cost::MovePricer price(batch, elements, cluster, setting.stages * setting.ranks);
    Moves& out = borders.emplace_back(elements, Moves{}).second;
    std::vector<double> seconds;
    for (const cost::Relayout& move : setting.moves) seconds.push_back(price.relayout(move).value);
    for (const int from : layouts) {
      for (const int to : layouts) out.relayout.push_back(nth(seconds, nth(setting.move, from * all + to)));
      out.input.push_back(price.receive(nth(setting.like, from)).value);
    }
    return out;
  };
  std::vector<Moves> out;
  for (const cost::LayerPrograms& kind : kinds.programs) {
    Moves& moves = out.emplace_back(border(kind.layer().input_elements(batch.sequence)));
    moves.output = border(kind.layer().output_elements(batch.sequence)).input;
  }
  return out;
}

/// What the layers of a search are priced for.
constexpr cost::Batch batch_for(const SearchOptions& options, int microbatches, int stages, bool splits_backward,
                                bool overlap) {
  return {.microbatch = options.global_batch / microbatches,
          .sequence = options.sequence,
          .precision = options.precision,
          .microbatches = microbatches,
          .stages = stages,
          .splits_backward = splits_backward,
          .trainer = &options.trainer.traits,
          .overlap = overlap,
          .moments = options.moments,
          .expert_imbalance = options.expert_imbalance,
          .lsh = options.lsh};
}

/// Prices that cases have in common whose batches differ in nothing but stages and micro-batches.
struct CommonPrices {
  cost::WorkPrices work;
  std::vector<cost::PassPrices> passes;  ///< by the kind of layers

  /// @param microbatches  all numbers of the cases
  /// @param ranks         as for cost::layer_seconds
  constexpr CommonPrices(const LayerKinds& kinds, const std::vector<int>& microbatches, Precision precision,
                         const Cluster& cluster, int ranks)
      : work(precision, cluster, cost::busy_ranks(cluster, ranks)) {
    for (const cost::LayerPrograms& kind : kinds.programs) passes.emplace_back(kind.layer(), microbatches);
  }
};

/// Fills in the types of a problem, their choices, and the moves at their borders, on the stages of a setting; no types
/// when some layer has no choice. Returns, of every layout, its number in the setting.
/// @param kinds   of the model's layers, lowered for the setting
/// @param same    of each type, see Case
/// @param prices  on `cluster`
/// @param tied    their links given
constexpr std::vector<int> price_layers(Problem& p, std::vector<std::span<const int>>& same_tags,
                                        const LayerKinds& kinds, const Cluster& cluster, const SearchOptions& options,
                                        const StageSetting& setting, const cost::Batch& batch, CommonPrices& prices,
                                        std::span<TiedPrices> tied = {}) {
  std::vector<int> layouts;  // of all choices
  for (std::size_t k = 0; k < kinds.programs.size(); ++k) {
    const LayerSpec& layer = kinds.programs[k].layer();
    std::span<const int>& same = same_tags.emplace_back();
    if (layer.experts == 0) same = layer.kind == LayerKind::block ? setting.same_block : setting.same_end;
    p.types.push_back(make_choices(kinds.programs[k], setting, same, options.space, batch, cluster, prices.work,
                                   prices.passes[k], tied));
    if (p.types.back().empty()) {
      p.types.clear();
      return {};
    }
    for (const Choice& c : p.types.back())
      if (layouts.empty() || layouts.back() != c.layout) layouts.push_back(c.layout);
  }
  sort_unique(layouts);
  p.layouts = static_cast<int>(layouts.size());
  for (LayerType& type : p.types)
    for (Choice& choice : type)
      choice.layout = static_cast<int>(std::ranges::lower_bound(layouts, choice.layout) - layouts.begin());
  p.moves = make_moves(kinds, setting, layouts, batch, cluster);
  return layouts;
}

/// The case of one setting and number of micro-batches, its schedule open but for whether it splits backward; empty
/// types when nothing fits.
/// @param kinds  of the model's layers, lowered for the setting
/// @param one_end  both ends of the model are on one stage (ends_share_stage)
constexpr Case make_case(const ModelSpec& model, const LayerKinds& kinds, const Cluster& cluster,
                         const SearchOptions& options, const StageSetting& setting, int microbatches,
                         bool splits_backward, bool one_end, CommonPrices& prices) {
  const int ranks = setting.stages * setting.ranks;
  Case out;
  out.specs = setting.specs;
  Problem& p = out.problem;
  p.objective.stages = setting.stages;
  p.objective.microbatches = microbatches;
  p.objective.weights = cost::pipeline_weights(ScheduleKind::one_f_one_b, setting.stages, microbatches);
  if (cost::stages_share_cores(cluster, setting.stages, ranks)) {
    const std::vector<int> ranks_of_stages(static_cast<std::size_t>(setting.stages), setting.ranks);
    const schedule::CoreSharing sharing = cost::core_sharing(cluster, ranks_of_stages);
    p.objective.alone = sharing.crowding(setting.ranks) / sharing.crowding();
    p.objective.shared = true;
  }
  p.leading = p.trailing = 1;
  p.tied = model.head.tied;
  p.budget = options.memory.count;
  p.fixed = cost::library_of(options.trainer.traits, cluster.device.library_workspace).count;
  p.layers = kinds.of;
  const cost::Batch batch =
      batch_for(options, microbatches, one_end ? 1 : setting.stages, splits_backward, cost::can_overlap(cluster));
  price_layers(p, out.same, kinds, cluster, options, setting, batch, prices);
  return out;
}

/// A case with one schedule; with virtual stages its layers in the order of the ranks (see problem.hpp).
/// @param shares_slots  virtual stages take memory when they need it (cost::RuntimeTraits)
inline Case with_schedule(Case made, ScheduleKind kind, int virtual_stages, bool even_stages, bool shares_slots) {
  Problem& p = made.problem;
  const int m = p.objective.microbatches;
  made.schedule = kind;
  p.chunks = virtual_stages;
  p.buffers = message_buffers(kind);
  p.turns = kind == ScheduleKind::zb_v;
  for (LayerType& type : p.types)
    for (Choice& c : type) c.weights = cost::deferrable(kind, {c.forward}, {c.backward}, {c.weights}).value;
  p.objective.weights = cost::pipeline_weights(kind, p.stages(), m, virtual_stages);
  if (!cost::is_followed_on_shared_cores(kind)) {  // see cost::iteration_seconds
    p.objective.alone = 1;
    p.objective.shared = false;
  }
  for (int stage = 0; stage < p.stages(); ++stage)
    for (int chunk = 0; chunk < virtual_stages; ++chunk)
      p.slots.push_back({shares_slots && kind == ScheduleKind::interleaved
                             ? interleaved_in_flight(p.stages(), stage, m, virtual_stages, chunk)
                             : microbatches_in_flight(kind, p.stages(), stage, m, virtual_stages, chunk),
                         microbatches_deferred(kind, stage, m, chunk)});
  if (virtual_stages == 1 && kind != ScheduleKind::interleaved) {
    if (even_stages) p.cuts = even_cuts(p);
    return made;
  }
  std::vector<int> types;
  const auto add = [&](int layer, int chunk) {
    made.order.push_back(layer);
    p.in_chunk.push_back(chunk);
    types.push_back(nth(p.layers, layer));
  };
  const auto first = [&, all = p.stages() * virtual_stages](int index) {
    return p.leading + first_layer_of_virtual_stage(p.movable(), all, index);
  };
  for (int stage = 0; stage < p.stages(); ++stage) {
    p.cuts.push_back(static_cast<int>(made.order.size()));
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      const int index = virtual_stage_of(kind, p.stages(), stage, chunk);
      if (index == 0) add(0, chunk);
      for (int layer = first(index); layer < first(index + 1); ++layer) add(layer, chunk);
      if (index + 1 == p.stages() * virtual_stages) add(p.count() - 1, chunk);
    }
  }
  p.cuts.push_back(p.count());
  p.layers = std::move(types);
  return made;
}

/// Drops strategies for a pipeline of so many stages that fit no layer with the whole batch as one micro-batch, so that
/// they fit none with more of them. Strided tensor ranks are for blocks and for the ends beside them: degrees that only
/// an embedding or a head can have are left out.
/// @param for_ends  strategies of an embedding or a head alone are kept
inline void keep_fit(std::vector<StrategySpec>& specs, const LayerKinds& kinds, const SearchOptions& options,
                     int stages, bool for_ends) {
  const OneForAll trainer = options.space.one_for_all;
  std::erase_if(specs, [&](const StrategySpec& spec) {
    const auto can_split = [&](const auto& kind) { return can_split_layer(trainer, kind.layer(), spec); };
    const auto fits = [&](const auto& kind) {
      return is_fit(kind.layer(), spec, options.global_batch, options.sequence);
    };
    const auto& all = kinds.programs;
    const int left_out = spec.strided || !for_ends ? 1 : 0;  // at either end
    return !can_give(trainer, spec, stages, options.precision) || !std::ranges::all_of(all, can_split) ||
           std::none_of(all.begin() + left_out, all.end() - left_out, fits);
  });
}

}  // namespace detail

struct Cases {
  std::vector<detail::StageSetting> settings;
  std::vector<Case> cases;  ///< they have views of the settings
  bool narrowed = false;    ///< choices, or numbers of micro-batches, were left out
};

/// All cases in which every layer has a strategy. GPipe beside 1F1B is left out where stages have devices of their own:
/// it is never faster there and never smaller. Without a pipeline, or with one micro-batch, schedules are all the same.
/// Virtual stages: every number above 1 that cuts the blocks into equal chunks. Where that would be very many choices,
/// degrees that only an embedding or a head can have are left out (on tens of thousands of devices they are most of
/// all, and hardly any plan has them), and if there are still too many, some of the numbers of micro-batches.
template <class Executor>
Cases make_cases(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options, Executor& executor) {
  Cases result;
  const auto allowed = [&](ScheduleKind kind) {
    return std::ranges::find(options.schedules, kind) != options.schedules.end();
  };
  std::vector<int> counts = divisors(static_cast<int>(options.global_batch));
  if (options.microbatches > 0) counts = {options.microbatches};
  detail::LayerKinds kinds(model);
  std::vector<int> degrees = pipeline_degrees(options.space, cluster.devices);
  const bool equal = needs_equal_stages(options.space.one_for_all);
  const bool even = options.even_stages || equal;
  const int layers = static_cast<int>(model.blocks.size());
  std::erase_if(degrees, [&](int stages) { return stages > layers || (equal && layers % stages != 0); });
  std::vector<std::vector<StrategySpec>> specs(degrees.size());
  // Numbers of virtual stages that are tried.
  const auto chunk_counts = [&](int stages) {
    std::vector<int> out;
    if (stages == 1 || !allowed(ScheduleKind::interleaved) || (layers % stages != 0 && even)) return out;
    for (const int chunks : divisors((layers + stages - 1) / stages))
      if (chunks > 1 && stages * chunks <= layers) out.push_back(chunks);
    return out;
  };
  const auto can_turn = [&](int stages) {
    return allowed(ScheduleKind::zb_v) && stages > 1 && 2 * stages <= layers && (layers % (2 * stages) == 0 || !even);
  };
  // What a case of one strategy has besides, its layers above all, takes as much memory as so many choices.
  const std::size_t besides = options.one_strategy ? 20 + model.blocks.size() / 16 : 0;
  const auto choices = [&] {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < specs.size(); ++i)
      sum += specs[i].size() * (1 + (allowed(ScheduleKind::zb_h1) ? 1 : 0) + (allowed(ScheduleKind::zb_2p) ? 1 : 0) +
                                (can_turn(degrees[i]) ? 1 : 0) + chunk_counts(degrees[i]).size());
    return sum * (kinds.programs.size() + besides) * counts.size();
  };
  executor.each(degrees.size(), [&](std::size_t i) {
    specs[i] = strategies(options.space, cluster.devices / degrees[i], cluster.devices_per_node);
    detail::keep_fit(specs[i], kinds, options, degrees[i], true);
  });
  const std::size_t most =
      tuning::most_choices * static_cast<std::size_t>(options.effort) / static_cast<std::size_t>(options.shares);
  if (choices() > most) {
    executor.each(degrees.size(),
                  [&](std::size_t i) { detail::keep_fit(specs[i], kinds, options, degrees[i], false); });
    const std::size_t each = choices() / counts.size();
    const std::size_t wanted = std::max(tuning::few, most / std::max<std::size_t>(1, each));
    result.narrowed = counts.size() > wanted;
    counts = some_of(counts, wanted);
  }
  // Moves are priced for pairs of layouts: where degrees are very many, those that are powers of two stay.
  std::size_t pairs = 0;
  for (const std::vector<StrategySpec>& of_stage : specs) {
    std::size_t layouts = 0;
    for (std::size_t k = 0; k < of_stage.size(); ++k)
      layouts += k == 0 || !(of_stage[k].layout_degrees() == of_stage[k - 1].layout_degrees()) ? 1 : 0;
    pairs += layouts * layouts;
  }
  if (pairs > tuning::most_choices / 16) {
    const auto is_power = [](int degree) { return (degree & (degree - 1)) == 0; };
    for (std::vector<StrategySpec>& of_stage : specs)
      std::erase_if(of_stage, [&](const StrategySpec& s) { return !is_power(s.tensor) || !is_power(s.context); });
    result.narrowed = true;
  }
  std::vector<detail::StageSetting>& settings = result.settings;
  if (options.one_strategy) {  // a setting for each strategy alone, so that a case has no other
    for (std::size_t i = 0; i < degrees.size(); ++i)
      for (const StrategySpec& spec : specs[i])
        settings.emplace_back(degrees[i], cluster.devices / degrees[i], std::vector{spec});
  } else {
    settings.resize(degrees.size());
    executor.each(degrees.size(), [&](std::size_t i) {
      settings[i] = detail::StageSetting(degrees[i], cluster.devices / degrees[i], std::move(specs[i]));
    });
  }
  // First those that do not split backward, then, if a schedule does, those that do, then those of zb-v, which has both
  // ends on one stage.
  const bool one_end = allowed(ScheduleKind::zb_v);
  const std::size_t pricings =
      1U + (allowed(ScheduleKind::zb_h1) || allowed(ScheduleKind::zb_2p) ? 1U : 0U) + (one_end ? 1U : 0U);
  kinds.lower(options, settings, false);
  if (pricings > 1) kinds.lower(options, settings, true);
  const std::size_t each = settings.size() * counts.size();
  std::vector<Case> made(pricings * each);
  // Ranks have equally many samples where the degrees of tensor and context are equal, and so are micro-batches to
  // stages.
  std::map<std::array<int, 3>, std::vector<std::size_t>> alike;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const int stages = settings[i % each / counts.size()].stages;
    const int m = counts[i % counts.size()];
    const int divisor = std::gcd(stages, m);
    alike[{static_cast<int>(i / each), stages / divisor, m / divisor}].push_back(i);
  }
  std::vector<std::vector<std::size_t>> groups;
  for (auto& [key, group] : alike) groups.push_back(std::move(group));
  executor.each(groups.size(), [&](std::size_t g) {
    std::vector<int> numbers;
    for (const std::size_t i : groups[g])
      if (const int m = counts[i % counts.size()]; numbers.empty() || m != numbers.back()) numbers.push_back(m);
    detail::CommonPrices prices(kinds, numbers, options.precision, cluster, cluster.devices);
    for (const std::size_t i : groups[g]) {
      // What ends a search early leaves it some cases, so that there is a plan.
      if (options.interrupted() && i % counts.size() % (counts.size() / tuning::few + 1) != 0) continue;
      made[i] = detail::make_case(model, kinds, cluster, options, settings[i % each / counts.size()],
                                  counts[i % counts.size()], i >= each, one_end && i >= made.size() - each, prices);
    }
  });
  // Schedules that differ for a case, with their virtual stages.
  const auto schedules_of = [&](const Case& one) {
    const int stages = one.stages();
    std::vector<std::pair<ScheduleKind, int>> out;
    if (stages == 1) {
      constexpr std::array preferred{ScheduleKind::one_f_one_b, ScheduleKind::gpipe, ScheduleKind::zb_h1,
                                     ScheduleKind::zb_2p};
      const auto first = std::find_if(preferred.begin(), preferred.end(), allowed);
      return out = {{first == preferred.end() ? ScheduleKind::one_f_one_b : *first, 1}};
    }
    for (const ScheduleKind kind : {ScheduleKind::zb_2p, ScheduleKind::zb_h1})
      if (allowed(kind)) out.emplace_back(kind, 1);
    if (can_turn(stages)) out.emplace_back(ScheduleKind::zb_v, 2);
    if (allowed(ScheduleKind::one_f_one_b)) out.emplace_back(ScheduleKind::one_f_one_b, 1);
    const bool gpipe_differs = one.microbatches() > 1 && one.problem.objective.shared;
    if (allowed(ScheduleKind::gpipe) && (gpipe_differs || !allowed(ScheduleKind::one_f_one_b)))
      out.emplace_back(ScheduleKind::gpipe, 1);
    // Stages that do not divide the layers have virtual stages of one size but for fewer than P that lack a layer; of
    // others the formula does not hold: see cost::PipelineWeights.
    if (one.microbatches() % stages == 0)
      for (const int chunks : chunk_counts(stages)) out.emplace_back(ScheduleKind::interleaved, chunks);
    return out;
  };
  const auto pricing_of = [&](ScheduleKind kind) -> std::size_t {
    return kind == ScheduleKind::zb_v ? pricings - 1 : splits_backward(kind) ? 1 : 0;
  };
  for (std::size_t i = 0; i < each; ++i) {
    if (made[i].problem.types.empty()) continue;
    const auto schedules = schedules_of(made[i]);
    for (std::size_t k = 0; k < schedules.size(); ++k) {
      const auto [kind, chunks] = schedules[k];
      const std::size_t pricing = pricing_of(kind);
      Case& one = made[pricing * each + i];
      if (one.problem.types.empty()) continue;  // the search was interrupted between its two pricings
      const bool again = k + 1 < schedules.size() && pricing_of(schedules[k + 1].first) == pricing;
      result.cases.push_back(
          detail::with_schedule(again ? one : std::move(one), kind, chunks, even, options.trainer.traits.shares_slots));
    }
  }
  return result;
}

}  // namespace galvatron::search
