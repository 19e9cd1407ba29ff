// What an export gives, and what all exports need: a plan's layers in words, and one strategy where a target has only
// one for the whole model.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// A trainer that plans are exported to, by the space of the plans that it can be told (parse_space): arguments of
/// Megatron-LM, a job file of torchtitan, a configuration of DeepSpeed, a plan of Hetu-Galvatron.
using ExportTarget = OneForAll;
inline constexpr std::array export_targets{ExportTarget::megatron, ExportTarget::torchtitan, ExportTarget::deepspeed,
                                           ExportTarget::hetu};

/// A plan in the words of another trainer, and what those words leave out. Sentences have no line breaks.
struct Exported {
  std::string text;
  std::vector<std::string> not_expressed;  ///< what the target cannot do, and what the text says instead
  std::vector<std::string> set_elsewhere;  ///< what the target can do, but is told in another place than this text
  /// What the target runs when it is given the text and what is set elsewhere, written together with the text. Where
  /// it has no such strategy, one that takes no less memory. Nothing where the target runs the plan itself.
  std::optional<Plan> job;

  void lacks(std::string sentence) { not_expressed.push_back(std::move(sentence)); }
  void elsewhere(std::string sentence) { set_elsewhere.push_back(std::move(sentence)); }
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

/// The layers whose strategy has a property.
template <class Has>
std::vector<int> layers_where(const Plan& plan, Has has) {
  std::vector<int> out;
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (has(plan.layers[i])) out.push_back(static_cast<int>(i));
  return out;
}

/// Layers by what `of` makes of their strategy: `tp2 (layers 0-3), tp4 (layers 4-7)`, in the order of first use.
template <class Of>
std::vector<std::pair<std::string, std::vector<int>>> layers_by(const Plan& plan, Of of) {
  std::vector<std::pair<std::string, std::vector<int>>> out;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const std::string value = of(plan.layers[i]);
    auto at = std::ranges::find_if(out, [&](const auto& seen) { return seen.first == value; });
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

/// What a target is to recompute, but for what norms and activations give: see tell_outputs.
inline RecomputeKind recomputed(const StrategySpec& spec) {
  return spec.recompute == RecomputeKind::cheap ? RecomputeKind::none : spec.recompute;
}

/// The kind of layers that keep what norms and activations give, as all targets do, in plans of this trainer.
inline RecomputeKind kept_outputs(const Plan& plan) {
  return cost::traits_of(plan.trainer).passes.keeps_outputs ? RecomputeKind::cheap : RecomputeKind::none;
}

/// What a target that keeps those outputs runs for a layer that recomputes `kind` otherwise. Of the attention core
/// alone that is more memory than it takes where the plan's trainer has no such kind.
inline RecomputeKind kept_but(const Plan& plan, RecomputeKind kind) {
  if (kind == RecomputeKind::full) return kind;
  const RecomputeKind outputs = kept_outputs(plan);
  return kind == RecomputeKind::selective && outputs == RecomputeKind::cheap ? kind : outputs;
}

/// Layers that compute again what norms and activations give, which is cheap and saves memory.
inline std::vector<int> layers_without_outputs(const Plan& plan) {
  if (cost::traits_of(plan.trainer).passes.keeps_outputs) return {};
  return layers_where(plan, [](const StrategySpec& s) {
    return s.recompute == RecomputeKind::cheap || s.recompute == RecomputeKind::selective;
  });
}

/// Told by all targets: they keep what norms and activations give.
inline void tell_outputs(const Plan& plan, const std::string& target, Exported& out, const std::string& but = "") {
  const std::vector<int> layers = layers_without_outputs(plan);
  if (layers.empty()) return;
  out.lacks("the outputs of norms and activations are recomputed in " + layers_text(layers) + ": " + target +
            " keeps them, which takes more memory" + but);
}

/// The degrees and the sequence split of a strategy.
inline StrategySpec degrees_of(StrategySpec spec) {
  spec.strided = false;
  spec.zero = 0;
  spec.expert = 1;
  spec.recompute = RecomputeKind::cheap;
  return spec;
}

/// Gives all layers of a job `spec`; the blocks keep their own recomputation.
inline void give_all(Plan& job, StrategySpec spec) {
  for (StrategySpec& layer : job.layers) {
    spec.recompute = layer.recompute;
    layer = spec;
  }
  spec.recompute = kept_outputs(job);
  job.embedding = job.head = spec;
}

/// The strategy for a target that has one for the whole model: degrees and sequence split of most layers, the highest
/// ZeRO stage and expert degree of any layer, so that no rank keeps more states than planned. What differs from it is
/// told in `out.not_expressed`; `out.job` has it in all layers. Recomputation is left to the target.
/// @param either_context  the target chooses between Ulysses and ring attention in each layer
inline StrategySpec one_for_all(const Plan& plan, const std::string& target, Exported& out,
                                bool either_context = false) {
  const auto same = [&](StrategySpec a, StrategySpec b) {
    for (StrategySpec* spec : {&a, &b})
      if (either_context && spec->sequence == SequenceKind::ring) spec->sequence = SequenceKind::ulysses;
    return a == b;
  };
  std::vector<std::pair<StrategySpec, std::vector<int>>> degrees;  // that differ, and their layers
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const StrategySpec own = degrees_of(plan.layers[i]);
    auto at = std::ranges::find_if(degrees, [&](const auto& seen) { return same(seen.first, own); });
    if (at == degrees.end()) at = degrees.insert(at, {own, {}});
    at->second.push_back(static_cast<int>(i));
  }
  StrategySpec common = std::max_element(degrees.begin(), degrees.end(), [](const auto& a, const auto& b) {
                          return a.second.size() < b.second.size();
                        })->first;
  if (degrees.size() > 1) {
    std::vector<std::pair<std::string, std::vector<int>>> groups;
    for (const auto& [spec, layers] : degrees) {
      std::string text = strategy_text(spec);
      for (const int layer : layers)  // of both kinds of context parallelism
        if (const std::string other = strategy_text(degrees_of(plan.layers[static_cast<std::size_t>(layer)]));
            text.find(other) == std::string::npos)
          text += " or " + other;
      groups.emplace_back(text, layers);
    }
    out.lacks("the degrees differ from layer to layer, " + by_layer_text(groups) + ": " + target +
              " has one set for all, and that of most layers is written, " + strategy_text(common));
  }
  for (const StrategySpec& layer : plan.layers) {
    if (common.shards() > 1) common.zero = std::max(common.zero, layer.zero);
    common.expert = std::max(common.expert, layer.expert);
  }
  // A layer without data or context ranks has nothing to shard.
  auto stages = layers_by(
      plan, [](const StrategySpec& s) { return s.shards() > 1 ? "ZeRO " + std::to_string(s.zero) : std::string(); });
  std::erase_if(stages, [](const auto& group) { return group.first.empty(); });
  const auto tell = [&](const std::string& what, const auto& groups, int written) {
    if (groups.size() > 1)
      out.lacks("the " + what + " differs from layer to layer, " + by_layer_text(groups) + ": " + target +
                " has one for all, and " + std::to_string(written) + " is written");
  };
  tell("ZeRO stage", stages, common.zero);
  tell("expert degree", layers_by(plan, [](const StrategySpec& s) { return "ep" + std::to_string(s.expert); }),
       common.expert);
  if (const auto strided = layers_where(plan, [](const StrategySpec& s) { return s.strided; }); !strided.empty())
    out.lacks(layers_text(strided) + ": tensor-parallel ranks lie around data-parallel ones: " + target +
              " makes them neighbours");
  // An embedding and a head have no experts, and nothing of theirs is computed again.
  const auto end = [&](const std::string& name, StrategySpec spec) {
    spec.expert = common.expert;
    spec.recompute = RecomputeKind::cheap;
    if (same(spec, common)) return;
    out.lacks("the " + name + " has a strategy of its own, " + strategy_text(spec) + ": " + target +
              " gives it that of the layers");
  };
  end("embedding", plan.embedding);
  end("head", plan.head);
  out.job = plan;
  out.job->predicted = {};
  out.job->predicted.budget = plan.predicted.budget;
  give_all(*out.job, common);
  return common;
}

/// Told by targets that have no word for the format of the optimizer's moments.
inline void tell_moments(const Plan& plan, const std::string& target, Exported& out) {
  if (out.job) out.job->moments = Precision::fp32;
  if (plan.moments != Precision::fp32)
    out.lacks("moments of the optimizer in " + std::string(name_of(plan.moments)) + ": " + target +
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
         counted(plan.ranks(), "rank") + ", batch of " + std::to_string(plan.global_batch) + " x " +
         std::to_string(plan.sequence_length) + " tokens, " + name_of(plan.precision);
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
