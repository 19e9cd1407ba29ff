// Plans for the tests of the simulator: random ones, and those of the presets.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/plan.hpp>

namespace simulated {

using namespace galvatron;

struct Case {
  Plan plan;
  ModelSpec model;
  Cluster cluster;
};

/// A plan of equal stages.
inline Plan even_plan(const ModelSpec& model, const std::string& cluster, int stages, const StrategySpec& spec,
                      int microbatches, std::int64_t batch, ScheduleKind schedule, int virtual_stages = 1) {
  Plan plan;
  plan.model = model.name;
  plan.cluster = cluster;
  plan.global_batch = batch;
  plan.sequence_length = std::min<std::int64_t>(model.positions(), 1024);
  plan.precision = Precision::bf16;
  plan.microbatches = microbatches;
  plan.schedule = schedule;
  plan.virtual_stages = virtual_stages;
  const int blocks = static_cast<int>(model.blocks.size());
  plan.stages = even_stages(blocks, stages, virtual_stages, spec.ranks(), schedule);
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;
  return plan;
}

/// A legal plan for llama2-7b (32 layers) on 64 devices or less, of any schedule; layers differ, stages are uneven.
inline Case random_case(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  static const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  while (true) {
    const int stages = 1 << below(4);
    const int ranks = 1 << below(4);
    const ScheduleKind schedule =
        schedule_kinds[static_cast<std::size_t>(below(static_cast<int>(schedule_kinds.size())))];
    const auto strategy = [&] {
      StrategySpec spec;
      spec.tensor = 1 << below(4);
      if (spec.tensor > ranks) spec.tensor = ranks;
      spec.data = ranks / spec.tensor;
      if (spec.tensor > 1 && below(2) == 0) spec.sequence = SequenceKind::megatron;
      if (spec.data > 1) spec.zero = below(4);
      spec.recompute = recompute_kinds[static_cast<std::size_t>(below(4))];
      return spec;
    };
    const int chunks =
        schedule == ScheduleKind::interleaved && stages > 1 ? 1 + below(4) : usual_virtual_stages(schedule);
    const int microbatches = stages * (1 + below(4));
    Plan plan = even_plan(model, "64xa100-80g", stages, strategy(), microbatches, std::int64_t{16} * microbatches,
                          schedule, chunks);
    if (below(2) == 0)
      for (StrategySpec& spec : plan.layers) spec = strategy();
    if (chunks == 1 && schedule != ScheduleKind::interleaved && below(2) == 0)
      for (std::size_t i = 1; i < plan.stages.size(); ++i) {
        const int border = plan.stages[i].first_layer + below(3) - 1;
        if (border <= plan.stages[i - 1].first_layer || border > plan.stages[i].last_layer) continue;
        plan.stages[i].first_layer = border;
        plan.stages[i - 1].last_layer = border - 1;
      }
    if (!why_inconsistent(plan).empty() || !why_unfit(plan, model).empty()) continue;
    static const Cluster cluster = value_or_throw(find_cluster("64xa100-80g"));
    return {std::move(plan), model, cluster};
  }
}

}  // namespace simulated
