// Plans whose layers are halves of blocks: the model that they speak of, and the plan of whole blocks that they stand
// for, if there is one.
#pragma once

#include <cstddef>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/model/split.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

/// The model as this plan divides it into layers. Errors (usage): see split_layers.
inline Result<ModelSpec> model_of(const Plan& plan, const ModelSpec& model) {
  if (plan.split_layers) return split_layers(model);
  return model;
}

/// The plan with a layer for each block. Errors (usage): halves of a block that differ in strategy or stage.
inline Result<Plan> joined(const Plan& plan) {
  if (!plan.split_layers) return plan;
  Plan out = plan;
  out.split_layers = false;
  out.layers.clear();
  const auto refuse = [](const std::string& why) {
    return usage_error("the plan has attention and MLP as layers of their own, and " + why +
                       ": only `galvatron cost` and `explain` know what to do with it; plan without --split-layers");
  };
  if (plan.layers.size() % 2 != 0) return refuse("an odd number of them");
  for (std::size_t i = 0; i < plan.layers.size(); i += 2) {
    if (!(plan.layers[i] == plan.layers[i + 1]))
      return refuse("those of block " + std::to_string(i / 2) + " have different strategies");
    out.layers.push_back(plan.layers[i]);
  }
  for (PlanStage& stage : out.stages) {
    if (stage.first_layer % 2 != 0)
      return refuse("a stage begins inside block " + std::to_string(stage.first_layer / 2));
    stage.first_layer /= 2;
    stage.last_layer /= 2;
  }
  if (const std::string why = why_inconsistent(out); !why.empty()) return refuse(why);
  out.predicted = {};
  return out;
}

}  // namespace galvatron
