// What makes a ModelSpec consistent, and small enough that its byte counts fit 64 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Bounds of every model; parameters and 16 bytes of states for each stay below 2^61.
namespace model_limits {
inline constexpr std::int64_t hidden = std::int64_t{1} << 18;
inline constexpr std::int64_t heads = std::int64_t{1} << 12;
inline constexpr std::int64_t head_dim = std::int64_t{1} << 12;
inline constexpr std::int64_t ffn = std::int64_t{1} << 20;
inline constexpr std::int64_t vocabulary = std::int64_t{1} << 24;
inline constexpr std::int64_t positions = std::int64_t{1} << 24;
inline constexpr std::int64_t layers = std::int64_t{1} << 12;
inline constexpr std::int64_t experts = std::int64_t{1} << 12;
inline constexpr std::int64_t experts_ffn = std::int64_t{1} << 24;  ///< experts times their width
}  // namespace model_limits

/// Why a router of k of E experts makes no sense; empty when it does.
constexpr std::string_view why_inconsistent(const RouterSpec& router, std::int64_t experts, std::int64_t active) {
  const auto share = [](double x, double most) { return x >= 0 && x <= most; };
  if (router.groups < 1 || router.groups > 64 || experts % router.groups != 0)
    return "groups of experts are 1 to 64 and divide the experts.";
  if (router.top_groups < 1 || router.top_groups > router.groups ||
      router.top_groups * (experts / router.groups) < active)
    return "the groups that a token goes to are some of all, and have as many experts as it goes to.";
  if (!(router.scale > 0 && router.scale <= 1e6)) return "the weights of experts have a positive scale.";
  if (!share(router.balance_loss, 1e3) || !share(router.z_loss, 1e3) || !share(router.bias_rate, 1e3) ||
      !share(router.capacity, 1e6))
    return "the coefficients of a router's losses, its bias rate and its capacity are not negative.";
  if (!(router.jitter >= 0 && router.jitter < 1)) return "the noise in a router's input is from 0 to below 1.";
  if (router.bias_rate > 0 && router.kind != RouterKind::sigmoid)
    return "experts have a bias that balances them where their scores are sigmoids.";
  return {};
}

/// Why a layer makes no sense; empty when it does.
constexpr std::string_view why_inconsistent(const LayerSpec& layer) {
  const auto within = [](std::int64_t n, std::int64_t most) { return n >= 1 && n <= most; };
  if (!within(layer.hidden, model_limits::hidden)) return "the hidden size is from 1 to 262144.";
  if (!within(layer.positions, model_limits::positions)) return "the number of positions is from 1 to 16777216.";
  if (!within(layer.layers, model_limits::layers)) return "the number of layers is from 1 to 4096.";
  if (!(layer.norm_epsilon > 0 && layer.norm_epsilon < 1)) return "the epsilon of the norms is between 0 and 1.";
  const auto is_cap = [](double cap) { return cap == 0 || (cap >= 1e-3 && cap <= 1e6); };
  const auto share = [](const TokenRatio& ratio, std::int64_t least) {
    return ratio.part >= least && ratio.part <= ratio.whole && ratio.whole <= model_limits::positions;
  };
  if (!share(layer.tokens, 1) || !share(layer.memory, 0) || !share(layer.target, 0))
    return "the tokens of a layer are a share of the sequence, at most all of it.";
  if (!layer.tokens.divides(layer.positions) || !layer.memory.divides(layer.positions) ||
      !layer.target.divides(layer.positions))
    return "the tokens of a layer are a whole number when the sequence has all its positions.";
  if (layer.kind == LayerKind::embedding && !(layer.embedding_scale > 0 && layer.embedding_scale <= 1e6))
    return "the scale of an embedding is positive and at most 1e6.";
  if (layer.kind == LayerKind::embedding && layer.patch_width != 0)
    return within(layer.patch_width, model_limits::ffn) && !layer.tied
               ? std::string_view{}
               : "an image patch has 1 to 1048576 numbers, and no table that a head could use.";
  if (!is_cap(layer.score_cap) || !is_cap(layer.logits_cap)) return "a soft cap is 0 for none, or from 1e-3 to 1e6.";
  if (layer.logits_cap > 0 && layer.kind == LayerKind::head && layer.head != HeadKind::language)
    return "logits of a language head alone have a soft cap.";
  if (layer.kind != LayerKind::block)
    return within(layer.vocabulary, model_limits::vocabulary) ? std::string_view{}
                                                              : "the vocabulary is from 1 to 16777216.";
  if (!within(layer.heads, model_limits::heads)) return "the number of attention heads is from 1 to 4096.";
  if (!within(layer.kv_heads, layer.heads) || layer.heads % layer.kv_heads != 0)
    return "the number of key/value heads divides that of the attention heads.";
  if (!within(layer.head_dim, model_limits::head_dim)) return "the width of a head is from 1 to 4096.";
  if (layer.position == PositionKind::rotary && layer.latent.rank == 0 && layer.head_dim % 2 != 0)
    return "rotary positions turn pairs of elements: the width of a head is even.";
  if (layer.position == PositionKind::rotary && !(layer.rope_theta > 0 && layer.rope_theta <= 1e15))
    return "the base of rotary positions is positive and at most 1e15.";
  if (const RotaryScaling& scaling = layer.rotary_scaling; scaling != RotaryScaling{}) {
    const auto between = [](double x, double least, double most) { return x >= least && x <= most; };
    const bool has_positions =
        scaling.ramp == RotaryRamp::none ? scaling.positions == 0 : within(scaling.positions, model_limits::positions);
    if (layer.position != PositionKind::rotary || !between(scaling.factor, 1, 1e6) || !has_positions ||
        !between(scaling.slow, 1e-6, 1e6) || !between(scaling.fast, scaling.slow, 1e6) ||
        !between(scaling.amplitude, 1e-3, 1e3) || !between(scaling.score_rate, 0, 1e3))
      return "rotary positions are scaled by 1 or more, from a number of positions on, with more turns for fast pairs "
             "than for slow ones.";
  }
  if (layer.position != PositionKind::rotary || layer.latent.rank != 0) {
    if (layer.rotary_dim != 0) return "a part of a head is turned where all of it could be.";
  } else if (layer.rotary_dim < 0 || layer.rotary_dim >= layer.head_dim || layer.rotary_dim % 2 != 0) {
    return "of a head positions turn an even part, or all of it.";
  } else if (layer.rotary_dim > 0 && layer.rotary_scaling.amplitude != 1) {
    return "rotary positions of a part of a head have no amplitude.";
  }
  if (layer.score_width < 0 || layer.score_width > model_limits::head_dim)
    return "the width whose root divides scores is at most 4096.";
  if (layer.sliding_window < 0 || layer.sliding_window > model_limits::positions)
    return "a sliding window has at most as many tokens as there are positions.";
  if (layer.sliding_window > 0 &&
      (!layer.causal || layer.window > 0 || layer.latent.rank != 0 || layer.position == PositionKind::relative))
    return "a sliding window belongs to causal attention, with keys and values of their own and without tables of "
           "relative positions.";
  if (layer.score_cap > 0 &&
      (layer.window > 0 || layer.latent.rank != 0 || layer.memory.any() || layer.position == PositionKind::relative))
    return "a soft cap of scores belongs to attention with keys and values of their own, within one sequence and "
           "without tables of relative positions.";
  if (layer.parallel && (layer.norm_order != NormOrder::before || layer.latent.rank != 0 || layer.experts != 0 ||
                         layer.memory.any() || layer.merges))
    return "attention and an MLP side by side have one norm before them, and are neither latent nor experts.";
  if (layer.norm_order == NormOrder::around && layer.memory.any())
    return "a layer with cross attention has no norms behind its parts.";
  if (layer.query_key_norm != QueryKeyNorm::none && layer.norm == NormKind::layer_norm)
    return "queries and keys have RMS norms where the layer has them.";
  if (const LatentAttention& latent = layer.latent; latent.rank != 0) {
    if (layer.kv_heads != layer.heads || layer.position != PositionKind::rotary || layer.norm != NormKind::rms_norm ||
        layer.bias || layer.qkv_bias || layer.query_key_norm != QueryKeyNorm::none || layer.memory.any())
      return "latent attention has as many heads of keys as of queries, rotary positions, RMS norms and no biases.";
    if (!within(latent.rank, model_limits::hidden) || latent.query_rank < 0 || latent.query_rank > model_limits::hidden)
      return "the ranks of latent attention are at most 262144.";
    if (!(latent.norm_epsilon > 0 && latent.norm_epsilon < 1)) return "the epsilon of the norms is between 0 and 1.";
    if (!within(latent.rotary_dim, layer.head_dim - 1) || latent.rotary_dim % 2 != 0 ||
        !within(latent.value_dim, layer.head_dim))
      return "of a head of latent attention positions turn an even part, and values are not wider.";
  } else if (latent != LatentAttention{}) {
    return "the widths of latent attention belong to a layer that has it.";
  }
  if (!within(layer.ffn, model_limits::ffn)) return "the width of the MLP is from 1 to 1048576.";
  if (layer.experts != 0 && !within(layer.experts, model_limits::experts)) return "a layer has 1 to 4096 experts.";
  if (layer.experts != 0 && !within(layer.active_experts, layer.experts))
    return "a token goes to one expert at least, and to no more than there are.";
  if (layer.experts > 0 && layer.experts * layer.ffn > model_limits::experts_ffn)
    return "experts times their width is at most 16777216.";
  if (layer.experts != 0)
    if (const auto why = why_inconsistent(layer.router, layer.experts, layer.active_experts); !why.empty()) return why;
  if (layer.shared_ffn < 0 || layer.shared_ffn > model_limits::ffn || (layer.shared_ffn > 0 && layer.experts == 0) ||
      (layer.shared_gate && layer.shared_ffn == 0))
    return "a shared expert is beside others, its width is at most 1048576, and only where there is one it has a gate.";
  const std::int64_t side = side_of_square(layer.tokens.of(layer.positions));
  if (layer.window < 0 || (layer.window > 0 && (side == 0 || side % layer.window != 0)))
    return "square windows divide the sides of a square image.";
  if (layer.shift < 0 || (layer.shift > 0 && layer.shift >= layer.window))
    return "windows are shifted by less than their own side.";
  if (layer.bias_rows < 0 || layer.bias_rows > model_limits::positions ||
      (layer.bias_rows > 0 && layer.position != PositionKind::relative))
    return "a table of relative positions belongs to a layer with relative positions.";
  if (layer.memory.any() != (layer.place.inputs[1] >= 0)) return "a layer with cross attention reads two values.";
  if (layer.memory.any() && (layer.merges || layer.window > 0))
    return "a layer with cross attention has neither windows nor merged tokens.";
  if (layer.merges && layer.hidden % 2 != 0) return "a layer that merges tokens doubles their width: it is even.";
  if (layer.merges && layer.window == 0) return "a layer that merges tokens has windows.";
  return {};
}

/// The model, if it is consistent in itself. Errors (usage): the first rule that a layer breaks.
inline Result<ModelSpec> checked(ModelSpec model) {
  const auto refuse = [&model](const std::string& where, std::string_view why) {
    return usage_error("the model " + model.name + " is inconsistent" + where + ": " + std::string(why));
  };
  if (model.embedding.kind != LayerKind::embedding || model.head.kind != LayerKind::head || model.blocks.empty())
    return refuse("", "it is an embedding, at least one block, and a head.");
  const std::int64_t sequence = model.positions();
  const auto fits_behind = [sequence](const LayerSpec& before, const LayerSpec& layer) {
    if (layer.positions < sequence) return false;
    const auto same = [sequence](const BundlePart& a, const BundlePart& b) {
      return a.elements(sequence) == b.elements(sequence) && (a.width == b.width || !a.tokens.any());
    };
    for (int i = 0; i < most_parts; ++i)  // what is not read again ends here
      if (!same(before.after(i), layer.before(i)) && layer.before(i).tokens.any()) return false;
    const BundlePart in = layer.before(layer.place.inputs[0] < 0 ? 0 : layer.place.inputs[0]);
    return layer.input_elements(sequence) > 0 && (layer.kind == LayerKind::embedding || same(in, layer.input())) &&
           (!layer.memory.any() || same(layer.before(layer.place.inputs[1]), {layer.memory, layer.hidden}));
  };
  for (int i = 0; i < model.layers(); ++i) {
    const LayerSpec& layer = model.layer(i);
    const bool is_first = i == 0;
    const bool is_last = i + 1 == model.layers();
    const std::string where = is_first  ? " (embedding)"
                              : is_last ? " (head)"
                                        : " (layer " + std::to_string(i - 1) + ")";
    if (!is_first && !is_last && layer.kind != LayerKind::block) {
      if (layer.is_in_chain()) return refuse(where, "it is not a block.");
      if (layer.tied) return refuse(where, "only the first layer and the last one have one table.");
    }
    if (const auto why = why_inconsistent(layer); !why.empty()) return refuse(where, why);
    if (!is_first && !fits_behind(model.layer(i - 1), layer))
      return refuse(where, "its hidden size, tokens or positions differ from the layer's before.");
  }
  const auto losses = std::count_if(model.blocks.begin(), model.blocks.end(),
                                    [](const LayerSpec& block) { return block.kind == LayerKind::head; });
  if (losses >= most_losses) return refuse("", "it has at most " + std::to_string(most_losses) + " losses.");
  if (model.head.head == HeadKind::contrastive)
    return refuse(" (head)", "a contrastive loss has two towers: it belongs to a model of several tasks.");
  if (model.head.head != HeadKind::classifier && model.head.vocabulary != model.embedding.vocabulary)
    return refuse(" (head)", "its vocabulary differs from the embedding's.");
  if (model.head.tied && (model.head.head == HeadKind::classifier || model.head.hidden != model.hidden()))
    return refuse(" (head)", "it cannot use the embedding's table, which has another shape.");
  return model;
}

}  // namespace galvatron
