// The plan that gives every layer the strategy which the caller names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/compose.hpp>

namespace galvatron {

/// What a plan says beside the strategy.
struct UniformOptions {
  std::int64_t global_batch = 8;  ///< samples of an iteration
  std::int64_t sequence = 0;      ///< tokens of a sample; 0: the model's positions
  int microbatches = 0;           ///< of an iteration; 0: as many as there are stages
  int virtual_stages = 0;         ///< of each stage; 0: usual_virtual_stages
  Precision precision = Precision::fp32;
  Precision moments = Precision::fp32;  ///< of the optimizer: fp32 or bf16
  std::vector<int> sample_ratios{};     ///< of the ranks of each stage, for Shards<by_ratio>: see PlanStage
  std::vector<int> state_ratios{};      ///< the same, as those that follow
  std::vector<int> head_ratios{};
  std::vector<int> width_ratios{};
  std::vector<int> vocabulary_ratios{};
  std::vector<int> token_ratios{};
  bool packed = false;  ///< samples are documents, packed into sequences of at most `sequence` tokens
};

/// The plan in which every layer has `strategy`, its stages have equally many blocks as near as possible (the last ones
/// get the rest, of virtual stages those in the middle), and the ranks are strategy.ranks() * strategy.pipeline().
/// Nothing is predicted: cost_of prices it. Errors (usage): fewer blocks than stages, and everything of
/// why_inconsistent and why_unfit: micro-batches, heads, MLP or sequence that the degrees do not divide, fewer blocks
/// than virtual stages.
template <StrategyType S>
Result<Plan> uniform_plan(const S& strategy, const ModelSpec& model, const UniformOptions& options) {
  const StrategySpec spec = strategy.spec();
  const int stages = strategy.pipeline();
  const int blocks = static_cast<int>(model.blocks.size());
  if (blocks < stages)
    return usage_error("the model " + model.name + " has " + std::to_string(blocks) + " layers, too few for " +
                       std::to_string(stages) + " stages: name a Pipeline degree of at most " + std::to_string(blocks));
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.global_batch = options.global_batch;
  plan.sequence_length = options.sequence == 0 ? model.positions() : options.sequence;
  plan.packed = options.packed;
  plan.precision = options.precision;
  plan.moments = options.moments;
  plan.adapters = adapters_of(model);
  plan.microbatches = options.microbatches == 0 ? stages : options.microbatches;
  plan.schedule = S::schedule;
  plan.virtual_stages = options.virtual_stages == 0 ? usual_virtual_stages(S::schedule) : options.virtual_stages;
  plan.stages = even_stages(blocks, stages, plan.virtual_stages, spec.ranks(), S::schedule);
  for (PlanStage& stage : plan.stages) {
    stage.sample_ratios = options.sample_ratios;
    stage.state_ratios = options.state_ratios;
    stage.head_ratios = options.head_ratios;
    stage.width_ratios = options.width_ratios;
    stage.vocabulary_ratios = options.vocabulary_ratios;
    stage.token_ratios = options.token_ratios;
  }
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;
  std::string why = why_inconsistent(plan);
  if (why.empty()) why = why_unfit(plan, model);
  if (!why.empty()) return usage_error("no plan for " + model.name + " with this strategy: " + why);
  return plan;
}

}  // namespace galvatron
