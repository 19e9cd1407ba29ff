// Trainer: whose code carries a plan out. Plans are for the library's own runtime unless they say otherwise; those that
// are exported, or compared with published runs, are priced as their trainer works.
//
// Nothing here is measured on a training run. Sources: Narayanan et al. (arXiv 2104.04473) and Korthikanti et al.
// (arXiv 2205.05198) for Megatron-LM of 2021 and 2022, whose activations are 34 + 5 A S / H bytes for each token and
// hidden unit of a block; the documentation of Megatron Core for what it does since.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <galvatron/program/program.hpp>

namespace galvatron::cost {

enum class Trainer : std::uint8_t {
  galvatron,      ///< this library: runtime/ and train/
  megatron,       ///< Megatron-LM with fused attention, and with messages of tensor parallelism beside the products
  megatron_2022,  ///< Megatron-LM of 2021 and 2022, fp16: attention not fused, with dropout
};
inline constexpr std::array trainers{Trainer::galvatron, Trainer::megatron, Trainer::megatron_2022};

constexpr std::string_view name_of(Trainer trainer) {
  constexpr std::array<std::string_view, trainers.size()> names{"galvatron", "megatron", "megatron-2022"};
  return names[static_cast<std::size_t>(trainer)];
}

/// What differs between trainers.
struct RuntimeTraits {
  program::Options passes;        ///< how they carry out a layer
  bool overlaps_tensor = false;   ///< under Megatron sequence parallelism: messages beside the products, in pieces
  int gradient_bytes = 4;         ///< of a parameter's gradient
  bool writes_gradients = false;  ///< of a block's weights where it can; else they are added to zeros
};

/// Megatron-LM keeps what forward computes. Bytes for each token and hidden unit of a GPT block in 16 bits, without
/// tensor parallelism (Korthikanti et al., arXiv 2205.05198, section 4.1):
///
///     inputs of the norms 4, of the linear layers 2 + 2 + 2 + 8, queries, keys and values 6, hidden units 8;
///     with dropout its masks 2;  attention that is not fused: scores 2 A S / H, with dropout 5 A S / H
///
/// Selective recomputation gives up the scores, full recomputation all but the input. Where weight gradients are
/// deferred, what they need takes the place of what the first part no longer needs (Qi et al., arXiv 2401.10241,
/// section 2.3): nothing is kept besides.
constexpr RuntimeTraits traits_of(Trainer trainer) {
  if (trainer == Trainer::galvatron) return {.passes = {}, .writes_gradients = true};
  RuntimeTraits out{.passes = {.keeps_outputs = true, .fuses = false, .whole_logits = true}};
  if (trainer == Trainer::megatron) {
    out.overlaps_tensor = true;
  } else {
    out.passes.fused_attention = false;
    out.passes.dropout = true;
    out.gradient_bytes = 2;
  }
  return out;
}

}  // namespace galvatron::cost
