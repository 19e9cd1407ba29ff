// TaskCosts: what the layers of a plan's parts do and keep, and what a rank needs of memory for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::train {

/// Counts of layers of multi-task models. Each is computed once for as long as this lives: a search prices the same
/// layers in thousands of parts.
class LayerCosts {
 public:
  explicit LayerCosts(Precision precision) : precision_(precision) {}
  LayerCosts(const LayerCosts&) = delete;
  LayerCosts& operator=(const LayerCosts&) = delete;

  [[nodiscard]] Precision precision() const { return precision_; }
  /// What a rank does and keeps for a layer of a part. The reference stays valid.
  /// @param batch  samples of a micro-batch over all data ranks  @param tokens  of a sample
  const cost::LayerCounts& operator()(const LayerSpec& layer, const StrategySpec& spec, std::int64_t batch,
                                      std::int64_t tokens) {
    const Key key{layer, spec, batch, tokens};
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    const cost::Batch own{
        .microbatch = batch, .sequence = tokens, .precision = precision_, .stages = 2, .overlap = false};
    return known_.emplace(key, programs_.layer_counts(layer, spec, own)).first->second;
  }

 private:
  struct Key {
    LayerSpec layer;
    StrategySpec spec;
    std::int64_t batch, tokens;
    friend bool operator==(const Key&, const Key&) = default;
  };
  // Of what usually differs.
  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::size_t out = 0;
      for (const std::int64_t number :
           {static_cast<std::int64_t>(key.layer.kind), key.layer.hidden, key.layer.ffn, key.layer.vocabulary,
            key.layer.memory.part, static_cast<std::int64_t>(key.spec.tensor),
            static_cast<std::int64_t>(key.spec.sequence), static_cast<std::int64_t>(key.spec.data),
            static_cast<std::int64_t>(key.spec.zero), static_cast<std::int64_t>(key.spec.recompute), key.batch,
            key.tokens})
        out = (out ^ static_cast<std::size_t>(number)) * 0x9e3779b97f4a7c15U + (out >> 29);
      return out;
    }
  };

  Precision precision_;
  cost::ProgramStore programs_;
  std::unordered_map<Key, cost::LayerCounts, Hash> known_;
};

/// Counts of all layers of a plan.
struct TaskCosts {
  std::vector<std::vector<const cost::LayerCounts*>> passes;  ///< of the layers of each part
  /// Of each layer of the model: the states on each rank that keeps it, and what is done to them once a step.
  std::vector<const cost::LayerCounts*> parameters;

  /// @param layers  outlives this
  TaskCosts(const TaskPlan& plan, LayerCosts& layers) {
    passes.reserve(plan.parts.size());
    for (const PartPlan& part : plan.parts) {
      auto& own = passes.emplace_back();
      own.reserve(part.layers.size());
      for (std::size_t i = 0; i < part.layers.size(); ++i) {
        const int zero = zero_of(plan, part, i);
        if (i > 0 && zero == zero_of(plan, part, i - 1) && part.layers[i] == part.layers[i - 1]) {
          own.push_back(own.back());
          continue;
        }
        StrategySpec spec = part.where.strategy;
        spec.zero = zero;
        own.push_back(&layers(part.layers[i], spec, part.batch, part.tokens));
      }
    }
    parameters.reserve(plan.layers.size());
    for (std::size_t i = 0; i < plan.layers.size(); ++i) {
      const StrategySpec& spec = plan.places[i].strategy;
      const bool repeats = i > 0 && spec == plan.places[i - 1].strategy && plan.layers[i] == plan.layers[i - 1];
      parameters.push_back(repeats ? parameters.back()
                                   : &layers(plan.layers[i], spec, spec.data, plan.layers[i].positions));
    }
  }

 private:
  static int zero_of(const TaskPlan& plan, const PartPlan& part, std::size_t i) {
    return plan.places[static_cast<std::size_t>(part.number) + i].strategy.zero;
  }
};

/// What whole parameters and gradients of a part's layer `i` take more in the workspace (ZeRO-2/3) where the ranks of
/// all its parts pad them further than the part's own.
inline Bytes padding_of(const TaskPlan& plan, const PartPlan& part, std::size_t i, Precision precision) {
  const StrategySpec& all = plan.places[static_cast<std::size_t>(part.number) + i].strategy;
  Bytes out;
  if (all.zero < 2) return out;
  for (const ParameterPart parameters : parameter_parts) {
    const auto elements = [&](int data) {
      return parameter_layout(part.layers[i], parameters, all.tensor, data).elements;
    };
    const std::int64_t more = std::max<std::int64_t>(elements(all.data) - elements(part.where.strategy.data), 0);
    out += region_bytes(more, element_bytes(precision)) + region_bytes(more, sizeof(float));
  }
  return out;
}

/// The memory of a rank. The workspace is for the largest pass of a part; backward passes have the gradients at the
/// part's borders beside what its layers take.
/// @param costs    of the plan
/// @param library  the device's library workspace
inline cost::StageMemory memory_of(const TaskPlan& plan, const TaskCosts& costs, Precision precision, int rank,
                                   Bytes library) {
  const std::int64_t e = element_bytes(precision);
  cost::StageMemory out;
  out.library = library;
  out.states = region_bytes(static_cast<std::int64_t>(plan.model.tasks.size()), sizeof(double));
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.places[i].holds(rank)) out.states += costs.parameters[i]->states;
  std::vector<Bytes> stash(plan.model.tasks.size());
  for (std::size_t p = 0; p < plan.parts.size(); ++p) {
    const PartPlan& part = plan.parts[p];
    const auto& passes = costs.passes[p];
    const auto found = std::ranges::find(part.where.ranks, rank);
    if (found == part.where.ranks.end()) {
      for (std::size_t i = 0; i < part.layers.size(); ++i)
        if (plan.assists(part, i, rank))
          out.workspace = max(out.workspace, max(passes[i]->forward_workspace, passes[i]->backward_workspace) +
                                                 padding_of(plan, part, i, precision));
      continue;
    }
    const auto local = static_cast<int>(found - part.where.ranks.begin());
    Bytes kept;  // of a slot
    kept += region_bytes(part.elements(local, part.output()), e);
    Bytes forward, backward;
    for (std::size_t i = 0; i < part.layers.size(); ++i) {
      const Bytes padding = padding_of(plan, part, i, precision);
      kept += passes[i]->stash;
      forward = max(forward, passes[i]->forward_workspace + padding);
      backward = max(backward, passes[i]->backward_workspace + padding);
    }
    for (const int edge : part.reads)
      if (plan.edge(edge).memory) kept += region_bytes(plan.edge(edge).elements(part, local), e);
    stash[static_cast<std::size_t>(part.where.task)] += kept * part.slots;
    if (part.feeds.size() > 1) backward = max(backward, region_bytes(part.elements(local, part.output()), e));
    out.workspace = max(out.workspace, max(forward, backward + region_bytes(part.border(local), e)));
  }
  for (const Bytes& of_task : stash)
    out.stash = plan.order == TaskOrder::in_sequence ? max(out.stash, of_task) : out.stash + of_task;
  return out;
}
inline cost::StageMemory memory_of(const TaskPlan& plan, Precision precision, int rank, Bytes library) {
  LayerCosts layers(precision);
  return memory_of(plan, TaskCosts(plan, layers), precision, rank, library);
}

}  // namespace galvatron::train
