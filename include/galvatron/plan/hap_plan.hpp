// Plans that run programs with uneven shards (hap/runnable.hpp): one stage on all devices, every layer with the
// strategy that has its tensors where the program has them, and the program's ratios in whole samples, heads, hidden
// units, rows of the vocabulary and tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/hap/cluster_devices.hpp>
#include <galvatron/hap/model_graph.hpp>
#include <galvatron/hap/runnable.hpp>
#include <galvatron/hap/sizes.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/asked_plan.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron {

/// A plan, and the program that it runs.
struct HapPlan {
  hap::RunnableAnswer program;
  Plan plan;
  PlanCost cost;
};

namespace detail {

/// The strategy that has a layer's tensors as a spread over `ranks` devices.
constexpr StrategySpec strategy_of(hap::Spread spread, int ranks) {
  StrategySpec out{.recompute = RecomputeKind::none};
  const bool cuts_samples = spread == hap::Spread::data || spread == hap::Spread::experts;
  (cuts_samples ? out.data : out.tensor) = ranks;
  if (spread == hap::Spread::megatron) out.sequence = SequenceKind::megatron;
  if (spread == hap::Spread::experts) out.expert = ranks;
  return out;
}

/// Whole parts of an extent of so many of them, as a list of ratios.
inline std::vector<int> whole_ratios(std::int64_t parts, const hap::Ratios& ratios) {
  const hap::Sizes sizes = hap::nearest_sizes(std::min<std::int64_t>(parts, most_ratio), ratios);
  return {sizes.begin(), sizes.end()};
}

/// The lists of ratios of a program. Hidden units are cut in parts of 32 where there are as many as devices, so that
/// products have aligned operands.
inline void set_ratios(PlanStage& stage, const hap::RunnableAnswer& program, const ModelSpec& model,
                       std::int64_t global_batch, std::int64_t sequence) {
  const hap::Ratios& ratios = program.answer.ratios;
  const LayerSpec& block = model.blocks.front();
  const auto has = [&](hap::Spread spread) { return std::ranges::count(program.spreads, spread) > 0; };
  if (has(hap::Spread::data) || has(hap::Spread::experts)) stage.sample_ratios = whole_ratios(global_batch, ratios);
  if (has(hap::Spread::megatron)) stage.token_ratios = whole_ratios(sequence, ratios);
  if (!has(hap::Spread::tensor) && !has(hap::Spread::megatron)) return;
  constexpr std::int64_t aligned = parameter_alignment;
  const bool aligns = block.ffn % aligned == 0 && block.ffn / aligned >= stage.rank_count;
  stage.head_ratios = whole_ratios(block.kv_heads, ratios);
  stage.width_ratios = whole_ratios(aligns ? block.ffn / aligned : block.ffn, ratios);
  stage.vocabulary_ratios = whole_ratios(divide_up(model.head.vocabulary, vocabulary_alignment), ratios);
}

}  // namespace detail

/// The fastest program that a plan of one stage can run on all devices of a cluster, within their memory, as a plan in
/// fp32 with one micro-batch. The seconds of the program are HAP's, those of the plan the library's. Errors: infeasible
/// where no such program fits; usage: those of hap::graph_of as Failure.
/// @param prices  of the model's graph on the cluster's devices
inline Result<HapPlan> hap_plan(const hap::Prices& prices, const ModelSpec& model, const ClusterView& cluster,
                                std::int64_t global_batch, std::int64_t sequence) {
  const auto ranks = static_cast<int>(prices.devices().count());
  HapPlan out;
  Plan& plan = out.plan;
  search::SearchOptions asked;
  asked.global_batch = global_batch;
  asked.sequence = sequence;
  plan = asked_plan(model, cluster, asked);
  plan.precision = Precision::fp32;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, ranks}};
  PlanStage& stage = plan.stages.front();
  plan.overlap = true;
  for (int group = 0; group < cluster.count(); ++group) {
    plan.overlap = plan.overlap && cost::can_overlap(cluster.group(group));
    if (cluster.is_mixed())
      stage.rank_groups.insert(stage.rank_groups.end(), static_cast<std::size_t>(cluster.group(group).devices), group);
  }
  // Shares of any size are cut as ratios of any size are.
  const std::vector<int> equal(static_cast<std::size_t>(ranks), 1);
  const auto runs = [&](int layer, hap::Spread spread) {
    // Tensor ranks add up what a token gets of experts, HAP slots.
    if (model.layer(layer).experts > 0 && (spread == hap::Spread::tensor || spread == hap::Spread::megatron))
      return false;
    StrategySpec spec = detail::strategy_of(spread, ranks);
    spec.shard_kind = ShardKind::by_ratio;
    return is_legal(spec) &&
           is_fit(model.layer(layer), spec, spec.data, sequence,
                  {.samples = equal, .heads = equal, .widths = equal, .vocabulary = equal, .tokens = equal});
  };
  auto found = hap::best_runnable(prices, model.head.tied, runs);
  if (!found)
    return tl::unexpected<Error>(Error{
        ErrorKind::infeasible, "no program of " + model.name + " that a plan can run fits on " + std::to_string(ranks) +
                                   " devices: it needs a sample, or a head, for each of them, and memory; take "
                                   "another batch, fewer devices or more memory"});
  out.program = std::move(*found);
  detail::set_ratios(stage, out.program, model, global_batch, sequence);
  const bool even = !cluster.is_mixed() && std::ranges::all_of(ratio_lists, [&](const RatioList& each) {
    const std::vector<int>& list = stage.*each.list;
    return list.empty() || std::ranges::count(list, list.front()) == std::ssize(list);
  });
  if (even)
    for (const RatioList& each : ratio_lists) (stage.*each.list).clear();
  const auto strategy = [&](std::size_t layer) {
    StrategySpec spec = detail::strategy_of(out.program.spreads[layer], ranks);
    spec.shard_kind = even ? ShardKind::even : ShardKind::by_ratio;
    return spec;
  };
  for (std::size_t i = 0; i < model.blocks.size(); ++i) plan.layers.push_back(strategy(i + 1));
  plan.embedding = strategy(0);
  plan.head = strategy(model.blocks.size() + 1);
  auto priced = cost_of(plan, model, cluster);
  if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
  out.cost = std::move(*priced);
  Bytes budget;
  for (const double memory : prices.devices().memory) budget = max(budget, Bytes{static_cast<std::int64_t>(memory)});
  plan.predicted = prediction_of(out.cost, budget);
  return out;
}

}  // namespace galvatron
