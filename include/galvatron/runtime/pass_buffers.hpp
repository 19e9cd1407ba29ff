// PassBuffers: where the values of a layer's program lie. What a micro-batch keeps between phases is in its slot, what
// a phase alone needs in the frame of that phase, and a bundle's parts are those of the borders.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::runtime {

/// What a micro-batch keeps between phases: buffers of the program by number.
template <class T>
struct KeptBuffers {
  std::array<std::byte*, program::LayerProgram::most_buffers> buffers{};
  View<std::int32_t> tokens;  ///< of an embedding, those of the target last; targets of a head; a block's SampleStream;
                              ///< of a projection the ends of texts (write_text_ends())
  std::array<View<T>, most_parts> pass_through{};  ///< what a stage keeps once for several layers
  View<T> replicated;                              ///< replicated parameters, for the phase of weight gradients
  View<float> d_replicated;                        ///< and their gradients
};

/// The buffers of a program on one rank, and the numbers that its extents have there.
template <class D, class T>
class PassBuffers {
  using Program = program::LayerProgram;
  using Step = program::Step;
  using Phase = program::Phase;
  using Storage = program::Storage;

 public:
  /// The context and the program must outlive it.
  /// @param sequence  S of the model; that of the context is the layer's
  /// @param scratch   scratch(step, values): bytes of a step's own in its frame, by the values of extents
  template <class F>
  PassBuffers(const Context<D>& context, const Program& program, std::int64_t sequence, const F& scratch)
      : context_(context),
        program_(program),
        layer_(program.graph.layer),
        numbers_(numbers_of(sequence, context.shares())),
        values_(program, numbers_),
        capacities_(program, numbers_of(sequence, context.shares().of_any_rank())) {
    const auto size = [this](const program::Buffer& buffer) { return bytes(buffer); };
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::weights})
      frame_bytes_[at(static_cast<int>(phase))] =
          program::frame_bytes(program, phase, size, [&](const Step& step) { return scratch(step, values_); });
    for (int b = 0; b < program.buffers.size; ++b)
      if (const int phase = program.buffer(b).phase; phase >= 0)
        frame_offsets_[at(b)] = program::frame_offset(program, b, frame_bytes_[at(phase)], size);
    const RankShares shares = context.shares();
    const auto local = [&](const BundlePart& part) {
      return shares.tokens().count(part.tokens.of(sequence)) * part.width * context.batch.samples;
    };
    for (int part = 0; part + 1 < most_parts; ++part)
      begins_[at(part + 1)] = begins_[at(part)] + std::max(local(layer_.before(part)), local(layer_.after(part)));
    if (shares.has_even_tokens() || !context.spec.cuts_over_tensor()) return;
    const int first_rank = context.world.rank() - context.local_rank;
    for (const int rank : context.tensor.ranks())
      token_shares_.push_back(RankShares(context.spec, context.ratios, rank - first_rank).tokens());
  }

  /// Sets the numbers of the next passes, at most those that the buffers were made for; ranks of a group may differ.
  void bind(const program::Numbers& numbers) {
    numbers_ = numbers;
    values_ = program::ExtentValues(program_, numbers_);
  }
  /// The context has another micro-batch and other context ranks from now on. @param sequence  S of the model
  void bind(std::int64_t sequence) { bind(numbers_of(sequence, context_.shares())); }
  [[nodiscard]] const program::Numbers& numbers() const { return numbers_; }
  [[nodiscard]] const program::ExtentValues& values() const { return values_; }
  [[nodiscard]] std::int64_t of(program::ExtentId extent) const { return values_(extent); }
  [[nodiscard]] std::int64_t of(program::Letter letter) const { return numbers_(letter); }
  [[nodiscard]] std::int64_t frame_bytes(Phase phase) const { return frame_bytes_[at(static_cast<int>(phase))]; }

  /// The memory of a micro-batch from forward to backward.
  KeptBuffers<T> take_slot(device::Region& stash) const {
    KeptBuffers<T> out;
    take(stash, Storage::input, out);
    take(stash, Storage::slot, out);
    if (const std::int64_t tokens = program::token_count(layer_, numbers_); tokens > 0)
      out.tokens = stash.take<std::int32_t>(tokens);
    return out;
  }
  /// The memory of a micro-batch between backward and its weight gradients.
  /// @param replicated  parameters
  KeptBuffers<T> take_deferred(device::Region& stash, std::int64_t replicated) const {
    KeptBuffers<T> out;
    take(stash, Storage::deferred, out);
    out.replicated = stash.take<T>(replicated);
    out.d_replicated = stash.take<float>(replicated);
    return out;
  }
  /// Where the layer's input goes, or the patches of an embedding; empty where tokens come in.
  View<T> input(const KeptBuffers<T>& slot) const {
    for (int b = 0; b < program_.buffers.size; ++b)
      if (program_.buffer(b).storage == Storage::input)
        return {reinterpret_cast<T*>(slot.buffers[at(b)]), of(program_.buffer(b).elements)};
    return {};
  }

  /// The pass that begins: its micro-batch, and the border that it reads or writes (Executor::run).
  void begin(const KeptBuffers<T>& slot, const KeptBuffers<T>* deferred, View<T> border) {
    slot_ = &slot;
    deferred_ = deferred;
    border_ = border;
    frame_ = nullptr;
  }
  /// Where its frame lies, known when what ZeRO gathers lies before it.
  void set_frame(std::byte* frame) { frame_ = frame; }
  [[nodiscard]] const KeptBuffers<T>& slot() const { return *slot_; }
  [[nodiscard]] const KeptBuffers<T>& deferred() const { return *deferred_; }

  /// A value; its own rows where it is local.
  template <class U = T>
  View<U> value(int id) const {
    if (id < 0) return {};
    const program::Value& v = program_.value(id);
    const std::int64_t count = of(program_.buffer(v.buffer).elements);
    const View<U> all{reinterpret_cast<U*>(address(v.buffer)), count};
    const std::int64_t first = of(program::Letter::first_rows) * layer_.hidden;
    switch (v.part) {
      case program::Part::all:
        break;
      case program::Part::local:
        return local_part(all, program_.extents[static_cast<int>(program_.buffer(v.buffer).elements)]);
      case program::Part::first_tokens:
        return all.slice(0, first);
      case program::Part::patches:
        return all.slice(first, count - first);
    }
    return all;
  }
  /// Where the tensor ranks' own rows end among those of a step; empty where they have equally many.
  [[nodiscard]] std::vector<std::int64_t> local_ends(const Step& step) const {
    return local_ends(program_.extents[static_cast<int>(step.m)]);
  }
  /// What of the frame lies between its two ends while a step is executed: behind the buffers that grow from its begin.
  [[nodiscard]] std::byte* between_ends(Phase phase, int step) const {
    std::int64_t low = 0;
    for (int b = 0; b < program_.buffers.size; ++b) {
      const program::Buffer& buffer = program_.buffer(b);
      const bool lives = buffer.phase == static_cast<int>(phase) && buffer.first <= step && step <= buffer.last;
      if (lives && !buffer.high) low = std::max(low, frame_offsets_[at(b)] + bytes(buffer));
    }
    return D::counts_only ? nullptr : frame_ + low;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] program::Numbers numbers_of(std::int64_t sequence, const RankShares& shares) const {
    return {layer_,
            context_.spec,
            context_.batch.samples * context_.spec.data,
            sequence,
            precision_of<T>,
            shares,
            context_.expert_imbalance,
            context_.lsh,
            context_.exchanged};
  }
  [[nodiscard]] std::int64_t bytes(const program::Buffer& buffer) const {
    return program::bytes_of(buffer, capacities_, static_cast<std::int64_t>(sizeof(T)));
  }
  void take(device::Region& stash, Storage storage, KeptBuffers<T>& kept) const {
    for (int b = 0; b < program_.buffers.size; ++b)
      if (program_.buffer(b).storage == storage)
        kept.buffers[at(b)] = stash.take<std::byte>(bytes(program_.buffer(b))).data;
  }

  // Of what all tensor ranks have, this rank's own rows.
  template <class U>
  View<U> local_part(View<U> all, const program::Extent& extent) const {
    const std::int64_t rank = context_.tensor_rank();
    if (token_shares_.empty()) {
      const std::int64_t own = all.count / context_.spec.tensor;
      return all.slice(rank * own, own);
    }
    const std::vector<std::int64_t> ends = local_ends(extent);
    const std::int64_t begin = rank == 0 ? 0 : ends[static_cast<std::size_t>(rank - 1)];
    return all.slice(begin, ends[static_cast<std::size_t>(rank)] - begin);
  }
  // Where the tensor ranks' own rows end in a buffer of all of them; empty where they have equally many.
  [[nodiscard]] std::vector<std::int64_t> local_ends(const program::Extent& extent) const {
    std::vector<std::int64_t> out;
    if (token_shares_.empty()) return out;
    std::int64_t sequence = context_.batch.sequence;
    for (const program::Letter letter : {extent.a, extent.b}) {
      if (letter == program::Letter::memory_rows) sequence = of(program::Letter::memory_tokens);
      if (letter == program::Letter::target_rows)
        sequence = of(letter) / std::max<std::int64_t>(of(program::Letter::samples), 1);
    }
    std::int64_t tokens = 0;
    for (const TokenShare& share : token_shares_) out.push_back(tokens += share.count(sequence));
    const std::int64_t token = numbers_(extent) / std::max<std::int64_t>(tokens, 1);  // elements
    for (std::int64_t& end : out) end *= token;
    return out;
  }
  [[nodiscard]] std::byte* address(int b) const {
    switch (program_.buffer(b).storage) {
      case Storage::input:
      case Storage::slot:
        return slot_->buffers[at(b)];
      case Storage::deferred:
        return deferred_->buffers[at(b)];
      case Storage::pass_through:
        return reinterpret_cast<std::byte*>(slot_->pass_through[at(program_.buffer(b).part)].data);
      case Storage::output:
        return reinterpret_cast<std::byte*>(border_.data);
      case Storage::gradient:
        if (border_.data == nullptr) return nullptr;
        return reinterpret_cast<std::byte*>(border_.data + begins_[at(program_.buffer(b).part)]);
      case Storage::frame:
        break;
    }
    return D::counts_only ? nullptr : frame_ + frame_offsets_[at(b)];
  }

  const Context<D>& context_;
  const Program& program_;
  const LayerSpec& layer_;
  program::Numbers numbers_;
  program::ExtentValues values_;
  program::ExtentValues capacities_;      ///< of buffers: the same on all ranks
  std::vector<TokenShare> token_shares_;  ///< of the tensor ranks, between the regions; empty: equal ones
  std::array<std::int64_t, program::phases> frame_bytes_{};
  std::array<std::int64_t, Program::most_buffers> frame_offsets_{};  ///< of buffers in the frames of their phases
  std::array<std::int64_t, most_parts> begins_{};                    ///< elements before each part of a bundle

  // Of the pass that runs now.
  const KeptBuffers<T>* slot_ = nullptr;
  const KeptBuffers<T>* deferred_ = nullptr;
  View<T> border_;
  std::byte* frame_ = nullptr;
};

}  // namespace galvatron::runtime
