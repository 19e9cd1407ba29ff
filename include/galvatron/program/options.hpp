// Options: what differs between trainers in how a layer is carried out. They change the passes of lowering.
#pragma once

namespace galvatron::program {

/// The defaults are those of this library; the executor carries out no others.
struct Options {
  bool keeps_outputs = false;  ///< of norms and activations, for backward; else they are recomputed. What is recomputed
                               ///< as a whole is the whole layer, and results of attention are kept in any case
  bool fuses = true;           ///< residual and norm, product and activation are one operation
  bool fused_attention = true;  ///< else (S, S) scores go through memory, and are kept
  bool dropout = false;         ///< after attention, the MLP and scores that are not fused; masks of a byte are kept
  bool whole_logits = false;    ///< of all rows at once, in fp32 too; else a chunk of rows at a time

  friend constexpr bool operator==(const Options&, const Options&) = default;
};

}  // namespace galvatron::program
