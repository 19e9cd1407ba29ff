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

/// One rank's place in a layer: its device, its transient memory and its groups. D models device::Device.
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
  /// The same place, where samples have so many tokens.
  [[nodiscard]] Context with_tokens(std::int64_t count) const {
    Context out = *this;
    out.sequence = count;
    return out;
  }
  /// Calls f(first row, rows, samples, position of the first row) for runs of this rank's rows whose positions follow
  /// each other: two under zigzag, one for each document, else one.
  /// @param all  rows inside tensor-parallel regions, or where `local` this rank's own between the regions
  template <class F>
  void for_each_run(std::int64_t all, bool local, const F& f) const {
    const bool cut = local && spec.sequence == SequenceKind::megatron;
    const int part = cut ? context.rank() * spec.tensor + tensor.rank() : context.rank();
    const ActivationLayout layout =
        cut ? activation_layout(spec, 0, spec.data, sequence) : region_layout(spec, 0, spec.data, sequence);
    const auto begin_of = [&](int piece) {
      const std::int64_t tokens = sequence / layout.parts / layout.pieces();
      return layout.region({.part = part}, piece, samples, tokens).sequence_begin;
    };
    if (documents.empty()) {
      const std::int64_t n = all / layout.pieces();
      for (int i = 0; i < layout.pieces(); ++i) f(i * n, n, samples, begin_of(i));
      return;
    }
    const std::int64_t begin = begin_of(0);
    for (const Document& document : documents) {
      const std::int64_t from = std::max(document.first, begin);
      const std::int64_t to = std::min(document.first + document.tokens, begin + all);
      if (from < to) f(from - begin, to - from, std::int64_t{1}, from - document.first);
    }
  }
};

/// The place of this rank of `world` in a layer of a stage whose first rank is `first_rank`.
/// @param samples  of this rank  @param sequence  S  @param overlap, eight_bit, moments  see Context
template <class D>
Context<D> make_context(D& device, device::Region& workspace, comm::World& world, int first_rank,
                        const StrategySpec& spec, std::int64_t samples, std::int64_t sequence, bool overlap = true,
                        bool eight_bit = false, Precision moments = Precision::fp32) {
  const RankLayout layout = spec.rank_layout(first_rank);
  const auto group = [&](RankModes modes) -> comm::Group& { return world.group(layout.group(modes, world.rank())); };
  return Context<D>(device, workspace, group(RankMode::tp), group(RankMode::cp), group(shard_modes), spec, samples,
                    sequence, overlap, eight_bit, moments);
}

}  // namespace galvatron::runtime
