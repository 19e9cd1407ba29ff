// What an export gives, and what all exports need: a plan's layers in words, and one strategy where a target has only
// one for the whole model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/spec.hpp>
#include <galvatron/strategy/text.hpp>

namespace galvatron {

/// A plan in the words of another trainer, and what those words leave out. Sentences have no line breaks.
struct Exported {
  std::string text;
  std::vector<std::string> not_expressed;  ///< what the target cannot do, and what the text says instead
  std::vector<std::string> set_elsewhere;  ///< what the target can do, but is told in another place than this text
};

namespace detail {

/// `layers 0-3 and 8`; the numbers ascend.
inline std::string layers_text(const std::vector<int>& layers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    parts.push_back(std::to_string(layers[i]) + (end > i + 1 ? "-" + std::to_string(layers[end - 1]) : ""));
    i = end;
  }
  std::string out = layers.size() == 1 ? "layer " : "layers ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    out += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return out;
}

/// Layers by what `of` makes of their strategy: `tp2 (layers 0-3), tp4 (layers 4-7)`, in the order of first use.
template <class Of>
std::vector<std::pair<std::string, std::vector<int>>> layers_by(const Plan& plan, Of of) {
  std::vector<std::pair<std::string, std::vector<int>>> out;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const std::string value = of(plan.layers[i]);
    auto at = std::find_if(out.begin(), out.end(), [&](const auto& seen) { return seen.first == value; });
    if (at == out.end()) at = out.insert(out.end(), {value, {}});
    at->second.push_back(static_cast<int>(i));
  }
  return out;
}
inline std::string by_layer_text(const std::vector<std::pair<std::string, std::vector<int>>>& groups) {
  std::string out;
  for (const auto& [value, layers] : groups)
    out += (out.empty() ? "" : ", ") + value + " (" + layers_text(layers) + ")";
  return out;
}

/// What a target is to compute again. All of them keep what norms and activations give unless they are told otherwise,
/// so that `never` is what they do when nothing is said.
inline RecomputeKind recomputed(const StrategySpec& spec) {
  return spec.recompute == RecomputeKind::never ? RecomputeKind::none : spec.recompute;
}

/// The degrees and the sequence split of a strategy.
inline StrategySpec degrees_of(StrategySpec spec) {
  spec.strided = false;
  spec.zero = 0;
  spec.expert = 1;
  spec.recompute = RecomputeKind::none;
  return spec;
}

/// The strategy for a target that has one for the whole model: degrees and sequence split of most layers, the highest
/// ZeRO stage and expert degree of any layer, so that no rank keeps more states than planned. What differs from it is
/// told in `out.not_expressed`. Recomputation is left to the target.
inline StrategySpec one_for_all(const Plan& plan, const std::string& target, Exported& out) {
  StrategySpec common = degrees_of(plan.layers.front());
  std::ptrdiff_t most = 0;
  for (const StrategySpec& layer : plan.layers) {
    const StrategySpec degrees = degrees_of(layer);
    const auto n = std::count_if(plan.layers.begin(), plan.layers.end(),
                                 [&](const StrategySpec& other) { return degrees_of(other) == degrees; });
    if (n > most) common = degrees, most = n;
  }
  const auto groups = layers_by(plan, [](const StrategySpec& s) { return strategy_text(degrees_of(s)); });
  if (groups.size() > 1)
    out.not_expressed.push_back("the degrees differ from layer to layer, " + by_layer_text(groups) + ": " + target +
                                " has one set for all, and that of most layers is written, " + strategy_text(common));
  for (const StrategySpec& layer : plan.layers) {
    if (common.data > 1) common.zero = std::max(common.zero, layer.zero);
    common.expert = std::max(common.expert, layer.expert);
  }
  // A layer without data ranks has nothing to shard.
  auto stages = layers_by(
      plan, [](const StrategySpec& s) { return s.data > 1 ? "ZeRO " + std::to_string(s.zero) : std::string(); });
  std::erase_if(stages, [](const auto& group) { return group.first.empty(); });
  if (stages.size() > 1)
    out.not_expressed.push_back("the ZeRO stage differs from layer to layer, " + by_layer_text(stages) + ": " + target +
                                " has one for all, and " + std::to_string(common.zero) + " is written");
  const auto experts = layers_by(plan, [](const StrategySpec& s) { return "ep" + std::to_string(s.expert); });
  if (experts.size() > 1)
    out.not_expressed.push_back("the expert degree differs from layer to layer, " + by_layer_text(experts) + ": " +
                                target + " has one for all, and " + std::to_string(common.expert) + " is written");
  std::vector<int> strided;
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.layers[i].strided) strided.push_back(static_cast<int>(i));
  if (!strided.empty())
    out.not_expressed.push_back(layers_text(strided) + ": tensor-parallel ranks lie around data-parallel ones: " +
                                target + " makes them neighbours");
  // An embedding and a head have no experts, and nothing of theirs is computed again.
  const auto end = [&](const std::string& name, StrategySpec spec) {
    spec.expert = common.expert;
    spec.recompute = RecomputeKind::none;
    if (spec == common) return;
    out.not_expressed.push_back("the " + name + " has a strategy of its own, " + strategy_text(spec) + ": " + target +
                                " gives it that of the layers");
  };
  end("embedding", plan.embedding);
  end("head", plan.head);
  return common;
}

/// Told by targets that shard states over data and context ranks together.
inline void tell_wider_sharding(const StrategySpec& spec, const std::string& target, Exported& out) {
  if (spec.context > 1 && spec.zero > 0)
    out.not_expressed.push_back("ZeRO shards over the " + std::to_string(spec.data) +
                                " data ranks in the plan: " + target +
                                " shards over data and context ranks together, " + std::to_string(spec.shards()));
}

/// Told by targets that have no word for the format of the optimizer's moments.
inline void tell_moments(const Plan& plan, const std::string& target, Exported& out) {
  if (plan.moments != Precision::fp32)
    out.not_expressed.push_back("moments of the optimizer in " + std::string(name_of(plan.moments)) + ": " + target +
                                " keeps them in fp32, which takes 4 bytes a parameter more");
}

/// The layers of each chunk of a pipeline, in the order of the model: chunk c * P + p is the c-th of stage p. Without
/// virtual stages chunks are stages.
inline std::vector<int> chunk_sizes(const Plan& plan) {
  std::vector<int> out;
  for (int i = 0; i < static_cast<int>(plan.stages.size()) * plan.virtual_stages; ++i) {
    const LayerRange range = virtual_stage_layers(plan, i);
    out.push_back(range.last - range.first + 1);
  }
  return out;
}

/// `a plan for gpt2-tiny on host: 4 ranks, batch of 16 x 64 tokens, fp32`.
inline std::string export_title(const Plan& plan) {
  return "a plan for " + one_line(plan.model, 80) + " on " + one_line(plan.cluster, 80) + ": " +
         std::to_string(plan.ranks()) + (plan.ranks() == 1 ? " rank" : " ranks") + ", batch of " +
         std::to_string(plan.global_batch) + " x " + std::to_string(plan.sequence_length) + " tokens, " +
         name_of(plan.precision);
}

/// What the text leaves out, as comment lines that begin with `mark`.
inline std::string export_comments(const Exported& exported, const std::string& mark) {
  std::string out;
  const auto list = [&](const char* headline, const std::vector<std::string>& sentences) {
    if (sentences.empty()) return;
    out += mark + " " + headline + "\n";
    for (const std::string& sentence : sentences) out += mark + "   - " + sentence + ".\n";
  };
  list("Not expressed:", exported.not_expressed);
  list("To be set elsewhere:", exported.set_elsewhere);
  return out;
}

}  // namespace detail

}  // namespace galvatron
