// Cases: from a model, a cluster and options to search problems, one for each pipeline degree, number of micro-batches
// and schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/case.hpp>
#include <galvatron/search/completed.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron::search {

/// All cases in which every layer has a strategy. GPipe beside 1F1B is left out where stages have devices of their own:
/// it is never faster there and never smaller. Without a pipeline, or with one micro-batch, schedules are all the same.
/// Virtual stages: every number above 1 that cuts the blocks into equal chunks.
/// @param executor  shares the work; the cases are the same with any
template <class Executor>
std::vector<Case> make_cases(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options,
                             Executor& executor) {
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
  std::erase_if(degrees, [&, layers = static_cast<int>(model.blocks.size())](int stages) {
    return stages > layers || (needs_equal_stages(trainer) && layers % stages != 0);
  });
  std::vector<detail::StageSetting> settings(degrees.size());
  executor.each(degrees.size(), [&](std::size_t i) {
    std::vector<StrategySpec> specs = strategies(options.space, cluster.devices / degrees[i], cluster.devices_per_node);
    std::erase_if(specs, [&](const StrategySpec& spec) {
      return !can_give(trainer, spec, degrees[i], options.precision) ||
             !std::all_of(kinds.begin(), kinds.end(),
                          [&](const LayerSpec* kind) { return can_split_heads(trainer, *kind, spec); }) ||
             std::none_of(kinds.begin() + (spec.strided ? 2 : 0), kinds.end(), [&](const LayerSpec* kind) {
               return is_fit(*kind, spec, options.global_batch, options.sequence);
             });
    });
    settings[i] = detail::StageSetting(degrees[i], cluster.devices / degrees[i], std::move(specs));
  });
  if (options.one_strategy) settings = detail::one_by_one(settings);
  // First those that do not split backward, then, if a schedule does, those that do.
  const std::size_t each = settings.size() * counts.size();
  std::vector<Case> made(allowed(ScheduleKind::zb_h1) ? 2 * each : each);
  executor.each(made.size(), [&](std::size_t i) {
    made[i] = detail::make_case(model, cluster, options, settings[i % each / counts.size()], counts[i % counts.size()],
                                i >= each);
  });
  const bool even = options.even_stages || needs_equal_stages(trainer);
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
    if (allowed(ScheduleKind::interleaved) && m % stages == 0) {
      // Stages that do not divide the layers have virtual stages of one size but for fewer than P that lack a layer;
      // of others the formula does not hold: see cost::PipelineWeights.
      const int layers = one.problem.movable();
      for (const int chunks : divisors((layers + stages - 1) / stages))
        if (chunks > 1 && stages * chunks <= layers && (layers % stages == 0 || !even))
          schedules.emplace_back(ScheduleKind::interleaved, chunks);
    }
    if (schedules.empty()) continue;
    for (std::size_t k = 0; k + 1 < schedules.size(); ++k) add(one, schedules[k].first, schedules[k].second);
    add(std::move(one), schedules.back().first, schedules.back().second);
  }
  return cases;
}

}  // namespace galvatron::search
