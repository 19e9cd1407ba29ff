// From a question to a plan: the search, and its answer as a Plan with predicted figures. Of a question that leaves the
// batch open, the batch with the most samples a second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/mixed/search_mixed.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/asked_plan.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find_spread.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/search/search.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

using search::SearchOptions;

/// The answer to a search.
struct FoundPlan {
  bool feasible = false;
  Plan plan;                             ///< when feasible, with `predicted` filled in
  PlanCost cost;                         ///< of that plan
  std::string reason;                    ///< when infeasible: one line
  std::optional<Bytes> smallest_memory;  ///< when infeasible: the least budget of a device for which there is a plan
  search::SearchStatistics statistics;
};

/// A search's candidate as a plan; the model and the cluster are named by their own names.
inline Plan plan_of(const search::Candidate& candidate, const ModelSpec& model, const ClusterView& cluster,
                    const SearchOptions& options) {
  Plan plan = asked_plan(model, cluster, options);
  plan.microbatches = candidate.microbatches;
  plan.schedule = candidate.schedule;
  plan.virtual_stages = candidate.virtual_stages;
  for (std::size_t i = 0; i < candidate.first_block.size(); ++i) {
    const bool last = i + 1 == candidate.first_block.size();
    const int end = last ? static_cast<int>(candidate.blocks.size()) : candidate.first_block[i + 1];
    const search::StageDevices on =
        candidate.on.empty() ? search::StageDevices{0, cluster.devices() / candidate.stages} : candidate.on[i];
    plan.stages.push_back({candidate.first_block[i], end - 1, plan.ranks(), on.ranks, on.group});
  }
  plan.overlap = plan.mixes_groups() ? std::ranges::all_of(cluster.groups(), cost::can_overlap)
                                     : cost::can_overlap(cluster.group(plan.stages.front().group));
  plan.layers = candidate.blocks;
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (model.blocks[i].experts == 0) plan.layers[i] = plan.layers[i].without_experts();
  plan.embedding = candidate.embedding.without_experts();
  plan.head = candidate.head.without_experts();
  return plan;
}

/// The rate of compressed dispatch (buckets over choices) at which a micro-batch takes as long as with plain dispatch,
/// by the plan's prices, over all layers that compress: above it compression does not pay. 0: it never does, 1: always.
inline double break_even_rate(Plan plan, const ModelSpec& model, const ClusterView& cluster) {
  cost::ProgramStore programs;
  const auto seconds = [&] {
    const cost::Batch batch = batch_of(plan);
    Seconds sum;
    const LayerSpec* previous = nullptr;
    cost::LayerSeconds priced;
    std::size_t stage = 0;
    for (std::size_t i = 0; i < plan.layers.size(); ++i) {
      if (static_cast<int>(i) > plan.stages[stage].last_layer) {
        ++stage;
        previous = nullptr;  // devices may differ
      }
      const int group = plan.stages[stage].group;
      const LayerSpec& layer = model.blocks[i];
      if (layer.experts == 0 || !plan.layers[i].exchanges_tokens()) continue;
      const bool again = previous != nullptr && previous->costs_like(layer) && plan.layers[i] == plan.layers[i - 1];
      if (!again)
        priced = cost::layer_seconds(programs.layer_counts(layer, plan.layers[i], batch), plan.layers[i],
                                     plan.precision, cluster.group(group), plan.ranks_on(group));
      previous = &layer;
      sum += priced.forward + priced.backward;
    }
    return sum.value;
  };
  plan.lsh.rate = 1;
  const double most = seconds();
  plan.lsh.rate = 0.5;
  const double half = seconds();
  for (StrategySpec& spec : plan.layers) spec.dispatch = DispatchKind::plain;
  const double plain = seconds();
  return most > half ? std::clamp(1 - (most - plain) / (2 * (most - half)), 0.0, 1.0) : plain >= half ? 1.0 : 0.0;
}

/// A plan in a few words: `pp4 m16: tp4 dp64 zero1`; the strategy is that of most layers, `+n` counts others.
inline std::string plan_words(const Plan& plan) {
  const StrategySpec* usual = nullptr;
  std::ptrdiff_t most = 0;  // layers that have it
  for (const StrategySpec& spec : plan.layers)
    if (const auto layers = std::ranges::count(plan.layers, spec); layers > most) {
      usual = &spec;
      most = layers;
    }
  std::string out;
  if (plan.stages.size() > 1) out += "pp" + std::to_string(plan.stages.size()) + " " + name_of(plan.schedule) + " ";
  if (plan.virtual_stages > 1) out += "v" + std::to_string(plan.virtual_stages) + " ";
  out += "m" + std::to_string(plan.microbatches) + ":";
  if (usual == nullptr) return out;
  out += " " + strategy_text(*usual);
  if (const auto others = std::ssize(plan.layers) - most; others > 0) out += " +" + std::to_string(others);
  return out;
}

namespace detail {

/// The devices without what plans leave free of them.
inline MixedCluster beside_reserve(const ClusterView& cluster, const SearchOptions& options) {
  MixedCluster out{cluster.name(), {}, {cluster.links().begin(), cluster.links().end()}};
  Plan asked;
  asked.trainer = options.trainer;
  asked.reserve = options.reserve;
  for (const Cluster& group : cluster.groups()) {
    Cluster& left = out.groups.emplace_back(group);
    left.device.memory -= reserve_of(asked, group);
  }
  return out;
}

/// What the model's arithmetic takes at the peak of all devices that have the precision; 0 where one's is not known.
inline Seconds arithmetic_seconds(const Plan& plan, const ModelSpec& model, const ClusterView& cluster,
                                  cost::ProgramStore& programs) {
  double peak = 0;
  for (const Cluster& group : cluster.groups()) {
    if (!group.lack_of(plan.precision, plan.trainer.traits.fp8_recipe).empty()) continue;
    if (group.peak_flops(plan.precision) == 0) return {};
    peak += group.peak_flops(plan.precision) * group.devices;
  }
  return {model_flops(model, plan.sequences(), plan.sequence_length, programs).count / peak};
}

inline PredictedAlternative predicted(const search::Alternative& from, const ModelSpec& model,
                                      const ClusterView& cluster, const SearchOptions& options,
                                      cost::ProgramStore& programs) {
  PredictedAlternative out;
  out.name = from.name;
  out.exists = from.exists;
  out.fits = from.fits;
  if (!from.exists || from.candidate.blocks.empty()) return out;
  const Plan plan = plan_of(from.candidate, model, cluster, options);
  out.strategy = plan_words(plan);
  const auto cost = cost_of(plan, model, cluster, programs);
  if (!cost) return out;
  out.iteration = cost->iteration;
  out.compute = cost->compute;
  out.communication = cost->communication;
  out.idle = cost->idle;
  out.update = cost->update;
  out.peak = cost->peak();
  return out;
}

}  // namespace detail

/// The fastest plan for a model on a cluster. An infeasible search is a value with a reason. On a mixed cluster plans
/// of stages on one group each are searched with a bound, and then spread plans (find_spread_plan), which have none:
/// where one is faster, nothing is proven. Errors (usage): bad options.
/// @tparam Executor  as of search::search
template <class Executor = Team>
Result<FoundPlan> find_plan(const ModelSpec& model, const ClusterView& all, const SearchOptions& wanted) {
  const MixedCluster left = detail::beside_reserve(all, wanted);
  const ClusterView cluster(left);
  if (cluster.most_memory().count < 1)
    return usage_error("the reserve leaves nothing of the memory of the devices of " + cluster.name() + ", " +
                       format_bytes(all.most_memory()) + ": give a smaller --reserve");
  auto options = search::completed(wanted, model, cluster);
  if (!options) return tl::unexpected<Error>(std::move(options.error()));
  if (std::string lack = cluster.lack_of(options->precision, options->trainer.traits.fp8_recipe); !lack.empty()) {
    FoundPlan none;
    none.reason = std::move(lack);
    return none;
  }
  auto found = cluster.is_mixed() ? search::search_mixed<Executor>(model, cluster, *options)
                                  : search::search<Executor>(model, cluster.group(0), *options);
  if (!found) return tl::unexpected<Error>(std::move(found.error()));
  FoundPlan out;
  out.feasible = found->feasible;
  out.reason = std::move(found->reason);
  if (found->smallest) out.smallest_memory = found->smallest->peak;
  out.statistics = found->statistics;
  std::optional<SpreadPlan> spread;
  if (options->space.spread && search::detail::may_mix(*options)) {
    const double begin = steady_seconds();
    spread = find_spread_plan(model, cluster, *options, out.feasible ? found->best.iteration : Seconds{1e30});
    out.statistics.seconds += Seconds{steady_seconds() - begin};
  }
  if (!out.feasible && !spread) return out;
  const bool had_plan = std::exchange(out.feasible, true);
  if (!had_plan) {
    out.reason.clear();
    out.smallest_memory.reset();
  }
  out.plan = spread ? std::move(spread->plan) : plan_of(found->best, model, cluster, *options);
  if (options->lsh_falls_back && std::ranges::any_of(out.plan.layers, &StrategySpec::compresses_tokens))
    out.plan.lsh.most_rate = break_even_rate(out.plan, model, cluster);
  cost::ProgramStore programs;
  auto cost = cost_of(out.plan, model, all, programs);
  if (!cost)
    return tl::unexpected<Error>(
        Error{ErrorKind::internal, "the search made a plan that cannot be priced: " + cost.error().message});
  out.cost = std::move(*cost);
  out.statistics.bound = min(out.statistics.bound, out.cost.iteration);  // they differ by rounding when it is proven
  // What was left out, or not looked at yet, has its arithmetic to do, at the peak of all devices.
  const Seconds arithmetic = min(out.cost.iteration, detail::arithmetic_seconds(out.plan, model, all, programs));
  if (spread) out.statistics.proven = false;
  if (spread) out.statistics.bound = arithmetic;
  if (out.statistics.narrowed) out.statistics.bound = min(out.statistics.bound, arithmetic);
  if (out.statistics.interrupted) out.statistics.bound = max(out.statistics.bound, arithmetic);
  Prediction& p = out.plan.predicted;
  p = prediction_of(out.cost, options->memory);
  if (spread && had_plan)
    p.alternatives.push_back(
        detail::predicted({"best with each stage on one group", found->best}, model, cluster, *options, programs));
  for (const search::Alternative& alternative : found->alternatives)
    p.alternatives.push_back(detail::predicted(alternative, model, cluster, *options, programs));
  return out;
}

/// `least`, twice that, and so on, and `most`.
inline std::vector<std::int64_t> batches_between(std::int64_t least, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t batch = least; batch < most; batch *= 2) out.push_back(batch);
  out.push_back(most);
  return out;
}

/// One batch that was tried.
struct TriedBatch {
  std::int64_t global_batch = 1;
  bool feasible = false;
  Seconds iteration;
  double samples_per_second = 0;
};

struct Sweep {
  std::int64_t global_batch = 1;  ///< of the best plan, or the last that was tried
  FoundPlan best;
  std::vector<TriedBatch> tried;
};

/// The plan with the most samples a second over `batches`, ascending; of equal ones the smallest batch. A larger batch
/// amortises what is done once an iteration and fills the pipeline, so throughput levels off: the sweep ends after a
/// batch that gains less than `least_gain` (a share) on the best before; 0 tries all. Batches that
/// `options.microbatches` does not divide are left out, but for the last. Errors (usage): no batch, bad
/// options.
/// @tparam Executor  as of search::search
template <class Executor = Team>
Result<Sweep> sweep_batches(const ModelSpec& model, const ClusterView& cluster, SearchOptions options,
                            const std::vector<std::int64_t>& batches, double least_gain = 0) try {
  if (batches.empty()) return usage_error("no global batch is to be tried: name one");
  Sweep out;
  Seconds seconds;
  const auto find = [&](std::int64_t batch) {
    options.global_batch = batch;
    FoundPlan found = value_or_throw(find_plan<Executor>(model, cluster, options));
    seconds += found.statistics.seconds;
    return found;
  };
  // A sweep may take several searches' work, but not that of one for each batch.
  options.shares = std::max(1, static_cast<int>(batches.size()) / 2);
  options.start_clock();
  for (const std::int64_t batch : batches) {
    if (options.microbatches > 1 && batch % options.microbatches != 0 && batch != batches.back()) continue;
    FoundPlan found = find(batch);
    const double before = out.best.feasible ? out.best.cost.samples_per_second : 0;
    const double now = found.feasible ? found.cost.samples_per_second : 0;
    out.tried.push_back({batch, found.feasible, found.cost.iteration, now});
    if (out.tried.size() == 1 || now > before) {
      out.best = std::move(found);
      out.global_batch = batch;
    }
    if (options.interrupted() || (before > 0 && now < before * (1 + least_gain))) break;
  }
  if (options.shares > 1 && out.best.feasible && !options.interrupted()) {  // the best with all the work
    options.shares = 1;
    FoundPlan found = find(out.global_batch);
    if (found.feasible && found.cost.iteration <= out.best.cost.iteration) {
      out.best = std::move(found);
      for (TriedBatch& tried : out.tried)
        if (tried.global_batch == out.global_batch)
          tried = {tried.global_batch, true, out.best.cost.iteration, out.best.cost.samples_per_second};
    }
  }
  out.best.statistics.seconds = seconds;
  if (batches.size() > 1) out.best.statistics.interrupted = options.interrupted();
  return out;
} catch (const Failure& failure) {
  return error_of(failure);
}

}  // namespace galvatron
