// Lowering: from a layer's forward pass and the kinds of a strategy to the program of one rank.
//
//   forward graph ── forward_pass.hpp, backward_pass.hpp ──▶ steps on values ── allocate.hpp ──▶ buffers with offsets
//                    placements and redistributions: emitter.hpp; what is recomputed: kept_tensors.hpp
#pragma once

#include <type_traits>

#include <galvatron/core/compiled.hpp>
#include <galvatron/model/forward.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/program/allocate.hpp>
#include <galvatron/program/backward_pass.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron::program {

/// True when weight gradients can be deferred to a phase of their own: of plain blocks and users' layers with `cheap`
/// or `none` recomputation, an input and an output.
constexpr bool can_split(const forward::Graph& graph, const StrategySpec& kinds) {
  return splits_backward(graph.layer, kinds) && graph.inputs[0] >= 0 && !graph.has_loss();
}

namespace detail {

constexpr LayerProgram lowered(const forward::Graph& graph, StrategySpec kinds, bool splits, const Options& options) {
  if (graph.layer.kind != LayerKind::block) kinds.recompute = RecomputeKind::cheap;
  LayerProgram program = BackwardPass(graph, kinds, splits && can_split(graph, kinds), options).program();
  allocate_frames(program);
  return program;
}

template <class = void>
LayerProgram lowered_at_run_time(const forward::Graph& graph, const StrategySpec& kinds, bool splits,
                                 const Options& options) {
  return lowered(graph, kinds, splits, options);
}
GALVATRON_IN_PLANNER(LayerProgram lowered_at_run_time<>(const forward::Graph&, const StrategySpec&, bool,
                                                        const Options&))

}  // namespace detail

/// The program of a layer under a strategy of these kinds; its degrees do not matter. An embedding and a head recompute
/// nothing but norms.
/// @param splits   the schedule defers weight gradients
/// @param options  of another trainer
constexpr LayerProgram lower(const forward::Graph& graph, const StrategySpec& kinds, bool splits = false,
                             const Options& options = {}) {
  if (std::is_constant_evaluated()) return detail::lowered(graph, kinds, splits, options);
  return detail::lowered_at_run_time(graph, kinds, splits, options);
}

/// See Strategy<>::program.
template <StrategySpec kinds, LayerSpec layer>
struct ProgramOf {
  static constexpr LayerProgram value = lower(forward_of(layer), kinds);
};

}  // namespace galvatron::program
