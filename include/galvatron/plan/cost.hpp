// What a plan costs: time and memory of every layer, stage and iteration.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/stage_plan.hpp>

namespace galvatron {

/// One layer of a plan on one of its ranks.
struct PlanLayerCost {
  StrategySpec spec;
  cost::LayerSeconds seconds;  ///< without moves of activations
  Seconds relayout_forward;    ///< from the layer before in the same stage
  Seconds relayout_backward;
  Seconds recompute;  ///< the forward pass again, part of its backward computation
  Bytes states;
  Bytes stash;      ///< of one micro-batch
  Bytes workspace;  ///< transient, at its largest

  [[nodiscard]] Seconds relayout() const { return relayout_forward + relayout_backward; }
  [[nodiscard]] Seconds forward() const { return seconds.forward + relayout_forward; }
  [[nodiscard]] Seconds backward() const { return seconds.backward + relayout_backward; }
  /// With moves.
  [[nodiscard]] Seconds communication() const {
    return seconds.forward_communication + seconds.backward_communication + relayout();
  }
  /// Whether tables show both in one row.
  [[nodiscard]] bool looks_like(const PlanLayerCost& other) const {
    return spec == other.spec && seconds == other.seconds && states == other.states && stash == other.stash &&
           relayout_forward == other.relayout_forward && relayout_backward == other.relayout_backward;
  }
};

/// Layers that a stage carries out together: all that it has, or those of one virtual stage.
struct PlanChunkCost {
  int first = 0;  ///< of PlanCost::layers
  int end = 0;    ///< behind the last
  Seconds receive_activation;
  Seconds receive_gradient;
  cost::PassMemory memory;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end - first); }
};

/// One stage; seconds of a micro-batch include re-layouts and what comes from neighbouring stages.
struct PlanStageCost {
  PlanStage stage;
  cost::StageMemory memory;  ///< of the rank that has the least left of its device's
  int group = 0;             ///< of that rank
  cost::StageSeconds seconds;
  Seconds communication;  ///< part of forward + backward: collectives and moves
  int slots = 1;          ///< micro-batches in flight, of the first chunk
  std::vector<PlanChunkCost> chunks;
  [[nodiscard]] Bytes peak() const { return memory.total(); }
};

struct PlanCost {
  Seconds iteration;
  double samples_per_second = 0;
  double tokens_per_second = 0;
  double mfu = 0;  ///< 0 when the device's peak is unknown
  std::vector<PlanStageCost> stages;
  std::vector<PlanLayerCost> layers;  ///< the embedding, the blocks, the head
  // Where the iteration of the slowest stage goes:
  Seconds compute;
  Seconds communication;
  Seconds update;  ///< gradients and optimizer, once
  Seconds idle;    ///< waits for other stages

  /// 1 - largest / sum over the stages of their seconds (alpha_t) and of their peaks (alpha_m), each in [0, 1 - 1/P]:
  /// how evenly they are loaded (Galvatron-BMW, arXiv 2307.02031).
  [[nodiscard]] double time_balance() const {
    return balance([](const PlanStageCost& s) { return (s.seconds.forward + s.seconds.backward).value; });
  }
  [[nodiscard]] double memory_balance() const {
    return balance([](const PlanStageCost& s) { return static_cast<double>(s.peak().count); });
  }
  [[nodiscard]] Bytes peak() const {
    Bytes most;
    for (const PlanStageCost& stage : stages) most = max(most, stage.peak());
    return most;
  }

 private:
  template <class F>
  [[nodiscard]] double balance(F figure) const {
    double most = 0;
    double sum = 0;
    for (const PlanStageCost& stage : stages) {
      most = std::max(most, figure(stage));
      sum += figure(stage);
    }
    return sum > 0 ? 1 - most / sum : 0;
  }
};

/// What a plan says of its cost, without alternatives.
/// @param budget  of each device
inline Prediction prediction_of(const PlanCost& cost, Bytes budget) {
  Prediction out;
  out.iteration = cost.iteration;
  out.samples_per_second = cost.samples_per_second;
  out.tokens_per_second = cost.tokens_per_second;
  out.mfu = cost.mfu;
  out.budget = budget;
  for (const PlanStageCost& stage : cost.stages)
    out.stages.push_back({stage.peak(), stage.seconds.forward, stage.seconds.backward});
  return out;
}

/// What the products with frozen weights of a layer take, of so many samples: gradients of these are not computed.
inline Flops frozen_flops(const LayerSpec& layer, const cost::Batch& batch) {
  const forward::Graph graph = forward_of(layer);
  double products = 0;  // elements of their weights
  for (int i = 0; i < graph.weight_count; ++i)
    if (const forward::WeightSpec& w = graph.weight(i); w.frozen && w.products > 0)
      products += static_cast<double>(w.products * w.rows.extent * w.columns.extent);
  return {2 * products * static_cast<double>(layer.tokens.of(batch.sequence) * batch.microbatch)};
}

/// Arithmetic of one iteration without recomputation: three times the forward pass (backward is twice the forward), but
/// for gradients of frozen weights.
/// @param programs  of layers that were priced before; those of this model join them
inline Flops model_flops(const ModelSpec& model, std::int64_t global_batch, std::int64_t sequence,
                         cost::ProgramStore& programs) {
  const cost::Batch batch{.microbatch = global_batch, .sequence = sequence};
  const Flops head = cost::head_flops(model.head, batch);
  Flops sum =
      programs.layer_counts(model.embedding, {}, batch).forward.flops() + head * (model.head.frozen ? 2.0 / 3 : 1.0);
  const LayerSpec* previous = nullptr;
  Flops block;
  for (const LayerSpec& layer : model.blocks) {
    if (previous == nullptr || !previous->costs_like(layer))
      block = programs.layer_counts(layer, {}, batch).forward.flops() + frozen_flops(layer, batch) * (-1.0 / 3);
    previous = &layer;
    sum += block;
  }
  return sum * 3.0;
}
inline Flops model_flops(const ModelSpec& model, std::int64_t global_batch, std::int64_t sequence) {
  cost::ProgramStore programs;
  return model_flops(model, global_batch, sequence, programs);
}

/// What a plan leaves free on each device of a cluster: what it says, or else what its trainer takes.
inline Bytes reserve_of(const Plan& plan, const Cluster& cluster) {
  return min(
      plan.reserve.value_or(cost::reserve_of(plan.trainer.traits, cluster.device.memory, cluster.device.reserve)),
      cluster.device.memory);
}

namespace detail {

/// The devices of a group, as a stage sees them whose ranks are on several.
inline Cluster spread_group(const ClusterView& cluster, const PlanStage& stage, int group) {
  std::map<int, int> ranks;
  for (int i = 0; i < stage.rank_count; ++i) ++ranks[stage.group_of(i)];
  return beside_others(cluster, ranks, group);
}

/// The devices of a plan's stages.
class PlanDevices {
 public:
  PlanDevices(const Plan& plan, const ClusterView& cluster) : plan_(plan), cluster_(cluster) {
    for (std::size_t i = 0; i < plan.stages.size(); ++i)
      for (const int group : plan.stages[i].rank_groups) {
        const auto key = std::pair(static_cast<int>(i), group);
        if (!spread_.contains(key)) spread_.emplace(key, spread_group(cluster, plan.stages[i], group));
      }
  }

  [[nodiscard]] const PlanStage& stage(int number) const { return plan_.stages[static_cast<std::size_t>(number)]; }
  [[nodiscard]] int group(int stage_number) const { return stage(stage_number).group; }
  /// Those of a rank of a stage.
  [[nodiscard]] const Cluster& of(int stage_number, int rank) const {
    const PlanStage& on = stage(stage_number);
    const int group = on.group_of(rank - on.first_rank);
    return on.rank_groups.empty() ? cluster_.group(group) : spread_.at({stage_number, group});
  }
  /// Ranks at work on the group of a rank.
  [[nodiscard]] int ranks_beside(int stage_number, int rank) const {
    const PlanStage& on = stage(stage_number);
    return plan_.ranks_on(on.group_of(rank - on.first_rank));
  }
  /// Between stages on two groups; null where they are on one.
  [[nodiscard]] const Link* link(int a, int b) const {
    return group(a) == group(b) ? nullptr : &cluster_.link(group(a), group(b));
  }
  /// Between the first and the last stage.
  [[nodiscard]] const Link* ends() const { return link(0, static_cast<int>(plan_.stages.size()) - 1); }
  /// What a stage takes to receive the tensor at a border with a stage beside it.
  [[nodiscard]] Seconds receive(const cost::MovePricer& border, const StrategySpec& spec, int stage, int peer) const {
    const Link* between = link(stage, peer);
    return between == nullptr
               ? border.receive(spec)
               : border.receive_over(*between, spec, plan_.stages[static_cast<std::size_t>(peer)].rank_count);
  }

 private:
  const Plan& plan_;
  ClusterView cluster_;
  std::map<std::pair<int, int>, Cluster> spread_;  // by stage and group, of stages on several groups
};

/// Why a plan's stages cannot be on the groups of a cluster; empty when they can.
inline std::string why_no_devices(const Plan& plan, const ClusterView& cluster) {
  for (const int group : plan.groups()) {
    if (group >= cluster.count())
      return "the plan has a stage on group " + std::to_string(group) + " of devices, and " + cluster.name() + " has " +
             (cluster.count() == 1 ? "one group" : std::to_string(cluster.count()) + " groups, from 0") +
             ": name the --cluster that it was made for or make a new plan";
    const int ranks = plan.ranks_on(group);
    if (ranks > cluster.group(group).devices)
      return "the plan needs " + std::to_string(ranks) + " devices and " +
             (cluster.is_mixed() ? cluster.group_name(group) + " of " : "") + cluster.name() + " has " +
             std::to_string(cluster.group(group).devices) + ": give a larger --cluster or make a new plan";
  }
  return {};
}

/// Seconds of an iteration of stages on these devices. Where they are on several groups each keeps its devices and
/// cores to itself.
inline Seconds iteration_seconds(const Plan& plan, const ClusterView& cluster,
                                 std::span<const cost::StageSeconds> seconds) {
  if (plan.mixes_groups())
    return cost::pipeline_seconds(plan.schedule, seconds, plan.microbatches, plan.virtual_stages);
  return cost::iteration_seconds(cluster.group(plan.stages.front().group), plan.schedule, seconds, plan.microbatches,
                                 plan.stage_ranks(), plan.virtual_stages);
}

/// What a layer saves without recomputing.
inline Seconds recompute_seconds(const LayerSpec& layer, const PlanLayerCost& priced, const cost::Batch& batch,
                                 const Cluster& cluster, int ranks, cost::ProgramStore& programs) {
  StrategySpec spec = priced.spec;
  if (spec.recompute == RecomputeKind::cheap || spec.recompute == RecomputeKind::none) return {};
  spec.recompute = RecomputeKind::cheap;
  const cost::LayerSeconds once =
      cost::layer_seconds(programs.layer_counts(layer, spec, batch), spec, batch.precision, cluster, ranks);
  const Seconds computation = priced.seconds.backward - priced.seconds.backward_communication;
  const Seconds more = computation - (once.backward - once.backward_communication);
  return min(max(more, Seconds{}), computation - priced.seconds.weights);
}

/// A chunk of layers on one rank.
struct RankChunkCost {
  std::vector<PlanLayerCost> layers;
  PlanChunkCost chunk;
  cost::StageSeconds seconds;
  Seconds communication;
  cost::StageMemory memory;
  Bytes left;     ///< of the memory of its device
  int group = 0;  ///< of its device
  /// Of an iteration, if it were alone.
  [[nodiscard]] Seconds alone(int microbatches) const {
    return (seconds.forward + seconds.backward) * microbatches + seconds.synchronise + seconds.update;
  }
};

/// The ranks of a stage of which no two do the same in all layers of a chunk: they have other devices, numbers of
/// samples, shares of what tensor and context ranks share, or shards of states.
inline std::vector<int> unlike_ranks(const PlanStage& stage, const train::ChunkPlan& chunk) {
  if (!stage.has_ratios() && stage.rank_groups.empty()) return {stage.first_rank};
  // Equal neighbours have equal counts.
  std::vector<std::size_t> layers;
  for (std::size_t i = 0; i < chunk.layers.size(); ++i)
    if (i == 0 || chunk.layers[i].spec != chunk.layers[i - 1].spec || chunk.layouts[i] != chunk.layouts[i - 1])
      layers.push_back(i);
  std::vector<Sharding> samples;
  for (const std::size_t i : layers) samples.push_back(chunk.layouts[i].samples());
  std::set<std::vector<std::int64_t>> seen;
  std::vector<int> out;
  for (int rank = stage.first_rank; rank < stage.first_rank + stage.rank_count; ++rank) {
    std::vector<std::int64_t> counts{stage.group_of(rank - stage.first_rank)};
    for (std::size_t k = 0; k < layers.size(); ++k) {
      const StrategySpec& spec = chunk.layers[layers[k]].spec;
      const ActivationLayout& layout = chunk.layouts[layers[k]];
      counts.push_back(samples[k].count(layout.place(rank).data));
      if (spec.shard_kind == ShardKind::by_ratio)
        counts.push_back(spec.rank_layout().coordinate(RankMode::tp | RankMode::cp, rank - stage.first_rank));
      const ExchangedSamples exchanged = exchanged_samples(spec, layout, samples[k], rank);
      counts.insert(counts.end(), {exchanged.all, exchanged.most});
    }
    if (!stage.state_ratios.empty()) counts.push_back(rank);
    if (seen.insert(counts).second) out.push_back(rank);
  }
  return out;
}

/// @param stage  of the chunk, by number  @param rank  of the stage
inline RankChunkCost chunk_cost(const Plan& plan, const PlanDevices& devices, int stage, const train::ChunkPlan& own,
                                int rank, cost::ProgramStore& programs) {
  const Cluster& on = devices.of(stage, rank);
  const int ranks = devices.ranks_beside(stage, rank);
  const RankRatios ratios = devices.stage(stage).ratios();
  const cost::Batch whole = batch_of(plan);
  const auto price = [&](const cost::Batch& batch, std::int64_t elements) {
    return cost::MovePricer(batch, elements, on, ranks);
  };
  RankChunkCost out;
  std::vector<cost::LayerBytes> bytes;
  for (std::size_t k = 0; k < own.layers.size(); ++k) {
    const LayerSpec& layer = own.layers[k].layer;
    const StrategySpec& spec = own.layers[k].spec;
    // Equal neighbours are common; counting and pricing are not free.
    const bool again = k > 0 && own.layers[k - 1].spec == spec && layer.kind == LayerKind::block &&
                       own.layers[k - 1].layer.kind == LayerKind::block && own.layers[k - 1].layer.costs_like(layer);
    PlanLayerCost cost;
    cost.spec = spec;
    if (again) {
      cost.seconds = out.layers.back().seconds;
      cost.recompute = out.layers.back().recompute;
      bytes.push_back(bytes.back());
    } else {
      const cost::Batch batch = train::batch_of_rank(whole, ratios, spec, own.layouts[k], rank);
      const cost::LayerCounts counts = programs.layer_counts(layer, spec, batch);
      cost.seconds = cost::layer_seconds(counts, spec, plan.precision, on, ranks, devices.ends());
      cost.seconds.weights =
          cost::deferrable(plan.schedule, cost.seconds.forward, cost.seconds.backward, cost.seconds.weights);
      cost.recompute = recompute_seconds(layer, cost, batch, on, ranks, programs);
      bytes.push_back(counts);
    }
    const cost::LayerBytes& c = bytes.back();
    cost.states = c.states;
    cost.stash = c.stash;
    cost.workspace = max(max(c.forward_workspace, c.activation + c.backward_workspace), c.weights_workspace);
    if (k > 0) {
      const cost::MovePricer border = price(whole, layer.input_elements(whole.sequence));
      const cost::Relayouts moves = cost::relayouts_between(own.layouts[k - 1], own.layouts[k]);
      cost.relayout_forward = border.relayout(moves.forward);
      cost.relayout_backward = border.relayout(moves.back);
    }
    out.layers.push_back(cost);
  }
  const cost::RuntimeTraits& traits = plan.trainer.traits;
  out.memory = train::memory_of(own, bytes, cost::library_of(traits, on.device.library_workspace));
  out.left = on.device.memory - reserve_of(plan, on) - out.memory.total();
  out.group = devices.stage(stage).group_of(rank - devices.stage(stage).first_rank);
  out.chunk.memory = cost::pass_memory(bytes, own.layouts);
  for (const PlanLayerCost& layer : out.layers) {
    out.seconds.forward += layer.forward();
    out.seconds.backward += layer.backward();
    out.seconds.synchronise += layer.seconds.synchronise;
    out.seconds.update += layer.seconds.update;
    out.seconds.weights += layer.seconds.weights;
    out.communication += layer.communication();
  }
  const int count = static_cast<int>(plan.stages.size());
  // From the chunk of virtual stage `place`, in its layout; the stage itself where zb-v turns.
  const auto receive = [&](std::size_t k, std::int64_t elements, int place, const ActivationLayout& from) {
    const cost::Batch batch = train::batch_of_rank(whole, ratios, own.layers[k].spec, own.layouts[k], rank);
    const int peer = stage_of_virtual_stage(plan.schedule, count, place);
    const cost::MovePricer border = price(batch, elements);
    return peer == stage ? border.relayout(cost::relayout_of(from, own.layouts[k]))
                         : devices.receive(border, out.layers[k].spec, stage, peer);
  };
  if (own.has_previous) {
    out.chunk.receive_activation =
        receive(0, own.layers.front().layer.input_elements(whole.sequence), own.place - 1, own.previous);
    out.seconds.forward += out.chunk.receive_activation;
    out.communication += out.chunk.receive_activation;
  }
  if (own.has_next) {
    out.chunk.receive_gradient = receive(out.layers.size() - 1, own.layers.back().layer.output_elements(whole.sequence),
                                         own.place + 1, own.next);
    out.seconds.backward += out.chunk.receive_gradient;
    out.communication += out.chunk.receive_gradient;
  }
  return out;
}

}  // namespace detail

/// The cost of a plan on a cluster. Errors (usage): the plan is inconsistent or does not suit the model, or needs more
/// devices or other groups of them. Errors (infeasible): the devices lack the plan's precision.
/// @param programs  of layers that were priced before; those of this plan join them
template <class = void>
Result<PlanCost> cost_of(const Plan& plan, const ModelSpec& model, const ClusterView& cluster,
                         cost::ProgramStore& programs) {
  if (const std::string why = why_inconsistent(plan); !why.empty()) return usage_error("not a plan: " + why);
  if (const std::string why = why_unfit(plan, model); !why.empty())
    return usage_error("the plan does not suit the model " + model.name + ": " + why);
  if (const std::string why = detail::why_no_devices(plan, cluster); !why.empty()) return usage_error(why);
  for (const int group : plan.groups())
    if (std::string lack = cluster.group(group).lack_of(plan.precision, plan.trainer.traits.fp8_recipe); !lack.empty())
      return tl::unexpected<Error>(Error{ErrorKind::infeasible, std::move(lack)});
  const detail::PlanDevices devices(plan, cluster);
  PlanCost out;
  const int count = static_cast<int>(plan.stages.size());
  const int chunks = plan.virtual_stages;
  out.stages.resize(plan.stages.size());
  for (int i = 0; i < count * chunks; ++i) {
    const train::ChunkPlan own = train::chunk_plan(plan, model, i);
    const int stage = stage_of_virtual_stage(plan.schedule, count, i);
    PlanStageCost& total = out.stages[static_cast<std::size_t>(stage)];
    total.stage = devices.stage(stage);
    if (i < count) total.slots = own.slots;
    std::optional<detail::RankChunkCost> slowest;
    std::optional<detail::RankChunkCost> fullest;
    for (const int rank : detail::unlike_ranks(total.stage, own)) {
      const detail::RankChunkCost here = detail::chunk_cost(plan, devices, stage, own, rank, programs);
      if (!fullest || here.left < fullest->left) fullest = here;
      if (!slowest || slowest->alone(plan.microbatches) < here.alone(plan.microbatches)) slowest = here;
    }
    total.memory.add_chunk(fullest->memory);
    total.group = fullest->group;
    slowest->chunk.first = static_cast<int>(out.layers.size());
    out.layers.insert(out.layers.end(), slowest->layers.begin(), slowest->layers.end());
    slowest->chunk.end = static_cast<int>(out.layers.size());
    total.seconds.forward += slowest->seconds.forward;
    total.seconds.backward += slowest->seconds.backward;
    total.seconds.synchronise += slowest->seconds.synchronise;
    total.seconds.update += slowest->seconds.update;
    total.seconds.weights += slowest->seconds.weights;
    total.communication += slowest->communication;
    total.chunks.push_back(slowest->chunk);
  }

  std::vector<cost::StageSeconds> seconds;
  for (const PlanStageCost& stage : out.stages) seconds.push_back(stage.seconds);
  out.iteration = detail::iteration_seconds(plan, cluster, seconds);
  out.samples_per_second = static_cast<double>(plan.global_batch) / out.iteration.value;
  out.tokens_per_second = static_cast<double>(plan.sequences() * plan.sequence_length) / out.iteration.value;
  double peak = 0;
  for (const int group : plan.groups()) peak += cluster.group(group).peak_flops(plan.precision) * plan.ranks_on(group);
  if (peak > 0)
    out.mfu = model_flops(model, plan.sequences(), plan.sequence_length, programs).count / (out.iteration.value * peak);

  const auto slowest = std::max_element(out.stages.begin(), out.stages.end(), [](const auto& a, const auto& b) {
    return a.seconds.forward + a.seconds.backward < b.seconds.forward + b.seconds.backward;
  });
  const double m = plan.microbatches;
  out.communication = slowest->communication * m;
  out.compute = (slowest->seconds.forward + slowest->seconds.backward) * m - out.communication;
  out.update = slowest->seconds.synchronise + slowest->seconds.update;
  out.idle = max(Seconds{}, out.iteration - out.compute - out.communication - out.update);
  return out;
}
GALVATRON_IN_PLANNER(Result<PlanCost> cost_of<>(const Plan&, const ModelSpec&, const ClusterView&, cost::ProgramStore&))

/// The same of one plan.
inline Result<PlanCost> cost_of(const Plan& plan, const ModelSpec& model, const ClusterView& cluster) {
  cost::ProgramStore programs;
  return cost_of(plan, model, cluster, programs);
}

/// The groups of a stage's devices in words: "group 0 (8xv100-32g) and group 1 (8xp100-16g)".
inline std::string devices_text(const PlanStage& stage, const ClusterView& cluster) {
  std::set<int> groups;
  for (int i = 0; i < (stage.rank_groups.empty() ? 1 : stage.rank_count); ++i) groups.insert(stage.group_of(i));
  return joined(groups, ", ", [&](int group) { return cluster.group_name(group); }, " and ");
}

/// What the devices of a group may take of their memory: the planner's budget if the plan says it, at most all that
/// they have but for the reserve.
inline Bytes budget_of(const Plan& plan, const ClusterView& cluster, int group) {
  const Bytes all = cluster.group(group).device.memory - reserve_of(plan, cluster.group(group));
  return plan.predicted.budget.count > 0 ? min(plan.predicted.budget, all) : all;
}
/// The stage that has the least left of its budget, or lacks most.
inline std::size_t fullest_stage(const Plan& plan, const PlanCost& cost, const ClusterView& cluster) {
  const auto left = [&](const PlanStageCost& stage) {
    return budget_of(plan, cluster, stage.group).count - stage.peak().count;
  };
  const auto least = std::ranges::min_element(cost.stages, {}, left);
  return static_cast<std::size_t>(least - cost.stages.begin());
}

/// Why a plan with this peak does not fit, as a part of a sentence; empty when it fits.
inline std::string why_too_large(Bytes peak, Bytes budget) {
  if (peak <= budget) return {};
  return "the plan takes " + std::to_string(peak.count) + " bytes (" + format_bytes(peak) +
         ") on its fullest device, and the budget is " + format_bytes(budget) + " on each";
}

/// The same of a plan that is priced.
inline std::string why_too_large(const Plan& plan, const PlanCost& cost, const ClusterView& cluster) {
  const PlanStageCost& stage = cost.stages[fullest_stage(plan, cost, cluster)];
  std::string why = why_too_large(stage.peak(), budget_of(plan, cluster, stage.group));
  if (!why.empty() && cluster.is_mixed()) why += " of " + cluster.group_name(stage.group);
  return why;
}

/// Why an MFU above 1 is shown, as a clause to stand beside it; empty for one that can be. The peak is the cluster's
/// rate, so more than all of it says that the rate is too low: that of a profile that was disturbed, mostly.
inline std::string why_impossible_mfu(double mfu) {
  return mfu > 1
             ? "more than the devices can do: the cluster's rates are too low, so profile again when nothing else runs"
             : "";
}

}  // namespace galvatron
