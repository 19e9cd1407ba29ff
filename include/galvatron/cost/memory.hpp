// The memory of a rank: what its arena is made of, byte for byte.
#pragma once

#include <cstdint>
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

/// The memory of every rank of a stage with one chunk of layers.
/// @param layers   the layers in order: the embedding, blocks, the head
/// @param layouts  of their activations
/// @param slots    micro-batches in flight (microbatches_in_flight)
/// @param deferred  those of them between the two parts of a split backward (microbatches_deferred)
/// @param library  the device's library workspace
constexpr StageMemory stage_memory(std::span<const LayerCounts> layers, std::span<const ActivationLayout> layouts,
                                   int slots, int deferred, bool has_previous, bool has_next, Bytes library) {
  StageMemory out;
  out.library = library;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerCounts& layer = layers[i];
    out.states += layer.states;
    out.stash += layer.stash * slots + layer.deferred * deferred;
    // What layers share is kept from the stage's first layer on, and once more in every other layout.
    if (i == 0 || layouts[i - 1] != layouts[i]) out.stash += layer.carried * slots;
    const bool changes = i + 1 < layers.size() && layouts[i] != layouts[i + 1];
    out.workspace = max(out.workspace, layer.forward_workspace + (changes ? layer.activation : Bytes{}));
    out.workspace = max(out.workspace, layer.activation + layer.backward_workspace);
    out.workspace = max(out.workspace, layer.weights_workspace);
    if (changes) out.workspace = max(out.workspace, layer.activation + layers[i + 1].input);
  }
  if (has_previous && !layers.empty()) out.boundary += layers.front().input;
  if (has_next && !layers.empty()) out.boundary += layers.back().activation;
  return out;
}

}  // namespace galvatron::cost
