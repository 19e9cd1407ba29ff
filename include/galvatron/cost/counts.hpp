// LayerCounts: what one rank does and keeps for one layer, and the circumstances that it depends on.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/extent.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::cost {

using program::head_chunk_rows;

/// The circumstances of a layer that its spec and strategy do not tell.
struct Batch {
  std::int64_t microbatch = 1;  ///< samples of one micro-batch over all data ranks
  std::int64_t sequence = 1;    ///< S of the model; a layer may work on a share of it
  Precision precision = Precision::fp32;
  int microbatches = 1;
  int stages = 1;                ///< pipeline degree, 1 where both ends are on one stage: a tied head shares the
                                 ///< embedding's table only then
  int last_first_rank = 0;       ///< first rank of the last stage; 0: that of stages of equal ranks
  bool splits_backward = false;  ///< the schedule defers weight gradients (galvatron::splits_backward)
  const RuntimeTraits* trainer = &own_runtime;  ///< whose code; it outlives the batch
  /// Traffic of the data ranks runs beside computation. A block under ZeRO-2/3 then has room in the workspace for twice
  /// its parameters and gradients: while it works, its neighbours' are under way.
  bool overlap = true;
  Precision moments = Precision::fp32;  ///< in which the optimizer keeps its moments: fp32 or bf16
  double expert_imbalance = program::default_expert_imbalance;  ///< rows of the rank with most over the mean
  LshOptions lsh{};                                             ///< of layers with compressed dispatch
  RankRatios ratios{};           ///< of the ranks of the stage, but for those of samples, which the micro-batch tells
  int local_rank = 0;            ///< with such ratios: the rank of the stage that is counted
  ExchangedSamples exchanged{};  ///< of the ranks that exchange the tokens of experts with it
};

/// What one rank keeps for one layer.
struct LayerBytes {
  Bytes states;              ///< parameters, gradients, optimizer states
  Bytes stash;               ///< kept from forward to backward for each micro-batch in flight, the input included
  Bytes deferred;            ///< kept besides from the first part of a split backward to the second
  Bytes input;               ///< the local tensors from the layer before, what passes by included
  Bytes activation;          ///< the local tensors to the layer after; mostly as large as the input
  Bytes pass_through;        ///< of them, what a stage keeps once for each micro-batch in flight: see
                             ///< LayerSpec::is_pass_through
  Bytes forward_workspace;   ///< transient peak of forward
  Bytes backward_workspace;  ///< transient peak of backward beyond the output's gradient, which it transforms in place
                             ///< and which grows where the input is larger
  Bytes weights_workspace;   ///< transient peak of the second part of a split backward

  /// This and `other`, another part of the same layer, together. Where input and output differ in size, the gradient of
  /// the input may have to move when the pass has ended, and has its place.
  constexpr void add(const LayerBytes& other) {
    states += other.states;
    stash += other.stash;
    deferred += other.deferred;
    input += other.input;
    activation += other.activation;
    pass_through += other.pass_through;
    forward_workspace += other.forward_workspace;
    backward_workspace += other.backward_workspace;
    weights_workspace += other.weights_workspace;
    if (input != activation) backward_workspace = max(backward_workspace, input);
  }
};

/// What one rank does and keeps for one layer.
struct LayerCounts : LayerBytes {
  op::WorkList forward;      ///< one micro-batch
  op::WorkList backward;     ///< one micro-batch, with recomputation and ZeRO-2/3 traffic, but for `weights`
  op::WorkList weights;      ///< one micro-batch: the second part of a backward that is split, else nothing
  op::WorkList synchronise;  ///< once an iteration: gradients of ZeRO-0/1 and of tied tables
  op::WorkList update;       ///< once an iteration: gradient norm, AdamW, parameter gathering
  // What runs beside computation of the traffic of ZeRO:
  bool overlaps_gradients = false;   ///< gradients of an iteration
  bool overlaps_parameters = false;  ///< parameters of an iteration
  bool streams = false;              ///< those of each micro-batch (ZeRO-2/3)
  // Of the trainer, see RuntimeTraits:
  int tensor_pieces = 0;     ///< beside which messages of tensor parallelism run
  Seconds host;              ///< of an operation
  double device_spread = 0;  ///< of the devices' speed

  /// This and `other`, another part of the same layer, together.
  constexpr void add(const LayerCounts& other) {
    LayerBytes::add(other);
    forward.append(other.forward);
    backward.append(other.backward);
    weights.append(other.weights);
    synchronise.append(other.synchronise);
    update.append(other.update);
    overlaps_gradients |= other.overlaps_gradients;
    overlaps_parameters |= other.overlaps_parameters;
    streams |= other.streams;
    tensor_pieces = tensor_pieces > other.tensor_pieces ? tensor_pieces : other.tensor_pieces;
    host = max(host, other.host);
    device_spread = device_spread > other.device_spread ? device_spread : other.device_spread;
  }
};

/// True when the head computes with the embedding's own table.
constexpr bool shares_table(const LayerSpec& layer, const Batch& batch) {
  return layer.kind == LayerKind::head && layer.tied && batch.stages == 1;
}

}  // namespace galvatron::cost
