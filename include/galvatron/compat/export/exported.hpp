// What an export gives, and what all need: a plan's layers in words, and one strategy for targets that have only one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// A trainer that plans are exported to, by the space of the plans that it can be told (parse_space): arguments of
/// Megatron-LM, a configuration of torchtitan, DeepSpeed or Accelerate, a plan of Hetu-Galvatron.
using ExportTarget = OneForAll;
inline constexpr std::array export_targets{ExportTarget::megatron, ExportTarget::torchtitan, ExportTarget::deepspeed,
                                           ExportTarget::accelerate, ExportTarget::hetu};

/// A plan in the words of another trainer, and what those words leave out. Sentences have no line breaks.
struct Exported {
  std::string text;
  std::vector<std::string> not_expressed;  ///< what the target cannot do, and what the text says instead
  std::vector<std::string> set_elsewhere;  ///< what the target can do, but is told in another place than this text
  /// What the target runs when it is given the text and what is set elsewhere, written together with the text. Where
  /// it has no such strategy, one that takes no less memory. Nothing where the target runs the plan itself.
  std::optional<Plan> job;

  template <class... Parts>
  void lacks(const Parts&... sentence) {
    not_expressed.push_back(text_of(sentence...));
  }
  template <class... Parts>
  void elsewhere(const Parts&... sentence) {
    set_elsewhere.push_back(text_of(sentence...));
  }
};

namespace detail {

/// `layers 0-3 and 8`; the numbers ascend.
inline std::string layers_text(const std::vector<int>& layers) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < layers.size();) {
    const std::size_t first = i++;
    while (i < layers.size() && layers[i] == layers[i - 1] + 1) ++i;
    runs.push_back(text_of(layers[first], i > first + 1 ? text_of("-", layers[i - 1]) : ""));
  }
  return (layers.size() == 1 ? "layer " : "layers ") + joined(runs, ", ", std::identity{}, " and ");
}

/// The layers whose strategy has a property.
template <class Has>
std::vector<int> layers_where(const Plan& plan, Has has) {
  std::vector<int> out;
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (has(plan.layers[i])) out.push_back(static_cast<int>(i));
  return out;
}

/// Layers by what `of` makes of their strategy, in the order of first use.
template <class Of, class Same = std::equal_to<>>
auto layers_by(const Plan& plan, Of of, Same same = {}) {
  std::vector<std::pair<decltype(of(plan.embedding)), std::vector<int>>> out;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const auto value = of(plan.layers[i]);
    auto at = std::ranges::find_if(out, [&](const auto& seen) { return same(seen.first, value); });
    if (at == out.end()) at = out.insert(out.end(), {value, {}});
    at->second.push_back(static_cast<int>(i));
  }
  return out;
}
/// `tp2 (layers 0-3), tp4 (layers 4-7)`.
inline std::string by_layer_text(const std::vector<std::pair<std::string, std::vector<int>>>& groups) {
  return joined(groups, ", ",
                [](const auto& group) { return text_of(group.first, " (", layers_text(group.second), ")"); });
}

/// What a target is to recompute, but for what norms and activations give: see tell_outputs.
inline RecomputeKind recomputed(const StrategySpec& spec) {
  return spec.recompute == RecomputeKind::cheap ? RecomputeKind::none : spec.recompute;
}

/// The kind of layers that keep what norms and activations give, as all targets do, in plans of this trainer.
inline RecomputeKind kept_outputs(const Plan& plan) {
  return plan.trainer.traits.passes.keeps_outputs ? RecomputeKind::cheap : RecomputeKind::none;
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
  if (kept_outputs(plan) == RecomputeKind::cheap) return {};
  return layers_where(plan, [](const StrategySpec& s) {
    return s.recompute == RecomputeKind::cheap || s.recompute == RecomputeKind::selective;
  });
}

/// Told by all targets: their samples have one length, they keep what norms and activations give, and send all tokens
/// to experts, to each directly.
inline void tell_outputs(const Plan& plan, const std::string& target, Exported& out, const std::string& but = "") {
  if (plan.packed)
    out.lacks("documents are packed into sequences of at most ", plan.sequence_length, " tokens: ", target,
              " gets samples of that length");
  if (const auto lsh = layers_where(plan, [](const StrategySpec& s) { return s.compresses_tokens(); }); !lsh.empty())
    out.lacks("means of tokens go to experts in ", layers_text(lsh), ": ", target, " sends the tokens");
  if (const auto by_nodes = layers_where(plan, [](const StrategySpec& s) { return s.relays_tokens(); });
      !by_nodes.empty())
    out.lacks("a token goes once to each node with experts of it in ", layers_text(by_nodes), ": ", target,
              " sends it to each expert");
  const std::vector<int> layers = layers_without_outputs(plan);
  if (layers.empty()) return;
  out.lacks("the outputs of norms and activations are recomputed in ", layers_text(layers), ": ", target,
            " keeps them, which takes more memory", but);
}

/// The degrees and the sequence split of a strategy.
inline StrategySpec degrees_of(StrategySpec spec) {
  spec = spec.without_experts();
  spec.strided = false;
  spec.zero = 0;
  spec.dispatch = DispatchKind::plain;
  spec.recompute = RecomputeKind::cheap;
  return spec;
}

/// Whether a layer has experts, as far as is known: without a model every layer may have some.
/// @param model  may be null
inline bool may_have_experts(const ModelSpec* model, const Plan& plan, std::size_t layer) {
  return model == nullptr || model->blocks.size() != plan.layers.size() || model->blocks[layer].experts > 0;
}

/// Gives all layers of a job `spec`, its expert degrees those with experts; the blocks keep their own recomputation.
inline void give_all(Plan& job, StrategySpec spec, const ModelSpec* model) {
  for (std::size_t i = 0; i < job.layers.size(); ++i) {
    spec.recompute = job.layers[i].recompute;
    job.layers[i] = may_have_experts(model, job, i) ? spec : spec.without_experts();
  }
  spec.recompute = kept_outputs(job);
  job.embedding = job.head = spec.without_experts();
}

/// `ep8`, or `ep8 etp1` where the ranks that share an expert are not the tensor ranks.
inline std::string expert_text(const StrategySpec& spec) {
  return text_of("ep", spec.expert, spec.etp() != spec.tensor ? text_of(" etp", spec.etp()) : "");
}

/// Gives `common` the expert degrees of the layers that share their experts among the most ranks, and tells where
/// other layers with experts have others.
inline void experts_for_all(const Plan& plan, const std::string& target, const ModelSpec* model, StrategySpec& common,
                            Exported& out) {
  const StrategySpec* most = nullptr;
  for (const StrategySpec& layer : plan.layers)
    if (layer.exchanges_tokens() && (most == nullptr || layer.exchange_ranks() > most->exchange_ranks())) most = &layer;
  if (most == nullptr) return;
  common.expert = most->expert;
  common.expert_tensor = most->etp() == common.tensor ? 0 : most->etp();
  auto groups = layers_by(plan, expert_text);
  for (auto& group : groups)
    std::erase_if(group.second,
                  [&](int layer) { return !may_have_experts(model, plan, static_cast<std::size_t>(layer)); });
  std::erase_if(groups, [](const auto& group) { return group.second.empty(); });
  if (groups.size() > 1)
    out.lacks("the expert degrees differ from layer to layer, ", by_layer_text(groups), ": ", target,
              " has one set for all, and ", expert_text(common), " is written");
}

/// The strategy for a target that has one for the whole model: degrees and sequence split of most layers, the highest
/// ZeRO stage and expert degrees of any layer, so that no rank keeps more states than planned. What differs from it is
/// told in `out.not_expressed`; `out.job` has it in all layers. Recomputation is left to the target.
/// @param model           what the plan is for, if known
/// @param either_context  the target chooses between Ulysses and ring attention in each layer
inline StrategySpec one_for_all(const Plan& plan, const std::string& target, Exported& out, const ModelSpec* model,
                                bool either_context = false) {
  const auto same = [&](StrategySpec a, StrategySpec b) {
    for (StrategySpec* spec : {&a, &b})
      if (either_context && spec->uses_ring()) {
        const bool cut = spec->cuts_over_tensor();
        spec->sequence = SequenceKind::ulysses;
        *spec = spec->with_cut(cut);
      }
    return a == b;
  };
  const auto degrees = layers_by(plan, degrees_of, same);
  StrategySpec common =
      std::ranges::max_element(degrees, {}, [](const auto& group) { return group.second.size(); })->first;
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
    out.lacks("the degrees differ from layer to layer, ", by_layer_text(groups), ": ", target,
              " has one set for all, and that of most layers is written, ", strategy_text(common));
  }
  for (const StrategySpec& layer : plan.layers)
    if (common.shards() > 1) common.zero = std::max(common.zero, layer.zero);
  // A layer without data or context ranks has nothing to shard.
  auto stages = layers_by(plan, [](const StrategySpec& s) { return s.shards() > 1 ? text_of("ZeRO ", s.zero) : ""; });
  std::erase_if(stages, [](const auto& group) { return group.first.empty(); });
  if (stages.size() > 1)
    out.lacks("the ZeRO stage differs from layer to layer, ", by_layer_text(stages), ": ", target,
              " has one for all, and ", common.zero, " is written");
  experts_for_all(plan, target, model, common, out);
  if (const auto strided = layers_where(plan, [](const StrategySpec& s) { return s.strided; }); !strided.empty())
    out.lacks(layers_text(strided), ": tensor-parallel ranks lie around data-parallel ones: ", target,
              " makes them neighbours");
  // An embedding and a head have no experts, and nothing of theirs is computed again.
  const auto end = [&](const std::string& name, StrategySpec spec) {
    spec = spec.without_experts();
    spec.recompute = RecomputeKind::cheap;
    if (same(spec, common.without_experts())) return;
    out.lacks("the ", name, " has a strategy of its own, ", strategy_text(spec), ": ", target,
              " gives it that of the layers");
  };
  end("embedding", plan.embedding);
  end("head", plan.head);
  out.job = plan;
  out.job->predicted = {};
  out.job->predicted.budget = plan.predicted.budget;
  give_all(*out.job, common, model);
  return common;
}

/// Told by targets that have no word for the format of the optimizer's moments.
inline void tell_moments(const Plan& plan, const std::string& target, Exported& out) {
  out.job->moments = Precision::fp32;
  if (plan.moments != Precision::fp32)
    out.lacks("moments of the optimizer in ", name_of(plan.moments), ": ", target,
              " keeps them in fp32, which takes 4 bytes a parameter more");
}

/// The chunks of a pipeline in the order of the model: chunk c * P + p is the c-th (perhaps the only one) of stage p.
inline std::vector<LayerRange> chunks_of(const Plan& plan) {
  std::vector<LayerRange> out;
  for (int i = 0; i < static_cast<int>(plan.stages.size()) * plan.virtual_stages; ++i)
    out.push_back(virtual_stage_layers(plan, i));
  return out;
}

inline int size_of(const LayerRange& chunk) { return chunk.last - chunk.first + 1; }

/// `a plan for gpt2-tiny on host: 4 ranks, batch of 16 x 64 tokens, fp32`.
inline std::string export_title(const Plan& plan) {
  return text_of("a plan for ", one_line(plan.model, 80), " on ", one_line(plan.cluster, 80), ": ",
                 counted(plan.ranks(), "rank"), ", batch of ", plan.global_batch, " x ", plan.sequence_length,
                 " tokens, ", precision_text(plan));
}

/// What the text leaves out, as comment lines.
inline std::string export_comments(const Exported& exported) {
  std::string out;
  for (const auto& [headline, sentences] :
       {std::pair("Not expressed:", &exported.not_expressed), {"To be set elsewhere:", &exported.set_elsewhere}}) {
    if (!sentences->empty()) out += text_of("# ", headline, "\n");
    for (const std::string& sentence : *sentences) out += text_of("#   - ", sentence, ".\n");
  }
  return out;
}

}  // namespace detail

}  // namespace galvatron
