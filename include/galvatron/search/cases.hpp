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

namespace detail {

/// Choices that the cases of a search may have together, about: a search of more is narrowed, so that its time and
/// memory stay bounded (a choice takes some 150 bytes and a microsecond). Searches on up to some thousand devices, or
/// on a number of devices with few divisors, have less. Times the effort.
inline constexpr std::size_t most_choices = 12'000'000;
/// Numbers of micro-batches that a narrowed search tries at least.
inline constexpr std::size_t least_counts = 8;

/// So many of `counts`, the first and the last among them, evenly spread.
inline std::vector<int> some_of(const std::vector<int>& counts, std::size_t wanted) {
  if (counts.size() <= wanted) return counts;
  std::vector<int> out;
  for (std::size_t k = 0; k < wanted; ++k) out.push_back(counts[k * (counts.size() - 1) / (wanted - 1)]);
  return out;
}

}  // namespace detail

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
      detail::most_choices * static_cast<std::size_t>(options.effort) / static_cast<std::size_t>(options.shares);
  if (choices() > most) {
    executor.each(degrees.size(), [&](std::size_t i) { keep_fit(i, false); });
    const std::size_t each = choices() / counts.size();
    const std::size_t wanted = std::max(detail::least_counts, most / std::max<std::size_t>(1, each));
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
