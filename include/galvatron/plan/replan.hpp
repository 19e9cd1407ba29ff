// Re-planning a run that is under way, by the speeds that its ranks were measured to have.
//
// The seconds of a rank are not predicted but measured: what a layer and a sample took it follows, and with that what
// other shares would take. So no cluster is needed, and nothing that is wrong about one does harm:
//
//   measured    rank 0  8 samples 0.4 s   rank 1  8 samples 0.4 s   rank 2  8 samples 0.8 s      a step: 0.8 s
//   re-planned  rank 0 10 samples 0.5 s   rank 1  9 samples 0.45 s  rank 2  5 samples 0.5 s      a step: 0.5 s
//
// Strategies, stages and ranks stay. Samples of a micro-batch go where they end first (exactly), and pipeline stages
// exchange layers with their neighbours so that the slowest one is as fast as can be (exactly, by dynamic programming).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cost/layer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/rank_seconds.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron {

struct Replan {
  Plan plan;
  double iteration = 0;  ///< seconds of a step that are expected of it
  int rank = 0;          ///< whose share changes most
};

/// Why a plan's shares are not changed while it runs, as the end of a sentence; empty when they may be.
inline std::string why_not_replanned(const Plan& plan) {
  if (plan.packed) return "its documents are dealt out by tokens";
  return {};
}

namespace detail {

class Replanner {
 public:
  /// @param planned   the plan of before the run, whose strategies stay; `running` has its stages and other shares
  /// @param measured  of the ranks of `running`  @param step  the seconds of a step of it
  Replanner(const Plan& planned, const Plan& running, const ModelSpec& model, std::span<const RankSeconds> measured,
            double step)
      : planned_(planned), running_(running), model_(model), step_(step) {
    const cost::Batch sample{.microbatch = 1, .sequence = plan_sequence()};
    weights_.reserve(model.blocks.size());
    const LayerSpec* previous = nullptr;
    for (const LayerSpec& block : model.blocks) {
      const bool alike = previous != nullptr && previous->costs_like(block);
      weights_.push_back(alike ? weights_.back() : cost::layer_counts(block, {}, sample).forward.flops().count);
      previous = &block;
    }
    head_ = cost::head_flops(model.head, sample).count;
    for (std::size_t s = 0; s < running.stages.size(); ++s) stages_.push_back(stage(s, measured));
  }

  /// The best plan for what was measured; none when nothing is known of a rank that all others would wait for, or no
  /// share may be changed.
  /// @param fits  whether the memory of all ranks is enough for a plan
  std::optional<Replan> best(const std::function<bool(const Plan&)>& fits) {
    for (Stage& stage : stages_) share(stage);
    Plan plan = planned_;
    const bool moves = move_layers(plan);
    apply_shares(plan);
    if (!is_sound(plan) && moves) {
      plan = planned_;
      apply_shares(plan);
    }
    // A rank without room for its samples gives some of them away.
    for (int tries = 0; is_sound(plan) && fits && !fits(plan); ++tries) {
      if (tries == most_tries || !give_away()) return std::nullopt;
      apply_shares(plan);
    }
    if (!is_sound(plan) || plan == running_) return std::nullopt;
    const double before = pipeline_seconds(running_, true);
    const double after = pipeline_seconds(plan, false);
    return Replan{std::move(plan), std::max(after, step_ - before + after), most_changed()};
  }

 private:
  static constexpr int most_tries = 64;

  /// The ranks of a stage that have the same samples.
  struct DataRank {
    std::int64_t samples = 0;  ///< of a micro-batch, in the running plan
    double seconds = 0;        ///< of a sample of a micro-batch and a unit of layers' weight, on its slowest rank
    std::int64_t wanted = 0;   ///< samples of a micro-batch, in the plan that is made
    std::int64_t most = 0;     ///< that it may have
    int first_rank = 0;        ///< one of them
  };
  struct Stage {
    std::vector<DataRank> data;
    std::vector<int> data_of;  ///< of each rank of the stage
    bool shares = false;       ///< its samples may be cut by ratios
    double weight = 0;         ///< of its layers in the running plan
    double update = 0;         ///< seconds of its slowest rank
    [[nodiscard]] double sample_seconds(bool running) const {
      double most = 0;
      for (const DataRank& rank : data)
        most = std::max(most, static_cast<double>(running ? rank.samples : rank.wanted) * rank.seconds);
      return most;
    }
  };

  [[nodiscard]] std::int64_t plan_sequence() const { return running_.sequence_length; }

  // Strategies of what the plan has on a stage, embedding and head included.
  template <class F>
  static void for_each_spec(auto& plan, std::size_t s, F&& f) {
    if (s == 0) f(plan.embedding);
    for (int i = plan.stages[s].first_layer; i <= plan.stages[s].last_layer; ++i)
      f(plan.layers[static_cast<std::size_t>(i)]);
    if (s + 1 == plan.stages.size()) f(plan.head);
  }
  // Weights are the arithmetic of a sample. The embedding has next to none.
  [[nodiscard]] double weight(std::size_t s, int first, int last) const {
    double sum = &running_.stages[s] == &head_stage(running_) ? head_ : 0;
    for (int i = first; i <= last; ++i) sum += weights_[static_cast<std::size_t>(i)];
    return sum;
  }
  [[nodiscard]] double weight_of_stage(const Plan& plan, std::size_t s) const {
    if (plan.virtual_stages == 1) return weight(s, plan.stages[s].first_layer, plan.stages[s].last_layer);
    double sum = &plan.stages[s] == &head_stage(plan) ? head_ : 0;
    for (int c = 0; c < plan.virtual_stages; ++c) {
      const LayerRange range = virtual_stage_layers(
          plan, virtual_stage_of(plan.schedule, static_cast<int>(plan.stages.size()), static_cast<int>(s), c));
      for (int i = range.first; i <= range.last; ++i) sum += weights_[static_cast<std::size_t>(i)];
    }
    return sum;
  }

  [[nodiscard]] Stage stage(std::size_t s, std::span<const RankSeconds> measured) const {
    const PlanStage& of = running_.stages[s];
    Stage out;
    const StrategySpec& first = running_.layers[static_cast<std::size_t>(of.first_layer)];
    bool alike = !planned_.packed && first.data > 1;
    for_each_spec(running_, s, [&](const StrategySpec& spec) {
      StrategySpec by_ratio = spec;
      by_ratio.shard_kind = ShardKind::by_ratio;
      alike = alike && spec.data == first.data && spec.tensor == first.tensor && spec.context == first.context &&
              spec.strided == first.strided && why_illegal(by_ratio).empty() && !spec.exchanges_tokens();
    });
    out.shares = alike;
    out.weight = weight_of_stage(running_, s);
    // Without ratios of its own the stage is as slow as its slowest rank, however its layers are cut.
    const int data = alike ? first.data : 1;
    const ActivationLayout layout =
        activation_layout(first, of.first_rank, running_.microbatch(), plan_sequence(), of.ratios());
    out.data.resize(static_cast<std::size_t>(data));
    for (int i = 0; i < of.rank_count; ++i) {
      const int rank = of.first_rank + i;
      const int place = alike ? layout.place(rank).data : 0;
      out.data_of.push_back(place);
      DataRank& on = out.data[static_cast<std::size_t>(place)];
      on.samples = alike ? layout.samples().count(place) : running_.microbatch();
      on.first_rank = on.seconds == 0 ? rank : on.first_rank;
      const RankSeconds& seconds = measured[static_cast<std::size_t>(rank)];
      const double units = static_cast<double>(on.samples) * running_.microbatches * out.weight;
      if (units > 0) on.seconds = std::max(on.seconds, seconds.passes / units);
      out.update = std::max(out.update, seconds.update);
    }
    for (DataRank& on : out.data) {
      on.wanted = on.samples;
      on.most = on.samples == 0 ? 0 : running_.microbatch();  // of a rank without work nothing is known
    }
    return out;
  }

  // Each sample goes to the data rank that ends first with it, which makes the last end as early as can be.
  void share(Stage& stage) const {
    if (!stage.shares) return;
    for (DataRank& rank : stage.data) rank.wanted = 0;
    for (std::int64_t i = 0; i < running_.microbatch(); ++i) {
      DataRank* best = nullptr;
      const auto end = [](const DataRank& rank) { return static_cast<double>(rank.wanted + 1) * rank.seconds; };
      for (DataRank& rank : stage.data)
        if (rank.wanted < rank.most && (best == nullptr || end(rank) < end(*best))) best = &rank;
      if (best == nullptr) return;
      ++best->wanted;
    }
  }

  // Whoever has most samples may have an eighth less.
  bool give_away() {
    bool some = false;
    for (Stage& stage : stages_) {
      if (!stage.shares) continue;
      DataRank& largest = *std::ranges::max_element(stage.data, {}, &DataRank::wanted);
      largest.most = largest.wanted - std::max<std::int64_t>(largest.wanted / 8, 1);
      std::int64_t all = 0;
      for (const DataRank& rank : stage.data) all += rank.most;
      if (all < running_.microbatch()) continue;
      share(stage);
      some = true;
    }
    return some;
  }

  // Layers of the stages, so that the slowest stage is as fast as can be, and of those the sum the least. False when
  // nothing changes.
  bool move_layers(Plan& plan) const {
    const auto stages = static_cast<int>(plan.stages.size());
    const auto layers = static_cast<int>(weights_.size());
    if (stages < 2 || plan.virtual_stages > 1) return false;
    struct Best {
      double slowest = std::numeric_limits<double>::infinity();
      double sum = 0;
      int first = 0;  // layer of the last stage
      [[nodiscard]] bool operator<(const Best& other) const {
        return slowest < other.slowest || (slowest == other.slowest && sum < other.sum);
      }
    };
    // best[s][n]: the first n layers on the first s stages.
    std::vector<std::vector<Best>> best(static_cast<std::size_t>(stages) + 1,
                                        std::vector<Best>(static_cast<std::size_t>(layers) + 1));
    best[0][0] = {0, 0, 0};
    for (int s = 0; s < stages; ++s)
      for (int first = s; first < layers; ++first) {
        const Best& before = best[static_cast<std::size_t>(s)][static_cast<std::size_t>(first)];
        if (std::isinf(before.slowest)) continue;
        for (int last = first; last < layers; ++last) {
          const double own = seconds_of(static_cast<std::size_t>(s), first, last);
          const Best with{std::max(before.slowest, own), before.sum + own, first};
          Best& at = best[static_cast<std::size_t>(s) + 1][static_cast<std::size_t>(last) + 1];
          if (with < at) at = with;
        }
      }
    int end = layers;
    bool moves = false;
    for (int s = stages; s-- > 0;) {
      const int first = best[static_cast<std::size_t>(s) + 1][static_cast<std::size_t>(end)].first;
      PlanStage& stage = plan.stages[static_cast<std::size_t>(s)];
      const PlanStage& planned = planned_.stages[static_cast<std::size_t>(s)];
      moves = moves || first != planned.first_layer || end - 1 != planned.last_layer;
      stage.first_layer = first;
      stage.last_layer = end - 1;
      // A layer that comes has the strategy of the nearest one that was there.
      for (int i = first; i < end; ++i)
        plan.layers[static_cast<std::size_t>(i)] =
            planned_.layers[static_cast<std::size_t>(std::clamp(i, planned.first_layer, planned.last_layer))];
      end = first;
    }
    return moves;
  }
  // Of a micro-batch.
  [[nodiscard]] double seconds_of(std::size_t s, int first, int last) const {
    return weight(s, first, last) * stages_[s].sample_seconds(false);
  }

  // Even shares are those that were planned.
  void apply_shares(Plan& plan) const {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      PlanStage& to = plan.stages[s];
      const PlanStage& planned = planned_.stages[s];
      const Stage& from = stages_[s];
      to.sample_ratios = planned.sample_ratios;
      const bool even =
          std::ranges::all_of(from.data, [&](const DataRank& rank) { return rank.wanted == from.data.front().wanted; });
      if (!from.shares || (even && !planned.has_ratios())) continue;
      to.sample_ratios.clear();
      for (const int place : from.data_of)
        to.sample_ratios.push_back(static_cast<int>(from.data[static_cast<std::size_t>(place)].wanted));
      for_each_spec(plan, s, [](StrategySpec& spec) { spec.shard_kind = ShardKind::by_ratio; });
    }
    if (!model_.head.tied || plan.embedding == plan.head) return;
    // Both ends of a tied table have one strategy: where only one has ratios, the other has equal ones.
    for (const std::size_t s : {std::size_t{0}, plan.stages.size() - 1}) {
      PlanStage& end = plan.stages[s];
      if (end.sample_ratios.empty()) end.sample_ratios.assign(static_cast<std::size_t>(end.rank_count), 1);
      for_each_spec(plan, s, [](StrategySpec& spec) { spec.shard_kind = ShardKind::by_ratio; });
    }
  }

  [[nodiscard]] bool is_sound(const Plan& plan) const {
    return why_inconsistent(plan).empty() && why_unfit(plan, model_).empty();
  }

  // Fill, drain and the steady state of a pipeline, and the update: what its schedule has at least.
  [[nodiscard]] double pipeline_seconds(const Plan& plan, bool running) const {
    double sum = 0, most = 0, update = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const double seconds = weight_of_stage(plan, s) * stages_[s].sample_seconds(running);
      sum += seconds;
      most = std::max(most, seconds);
      update = std::max(update, stages_[s].update);
    }
    return sum + (plan.microbatches - 1) * most + update;
  }

  [[nodiscard]] int most_changed() const {
    int out = 0;
    double most = -1;
    for (const Stage& stage : stages_)
      for (const DataRank& rank : stage.data) {
        const double change =
            std::abs(std::log((static_cast<double>(rank.wanted) + 0.5) / (static_cast<double>(rank.samples) + 0.5)));
        if (change > most) {
          most = change;
          out = rank.first_rank;
        }
      }
    if (most > 0) return out;
    // Only layers move: from or to the stage that takes longest.
    const auto slowest = std::ranges::max_element(
        stages_, {}, [](const Stage& stage) { return stage.weight * stage.sample_seconds(true); });
    return slowest->data.front().first_rank;
  }

  const Plan& planned_;
  const Plan& running_;
  const ModelSpec& model_;
  double step_;
  std::vector<double> weights_;  // of the blocks
  double head_ = 0;
  std::vector<Stage> stages_;
};

}  // namespace detail

/// The best shares of samples and layers for ranks that were measured, none when nothing would change or nothing may.
/// @param planned   the plan that the run began with: strategies stay, and what it says where shares are even again
/// @param running   that with other shares, of which these are the seconds  @param step  of it, in seconds
/// @param fits      whether memory is enough for a plan; null: it is
inline std::optional<Replan> replan(const Plan& planned, const Plan& running, const ModelSpec& model,
                                    std::span<const RankSeconds> measured, double step,
                                    const std::function<bool(const Plan&)>& fits = {}) {
  if (!why_not_replanned(planned).empty()) return std::nullopt;
  return detail::Replanner(planned, running, model, measured, step).best(fits);
}

}  // namespace galvatron
