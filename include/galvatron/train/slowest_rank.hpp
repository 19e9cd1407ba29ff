// The rank that keeps the others waiting: whose own work takes the longest, and whether the plan or the machine is why.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/rank_seconds.hpp>
#include <galvatron/rank/stopwatch.hpp>
#include <galvatron/train/train_options.hpp>

namespace galvatron::train {

/// Why a rank is the slowest.
enum class SlowCause : std::uint8_t {
  share,   ///< the plan gives it that much more to do
  passes,  ///< its forward and backward passes take longer than those of the others, by what the plan gives each
  update,  ///< its optimizer does
};

struct SlowestRank {
  int rank = 0;
  double seconds = 0;           ///< of its own work in a step, without waiting for others
  double others = 0;            ///< the median of the other ranks
  double predicted = 0;         ///< of its own work, by the plan's prices; 0: not known
  double predicted_others = 0;  ///< the median of the other ranks
  SlowCause cause = SlowCause::share;
};

/// Of each rank the median over the steps since the plan was changed last; empty: nothing was measured.
inline std::vector<RankSeconds> measured_work(const TrainReport& report) {
  const std::int64_t first = report.adaptations.empty() ? 0 : report.adaptations.back().step;
  std::vector<std::vector<double>> passes, updates;
  for (const StepReport& step : report.steps) {
    if (step.ranks.empty() || step.step < first) continue;
    passes.resize(step.ranks.size());
    updates.resize(step.ranks.size());
    for (std::size_t i = 0; i < step.ranks.size(); ++i) {
      passes[i].push_back(step.ranks[i].passes);
      updates[i].push_back(step.ranks[i].update);
    }
  }
  std::vector<RankSeconds> out;
  for (std::size_t i = 0; i < passes.size(); ++i)
    out.push_back({detail::median_of(std::move(passes[i])), detail::median_of(std::move(updates[i]))});
  return out;
}

/// The own work of each rank by the prices of a plan; empty where ranks of a stage differ.
inline std::vector<RankSeconds> predicted_work(const Plan& plan, const PlanCost& cost) {
  std::vector<RankSeconds> out;
  for (const PlanStageCost& stage : cost.stages) {
    if (stage.stage.has_ratios()) return {};
    const cost::StageSeconds& own = stage.seconds;
    out.insert(out.end(), static_cast<std::size_t>(stage.stage.rank_count),
               {plan.microbatches * (own.forward + own.backward - stage.communication).value, own.update.value});
  }
  return out;
}

/// Nothing where the slowest rank works at most `margin` longer than the median of the others, or alone.
/// @param predicted  of as many ranks, or empty
inline std::optional<SlowestRank> slowest_rank(std::span<const RankSeconds> measured,
                                               std::span<const RankSeconds> predicted, double margin = 0.05) {
  if (measured.size() < 2) return std::nullopt;
  const auto slowest = std::ranges::max_element(measured, {}, &RankSeconds::total);
  const auto at = static_cast<std::size_t>(slowest - measured.begin());
  const auto others = [at](std::span<const RankSeconds> ranks, auto&& of) {
    std::vector<double> out;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (i != at) out.push_back(of(ranks[i]));
    return detail::median_of(std::move(out));
  };
  const auto total = [](const RankSeconds& rank) { return rank.total(); };
  SlowestRank out{.rank = static_cast<int>(at), .seconds = slowest->total(), .others = others(measured, total)};
  if (out.seconds <= out.others * (1 + margin)) return std::nullopt;
  const bool known = predicted.size() == measured.size() && predicted[at].total() > 0;
  // What each part takes beyond that of the others, as far as the plan does not give it more to do.
  const auto excess = [&](double RankSeconds::* part) {
    const auto of = [part](const RankSeconds& rank) { return rank.*part; };
    double expected = others(measured, of);
    if (known && others(predicted, of) > 0) expected *= predicted[at].*part / others(predicted, of);
    return (*slowest).*part - expected;
  };
  const double passes = excess(&RankSeconds::passes);
  const double update = excess(&RankSeconds::update);
  if (known) {
    out.predicted = predicted[at].total();
    out.predicted_others = others(predicted, total);
  }
  if (passes + update > margin * out.seconds) out.cause = passes >= update ? SlowCause::passes : SlowCause::update;
  return out;
}

}  // namespace galvatron::train
