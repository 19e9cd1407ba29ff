// Random valid plans whose layers differ, of stages of unequal length and unequal numbers of ranks; for the tests of
// rank threads and of processes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <galvatron/strategy/legality.hpp>

#include "random_strategy.hpp"
#include "setting.hpp"
#include "toy_mixed.hpp"

namespace toy {

/// The models that random plans are for.
inline std::vector<ModelSpec> random_plan_models() {
  return {model(false, 6), model(true, 6), bert(6), vit(6), attention_kinds(6), experts(6), decoder_kinds(6)};
}

/// Ratios of ranks: some 0, up to 10 to 1, or all the same.
inline std::vector<int> random_ratios(std::mt19937& random, int ranks) {
  std::vector<int> out(static_cast<std::size_t>(ranks), 1);
  const int most = one_of(random, std::array{0, 1, 2, 3, 10});
  for (int& ratio : out) ratio = static_cast<int>(random() % static_cast<unsigned>(most + 1));
  if (std::ranges::count(out, 0) == ranks) out[random() % out.size()] = 1;
  return out;
}

/// A valid plan on up to 16 ranks; none where the numbers drawn do not go together.
inline std::optional<Plan> random_plan(std::mt19937& random, const ModelSpec& model) {
  const int layers = static_cast<int>(model.blocks.size());
  const int stages = one_of(random, std::array{1, 1, 2, 2, 3, 4});
  const int ranks = one_of(random, std::array{1, 2, 2, 4, 4, 8, 8, 16});
  Plan plan = single_rank(model);
  if (stages * ranks > 16) return std::nullopt;
  plan.overlap = random() % 2 == 0;
  plan.microbatches = one_of(random, std::array{1, 2, 4, 8});
  plan.expert_imbalance = one_of(random, std::array{1.0, 1.5, 4.0});
  plan.schedule = one_of(random, schedule_kinds);
  if (plan.schedule == ScheduleKind::interleaved) plan.virtual_stages = one_of(random, std::array{1, 2, 3});
  if (plan.schedule == ScheduleKind::zb_v) plan.virtual_stages = 2;
  if (stages * plan.virtual_stages > layers) return std::nullopt;
  plan.stages.clear();
  if (plan.virtual_stages > 1) plan.stages = even_stages(layers, stages, plan.virtual_stages, ranks, plan.schedule);
  int first = 0;
  int rank = 0;
  for (int i = 0; i < stages && plan.virtual_stages == 1; ++i) {
    const int left = stages - i - 1;
    const int most = layers - first - left;
    const int count = left == 0 ? layers - first : 1 + static_cast<int>(random() % static_cast<unsigned>(most));
    const int own = random() % 3 == 0 ? one_of(random, std::array{1, 2, 4}) : ranks;
    plan.stages.push_back({first, first + count - 1, rank, own});
    first += count;
    rank += own;
  }
  if (rank > 16) return std::nullopt;
  for (PlanStage& stage : plan.stages)
    for (const RatioList& each : ratio_lists)
      if (random() % 2 == 0) stage.*each.list = random_ratios(random, stage.rank_count);
  // Both copies of a tied table are cut alike.
  if (stages > 1 && model.head.tied)
    for (const auto list : {&PlanStage::state_ratios, &PlanStage::vocabulary_ratios})
      plan.stages.back().*list = plan.stages.front().*list;
  spread_at_random(random, plan, model);
  if (!why_inconsistent(plan).empty() || !why_unfit(plan, model).empty()) return std::nullopt;
  return plan;
}

/// A valid plan on up to 16 ranks, all layers of one strategy with shards by ratio, of any degrees; none where the
/// numbers drawn do not go together.
inline std::optional<Plan> random_uneven_plan(std::mt19937& random, const ModelSpec& model) {
  StrategySpec spec{.tensor = one_of(random, std::array{1, 1, 2, 2, 3, 4, 5, 8, 16}),
                    .context = one_of(random, std::array{1, 1, 2, 3, 4, 5, 8, 16}),
                    .data = one_of(random, std::array{1, 1, 2, 3}),
                    .zero = one_of(random, std::array{0, 1, 2, 3}),
                    .shard_kind = ShardKind::by_ratio,
                    .recompute = one_of(random, recompute_kinds)};
  if (spec.context > 1) spec.sequence = one_of(random, std::array{SequenceKind::ulysses, SequenceKind::ring});
  if (random() % 2 == 0) spec = spec.with_cut(true);
  spec.strided = random() % 3 == 0;
  const int stages = spec.ranks() <= 5 ? one_of(random, std::array{1, 2}) : 1;
  if (spec.ranks() == 1 || spec.ranks() * stages > 16 || !is_legal(spec)) return std::nullopt;
  Plan plan = uniform(model, stages, spec, one_of(random, std::array{1, 2}), one_of(random, schedule_kinds));
  for (PlanStage& stage : plan.stages)
    for (const RatioList& each : ratio_lists)
      if (random() % 4 > 0) stage.*each.list = random_ratios(random, stage.rank_count);
  if (stages > 1 && model.head.tied)
    for (const auto list : {&PlanStage::state_ratios, &PlanStage::vocabulary_ratios})
      plan.stages.back().*list = plan.stages.front().*list;
  if (!why_inconsistent(plan).empty() || !why_unfit(plan, model).empty()) return std::nullopt;
  return plan;
}

/// What the plans of random_uneven_plan() are, in words.
class UnevenTally {
 public:
  void add(const Plan& plan, const ModelSpec& model) {
    const PlanStage& stage = plan.stages.front();
    const StrategySpec& spec = plan.layers.front();
    const LayerSpec& block = model.blocks.front();
    if (!stage.token_ratios.empty() && spec.context > 1) ++(spec.uses_ring() ? rings_ : exchanges_);
    for (int rank = 0; rank < stage.rank_count; ++rank) {
      const RankShares shares(spec, stage.ratios(), rank);
      const std::int64_t heads = shares.heads().count(block.kv_heads);
      without_parts_ += heads * shares.widths().count(block.ffn) == 0 ? 1 : 0;
      without_tokens_ += shares.region_tokens().count(plan.sequence_length) == 0 ? 1 : 0;
      without_core_ += !shares.has_even_core_heads() && shares.core_heads().count(heads) == 0 ? 1 : 0;
    }
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(exchanges_) + " with tokens by ratio under Ulysses, " + std::to_string(rings_) +
           " under ring attention; ranks without heads or hidden units " + std::to_string(without_parts_) +
           ", without tokens " + std::to_string(without_tokens_) + ", without heads within Ulysses " +
           std::to_string(without_core_);
  }

 private:
  int exchanges_ = 0;
  int rings_ = 0;
  int without_parts_ = 0;
  int without_tokens_ = 0;
  int without_core_ = 0;
};

/// How many random plans a test tries. GALVATRON_RANDOM_PLANS: so many, whatever the time; GALVATRON_RANDOM_SECONDS:
/// for so long; GALVATRON_RANDOM_SEED: repeats a run.
struct RandomPlanBudget {
  static constexpr int least = 6;  ///< however slow the machine
  int plans = static_cast<int>(setting("GALVATRON_RANDOM_PLANS", 0));
  double seconds;
  unsigned seed = static_cast<unsigned>(setting("GALVATRON_RANDOM_SEED", std::random_device{}()));

  /// @param otherwise  seconds, unless the environment says
  explicit RandomPlanBudget(double otherwise) : seconds(setting("GALVATRON_RANDOM_SECONDS", otherwise)) {}
  [[nodiscard]] bool goes_on(int done, double elapsed) const {
    return plans > 0 ? done < plans : done < least || elapsed < seconds;
  }
};

/// How many layers of tried plans split the sequence in which way, how many have shards by ratio, and what of these
/// tensor and context ranks share by ratio, in words.
class SequenceTally {
 public:
  void add(const Plan& plan) {
    for (const PlanStage& stage : plan.stages)
      for (int i = stage.first_layer; i <= stage.last_layer; ++i) {
        const StrategySpec& spec = plan.layers[static_cast<std::size_t>(i)];
        ++layers_[spec.sequence];
        if (spec.shard_kind != ShardKind::by_ratio) continue;
        ++by_ratio_;
        heads_ += cuts_heads_by_ratio(spec, stage.ratios()) ? 1 : 0;
        widths_ += stage.width_ratios.empty() || spec.tensor == 1 ? 0 : 1;
        tokens_ += cuts_tokens_by_ratio(spec, stage.ratios()) ? 1 : 0;
      }
    if (plan.head.tensor > 1 && plan.head.shard_kind == ShardKind::by_ratio)
      vocabularies_ += plan.stages.back().vocabulary_ratios.empty() ? 0 : 1;
  }
  [[nodiscard]] std::string text() const {
    std::string out = "layers with";
    for (const auto& [kind, count] : layers_) out += " " + std::string(name_of(kind)) + " " + std::to_string(count);
    return out + ", shards by ratio " + std::to_string(by_ratio_) + " (heads " + std::to_string(heads_) + ", widths " +
           std::to_string(widths_) + ", tokens " + std::to_string(tokens_) + "), vocabularies " +
           std::to_string(vocabularies_);
  }

 private:
  int by_ratio_ = 0;
  int heads_ = 0;
  int widths_ = 0;
  int tokens_ = 0;
  int vocabularies_ = 0;
  std::map<SequenceKind, int> layers_;
};

}  // namespace toy
