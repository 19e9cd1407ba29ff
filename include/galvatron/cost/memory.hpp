// The memory of a rank: what its arena is made of, byte for byte.
#pragma once

#include <span>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::cost {

/// The regions of a rank's arena.
struct StageMemory {
  Bytes states;     ///< parameters, gradients, optimizer states
  Bytes stash;      ///< one block for each micro-batch in flight
  Bytes boundary;   ///< tensors on their way to neighbouring stages
  Bytes workspace;  ///< a stack of transient tensors
  Bytes library;    ///< scratch of GEMMs and kernels

  friend constexpr bool operator==(const StageMemory&, const StageMemory&) = default;
  [[nodiscard]] constexpr Bytes total() const { return states + stash + boundary + workspace + library; }

  /// The memory of another chunk of the same rank: only one works at a time, and all keep theirs.
  constexpr void add_chunk(const StageMemory& chunk) {
    states += chunk.states;
    stash += chunk.stash;
    boundary += chunk.boundary;
    workspace = max(workspace, chunk.workspace);
    library = max(library, chunk.library);
  }
};

/// What a micro-batch takes of a rank beside the states, for one chunk of layers.
struct PassMemory {
  Bytes stash;               ///< from the forward pass to the end of the backward pass
  Bytes deferred;            ///< besides, between the two parts of a split backward
  Bytes forward_workspace;   ///< transient, at its largest
  Bytes backward_workspace;  ///< of a backward pass, or its first part
  Bytes weights_workspace;   ///< of the second part
};

/// @param layers, layouts  as of stage_memory
constexpr PassMemory pass_memory(std::span<const LayerBytes> layers, std::span<const ActivationLayout> layouts) {
  PassMemory out;
  Bytes borders;  // between layers, in any pass
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerBytes& layer = layers[i];
    out.stash += layer.stash;
    out.deferred += layer.deferred;
    // What layers share is kept from the stage's first layer on, and once more in every other layout.
    if (i == 0 || layouts[i - 1] != layouts[i]) out.stash += layer.pass_through;
    const bool changes = i + 1 < layers.size() && layouts[i] != layouts[i + 1];
    borders = max(borders, layer.activation + (changes ? layers[i + 1].input : Bytes{}));
    out.forward_workspace =
        max(out.forward_workspace, layer.forward_workspace + (changes ? layer.activation : Bytes{}));
    out.backward_workspace = max(out.backward_workspace, layer.activation + layer.backward_workspace);
    out.weights_workspace = max(out.weights_workspace, layer.weights_workspace);
  }
  for (Bytes* workspace : {&out.forward_workspace, &out.backward_workspace, &out.weights_workspace})
    *workspace = max(*workspace, borders);
  return out;
}

/// The memory of every rank of a stage with one chunk of layers.
/// @param layers   the layers in order: the embedding, blocks, the head
/// @param layouts  of their activations
/// @param slots    micro-batches in flight (microbatches_in_flight)
/// @param deferred  those of them between the two parts of a split backward (microbatches_deferred)
/// @param to_previous, to_next  buffers for what is sent to the chunks before and after (message_buffers); 0 at the
/// ends
/// @param library  the device's library workspace
constexpr StageMemory stage_memory(std::span<const LayerBytes> layers, std::span<const ActivationLayout> layouts,
                                   int slots, int deferred, int to_previous, int to_next, Bytes library) {
  const PassMemory pass = pass_memory(layers, layouts);
  StageMemory out;
  out.library = library;
  out.stash = pass.stash * slots + pass.deferred * deferred;
  out.workspace = max(max(pass.forward_workspace, pass.backward_workspace), pass.weights_workspace);
  for (const LayerBytes& layer : layers) out.states += layer.states;
  if (!layers.empty()) out.boundary += layers.front().input * to_previous + layers.back().activation * to_next;
  return out;
}

}  // namespace galvatron::cost
