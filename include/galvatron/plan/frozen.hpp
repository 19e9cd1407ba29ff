// FrozenPlan: a plan that is known when a program is compiled. `galvatron export plan.json --to header` writes one,
// together with the Strategy<> types of its layers:
//
//     #include "frozen_plan.hpp"
//     static_assert(frozen_plan::plan.ranks() == 8);
//     train::fit<frozen_plan::Strategies>(frozen_plan::plan.plan(), model, files, options);   // compiles these types
//     only
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/registry.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// Neighbouring layers with one strategy.
struct FrozenRun {
  int layers = 1;
  StrategySpec strategy;
  friend constexpr bool operator==(const FrozenRun&, const FrozenRun&) = default;
};

/// A PlanStage without its lists.
struct FrozenStage {
  int first_layer = 0;
  int last_layer = 0;
  int first_rank = 0;
  int rank_count = 1;
  int group = 0;
  friend constexpr bool operator==(const FrozenStage&, const FrozenStage&) = default;
};

/// A Plan without allocations: equal neighbours are one run, and of what was predicted the figures of the alternatives
/// are left out. Texts are literals.
template <std::size_t Stages, std::size_t Runs, std::size_t PredictedStages>
struct FrozenPlan {
  const char* model = "";
  const char* cluster = "";
  std::int64_t global_batch = 1;
  std::int64_t sequence_length = 1;
  bool packed = false;
  Precision precision = Precision::fp32;
  int microbatches = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;
  Precision moments = Precision::fp32;
  bool overlap = true;
  double expert_imbalance = program::default_expert_imbalance;
  LshOptions lsh{};
  AdapterSpec adapters{};
  std::array<FrozenStage, Stages> stages{};
  std::array<std::span<const int>, Stages> sample_ratios{};  ///< of the stages, as the lists behind it
  std::array<std::span<const int>, Stages> state_ratios{};
  std::array<std::span<const int>, Stages> head_ratios{};
  std::array<std::span<const int>, Stages> width_ratios{};
  std::array<std::span<const int>, Stages> vocabulary_ratios{};
  std::array<std::span<const int>, Stages> token_ratios{};
  std::array<std::span<const int>, Stages> rank_groups{};
  std::array<std::span<const int>, Stages> chunk_layers{};
  std::array<FrozenRun, Runs> runs{};
  StrategySpec embedding;
  StrategySpec head;
  Seconds iteration;
  double samples_per_second = 0;
  double tokens_per_second = 0;
  double mfu = 0;
  Bytes budget;
  std::array<PredictedStage, PredictedStages> predicted_stages{};

  [[nodiscard]] constexpr int layers() const {
    int sum = 0;
    for (const FrozenRun& run : runs) sum += run.layers;
    return sum;
  }
  [[nodiscard]] constexpr int ranks() const {
    int sum = 0;
    for (const FrozenStage& stage : stages) sum += stage.rank_count;
    return sum;
  }
  /// The strategy of block `index`, 0 <= index < layers().
  [[nodiscard]] constexpr StrategySpec layer(int index) const {
    std::size_t run = 0;
    while (index >= runs[run].layers) index -= runs[run++].layers;
    return runs[run].strategy;
  }
  /// The same plan as a value of run time.
  [[nodiscard]] Plan plan() const {
    Plan out;
    out.model = model;
    out.cluster = cluster;
    out.global_batch = global_batch;
    out.sequence_length = sequence_length;
    out.packed = packed;
    out.precision = precision;
    out.microbatches = microbatches;
    out.schedule = schedule;
    out.virtual_stages = virtual_stages;
    out.moments = moments;
    out.overlap = overlap;
    out.expert_imbalance = expert_imbalance;
    out.lsh = lsh;
    out.adapters = adapters;
    for (std::size_t i = 0; i < Stages; ++i) {
      const FrozenStage& stage = stages[i];
      out.stages.push_back({.first_layer = stage.first_layer,
                            .last_layer = stage.last_layer,
                            .first_rank = stage.first_rank,
                            .rank_count = stage.rank_count,
                            .group = stage.group});
      const auto copy = [&](std::vector<int> PlanStage::* list, std::span<const int> from) {
        (out.stages[i].*list).assign(from.begin(), from.end());
      };
      copy(&PlanStage::sample_ratios, sample_ratios[i]);
      copy(&PlanStage::state_ratios, state_ratios[i]);
      copy(&PlanStage::head_ratios, head_ratios[i]);
      copy(&PlanStage::width_ratios, width_ratios[i]);
      copy(&PlanStage::vocabulary_ratios, vocabulary_ratios[i]);
      copy(&PlanStage::token_ratios, token_ratios[i]);
      copy(&PlanStage::rank_groups, rank_groups[i]);
      copy(&PlanStage::chunk_layers, chunk_layers[i]);
    }
    for (const FrozenRun& run : runs)
      out.layers.insert(out.layers.end(), static_cast<std::size_t>(run.layers), run.strategy);
    out.embedding = embedding;
    out.head = head;
    out.predicted.iteration = iteration;
    out.predicted.samples_per_second = samples_per_second;
    out.predicted.tokens_per_second = tokens_per_second;
    out.predicted.mfu = mfu;
    out.predicted.budget = budget;
    out.predicted.stages.assign(predicted_stages.begin(), predicted_stages.end());
    return out;
  }
};

}  // namespace galvatron
