// What a rank reads of the data for the layers of its chunk: tokens, targets, patches, and which noise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/rng.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/packing.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

/// A rank's samples of a micro-batch.
inline Sharding::Range samples_of(const ActivationLayout& layout, int rank) {
  return layout.samples().range(layout.place(rank).data);
}

/// The packed sequence that a rank has a part of.
struct PackedPart {
  const PackedSequence* sequence = nullptr;  ///< null: samples have equally many tokens
  int number = 0;                            ///< in the step
  int first = 0;                             ///< of the ranks that share parameters, and how many share the sequence
  int ranks = 0;
};

/// @tparam D  the device  @tparam T  element type of activations
template <class D, class T>
class ChunkData {
 public:
  /// Which samples and which noise.
  struct Moment {
    std::int64_t step = 0;
    std::uint64_t seed = 0;  ///< of noise
  };

  /// All of these outlive it. @param rank  of the world
  ChunkData(D& device, const StagePlan& stage, const ChunkPlan& plan, int rank)
      : device_(device), stage_(stage), plan_(plan), rank_(rank) {}

  /// The step's samples are packed like this, which outlives its passes; null: they have equally many tokens.
  void pack(const Packing* packing) { packing_ = packing; }
  /// This rank's part of the sequences of a micro-batch.
  [[nodiscard]] PackedPart packed_part(int microbatch) const {
    if (packing_ == nullptr) return {};
    const StrategySpec& spec = plan_.layers.front().spec;  // all layers have the same degrees
    const int own = spec.shard(rank_ - stage_.first_rank);
    PackedPart out{.number = static_cast<int>(packing_->number(microbatch, 0))};
    for (;; ++out.number, out.first += out.ranks) {
      out.sequence = &packing_->sequences[static_cast<std::size_t>(out.number)];
      out.ranks = out.sequence->ranks > 0 ? out.sequence->ranks : spec.context;
      if (own < out.first + out.ranks) return out;
    }
  }
  /// Writes what the layer `number` of the chunk reads of a micro-batch: the patches or tokens of an embedding, the
  /// targets of a head; a block with noise gets the stream of the step and the layer.
  void read(runtime::Layer<T>& to, std::size_t number, int microbatch, Moment at, BatchSource& source) {
    const LayerSpec& end = plan_.layers[number].layer;
    if (end.kind == LayerKind::block && !end.has_jitter()) return;
    const int slot = microbatch % plan_.slots;
    const ActivationLayout& layout = plan_.layouts[number];
    const Sharding::Range own = samples_of(layout, rank_);
    const std::int64_t first = microbatch * layout.batch + own.begin;
    const std::int64_t samples = own.count();
    if (end.kind == LayerKind::block)
      return device_.write(to.tokens(slot), [&](View<std::int32_t> out) {
        SampleStream{at.seed, noise_stream(at.step, plan_.layers[number].number), static_cast<std::uint64_t>(first)}
            .write(out.data);
      });
    if (end.patch_width > 0)
      return device_.write(to.patches(slot),
                           [&](View<T> out) { source.patches(at.step, first, samples, patches_of(number), out); });
    if (packing_ != nullptr) return read_packed(to, number, microbatch, at.step, source);
    const std::int64_t tokens = end.tokens.of(stage_.batch.sequence);
    device_.write(to.tokens(slot), [&](View<std::int32_t> out) {
      if (end.kind == LayerKind::head && end.head == HeadKind::classifier)
        return source.targets(at.step, first, samples, {0, 1}, out);
      if (end.kind == LayerKind::head)
        return read_pieces(number, microbatch, tokens, out,
                           [&](auto... part_and_out) { source.targets(at.step, part_and_out...); });
      const std::int64_t target = end.target.of(stage_.batch.sequence);
      const std::int64_t behind_inputs = out.count - target * samples;  // a rank has targets whole
      read_pieces(number, microbatch, tokens, out.slice(0, behind_inputs),
                  [&](auto... part_and_out) { source.inputs(at.step, part_and_out...); });
      if (target > 0)
        read_pieces(number, microbatch, target, out.slice(behind_inputs, out.count - behind_inputs),
                    [&](auto... part_and_out) { source.decoder_inputs(at.step, part_and_out...); });
    });
  }

 private:
  // Of a layer's noise in a step: neither that of another one, nor of initial values.
  static constexpr std::uint64_t noise_stream(std::int64_t step, int layer) {
    return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(layer) << 40 | static_cast<std::uint64_t>(step);
  }
  // The tokens or targets of this rank's part of a packed sequence.
  void read_packed(runtime::Layer<T>& to, std::size_t number, int microbatch, std::int64_t step, BatchSource& source) {
    const PackedPart own = packed_part(microbatch);
    const int local = rank_ - stage_.first_rank;
    StrategySpec spec = plan_.layers[number].spec;
    const int tensor = spec.tensor_rank(local);
    const int context = spec.shard(local) - own.first;
    spec.context = own.ranks;
    spec.data = 1;
    spec.strided = false;
    const ActivationLayout layout = region_layout(spec, 0, 1, own.sequence->rows());
    const RankLayout ranks = spec.rank_layout();
    const int place = ranks.offset(RankMode::tp, tensor) + ranks.offset(RankMode::cp, context);
    device_.write(to.tokens(microbatch % plan_.slots), [&](View<std::int32_t> out) {
      std::int64_t row = 0;
      for (int piece = 0; piece < layout.pieces(); ++piece) {
        const galvatron::Region part = layout.region(place, piece);
        const SequenceRange range{part.sequence_begin, part.sequence_end - part.sequence_begin};
        const View<std::int32_t> rows = out.slice(row, range.count);
        plan_.layers[number].layer.kind == LayerKind::head ? source.targets(step, own.number, 1, range, rows)
                                                           : source.inputs(step, own.number, 1, range, rows);
        row += range.count;
      }
      std::fill(out.begin() + row, out.end(), 0);
    });
  }
  // The tokens or targets of this rank in sequences of so many, piece by piece; whole sequences unless they are cut
  // over context ranks.
  template <class Read>
  void read_pieces(std::size_t number, int microbatch, std::int64_t tokens, View<std::int32_t> out,
                   Read&& from_source) const {
    const ActivationLayout& between = plan_.layouts[number];
    const ActivationLayout layout =
        region_layout(plan_.layers[number].spec, between.first_rank, between.batch, tokens, stage_.ratios);
    const std::int64_t samples = samples_of(layout, rank_).count();
    std::int64_t row = 0;
    for (int piece = 0; piece < layout.pieces(); ++piece) {
      const galvatron::Region part = layout.region(rank_, piece);
      const SequenceRange range{part.sequence_begin, part.sequence_end - part.sequence_begin};
      if (range.count == 0) continue;
      from_source(microbatch * layout.batch + part.batch_begin, samples, range, out.slice(row, range.count * samples));
      row += range.count * samples;
    }
  }
  // Of every image, those that this rank has as tokens.
  [[nodiscard]] SequenceRange patches_of(std::size_t number) const {
    const galvatron::Region part = plan_.layouts[number].region(rank_);
    const std::int64_t others = plan_.layers[number].layer.class_token ? 1 : 0;  // tokens that are no patches
    const std::int64_t first = std::max(part.sequence_begin - others, std::int64_t{0});
    return {first, part.sequence_end - others - first};
  }

  D& device_;
  const StagePlan& stage_;
  const ChunkPlan& plan_;
  int rank_;
  const Packing* packing_ = nullptr;
};

}  // namespace galvatron::train
