// What a layer needs to know of the rank that it runs on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/rank_layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::runtime {

/// A document of a packed sequence: tokens attend within it, and its positions begin with 0.
struct Document {
  std::int64_t first = 0;  ///< row of its first token, of the rows of all context ranks
  std::int64_t tokens = 0;
};

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
  bool eight_bit = false;               ///< products of blocks have 8-bit operands: see Device::gemm_8bit
  Precision moments = Precision::fp32;  ///< in which the optimizer keeps its moments
  /// Of a micro-batch that is one packed sequence (samples is 1); empty: equal sequences. Not with ring attention.
  std::span<const Document> documents{};

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
  /// Calls f(first row, rows, samples, position of the first row) for runs of this rank's rows whose positions follow
  /// each other.
  /// @param all  rows inside tensor-parallel regions, or of them this rank's own between the regions
  template <class F>
  void for_each_run(std::int64_t all, bool local, const F& f) const {
    if (documents.empty()) {
      const std::int64_t n = all / pieces();
      for (int i = 0; i < pieces(); ++i) f(i * n, n, samples, local ? first_position_local(i) : first_position(i));
      return;
    }
    const std::int64_t begin = local ? first_position_local(0) : first_position(0);
    for (const Document& document : documents) {
      const std::int64_t from = std::max(document.first, begin);
      const std::int64_t to = std::min(document.first + document.tokens, begin + all);
      if (from < to) f(from - begin, to - from, std::int64_t{1}, from - document.first);
    }
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
Context<D> with_tokens(Context<D> context, std::int64_t tokens) {
  context.sequence = tokens;
  return context;
}

/// The place of this rank of `world` in a layer of a stage whose first rank is `first_rank`.
/// @param samples  of this rank  @param sequence  S  @param overlap, eight_bit, moments  see Context
template <class D>
Context<D> make_context(D& device, device::Region& workspace, comm::World& world, int first_rank,
                        const StrategySpec& spec, std::int64_t samples, std::int64_t sequence, bool overlap = true,
                        bool eight_bit = false, Precision moments = Precision::fp32) {
  const RankLayout layout = spec.rank_layout(first_rank);
  const auto group = [&](RankModes modes) -> comm::Group& { return world.group(layout.group(modes, world.rank())); };
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

}  // namespace galvatron::runtime
