// What a layer needs to know of the rank that it runs on.
#pragma once

#include <cstdint>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/program/extent.hpp>
#include <galvatron/runtime/micro_batch.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/rank_layout.hpp>
#include <galvatron/strategy/ratios.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::runtime {

/// Where a layer adds up what its dispatch to experts does in a step; empty, or null: nowhere.
struct DispatchCounts {
  View<double> sums{};                 ///< (dispatch_sums), in memory of the device
  std::int64_t* sent_bytes = nullptr;  ///< to other ranks, for experts and back
};

/// One rank's place in a layer: its device, its transient memory and its groups. D models device::Device.
template <class D>
struct Context {
  D& device;
  device::Region& workspace;
  comm::World& world;
  comm::Group& tensor;         ///< the ranks that share this rank's tokens
  comm::Group* context;        ///< the ranks that share its samples, and have other tokens of them
  comm::Group& data;           ///< the ranks that hold the same parameters: data and context ranks together
  comm::Group& experts;        ///< the ranks that exchange tokens: those with other experts or other parts of them
  comm::Group& expert_shards;  ///< the ranks that hold the same experts
  StrategySpec spec;
  MicroBatch batch{};
  std::int64_t all_samples = 0;         ///< of a micro-batch over all data ranks
  bool overlap = true;                  ///< traffic of the data ranks runs beside computation
  bool eight_bit = false;               ///< products of blocks have 8-bit operands: see Device::gemm_8bit
  Precision moments = Precision::fp32;  ///< in which the optimizer keeps its moments
  double expert_imbalance = program::default_expert_imbalance;  ///< that the memory of experts is for
  LshOptions lsh{};                                             ///< of compressed dispatch
  DispatchCounts dispatch{};
  RankRatios ratios{};           ///< of the stage's ranks
  int local_rank = 0;            ///< of the stage
  ExchangedSamples exchanged{};  ///< of the ranks that exchange tokens
  View<float> loads{};  ///< of the layer's experts: backward adds the choices of this rank's tokens; empty: it does not
  bool trains = true;   ///< else passes go forward alone, and parameters have neither gradients nor moments

  /// Of a sequence, on this rank inside tensor-parallel regions.
  [[nodiscard]] std::int64_t tokens() const { return shares().region_tokens().count(batch.sequence); }
  [[nodiscard]] std::int64_t rows() const { return batch.samples * tokens(); }
  /// Between the regions.
  [[nodiscard]] std::int64_t rows_local() const { return batch.samples * shares().tokens().count(batch.sequence); }
  [[nodiscard]] int tensor_rank() const { return tensor.rank(); }
  /// Some of what tensor and context ranks share is cut by ratios.
  [[nodiscard]] bool cuts_by_ratio() const { return ratios.of(spec).cut_tensors(); }
  /// What this rank has of what tensor and context ranks share.
  [[nodiscard]] RankShares shares() const {
    return cuts_by_ratio() ? RankShares(spec, ratios, local_rank)
                           : RankShares::even(spec, tensor.rank(), context->rank());
  }
  /// What each context rank has of a sequence, inside tensor-parallel regions.
  [[nodiscard]] std::vector<TokenShare> context_tokens() const {
    const RankShares own = shares();
    if (!own.has_even_tokens()) return {own.context_tokens().begin(), own.context_tokens().end()};
    const TokenCut equal(spec.context, 1, spec.uses_ring());
    std::vector<TokenShare> out;
    for (int i = 0; i < spec.context; ++i) out.push_back(equal.of(i));
    return out;
  }
  /// The part of a layer's parameters that this rank has in a store.
  [[nodiscard]] StorePlace place(ParameterPart part) const {
    if (part != ParameterPart::experts || !spec.exchanges_tokens()) return {tensor.rank(), spec.tensor};
    return {experts.rank() % spec.etp(), spec.etp(), experts.rank() / spec.etp()};
  }
  /// The ranks that hold the same part.
  [[nodiscard]] comm::Group& shards(ParameterPart part) const {
    return part == ParameterPart::experts ? expert_shards : data;
  }
  /// How ZeRO shards a store of so many elements over these ranks.
  [[nodiscard]] Sharding cut(ParameterPart part, std::int64_t elements) const {
    return StoreRanks(spec, part).cut(elements, ratios.states, local_rank);
  }
  /// The same place, where samples have so many tokens.
  [[nodiscard]] Context with_tokens(std::int64_t count) const {
    Context out = *this;
    out.batch.sequence = count;
    return out;
  }
  /// Calls f(first row, rows, position of the first row) for runs of this rank's rows whose positions follow each
  /// other: two under zigzag, one for each document, else one.
  /// @param all  rows inside tensor-parallel regions, or where `local` this rank's own between the regions
  template <class F>
  void for_each_run(std::int64_t all, bool local, const F& f) const {
    for_each_piece(all, local, [&](std::int64_t first, std::int64_t rows, std::int64_t token) {
      batch.for_each_run(token, rows, [&](std::int64_t from, std::int64_t count, std::int64_t position) {
        f(first + from, count, position);
      });
    });
  }
  /// The same for runs of tokens that follow each other, f(first row, rows, first token): two under zigzag, else one.
  template <class F>
  void for_each_piece(std::int64_t all, bool local, const F& f) const {
    const bool cut = local && spec.cuts_over_tensor();
    const int part = cut ? context->rank() * spec.tensor + tensor.rank() : context->rank();
    const RankRatios own = {.tokens = ratios.tokens};
    const ActivationLayout layout = cut ? activation_layout(spec, 0, spec.data, batch.sequence, own)
                                        : region_layout(spec, 0, spec.data, batch.sequence, own);
    const TokenCut tokens = layout.tokens();
    std::int64_t first = 0;
    for (int piece = 0; piece < layout.pieces(); ++piece) {
      const Region run = layout.region({.part = part}, piece, {0, batch.samples}, tokens);
      const std::int64_t rows = layout.pieces() == 1 ? all : run.tokens();
      if (rows > 0) f(first, rows, run.sequence_begin);
      first += rows;
    }
  }
};

/// The place of this rank of `world` in a layer of a stage whose first rank is `first_rank`.
/// @param samples  of this rank  @param sequence  S  @param overlap, eight_bit, moments, expert_imbalance, lsh  see
/// Context
template <class D>
Context<D> make_context(D& device, device::Region& workspace, comm::World& world, int first_rank,
                        const StrategySpec& spec, std::int64_t samples, std::int64_t sequence, bool overlap = true,
                        bool eight_bit = false, Precision moments = Precision::fp32,
                        double expert_imbalance = program::default_expert_imbalance, const LshOptions& lsh = {}) {
  const RankLayout layout = spec.rank_layout(first_rank);
  const RankLayout expert_layout = spec.expert_layout(first_rank);
  const auto group_of = [&](const RankLayout& in, RankModes modes) -> comm::Group& {
    return world.group(in.group(modes, world.rank()));
  };
  const auto group = [&](RankModes modes) -> comm::Group& { return group_of(layout, modes); };
  return Context<D>(device, workspace, world, group(RankMode::tp), &group(RankMode::cp), group(shard_modes),
                    group_of(expert_layout, RankMode::tp | RankMode::ep), group_of(expert_layout, shard_modes), spec,
                    MicroBatch{samples, sequence}, samples * spec.data, overlap, eight_bit, moments, expert_imbalance,
                    lsh);
}

}  // namespace galvatron::runtime
