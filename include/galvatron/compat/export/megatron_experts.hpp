// What a model of experts and of latent attention adds to the arguments of Megatron-LM.
//
// Source: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py and
// megatron/core/transformer/moe/{router,moe_utils,moe_layer}.py of NVIDIA/Megatron-LM, state of August 2026; release
// 0.16.1 of megatron-core has what is written here.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::detail {

/// Lines of the array PLAN_ARGS.
struct MegatronArguments {
  std::string lines;
  template <class... Parts>
  void add(const Parts&... argument) {
    lines += text_of("  ", argument..., "\n");
  }
};

/// Which blocks have something, as has(block) says, an expression of Python: `[0]*3+[1]*58`.
template <class Has>
std::string megatron_pattern(const ModelSpec& model, const Has& wanted) {
  std::string out;
  for (std::size_t i = 0; i < model.blocks.size();) {
    const bool has = wanted(model.blocks[i]);
    const std::size_t first = i++;
    while (i < model.blocks.size() && wanted(model.blocks[i]) == has) ++i;
    out += text_of(out.empty() ? "" : "+", has ? "[1]" : "[0]", i - first > 1 ? text_of("*", i - first) : "");
  }
  return out;
}

/// How a token's experts are chosen and weighted.
///
///     here                                    Megatron-LM
///     softmax, renormalised                   softmax of the chosen logits
///     softmax                                 --moe-router-pre-softmax
///     sigmoid, renormalised                   --moe-router-score-function sigmoid
///     score of a group: its largest, or the   the sum of its k / (chosen groups) largest
///     sum of its two largest (sigmoid)
inline void megatron_router(const LayerSpec& layer, MegatronArguments& arguments, Exported& out) {
  const RouterSpec& router = layer.router;
  const std::int64_t k = layer.active_experts;
  arguments.add("--moe-router-topk ", k);
  arguments.add("--moe-router-score-function ", router.kind == RouterKind::sigmoid ? "sigmoid" : "softmax");
  arguments.add("--moe-router-dtype fp32");
  // Softmax of one logit is 1, whose gradient is 0.
  const bool one_weight = router.kind == RouterKind::softmax && router.renormalise && k == 1;
  if (router.kind == RouterKind::softmax && (!router.renormalise || one_weight))
    arguments.add("--moe-router-pre-softmax");
  if (one_weight)
    out.lacks(
        "one expert for a token whose weight is always 1: Megatron-LM refuses that, and the expert's probability is "
        "its weight there");
  if (router.kind == RouterKind::sigmoid && router.renormalise != (k > 1))
    out.lacks(router.renormalise ? "one expert for a token whose weight is always 1"
                                 : "sigmoid weights that are not renormalised",
              ": Megatron-LM renormalises sigmoids where a token has several experts, and not where it has one");
  if (router.scale != 1) arguments.add("--moe-router-topk-scaling-factor ", shortest_text(router.scale));
  if (router.groups > 1) {
    arguments.add("--moe-router-num-groups ", router.groups);
    arguments.add("--moe-router-group-topk ", router.top_groups);
    const std::int64_t summed = router.kind == RouterKind::sigmoid ? 2 : 1;
    if (k / router.top_groups != summed)
      out.lacks("groups of experts that are chosen by their ", summed == 1 ? "largest score" : "two largest scores",
                ": Megatron-LM adds up the ", k / router.top_groups, " largest of each");
  }
}

/// Losses and biases that balance the experts, and their capacity.
inline void megatron_balance(const LayerSpec& layer, MegatronArguments& arguments, Exported& out) {
  const RouterSpec& router = layer.router;
  const auto scope = static_cast<std::size_t>(router.balance_scope);
  arguments.add("--moe-router-load-balancing-type ",
                router.balance_loss > 0 ? std::array{"seq_aux_loss", "aux_loss", "global_aux_loss"}[scope] : "none");
  if (router.balance_loss > 0) arguments.add("--moe-aux-loss-coeff ", shortest_text(router.balance_loss));
  if (router.balance_loss > 0 && router.balance_scope == BalanceScope::data_ranks)
    out.lacks(
        "a balance loss among the micro-batches of all data ranks: Megatron-LM counts the choices of the whole global "
        "batch so far, and that is written");
  if (router.jitter > 0) {
    arguments.add("--moe-input-jitter-eps ", shortest_text(router.jitter));
    out.lacks("noise in what experts get: Megatron-LM has it in the router's input alone");
  }
  if (router.z_loss > 0) arguments.add("--moe-z-loss-coeff ", shortest_text(router.z_loss));
  if (router.kind == RouterKind::sigmoid) {
    arguments.add("--moe-router-enable-expert-bias");
    arguments.add("--moe-router-bias-update-rate ", shortest_text(router.bias_rate));
  }
  if (router.capacity == 0) return;
  arguments.add("--moe-expert-capacity-factor ", shortest_text(router.capacity));
  arguments.add("--moe-token-drop-policy ", router.drops == DropOrder::position ? "position" : "probs");
  if (router.drops == DropOrder::position && layer.active_experts > 1)
    out.lacks(
        "second choices that are dropped before any first one: Megatron-LM drops choices in the order of tokens alone");
}

/// Arguments of the experts of a model, which are those of its first block with experts.
inline void megatron_experts(const ModelSpec& model, MegatronArguments& arguments, Exported& out) {
  const auto has = [](const LayerSpec& layer) { return layer.experts > 0; };
  const auto first = std::ranges::find_if(model.blocks, has);
  if (first == model.blocks.end()) return;
  const LayerSpec& layer = *first;
  std::vector<int> others;
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const LayerSpec& block = model.blocks[i];
    if (has(block) && !(block.experts == layer.experts && block.active_experts == layer.active_experts &&
                        block.ffn == layer.ffn && block.router == layer.router &&
                        block.shared_ffn == layer.shared_ffn && block.shared_gate == layer.shared_gate))
      others.push_back(static_cast<int>(i));
  }
  if (!others.empty())
    out.lacks(layers_text(others), ": their experts or routers are not those of layer ", first - model.blocks.begin(),
              ": Megatron-LM has one kind for all layers");
  arguments.add("--num-experts ", layer.experts);
  if (!std::ranges::all_of(model.blocks, has)) arguments.add("--moe-layer-freq '", megatron_pattern(model, has), "'");
  arguments.add("--moe-ffn-hidden-size ", layer.ffn);
  megatron_router(layer, arguments, out);
  megatron_balance(layer, arguments, out);
  if (layer.shared_ffn > 0) arguments.add("--moe-shared-expert-intermediate-size ", layer.shared_ffn);
  if (layer.shared_gate) arguments.add("--moe-shared-expert-gate");
  arguments.add("--moe-grouped-gemm");
  arguments.add("--moe-token-dispatcher-type alltoall");
  if (layer.bias)
    out.lacks("experts without biases in blocks whose other linear layers have them: Megatron-LM gives all or none");
}

/// Arguments of latent attention, where all blocks have it.
inline void megatron_latent_attention(const ModelSpec& model, MegatronArguments& arguments) {
  const LayerSpec& layer = model.blocks.front();
  const LatentAttention& latent = layer.latent;
  if (latent.rank == 0) return;
  arguments.add("--multi-latent-attention");
  if (latent.query_rank > 0) arguments.add("--q-lora-rank ", latent.query_rank);
  arguments.add("--kv-lora-rank ", latent.rank);
  arguments.add("--qk-head-dim ", layer.head_dim - latent.rotary_dim);
  arguments.add("--qk-pos-emb-head-dim ", latent.rotary_dim);
  arguments.add("--v-head-dim ", latent.value_dim);
  arguments.add("--qk-layernorm");
  arguments.add("--rope-type rope");
}

/// Arguments of layers that attend within a sliding window; Megatron-LM counts the tokens before the one that attends.
inline void megatron_sliding_window(const ModelSpec& model, MegatronArguments& arguments, Exported& out) {
  const auto slides = [](const LayerSpec& block) { return block.sliding_window > 0; };
  const auto first = std::ranges::find_if(model.blocks, slides);
  if (first == model.blocks.end()) return;
  const std::int64_t window = first->sliding_window;
  arguments.add("--window-size ", window - 1, ",0");
  if (!std::ranges::all_of(model.blocks, slides))
    arguments.add("--window-attn-skip-freq '", megatron_pattern(model, slides), "'");
  if (std::ranges::any_of(model.blocks, [&](const LayerSpec& b) { return slides(b) && b.sliding_window != window; }))
    out.lacks("sliding windows of several lengths: Megatron-LM has one");
}

/// Soft caps, which no argument of Megatron-LM asks for.
inline void megatron_soft_caps(const ModelSpec& model, Exported& out) {
  if (model.head.logits_cap > 0 ||
      std::ranges::any_of(model.blocks, [](const LayerSpec& b) { return b.score_cap > 0; }))
    out.lacks("soft caps of scores and logits: pretrain_gpt.py has none");
}

}  // namespace galvatron::detail
