// Case: a problem with the strategies, the schedule and the devices that its figures stand for, and what an assignment
// of it is in the model's terms.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

struct Case;

/// Makes the problems of cases that are too many to be kept.
class CaseSource {
 public:
  CaseSource() = default;
  CaseSource(const CaseSource&) = delete;
  CaseSource& operator=(const CaseSource&) = delete;
  virtual ~CaseSource() = default;
  /// The case of a number with its whole problem, without dominated choices.
  [[nodiscard]] virtual Case open(std::size_t number) const = 0;
};

/// A problem with what its figures stand for. Choice::tag indexes `specs`, which are its setting's, as is `same`.
struct Case {
  Problem problem;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::span<const StrategySpec> specs;
  std::vector<std::span<const int>> same;  ///< of each type, the tag that stands for one; empty: each for itself
  std::vector<int> order;              ///< the layer of the model that each layer of the problem is; empty: the same
  std::vector<StageDevices> on;        ///< (stages) in a mixed cluster; empty: all devices, equally many on each
  const CaseSource* source = nullptr;  ///< has the rest of the problem, which is made when it is searched
  std::size_t number = 0;              ///< in the source
  double bound = 0;                    ///< lower bound of the seconds of its plans, known without the problem

  [[nodiscard]] constexpr int layer(int index) const { return order.empty() ? index : nth(order, index); }
  [[nodiscard]] constexpr int stages() const { return problem.stages(); }
  [[nodiscard]] constexpr int microbatches() const { return problem.objective.microbatches; }
};

/// A case with its whole problem, as long as this lives.
class OpenCase {
 public:
  explicit OpenCase(const Case& c) : case_(c) {
    if (c.source != nullptr) made_ = c.source->open(c.number);
  }
  [[nodiscard]] const Case& operator*() const { return made_ ? *made_ : case_; }

 private:
  const Case& case_;
  std::optional<Case> made_;
};

/// The strategies of an assignment in the order of the model: embedding, blocks, head. Embedding and head have nothing
/// to recompute: they take the kind of the block beside them where the rest is equal, so that no other strategy shows.
inline std::vector<StrategySpec> strategies_of(const Case& c, const Assignment& plan) {
  std::vector<StrategySpec> out(plan.choice.size());
  for (int stage = 0; stage < c.stages(); ++stage)
    for (int layer = nth(plan.first, stage); layer < nth(plan.first, stage + 1); ++layer)
      nth(out, c.layer(layer)) = nth(c.specs, c.problem.on(stage).choice(layer, nth(plan.choice, layer)).tag);
  const auto like = [](StrategySpec end, const StrategySpec& block) {
    end.recompute = block.recompute;
    return end.without_experts() == block.without_experts();
  };
  StrategySpec& embedding = out.front();
  StrategySpec& head = out.back();
  const StrategySpec& first = out[1];
  const StrategySpec& last = out[out.size() - 2];
  if (!c.problem.tied) {
    if (like(embedding, first)) embedding = first;
    if (like(head, last)) head = last;
  } else if (like(embedding, first) || like(head, last)) {
    embedding = head = like(embedding, first) ? first : last;
  }
  return out;
}

/// The candidate that an assignment of a case stands for; its seconds by the full pipeline model.
/// @param cluster  whose devices all stages have, unless the case says it
inline Candidate candidate_of(const Case& c, const Solution& solution, const Cluster& cluster) {
  Candidate out;
  out.stages = c.stages();
  out.microbatches = c.microbatches();
  out.schedule = c.schedule;
  out.virtual_stages = c.problem.chunks;
  for (int i = 0; i < out.stages; ++i) {
    const int ends = c.problem.leading + (c.problem.turns ? c.problem.trailing : 0);  // on the stages before
    out.first_block.push_back(std::max(0, nth(solution.plan.first, i) - ends));
  }
  const std::vector<StrategySpec> strategies = strategies_of(c, solution.plan);
  out.embedding = strategies.front();
  out.head = strategies.back();
  out.blocks.assign(strategies.begin() + 1, strategies.end() - 1);
  std::vector<cost::StageSeconds> stages;
  for (const StageCost& s : solution.cost.stages)
    stages.push_back({{s.forward}, {s.backward}, {s.synchronise}, {s.update}, {s.weights}});
  out.on = c.on;
  const std::vector<int> ranks(stages.size(), cluster.devices / c.stages());
  out.iteration = out.on.empty()
                      ? cost::iteration_seconds(cluster, c.schedule, stages, c.microbatches(), ranks, c.problem.chunks)
                      : cost::pipeline_seconds(c.schedule, stages, c.microbatches(), c.problem.chunks);
  out.peak = {solution.cost.peak};
  return out;
}

}  // namespace galvatron::search
