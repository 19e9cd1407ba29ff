// Plan: how a model is trained on a cluster, as a value.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan_stages.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/ratios.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// The version of plan files that this program writes, and the newest that it reads.
inline constexpr int plan_version = 1;
inline constexpr int newest_plan_version = 2;

/// Figures of a stage that the planner expects; of each of its ranks.
struct PredictedStage {
  Bytes peak;
  Seconds forward;  ///< of a micro-batch
  Seconds backward;
  friend bool operator==(const PredictedStage&, const PredictedStage&) = default;
};

/// A plan that did not win, as `explain` tells it. Seconds are parts of the iteration on the slowest stage.
struct PredictedAlternative {
  std::string name;      ///< "data parallel", "best with pipeline 4", ...
  std::string strategy;  ///< in words; empty when there is none
  bool exists = false;   ///< batch, heads and layers allow it
  bool fits = false;     ///< into the budget
  Seconds iteration;
  Seconds compute;
  Seconds communication;
  Seconds idle;
  Seconds update;  ///< gradients and optimizer, once an iteration
  Bytes peak;
  friend bool operator==(const PredictedAlternative&, const PredictedAlternative&) = default;
};

/// What the planner expects of a plan, and what it was chosen from. All zero when nobody predicted anything.
struct Prediction {
  Seconds iteration;
  double samples_per_second = 0;
  double tokens_per_second = 0;
  double mfu = 0;  ///< model FLOPs over what the devices could do in that time
  Bytes budget;    ///< of each device
  std::vector<PredictedStage> stages;
  std::vector<PredictedAlternative> alternatives;
  friend bool operator==(const Prediction&, const Prediction&) = default;
};

struct Plan {
  int version = plan_version;
  std::string model;    ///< a preset's name or the path of a config.json
  std::string cluster;  ///< a preset's name or the path of a cluster file
  std::int64_t global_batch = 1;
  std::int64_t sequence_length = 1;
  /// Samples are documents of any length, packed into sequences of at most sequence_length tokens. A micro-batch has
  /// one sequence for each data rank, and a step as many micro-batches as its documents need: `microbatches` is how
  /// many time is predicted for.
  bool packed = false;
  Precision precision = Precision::fp32;
  int microbatches = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;
  cost::Trainer trainer{};              ///< whose code it is for
  std::optional<Bytes> reserve{};       ///< of each device, kept free; none: what the trainer takes
  Precision moments = Precision::fp32;  ///< in which the optimizer keeps its moments: fp32 or bf16
  bool overlap = true;                  ///< traffic of the data ranks runs beside computation (cost::Batch::overlap)
  double expert_imbalance = program::default_expert_imbalance;  ///< that the memory of experts is for
  LshOptions lsh{};                                             ///< of layers with compressed dispatch
  AdapterSpec adapters{};  ///< of all blocks, whose own parameters are frozen then; a rank of 0: none
  std::vector<PlanStage> stages;
  std::vector<StrategySpec> layers;  ///< of every block
  StrategySpec embedding;            ///< on the ranks of the first stage
  StrategySpec head;                 ///< on the ranks of the last stage
  Prediction predicted;

  friend bool operator==(const Plan&, const Plan&) = default;
  [[nodiscard]] int ranks() const {
    int sum = 0;
    for (const PlanStage& stage : stages) sum += stage.rank_count;
    return sum;
  }
  /// Ranks of each stage.
  [[nodiscard]] std::vector<int> stage_ranks() const {
    std::vector<int> out;
    for (const PlanStage& stage : stages) out.push_back(stage.rank_count);
    return out;
  }
  /// Something is cut over the ranks of a stage by ratios.
  [[nodiscard]] bool has_ratios() const {
    return std::ranges::any_of(stages, [](const PlanStage& stage) { return stage.has_ratios(); });
  }
  /// Ranks on a group of devices.
  [[nodiscard]] int ranks_on(int group) const {
    int sum = 0;
    for (const PlanStage& stage : stages)
      sum += stage.rank_groups.empty() ? (stage.group == group ? stage.rank_count : 0)
                                       : static_cast<int>(std::ranges::count(stage.rank_groups, group));
    return sum;
  }
  /// The groups of devices that its ranks are on.
  [[nodiscard]] std::set<int> groups() const {
    std::set<int> out;
    for (const PlanStage& stage : stages)
      for (int i = 0; i < (stage.rank_groups.empty() ? 1 : stage.rank_count); ++i) out.insert(stage.group_of(i));
    return out;
  }
  [[nodiscard]] bool mixes_groups() const { return groups().size() > 1; }
  /// Samples of one micro-batch over all data ranks.
  [[nodiscard]] std::int64_t microbatch() const { return packed ? embedding.data : global_batch / microbatches; }
  /// Sequences of a step: samples, or of packed documents as many as time is predicted for.
  [[nodiscard]] std::int64_t sequences() const { return packed ? microbatch() * microbatches : global_batch; }
};

/// `bf16`, `fp8`, or `fp8 (delayed)` where its recipe is not tensorwise.
inline std::string precision_text(const Plan& plan) {
  const Fp8Recipe recipe = plan.trainer.traits.fp8_recipe;
  const bool usual = plan.precision != Precision::fp8 || recipe == Fp8Recipe::tensorwise;
  return std::string(name_of(plan.precision)) + (usual ? "" : " (" + std::string(name_of(recipe)) + ")");
}

/// A step in words: "batch of 8 x 512 tokens", "batch of 64 documents in sequences of 512 tokens".
inline std::string batch_text(const Plan& plan) {
  return "batch of " + std::to_string(plan.global_batch) + (plan.packed ? " documents in sequences of " : " x ") +
         std::to_string(plan.sequence_length) + " tokens";
}

/// First and last layer of virtual stage `index`, 0 to P v - 1; of one without layers the last is before the first.
inline LayerRange virtual_stage_layers(const Plan& plan, int index) {
  if (plan.virtual_stages == 1) {
    const PlanStage& stage = plan.stages[static_cast<std::size_t>(index)];
    return {stage.first_layer, stage.last_layer};
  }
  const int stages = static_cast<int>(plan.stages.size());
  const auto first = [&](int i) {
    if (!plan.stages.front().chunk_layers.empty()) {
      int sum = 0;
      for (int before = 0; before < i; ++before) {
        const int stage = stage_of_virtual_stage(plan.schedule, stages, before);
        sum += plan.stages[static_cast<std::size_t>(stage)].chunk_layers[static_cast<std::size_t>(before / stages)];
      }
      return sum;
    }
    return first_layer_of_virtual_stage(static_cast<int>(plan.layers.size()), stages * plan.virtual_stages, i);
  };
  return {first(index), first(index + 1) - 1};
}

/// The stage that has the head; the first one has the embedding.
inline const PlanStage& head_stage(const Plan& plan) {
  return ends_share_stage(plan.schedule, static_cast<int>(plan.stages.size())) ? plan.stages.front()
                                                                               : plan.stages.back();
}

/// The stage of each layer of a plan whose stages have all of them.
inline std::vector<const PlanStage*> stages_of_layers(const Plan& plan) {
  std::vector<const PlanStage*> out(plan.layers.size());
  const int stages = static_cast<int>(plan.stages.size());
  for (int i = 0; i < stages * plan.virtual_stages; ++i) {
    const LayerRange range = virtual_stage_layers(plan, i);
    const PlanStage& stage = plan.stages[static_cast<std::size_t>(stage_of_virtual_stage(plan.schedule, stages, i))];
    std::fill(out.begin() + range.first, out.begin() + range.last + 1, &stage);
  }
  return out;
}

/// Why a plan is none, whatever the model; an empty message when it is one: stages cover layers and ranks without gap
/// or overlap, degrees multiply to the ranks of the stage, strategies are legal, and micro-batches divide evenly.
template <class = void>
std::string why_inconsistent(const Plan& plan) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (plan.version < 1 || plan.version > newest_plan_version)
    return "version " + text(plan.version) + " is unknown: this program reads versions 1 and " +
           text(newest_plan_version);
  if (plan.global_batch < 1 || plan.sequence_length < 1 || plan.microbatches < 1 || plan.virtual_stages < 1)
    return "global_batch, sequence_length, microbatches and virtual_stages are at least 1";
  if (!plan.packed && plan.global_batch % plan.microbatches != 0)
    return text(plan.microbatches) + " micro-batches do not divide the global batch of " + text(plan.global_batch);
  if (plan.virtual_stages > 1 && usual_virtual_stages(plan.schedule) == 1)
    return "only the schedules interleaved and zb-v have virtual stages; write \"virtual_stages\": 1 for " +
           std::string(name_of(plan.schedule));
  if (plan.stages.empty()) return "it has no stages";
  int layer = 0;
  int rank = 0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const PlanStage& stage = plan.stages[i];
    const std::string name = "stage " + std::to_string(i);
    if (stage.first_layer != layer)
      return name + " begins with layer " + text(stage.first_layer) +
             (stage.first_layer > layer ? ", a gap" : ", an overlap") + ": layer " + text(layer) + " is next";
    if (stage.last_layer < stage.first_layer)
      return name + " has no layer: it ends with layer " + text(stage.last_layer) + " and begins with " +
             text(stage.first_layer);
    if (stage.last_layer >= static_cast<int>(plan.layers.size()))
      return name + " ends with layer " + text(stage.last_layer) + ", but the plan has layers 0 to " +
             text(static_cast<std::int64_t>(plan.layers.size()) - 1);
    if (stage.rank_count < 1) return name + " has no ranks";
    if (stage.group < 0) return name + " is on group " + text(stage.group) + ": groups are numbered from 0";
    if (stage.first_rank != rank)
      return name + " begins with rank " + text(stage.first_rank) +
             (stage.first_rank > rank ? ", a gap" : ", an overlap") + ": rank " + text(rank) + " is next";
    layer = stage.last_layer + 1;
    if (auto why = why_no_ratios(stage); !why.empty()) return name + why;
    if (stage.rank_count > most_ranks - rank)
      return name + " has more than " + text(most_ranks) + " ranks before its end";
    rank += stage.rank_count;
  }
  if (layer != static_cast<int>(plan.layers.size()))
    return "the stages end with layer " + text(layer - 1) + ", but the plan has layers 0 to " +
           text(static_cast<std::int64_t>(plan.layers.size()) - 1);

  const auto has_chunks = [](const PlanStage& stage) { return !stage.chunk_layers.empty(); };
  if (plan.virtual_stages == 1 && std::ranges::any_of(plan.stages, has_chunks))
    return "chunk_layers are those of virtual stages, and it has none";
  if (usual_virtual_stages(plan.schedule) > 1) {
    const auto stages = static_cast<int>(plan.stages.size());
    if (plan.schedule == ScheduleKind::zb_v && (stages < 2 || plan.virtual_stages != 2))
      return "the schedule zb-v needs at least 2 stages and \"virtual_stages\": 2, not " + text(stages) + " and " +
             text(plan.virtual_stages);
    if (plan.schedule == ScheduleKind::interleaved && (stages < 2 || plan.microbatches % stages != 0))
      return "the interleaved schedule needs at least 2 stages and a multiple of them as micro-batches, not " +
             text(stages) + " and " + text(plan.microbatches);
    if (std::string why = why_no_chunks(plan.stages, plan.virtual_stages, plan.schedule); !why.empty()) return why;
    const bool told = !plan.stages.front().chunk_layers.empty();
    const std::string cut = text(stages) + " stages x " + text(plan.virtual_stages) + " virtual stages";
    if (!told && static_cast<std::int64_t>(stages) * plan.virtual_stages > layer)
      return "a virtual stage has at least one layer: " + cut + " are more than the plan's " + text(layer) + " layers";
    const std::vector<PlanStage> even =
        even_stages(layer, stages, plan.virtual_stages, plan.stages.front().rank_count, plan.schedule);
    for (std::size_t i = 0; i < even.size() && plan.virtual_stages > 1 && !told; ++i)
      if (plan.stages[i].last_layer != even[i].last_layer)
        return cut + " share " + text(layer) + " layers as evenly as possible: stage " + std::to_string(i) +
               " has its layers " + text(even[i].first_layer) + " to " + text(even[i].last_layer) + ", not to " +
               text(plan.stages[i].last_layer);
  }

  if (std::string why = cost::why_no_recipe(plan.trainer, plan.precision); !why.empty()) return why;
  if (plan.packed && (plan.schedule != ScheduleKind::one_f_one_b || plan.virtual_stages > 1))
    return "documents are packed into as many micro-batches as they need: write \"schedule\": \"1f1b\"";
  const auto why = [&](const std::string& name, const StrategySpec& spec, const PlanStage& stage) -> std::string {
    if (plan.packed && spec.layout_degrees() != plan.embedding.layout_degrees())
      return name + " (" + strategy_text(spec) + "): packed sequences lie on the same ranks in all layers, as in the " +
             "embedding (" + strategy_text(plan.embedding) + ")";
    if (spec.groups == SequenceGroupKind::per_batch && !plan.packed)
      return name + " (" + strategy_text(spec) + "): groups of sequences change with packed documents only";
    if (spec.groups == SequenceGroupKind::per_batch && plan.stages.size() > 1)
      return name + " (" + strategy_text(spec) + "): groups of sequences change over all ranks, in one stage";
    if (const auto illegal = why_illegal(spec); !illegal.empty())
      return name + " (" + strategy_text(spec) + "): " + std::string(illegal);
    if (spec.ranks() != stage.rank_count)
      return name + ": tensor " + text(spec.tensor) + " x context " + text(spec.context) + " x data " +
             text(spec.data) + " = " + text(spec.ranks()) + ", but its stage has " + text(stage.rank_count) + " ranks";
    if (spec.shard_kind == ShardKind::by_ratio && !stage.has_ratios())
      return name + " (" + strategy_text(spec) + "): its stage has no ratios";
    if (spec.shard_kind == ShardKind::by_ratio && plan.packed)
      return name + " (" + strategy_text(spec) + "): documents are packed into equal sequences; leave the ratios out";
    // The ranks that share samples are alike, unless tensor ranks have heads and hidden units by ratio, and context
    // ranks tokens.
    const bool may_differ = spec.shard_kind == ShardKind::by_ratio &&
                            (spec.tensor == 1 || (!stage.head_ratios.empty() && !stage.width_ratios.empty())) &&
                            (spec.context == 1 || !stage.token_ratios.empty());
    const RankLayout ranks = spec.rank_layout();
    for (int i = 0; i < stage.rank_count && !stage.rank_groups.empty() && !may_differ; ++i) {
      const int first = ranks.offset(RankMode::dp, ranks.coordinate(RankMode::dp, i));
      if (stage.group_of(i) != stage.group_of(first))
        return name + " (" + strategy_text(spec) + "): its ranks " + text(first) + " and " + text(i) +
               " share samples and are on two groups of devices";
    }
    const bool cuts_samples = spec.shard_kind == ShardKind::by_ratio && !stage.sample_ratios.empty();
    if (!cuts_samples && plan.microbatch() % spec.data != 0)
      return name + ": its data degree " + text(spec.data) + " does not divide a micro-batch of " +
             text(plan.microbatch()) + " samples";
    return {};
  };
  if (auto out = why("embedding", plan.embedding, plan.stages.front()); !out.empty()) return out;
  const std::vector<const PlanStage*> on = stages_of_layers(plan);
  for (std::size_t i = 0; i < on.size(); ++i) {
    if (i > 0 && on[i] == on[i - 1] && plan.layers[i] == plan.layers[i - 1]) continue;
    if (auto out = why("layer " + std::to_string(i), plan.layers[i], *on[i]); !out.empty()) return out;
  }
  return why("head", plan.head, head_stage(plan));
}
GALVATRON_IN_PLANNER(std::string why_inconsistent<>(const Plan&))

/// Why documents for this model are not packed; empty when they may be.
inline std::string_view why_unpacked(const ModelSpec& model) {
  const auto predicts_next = [](const LayerSpec& head) { return head.head == HeadKind::language; };
  if (model.takes_images() || model.is_encoder_decoder() || !predicts_next(model.head))
    return "documents are packed for models that predict the next token";
  for (const LayerSpec& block : model.blocks) {
    if (block.kind == LayerKind::head) return "documents are packed for models with one loss";
    if (block.has_jitter()) return "documents are not packed for models with noise, which samples of one length have";
    if (block.experts > 0 && (block.router.balance_loss > 0 || block.router.z_loss > 0 || block.router.capacity > 0))
      return "documents are packed for routers without losses and capacity, which depend on what is packed together";
  }
  return {};
}

/// The model with what compressed dispatch adds to it.
inline ModelSpec with_dispatch(ModelSpec model, const LshOptions& lsh) {
  for (LayerSpec& block : model.blocks)
    block.router.residual_gain = block.experts > 0 && lsh.residual == ResidualKind::scaled;
  return model;
}

/// The model as a plan trains it: with its adapters, and with what compressed dispatch adds. Errors (usage): those of
/// with_adapters().
inline Result<ModelSpec> as_planned(const Plan& plan, ModelSpec model) {
  model = with_dispatch(std::move(model), plan.lsh);
  return plan.adapters.rank == 0 ? Result<ModelSpec>(std::move(model)) : with_adapters(std::move(model), plan.adapters);
}

/// Why a consistent plan does not suit this model; empty when it does.
inline std::string why_unfit(const Plan& plan, const ModelSpec& model) {
  if (plan.packed)
    if (const auto why = why_unpacked(model); !why.empty()) return std::string(why);
  if (plan.adapters != adapters_of(model))
    return plan.adapters.rank == 0 ? "the model has adapters, and the plan has none"
                                   : "the plan has adapters, and the model has not these (as_planned)";
  if (!plan.trainer.is_own() && plan.adapters.rank > 0)
    return "adapters are priced as this library trains them; leave \"trainer\" out";
  if (plan.layers.size() != model.blocks.size())
    return "the plan has " + std::to_string(plan.layers.size()) + " layers and the model " + model.name + " has " +
           std::to_string(model.blocks.size());
  if (!plan.trainer.is_own())
    for (const LayerSpec& block : model.blocks)
      if (!block.is_plain_block())
        return "only models of GPT's and Llama's blocks are priced as another trainer runs them; leave \"trainer\" out";
  for (const LayerSpec& block : model.blocks)
    if (block.experts > 0 && block.router.residual_gain != (plan.lsh.residual == ResidualKind::scaled))
      return block.router.residual_gain
                 ? "its experts have gains of residuals, which the plan does not scale: \"lsh\": {\"residual\": "
                   "\"scaled\"} does"
                 : "the plan scales residuals by gains of experts, which the model does not have (with_dispatch)";
  const auto why = [&](const std::string& name, LayerSpec layer, const StrategySpec& spec,
                       const PlanStage& stage) -> std::string {
    if (plan.packed)
      layer.positions = std::max(layer.positions, plan.sequence_length);  // those of a document begin anew
    // By ratio any number of samples may be cut.
    const std::int64_t samples = spec.shard_kind == ShardKind::by_ratio ? spec.data : plan.microbatch();
    const auto unfit = why_unfit(layer, spec, samples, plan.sequence_length, stage.ratios());
    return unfit.empty() ? std::string{} : name + " (" + strategy_text(spec) + "): " + std::string(unfit);
  };
  if (auto out = why("embedding", model.embedding, plan.embedding, plan.stages.front()); !out.empty()) return out;
  const std::vector<const PlanStage*> on = stages_of_layers(plan);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    if (i > 0 && on[i] == on[i - 1] && plan.layers[i] == plan.layers[i - 1] && model.blocks[i] == model.blocks[i - 1])
      continue;
    if (auto out = why("layer " + std::to_string(i), model.blocks[i], plan.layers[i], *on[i]); !out.empty()) return out;
  }
  if (auto out = why("head", model.head, plan.head, head_stage(plan)); !out.empty()) return out;
  if (model.head.tied && plan.head.shard_kind == ShardKind::by_ratio)
    for (const auto& [key, of, list] : ratio_lists)
      if ((list == &PlanStage::vocabulary_ratios || (list == &PlanStage::state_ratios && plan.head.zero > 0)) &&
          plan.stages.front().*list != head_stage(plan).*list)
        return "the head of " + model.name + " uses the embedding's table, so the first and the last stage have the " +
               "same ratios of " + of;
  if (model.head.tied && plan.head != plan.embedding)
    return "the head of " + model.name + " uses the embedding's table, so both have one strategy, not \"" +
           strategy_text(plan.head) + "\" and \"" + strategy_text(plan.embedding) + "\"";
  return {};
}

}  // namespace galvatron
