// Options: what differs between trainers in how a layer is executed. They change the passes of lowering.
#pragma once

namespace galvatron::program {

/// The defaults are those of this library; the executor executes no others.
struct Options {
  bool keeps_outputs = false;   ///< of norms and activations, for backward; else they are recomputed. `full` still
                                ///< recomputes the layer; results of attention are kept even under `selective`
  bool fuses = true;            ///< residual and norm, product and activation are one operation
  bool fused_attention = true;  ///< else (S, S) scores go through memory, and are kept
  bool dropout = false;         ///< after attention, the MLP and scores that are not fused; masks of a byte are kept
  bool whole_logits = false;    ///< of all rows at once, in fp32 too; else a chunk of rows at a time

  friend constexpr bool operator==(const Options&, const Options&) = default;
};

}  // namespace galvatron::program
