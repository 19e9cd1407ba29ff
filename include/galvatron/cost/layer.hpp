// What one rank does and keeps for one layer under one strategy: a fold of the layer's program (cost/fold.hpp), and
// what its parameters cost (cost/shape.hpp). The runtime executes the same program; a test runs layers on
// a device that counts (tests/counting_device.hpp) and compares.
//
// Selective recomputation keeps queries, keys and values and recomputes the attention core before its backward pass.
// Attention in blocks has no S x S matrices to keep, so it saves only the core's output and the statistics of the
// softmax: of a GPT block in bf16 about 2 of the 20 bytes for each token and hidden unit. Korthikanti et al. (arXiv
// 2205.05198), who recompute S x S matrices, save 5 A S / H bytes more.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/fold.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// Programs of one layer. They depend on the kinds of a strategy alone, of these not on ZeRO's, and those of an
/// embedding and a head not on what is recomputed.
class LayerPrograms {
 public:
  explicit constexpr LayerPrograms(const LayerSpec& layer) : layer_(layer) {}

  [[nodiscard]] constexpr const LayerSpec& layer() const { return layer_; }
  /// Makes the program of these kinds, unless it is there.
  constexpr void add(const StrategySpec& spec, const Batch& batch) {
    int& index = index_[kind_of(spec, batch)];
    if (index > 0) return;
    const program::Options options = batch.trainer->passes;
    programs_.push_back(
        program::lower(forward_of(layer_), spec, batch.splits_backward && !options.keeps_outputs, options));
    index = static_cast<int>(programs_.size());
  }
  /// A program that was added.
  [[nodiscard]] constexpr const program::LayerProgram& of(const StrategySpec& spec, const Batch& batch) const {
    return programs_[static_cast<std::size_t>(index_[kind_of(spec, batch)] - 1)];
  }

 private:
  static constexpr std::size_t recomputations = recompute_kinds.size();
  [[nodiscard]] constexpr std::size_t kind_of(const StrategySpec& spec, const Batch& batch) const {
    const std::size_t sequence =
        static_cast<std::size_t>(spec.sequence) + (spec.uses_ring() ? sequence_kinds.size() : 0);
    const std::size_t recompute = layer_.kind == LayerKind::block ? static_cast<std::size_t>(spec.recompute) : 0;
    const std::size_t exchange = layer_.experts == 0 || !spec.exchanges_tokens() ? 0 : spec.compresses_tokens() ? 2 : 1;
    return ((sequence * recomputations + recompute) * 2 + (batch.splits_backward ? 1 : 0)) * 3 + exchange;
  }

  LayerSpec layer_;
  std::array<int, 2 * sequence_kinds.size() * recomputations * 6> index_{};  ///< by kind, from 1
  std::vector<program::LayerProgram> programs_;
};

namespace detail {

template <class = void>
LayerCounts passes_at_run_time(const StrategySpec& spec, const Batch& batch, const program::LayerProgram& program,
                               Steps counted) {
  return Fold(program, spec, batch).passes(counted);
}
GALVATRON_IN_PLANNER(LayerCounts passes_at_run_time<>(const StrategySpec&, const Batch&, const program::LayerProgram&,
                                                      Steps))

}  // namespace detail

/// The passes of a layer: arithmetic, messages around it, activations. They are the same for all stages of ZeRO, but
/// for which micro-batches write the gradients of weights.
/// @param program  the layer's under the strategy
/// @param counted  steps whose work is counted; bytes are those of all
constexpr LayerCounts pass_counts(const StrategySpec& spec, const Batch& batch, const program::LayerProgram& program,
                                  detail::Steps counted = detail::Steps::all) {
  if (std::is_constant_evaluated()) return detail::Fold(program, spec, batch).passes(counted);
  return detail::passes_at_run_time(spec, batch, program, counted);
}

/// The stores of a layer, and how many elements of them a rank has under strategies of some degrees.
class LayerStores {
 public:
  static constexpr std::array parts{ParameterPart::table, ParameterPart::rest, ParameterPart::frozen,
                                    ParameterPart::experts};

  [[nodiscard]] constexpr const detail::StoreElements& elements(ParameterPart part, const forward::Graph& graph,
                                                                const StrategySpec& spec, const Batch& batch) {
    std::optional<detail::StoreElements>& known = elements_[static_cast<std::size_t>(part)];
    if (!known) known.emplace(graph, spec, batch, part);
    return *known;
  }

 private:
  std::array<std::optional<detail::StoreElements>, parameter_parts.size()> elements_{};  ///< by part
};

/// What the parameters of a layer add to its passes: states, traffic of parameters and gradients, memory for them. The
/// same whatever is recomputed, as long as backward is split or not; those of the rest whatever experts' degrees are.
/// @param parts  of them: the counts of all are the sum
constexpr LayerCounts parameter_counts(const StrategySpec& spec, const Batch& batch,
                                       const program::LayerProgram& program, LayerStores& stores,
                                       std::span<const ParameterPart> parts = LayerStores::parts) {
  using program::Code;
  using program::Phase;
  const LayerSpec& layer = program.graph.layer;
  const detail::LayerShape shape{layer, spec, batch};
  const bool is_block = layer.kind == LayerKind::block;
  // Where traffic overlaps the computation of neighbouring layers there are two buffers.
  const int buffers = is_block && batch.overlap ? 2 : 1;
  LayerCounts out;
  // What a phase of the program does, with the memory that it takes.
  struct Pass {
    Phase phase;
    op::WorkList& work;
    Bytes& workspace;
  };
  const Pass weights{Phase::weights, out.weights, out.weights_workspace};
  const std::array passes{Pass{Phase::forward, out.forward, out.forward_workspace},
                          Pass{Phase::backward, out.backward, out.backward_workspace}, weights};
  for (const ParameterPart part : parts) {
    if (!program.has(part)) continue;
    const detail::StoreCounts store(shape, part, stores.elements(part, program.graph, spec, batch));
    for (const Pass& pass : passes)
      for (const program::Step& step : program.steps(pass.phase)) {
        if (step.group != part) continue;
        // Other trainers divide one backward pass where weight gradients are deferred.
        const Pass& gradients = shape.splits_backward() ? weights : pass;
        if (step.code == Code::acquire) {
          store.acquire(pass.work);
          pass.workspace += store.gathered() * buffers;
        } else if (step.code == Code::open_gradients) {
          store.open_gradients(gradients.work);
          gradients.workspace += store.gradient() * buffers;
        } else if (step.code == Code::close_gradients) {
          store.close_gradients(gradients.work);
        }
      }
    // A tied head uses the embedding's table where it can; else its table is a second copy, whose gradient is in the
    // norm once already.
    const bool is_table = part == ParameterPart::table;
    if (is_table && shares_table(layer, batch)) continue;
    store.synchronise(out.synchronise);
    if (is_table) store.tie(out.synchronise);
    store.update(out.update, !(is_table && layer.kind == LayerKind::head && layer.tied));
    out.states += store.states();
  }
  const RuntimeTraits& traits = shape.traits;
  out.streams = is_block && batch.overlap && traits.prefetches;
  out.overlaps_gradients = batch.overlap && traits.overlaps_gradients;
  out.overlaps_parameters = batch.overlap && traits.overlaps_parameters;
  out.host = traits.host;
  out.device_spread = traits.device_spread;
  return out;
}

/// What one rank does and keeps for a layer under `spec`, of which the programs have been made.
constexpr LayerCounts layer_counts(const LayerPrograms& programs, const StrategySpec& spec, const Batch& batch) {
  const program::LayerProgram& program = programs.of(spec, batch);
  LayerCounts out = pass_counts(spec, batch, program);
  LayerStores stores;
  out.add(parameter_counts(spec, batch, program, stores));
  return out;
}

namespace detail {

constexpr LayerCounts counts_of(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  LayerPrograms programs(layer);
  programs.add(spec, batch);
  return layer_counts(programs, spec, batch);
}

template <class = void>
LayerCounts counts_at_run_time(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  return counts_of(layer, spec, batch);
}
GALVATRON_IN_PLANNER(LayerCounts counts_at_run_time<>(const LayerSpec&, const StrategySpec&, const Batch&))

}  // namespace detail

/// What one rank does and keeps for `layer` under `spec`. The strategy must fit the layer and the batch
/// (strategy/legality.hpp).
constexpr LayerCounts layer_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  if (std::is_constant_evaluated()) return detail::counts_of(layer, spec, batch);
  return detail::counts_at_run_time(layer, spec, batch);
}

/// Programs of all layers that were asked for: layers of one kind under strategies of one kind share one, for as long
/// as this lives.
class ProgramStore {
 public:
  /// The same as `layer_counts` of the layer.
  [[nodiscard]] LayerCounts layer_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
    const auto is_of = [&](const Entry& entry) {
      return entry.passes == batch.trainer->passes && entry.programs.layer().costs_like(layer);
    };
    auto entry = std::ranges::find_if(entries_, is_of);
    if (entry == entries_.end()) entry = entries_.insert(entry, {batch.trainer->passes, LayerPrograms(layer)});
    entry->programs.add(spec, batch);
    return cost::layer_counts(entry->programs, spec, batch);
  }

 private:
  struct Entry {
    program::Options passes;  // of the trainer
    LayerPrograms programs;
  };
  std::vector<Entry> entries_;
};

/// The messages of one micro-batch that take tokens of `layer` to the ranks of their experts and back, in both passes.
constexpr op::WorkList expert_messages(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  LayerPrograms programs(layer);
  programs.add(spec, batch);
  return detail::Fold(programs.of(spec, batch), spec, batch).expert_messages();
}

/// The head's forward pass alone: its counts carry the backward pass too.
constexpr Flops head_flops(const LayerSpec& head, const Batch& batch) {
  const std::int64_t tokens = head.tokens.of(batch.sequence) * batch.microbatch;
  const std::int64_t rows = head.head == HeadKind::classifier ? batch.microbatch : tokens;
  op::WorkList products;
  products.push(detail::compute(op::Kind::gemm_nt, rows, head.vocabulary, head.hidden));
  if (head.head == HeadKind::masked_language)
    products.push(detail::compute(op::Kind::gemm_nt, tokens, head.hidden, head.hidden));
  return products.flops();
}

}  // namespace galvatron::cost
