// Trainer: whose code carries a plan out. Plans are for the library's own runtime unless they say otherwise; those that
// are exported, or compared with published runs, are priced as their trainer works.
//
// Nothing here is measured on a training run. Sources: Narayanan et al. (arXiv 2104.04473) and Korthikanti et al.
// (arXiv 2205.05198) for Megatron-LM of 2021 and 2022, whose activations are 34 + 5 A S / H bytes for each token and
// hidden unit of a block; the documentation of Megatron Core for what it does since.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace galvatron::cost {

enum class Trainer : std::uint8_t {
  galvatron,      ///< this library: nn/ and train/
  megatron,       ///< Megatron-LM with fused attention, and with messages of tensor parallelism beside the products
  megatron_2022,  ///< Megatron-LM of 2021 and 2022, fp16: attention not fused, with dropout
};
inline constexpr std::array trainers{Trainer::galvatron, Trainer::megatron, Trainer::megatron_2022};

constexpr std::string_view name_of(Trainer trainer) {
  switch (trainer) {
    case Trainer::galvatron:
      return "galvatron";
    case Trainer::megatron:
      return "megatron";
    case Trainer::megatron_2022:
      return "megatron-2022";
  }
  return "?";
}

/// What differs between trainers.
struct Habits {
  bool keeps_outputs = false;     ///< of norms and activations, for backward; else they are computed again
  bool whole_logits = false;      ///< of all tokens at once, in fp32 too; else a chunk of tokens at a time
  bool overlaps_tensor = false;   ///< under Megatron sequence parallelism: messages beside the products, in pieces
  bool fused_attention = true;    ///< else (S, S) scores go through memory, and are kept
  bool dropout = false;           ///< after attention, the MLP and scores that are not fused; masks of a byte are kept
  int gradient_bytes = 4;         ///< of a parameter's gradient
  bool writes_gradients = false;  ///< of a block's weights where it can; else they are added to zeros
};

constexpr Habits habits_of(Trainer trainer) {
  switch (trainer) {
    case Trainer::galvatron:
      return {.writes_gradients = true};
    case Trainer::megatron:
      return {.keeps_outputs = true, .whole_logits = true, .overlaps_tensor = true};
    case Trainer::megatron_2022:
      return {
          .keeps_outputs = true, .whole_logits = true, .fused_attention = false, .dropout = true, .gradient_bytes = 2};
  }
  return {};
}

}  // namespace galvatron::cost
