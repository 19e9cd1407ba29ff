// Trainers that have one strategy for all layers, and which of a space's plans they can be told.
//
// Sources: those that the headers under compat/export/ name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// Whose limits all plans of a space with one strategy for all layers keep to.
enum class OneForAll : std::uint8_t {
  no,       ///< layers may differ
  uniform,  ///< what all of these trainers have in common: one strategy, neighbouring tensor ranks, 1F1B
  megatron,
  torchtitan,
  deepspeed,
  accelerate,  ///< Hugging Face's, with FSDP2
  hetu,        ///< Hetu-Galvatron, which has a strategy for each layer, but not all that a layer may have
};
inline constexpr std::array one_for_all_names{OneForAll::uniform,   OneForAll::megatron,   OneForAll::torchtitan,
                                              OneForAll::deepspeed, OneForAll::accelerate, OneForAll::hetu};

constexpr const char* name_of(OneForAll trainer) {
  return std::array{
      "no", "uniform", "megatron", "torchtitan", "deepspeed", "accelerate", "hetu"}[static_cast<std::size_t>(trainer)];
}

/// Whether the trainer's pipelines have this schedule; all have 1F1B.
constexpr bool has_schedule(OneForAll trainer, ScheduleKind kind) {
  if (trainer == OneForAll::no || kind == ScheduleKind::one_f_one_b) return true;
  if (kind == ScheduleKind::zb_v) return trainer == OneForAll::torchtitan;
  if (kind == ScheduleKind::gpipe) return trainer == OneForAll::torchtitan || trainer == OneForAll::hetu;
  return kind == ScheduleKind::interleaved && trainer != OneForAll::deepspeed && trainer != OneForAll::accelerate &&
         trainer != OneForAll::hetu;
}

/// How DeepSpeed spreads experts over ranks.
enum class DeepspeedExperts : std::uint8_t {
  automatic,  ///< AutoEP, in models of Hugging Face: whole experts over neighbouring ranks; beside tensor ranks neither
              ///< a pipeline nor ZeRO 3, and no context ranks beside ZeRO 3
  layers,     ///< MoE layers of the program: over data ranks, beside tensor ranks that share each; no ZeRO 3
  no,
};
constexpr DeepspeedExperts deepspeed_experts(const StrategySpec& spec, int stages) {
  if (spec.etp() == 1 && (spec.tensor == 1 || (stages == 1 && spec.zero < 3)) && (spec.zero < 3 || spec.context == 1))
    return DeepspeedExperts::automatic;
  const bool in_data_ranks = spec.etp() == spec.tensor && spec.data % spec.expert == 0;
  return in_data_ranks && spec.zero < 3 ? DeepspeedExperts::layers : DeepspeedExperts::no;
}
constexpr bool torchtitan_has_experts(const StrategySpec& spec) { return spec.expert > 1 && spec.etp() == 1; }

/// Whether the trainer can give `spec` to all layers of a pipeline of so many stages.
///
///     torchtitan  tensor ranks always split the sequence; context ranks pass keys and values around; data and context
///                 ranks are FSDP's, ZeRO 2 or 3, or replicas that stand alone; bf16 comes with either of them; experts
///                 are spread over FSDP's ranks, each whole
///     deepspeed   tensor ranks keep whole sequences; context ranks are Ulysses', beside data ranks alone; pipelines
///                 have ZeRO 1 at most; experts: deepspeed_experts
///     accelerate  no pipelines; tensor ranks keep whole sequences; context ranks pass keys and values around; data and
///                 context ranks are FSDP's, ZeRO 2 or 3, or replicas that stand alone; no experts are spread
///     hetu        no ZeRO 1; tensor ranks or Ulysses'
constexpr bool can_give(OneForAll trainer, const StrategySpec& spec, int stages, Precision precision) {
  if (trainer == OneForAll::no) return true;
  if (spec.strided || spec.compresses_tokens() || spec.relays_tokens()) return false;
  switch (trainer) {
    case OneForAll::torchtitan: {
      if (spec.tensor > 1 && !spec.cuts_over_tensor()) return false;
      if (spec.exchanges_heads() || spec.zero == 1) return false;
      if (spec.exchanges_tokens() && (!torchtitan_has_experts(spec) || spec.zero < 2)) return false;
      const bool others = spec.tensor > 1 || stages > 1;
      if (spec.shards() == 1) return !others || precision == Precision::fp32;
      return spec.zero >= 2 || (!others && spec.context == 1);
    }
    case OneForAll::deepspeed:
      if (spec.cuts_over_tensor() || spec.uses_ring()) return false;
      if (spec.context > 1 && (spec.tensor > 1 || stages > 1)) return false;
      if (spec.exchanges_tokens() && deepspeed_experts(spec, stages) == DeepspeedExperts::no) return false;
      return stages == 1 || spec.zero <= 1;
    case OneForAll::accelerate: {
      const bool others = spec.tensor > 1 || spec.context > 1;
      if (stages > 1 || spec.exchanges_tokens() || spec.zero == 1) return false;
      if (spec.sequence != (spec.context > 1 ? SequenceKind::ring : SequenceKind::none)) return false;
      return spec.shards() > 1 ? spec.zero >= 2 || !others : !others;
    }
    case OneForAll::hetu:
      return spec.zero != 1 && (spec.tensor == 1 || !spec.exchanges_heads());
    default:
      return true;
  }
}

/// Whether the trainer can split `layer` by a strategy that fits it. Transformer Engine's attention, which Megatron-LM
/// calls, exchanges no copies of key/value heads: Ulysses needs at least one for each context rank. Megatron-LM's
/// layers with experts refuse tensor ranks that do not split the sequence.
constexpr bool can_split_layer(OneForAll trainer, const LayerSpec& layer, const StrategySpec& spec) {
  if (trainer != OneForAll::megatron && trainer != OneForAll::uniform) return true;
  if (trainer == OneForAll::megatron && layer.experts > 0 && spec.tensor > 1 && !spec.cuts_over_tensor()) return false;
  return layer.kind != LayerKind::block || !spec.exchanges_heads() ||
         layer.kv_heads % (std::int64_t{spec.tensor} * spec.context) == 0;
}

/// Whether all stages must have equally many layers.
constexpr bool needs_equal_stages(OneForAll trainer) { return trainer == OneForAll::deepspeed; }

}  // namespace galvatron
