// What a layer needs to know of the rank that it runs on.
#pragma once

#include <cstdint>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/rank_layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::nn {

/// One rank's place in a layer: its device, its transient memory and its groups. D models
/// device::Device. Ranks are numbered as StrategySpec says.
template <class D>
struct Context {
  D& device;
  device::Region& workspace;
  comm::Group& tensor;   ///< the ranks that share this rank's tokens
  comm::Group& context;  ///< the ranks that share its samples, and have other tokens of them
  comm::Group& data;     ///< the ranks that hold the same parameters: data and context ranks together
  StrategySpec spec;
  std::int64_t samples = 0;             ///< b: samples of this rank in a micro-batch
  std::int64_t sequence = 0;            ///< S; of a layer, its own tokens
  bool overlap = true;                  ///< traffic of the data ranks runs beside computation
  bool eight_bit = false;               ///< products of blocks have 8-bit operands: see nn/linear.hpp
  Precision moments = Precision::fp32;  ///< in which the optimizer keeps its moments
  bool adds_gradients = true;  ///< of a block's weights; else products write them: ParameterLayout::written_end
  std::int64_t beside = 0;     ///< tokens of a sample that lie beside the layer's own: see LayerSpec::memory, passing

  [[nodiscard]] std::int64_t tokens() const { return sequence / spec.context; }  ///< of a sequence, on this rank
  [[nodiscard]] std::int64_t rows() const { return samples * tokens(); }  ///< tokens inside tensor-parallel regions
  /// Tokens between the regions.
  [[nodiscard]] std::int64_t rows_local() const {
    return spec.sequence == SequenceKind::megatron ? rows() / spec.tensor : rows();
  }
  [[nodiscard]] int tensor_rank() const { return tensor.rank(); }
  /// Ranks that hold the same parameters.
  [[nodiscard]] std::int64_t shards() const { return spec.shards(); }

  /// Runs of the sequence that this rank's tokens are, one after the other: two under zigzag, else one.
  [[nodiscard]] int pieces() const { return spec.uses_ring() ? 2 : 1; }
  /// The place in the sequence of the first token of a piece inside tensor-parallel regions; see ActivationLayout.
  [[nodiscard]] std::int64_t first_position(int piece) const {
    const int rank = context.rank();
    return (piece == 0 ? rank : 2 * spec.context - 1 - rank) * (tokens() / pieces());
  }
  /// The same between the regions.
  [[nodiscard]] std::int64_t first_position_local(int piece) const {
    const bool cut = spec.sequence == SequenceKind::megatron;
    const int part = cut ? context.rank() * spec.tensor + tensor.rank() : context.rank();
    const ActivationLayout layout = activation_layout(spec, 0, spec.data, sequence);
    return layout.region(layout.rank_at({.part = part}), piece).sequence_begin;
  }
};

/// The same place, where samples have so many tokens.
template <class D>
Context<D> with_tokens(Context<D> context, std::int64_t tokens, std::int64_t beside = 0) {
  context.sequence = tokens;
  context.beside = beside;
  return context;
}

/// The place of this rank of `world` in a layer of a stage whose first rank is `first_rank`.
/// @param samples  of this rank  @param sequence  S  @param overlap, eight_bit, moments  see Context
template <class D>
Context<D> make_context(D& device, device::Region& workspace, comm::World& world, int first_rank,
                        const StrategySpec& spec, std::int64_t samples, std::int64_t sequence, bool overlap = true,
                        bool eight_bit = false, Precision moments = Precision::fp32) {
  const RankLayout layout = spec.rank_layout(first_rank);
  const auto group = [&](RankModes modes) -> comm::Group& {
    return world.group(RankGroup(layout, modes).ranks(world.rank()));
  };
  return {device,
          workspace,
          group(RankMode::tp),
          group(RankMode::cp),
          group(shard_modes),
          spec,
          samples,
          sequence,
          overlap,
          eight_bit,
          moments};
}

/// The way into and out of a region in which weights are cut over tensor ranks (Megatron-LM; with `kind` megatron the
/// sequence-parallel form of Korthikanti et al. 2022). `whole` is (rows, H), a local part is (rows_local, H).
template <class T, SequenceKind kind, class D>
struct Region {
  Context<D>& context;
  std::int64_t hidden;

  /// The rows of `whole` that are this rank's own between the regions.
  [[nodiscard]] View<T> own(View<T> whole) const {
    if constexpr (kind == SequenceKind::megatron) {
      const std::int64_t n = context.rows_local() * hidden;
      return whole.slice(context.tensor_rank() * n, n);
    } else {
      return whole;
    }
  }
  /// After this rank's own rows are in place, all rows are.
  void gather(View<T> whole) const {
    if constexpr (kind == SequenceKind::megatron)
      context.tensor.all_gather(View<const T>(own(whole)), whole);
    else
      (void)whole;
  }
  /// Adds the partial sums of all tensor ranks; returns this rank's own rows of the sum.
  View<T> reduce(View<T> whole) const {
    if constexpr (kind == SequenceKind::megatron)
      context.tensor.reduce_scatter(whole, own(whole));
    else if (context.spec.tensor > 1)
      context.tensor.all_reduce(whole, comm::ReduceOp::sum);
    return own(whole);
  }
};

}  // namespace galvatron::nn
