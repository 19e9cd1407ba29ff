// Plans for packed documents: sequences of a fixed number of ranks, or groups that every batch chooses anew.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/prices.hpp>
#include <galvatron/flexsp/solve.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

/// The documents that a packed plan is for.
struct DocumentsToPlan {
  std::int64_t batch = 1;                              ///< documents of a step
  std::span<const std::vector<std::int64_t>> steps{};  ///< rows of the documents of some steps, at least one
  std::int64_t longest = 1;                            ///< rows of the longest of all
  std::int64_t max_tokens = 0;  ///< rows of a packed sequence; 0: those of the longest document, at least
};

namespace detail {

/// Means over the steps of a question.
struct DocumentMeans {
  double rows = 0;  ///< of a step
  double own = 0;   ///< of a document, for which attention takes per row what it takes in all: sum s^2 / sum s

  explicit DocumentMeans(const DocumentsToPlan& documents) {
    double squares = 0;
    for (const std::vector<std::int64_t>& step : documents.steps)
      for (const std::int64_t s : step) {
        rows += static_cast<double>(s);
        squares += static_cast<double>(s) * static_cast<double>(s);
      }
    own = squares / std::max(rows, 1.0);
    rows /= static_cast<double>(std::max<std::size_t>(documents.steps.size(), 1));
  }
};

/// What is predicted, as a cost of the plan says it.
inline void say_predicted(const Prediction& predicted, PlanCost& cost) {
  cost.iteration = predicted.iteration;
  cost.samples_per_second = predicted.samples_per_second;
  cost.tokens_per_second = predicted.tokens_per_second;
  cost.mfu = predicted.mfu;
}

/// Micro-batches of a step whose sequences are full but for a thirtieth.
inline int microbatches_for(double rows, const Plan& plan) {
  const double rows_of_microbatch =
      static_cast<double>(plan.embedding.data) * static_cast<double>(plan.sequence_length);
  return static_cast<int>(std::max(1.0, std::ceil(rows / (0.97 * rows_of_microbatch))));
}

/// Sets what is predicted of a packed plan, as if all documents had the rows that attention has on average.
inline Result<PlanCost> predict(Plan& plan, const ModelSpec& model, const Cluster& cluster,
                                const DocumentMeans& means) {
  auto bytes = cost_of(plan, model, cluster);
  if (!bytes) return bytes;
  Plan equal = plan;
  equal.packed = false;
  const std::int64_t unit = std::int64_t{2} * plan.embedding.context * plan.embedding.tensor;
  const std::int64_t rows = plan.embedding.data * plan.sequence_length;
  equal.sequence_length = std::clamp(round_up(static_cast<std::int64_t>(means.own), unit), unit, plan.sequence_length);
  equal.sequence_length = std::min(equal.sequence_length, model.positions() / unit * unit);
  const std::int64_t samples = std::max<std::int64_t>(1, rows / plan.embedding.data / equal.sequence_length);
  equal.global_batch = samples * plan.embedding.data * plan.microbatches;
  auto cost = cost_of(equal, model, cluster);
  if (!cost) return cost;
  const double share = means.rows / static_cast<double>(equal.global_batch * equal.sequence_length);
  const Seconds iteration = cost->iteration;
  plan.predicted = {.iteration = iteration,
                    .samples_per_second = static_cast<double>(plan.global_batch) / iteration.value,
                    .tokens_per_second = means.rows / iteration.value,
                    .mfu = cost->mfu * share,
                    .budget = {},
                    .stages = {},
                    .alternatives = {}};
  for (std::size_t i = 0; i < bytes->stages.size(); ++i) {
    PlanStageCost& stage = bytes->stages[i];
    stage.seconds = cost->stages[i].seconds;
    plan.predicted.stages.push_back({stage.peak(), stage.seconds.forward, stage.seconds.backward});
  }
  cost->stages = std::move(bytes->stages);
  return cost;
}

}  // namespace detail

/// The plan of a search for packed documents: all layers alike, 1F1B, sequences of ranks that stay the same. It is
/// searched for samples as long as the longest document.
/// @param options  global_batch and sequence are set here
/// Errors (usage): those of find_plan; a model whose documents are not packed.
template <class Executor = Team>
Result<FoundPlan> find_packed_plan(const ModelSpec& model, const Cluster& cluster, SearchOptions options,
                                   const DocumentsToPlan& documents) {
  if (const auto why = why_unpacked(model); !why.empty()) return usage_error(std::string(why));
  const detail::DocumentMeans means(documents);
  options.one_strategy = true;
  options.schedules = {ScheduleKind::one_f_one_b};
  options.space.strided = false;
  const std::int64_t unit = std::int64_t{2} * cluster.devices;
  const std::int64_t longest = std::max(documents.longest, documents.max_tokens);
  options.sequence = round_up(longest, unit);
  ModelSpec planned = model;  // positions of a document begin anew
  const auto widen = [&](LayerSpec& layer) { layer.positions = std::max(layer.positions, options.sequence); };
  widen(planned.embedding);
  widen(planned.head);
  std::ranges::for_each(planned.blocks, widen);
  const auto sequences = static_cast<std::int64_t>(std::ceil(means.rows / static_cast<double>(options.sequence)));
  options.global_batch = round_up(std::max<std::int64_t>(sequences, 1), std::int64_t{cluster.devices});
  auto found = find_plan<Executor>(planned, cluster, options);
  if (!found || !found->feasible) return found;
  Plan& plan = found->plan;
  plan.sequence_length *= plan.microbatch() / plan.embedding.data;
  plan.packed = true;
  plan.global_batch = documents.batch;
  plan.microbatches = detail::microbatches_for(means.rows, plan);
  const Bytes budget = plan.predicted.budget;
  auto cost = detail::predict(plan, model, cluster, means);
  if (!cost) return tl::unexpected<Error>(std::move(cost.error()));
  plan.predicted.budget = budget;
  detail::say_predicted(plan.predicted, *cost);
  found->cost = std::move(*cost);
  return found;
}

/// The groups that a plan's micro-batches may have: of its kind, of at most its context degree, with its rows of a
/// rank. Errors (usage): the plan has no groups of every batch, or tensor ranks, whose groups are not priced. Others:
/// those of flexsp::problem_of.
inline Result<flexsp::Problem> group_problem(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  const StrategySpec& spec = plan.embedding;
  if (spec.groups != SequenceGroupKind::per_batch || spec.tensor > 1)
    return usage_error("groups of every batch are chosen for plans of context ranks alone, not for \"" +
                       strategy_text(spec) + "\"");
  const std::int64_t rows = plan.sequence_length / spec.context;
  Cluster ranks = cluster;
  ranks.devices = plan.ranks();
  auto problem = flexsp::problem_of(model, ranks, plan.precision,
                                    std::max(plan.predicted.budget, cluster.device.memory), plan.sequence_length,
                                    {.ulysses = spec.sequence == SequenceKind::ulysses,
                                     .ring = spec.sequence == SequenceKind::ring,
                                     .recompute = plan.layers.front().recompute});
  if (!problem) return problem;
  std::erase_if(problem->options, [&](const flexsp::GroupOption& option) { return option.degree > spec.context; });
  for (flexsp::GroupOption& option : problem->options) option.capacity = rows * option.degree;
  return problem;
}

/// The plan whose groups every batch chooses anew (FlexSP, section 4): ZeRO-3 over all ranks, and of both ways to share
/// a sequence and all kinds of recomputation that which takes least time for the documents. Each rank has as many rows
/// as its memory holds, up to max_tokens on all ranks together.
/// @param options  its space says which ways and kinds
/// Errors (usage): a model whose documents are not packed. An infeasible question is a value with a reason.
inline Result<FoundPlan> find_group_plan(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options,
                                         const DocumentsToPlan& documents) {
  if (const auto why = why_unpacked(model); !why.empty()) return usage_error(std::string(why));
  const detail::DocumentMeans means(documents);
  const Bytes left = detail::beside_reserve(cluster, options).groups.front().device.memory;
  const Bytes memory = options.memory.count > 0 ? min(options.memory, left) : left;
  FoundPlan out;
  out.reason = "the space has no context ranks: groups of every batch share sequences by Ulysses or ring attention";
  double best = 0;
  for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring}) {
    if (!options.space.context.open || std::ranges::find(options.space.sequence, kind) == options.space.sequence.end())
      continue;
    for (const RecomputeKind recompute : options.space.recompute) {
      auto problem = flexsp::problem_of(
          model, cluster, options.precision, memory, documents.longest,
          {.ulysses = kind == SequenceKind::ulysses, .ring = kind == SequenceKind::ring, .recompute = recompute});
      if (!problem) {
        if (out.reason.empty() || best == 0) out.reason = problem.error().message;
        continue;
      }
      // All ranks in one group where that is possible, else in as few as possible.
      int degree = 0;
      std::int64_t rows = std::int64_t{1} << 40;
      for (const flexsp::GroupOption& option : problem->options) {
        if (cluster.devices % option.degree == 0 && option.degree > 1) degree = std::max(degree, option.degree);
        rows = std::min(rows, option.capacity / option.degree);
      }
      if (degree == 0) continue;
      if (documents.max_tokens > 0) rows = std::min(rows, divide_up(documents.max_tokens, std::int64_t{degree}));
      rows = rows / 2 * 2;
      if (rows * degree < documents.longest) {
        if (best == 0)
          out.reason = text_of("the longest document takes ", documents.longest, " rows, and ", degree, " ranks hold ",
                               rows * degree, " together; give more memory, or leave such documents out");
        continue;
      }
      Plan plan;
      plan.model = model.name;
      plan.cluster = cluster.name;
      plan.packed = true;
      plan.global_batch = documents.batch;
      plan.sequence_length = rows * degree;
      plan.precision = options.precision;
      plan.moments = options.moments;
      plan.reserve = options.reserve;
      plan.overlap = cost::can_overlap(cluster);
      const int last = static_cast<int>(model.blocks.size()) - 1;
      plan.stages = {{0, last, 0, cluster.devices}};
      StrategySpec spec{.sequence = kind,
                        .context = degree,
                        .data = cluster.devices / degree,
                        .zero = 3,
                        .groups = SequenceGroupKind::per_batch};
      plan.embedding = plan.head = spec;
      spec.recompute = recompute;
      plan.layers.assign(model.blocks.size(), spec);
      if (const std::string why = why_unfit(plan, model); !why.empty()) {
        if (best == 0) out.reason = why;
        continue;
      }
      auto cost = cost_of(plan, model, cluster);
      if (!cost) return tl::unexpected<Error>(std::move(cost.error()));
      if (cost->peak() > memory) continue;
      plan.predicted.budget = memory;
      auto groups = group_problem(plan, model, cluster);
      if (!groups) return tl::unexpected<Error>(std::move(groups.error()));
      double seconds = 0;
      std::size_t microbatches = 0;
      for (const std::vector<std::int64_t>& step : documents.steps) {
        const auto solved = flexsp::solve(*groups, step);
        if (!solved) break;
        seconds += solved->seconds;
        microbatches += solved->microbatches.size();
      }
      if (microbatches == 0) continue;
      const auto steps = static_cast<double>(documents.steps.size());
      seconds = seconds / steps + cost->update.value;
      if (best > 0 && seconds >= best) continue;
      best = seconds;
      plan.microbatches = std::max(1, static_cast<int>(std::lround(static_cast<double>(microbatches) / steps)));
      plan.predicted = {.iteration = {seconds},
                        .samples_per_second = static_cast<double>(plan.global_batch) / seconds,
                        .tokens_per_second = means.rows / seconds,
                        .mfu = 0,
                        .budget = memory,
                        .stages = {{cost->peak(), {}, {}}},
                        .alternatives = {}};
      detail::say_predicted(plan.predicted, *cost);
      out.feasible = true;
      out.reason.clear();
      out.plan = std::move(plan);
      out.cost = std::move(*cost);
    }
  }
  return out;
}

}  // namespace galvatron
