// ParameterStore: the parameters, gradients and optimizer states of a layer, sharded as its ZeRO stage says.
//
//   stage | parameters | gradients | optimizer | traffic over the data and context ranks
//   ------+------------+-----------+-----------+-------------------------------------------------------------
//     0   | whole      | whole     | whole     | all-reduce of gradients, once an iteration
//     1   | whole      | whole     | 1/d       | reduce-scatter of gradients, all-gather of parameters, once
//     2   | whole      | 1/d       | 1/d       | reduce-scatter a micro-batch, all-gather of parameters once
//     3   | 1/d        | 1/d       | 1/d       | all-gather before each forward and backward, reduce-scatter after
//
// (Rajbhandari et al. 2020.) With fp32 the parameters are their own masters; with bf16 the master lies with the
// optimizer's shard, as the moments do, which are binary32 or bfloat16. Shards are equal runs of the store, so every
// stage is one operation over one run of memory. A frozen store has parameters alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/team.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::runtime {

/// A run of rows of a tensor that is cut over tensor ranks.
struct WholeRun {
  std::int64_t index = 0;  ///< in the whole tensor, counted row by row: the number of its first element
  std::int64_t rows = 1;   ///< that follow each other in the whole tensor as well
};
/// The longest run that begins with local row `row`.
constexpr WholeRun whole_run(const ParameterTensor& tensor, const StorePlace& place, std::int64_t row) {
  const std::int64_t before = place.expert_rank * tensor.copies * tensor.matrix_rows;  // rows of other expert ranks
  if (tensor.cut == ParameterCut::whole) return {(before + row) * tensor.columns, tensor.rows - row};
  if (tensor.cut == ParameterCut::columns) return {(before + row) * tensor.all_columns + tensor.first_column, 1};
  const std::int64_t matrix = tensor.rows / tensor.copies;  // local rows of one
  const std::int64_t first = before + row / matrix * tensor.matrix_rows;
  std::int64_t section = row / matrix * matrix;  // its first local row
  for (std::size_t i = 0; i < tensor.sections.size(); ++i) {
    const std::int64_t rows = tensor.sections[i];
    if (row < section + rows)
      return {(first + tensor.begins[i] + row - section) * tensor.columns, section + rows - row};
    section += rows;
  }
  return {};
}

/// The tensor of that name in a store with this layout; empty where there is none.
template <class U>
View<U> tensor_of(const ParameterLayout& layout, View<U> store, ParameterName name) {
  const ParameterTensor* tensor = layout.find(name);
  return tensor == nullptr ? View<U>{} : store.slice(tensor->offset, tensor->count());
}

/// The values that training starts from: as the tensor's `init` says, by seed, layer number and place.
/// @param threads  that draw them, the caller included; the values are the same with any number
inline ParameterSource initial_values(std::uint64_t seed, int threads = 1) {
  return [seed, team = std::make_shared<Team>(threads)](int layer, const ParameterTensor& tensor, std::int64_t index,
                                                        View<float> values) {
    if (tensor.init != ParameterInit::normal) {
      std::fill(values.begin(), values.end(), value_of(tensor.init));
      return;
    }
    // 64 streams of a layer, and others of names behind them.
    const auto name = static_cast<std::uint64_t>(tensor.name);
    const std::uint64_t stream =
        static_cast<std::uint64_t>(layer) * 64 + name % 64 + (name < 64 ? 0 : std::uint64_t{1} << 40);
    constexpr std::int64_t most = 1 << 13;  // elements that a thread draws at a time: some 20 microseconds
    team->each(static_cast<std::size_t>(divide_up(values.count, most)), [&](std::size_t piece) {
      const std::int64_t first = static_cast<std::int64_t>(piece) * most;
      fill_normal(values.slice(first, std::min(most, values.count - first)), seed, stream,
                  static_cast<std::uint64_t>(index + first), static_cast<float>(tensor.deviation));
    });
  };
}

/// How the bias of a router moves after a step (Wang et al., "Auxiliary-loss-free load balancing", arXiv 2408.15664).
struct BiasUpdate {
  float rate = 0;
  float mean = 0;  ///< choices of an expert in a step where all have equally many

  BiasUpdate() = default;
  /// @param token_weight  of a token in a mean over the global batch
  BiasUpdate(const LayerSpec& layer, double token_weight)
      : rate(static_cast<float>(layer.router.bias_rate)),
        mean(layer.experts == 0 ? 0.0F
                                : static_cast<float>(static_cast<double>(layer.active_experts) /
                                                     (static_cast<double>(layer.experts) * token_weight))) {}
};

template <class D, class T>
class ParameterStore final : public Store {
  static constexpr bool has_master = !std::is_same_v<T, float>;

 public:
  /// Takes its memory from `states`. The context must outlive the store.
  /// @param part      of the layer's parameters
  /// @param layer     the layer's number in the model, so that equal layers differ; copies of a store have the same
  /// @param replicas  of one of two stores that are kept equal: this rank and the rank that has the same shard of the
  ///                  other one; else null
  /// @param counted   false for the second of the two: its gradient is in the norm once already
  ParameterStore(Context<D>& context, device::Region& states, ParameterPart part, const ParameterLayout& layout,
                 int layer, comm::Group* replicas = nullptr, bool counted = true, BiasUpdate bias = {})
      : context_(&context),
        shards_(&context.shards(part)),
        place_(context.place(part)),
        part_(part),
        layout_(layout),
        layer_(layer),
        replicas_(replicas),
        counted_(counted),
        bias_(bias),
        zero_(context.spec.zero) {
    const std::int64_t n = layout_.elements;
    const Sharding cut = context.cut(part, n);
    own_ = cut.range(shards_->rank());
    const std::int64_t shard = own_.count();
    if (cut != Sharding::even(n, shards_->size()))
      for (int i = 0; i < shards_->size(); ++i) ends_.push_back(cut.range(i).end);
    if (n == 0) return;
    parameters_ = states.take<T>(zero_ == 3 ? shard : n);
    if (!trains()) return;
    gradients_ = states.take<float>(zero_ >= 2 ? shard : n);
    const std::int64_t optimizer = zero_ >= 1 ? shard : n;
    first_moment_ = MomentView(states, optimizer, context.moments);
    second_moment_ = MomentView(states, optimizer, context.moments);
    if constexpr (has_master)
      master_ = states.take<float>(optimizer);
    else
      master_ = zero_ == 1 || zero_ == 2 ? parameters_.slice(own_.begin, shard) : parameters_;
  }

  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] bool empty() const { return layout_.elements == 0; }
  /// False for a store without gradients.
  [[nodiscard]] bool trains() const { return context_->trains && !layout_.frozen && !empty(); }

  /// Parameters from `source`; the moments are 0, where there are any.
  void initialise(const ParameterSource& source) override {
    if (D::counts_only || empty()) return;
    const Range kept = zero_ == 3 ? own_ : Range{0, layout_.elements};
    for (const MomentView& moment : {first_moment_, second_moment_})
      moment.visit(0, moment.count(), [&](auto values) { context_->device.zero(raw_bytes(values)); });
    if (!master_.empty()) context_->device.zero(raw_bytes(master_));
    context_->device.zero(raw_bytes(parameters_));
    constexpr std::int64_t most = 1 << 19;  // elements at a time: enough for several threads, and they stay in caches
    std::vector<float> values;
    for (const ParameterTensor& tensor : layout_) {
      const std::int64_t c = tensor.columns;
      const Range part = intersection(kept, {tensor.offset, tensor.offset + tensor.count()});
      if (part.count() == 0) continue;
      const std::int64_t end = divide_up(part.end - tensor.offset, c);
      std::int64_t rows = 0;
      for (std::int64_t row = (part.begin - tensor.offset) / c; row < end; row += rows) {
        const WholeRun run = whole_run(tensor, place_, row);
        rows = std::min({run.rows, end - row, std::max<std::int64_t>(most / c, 1)});
        const Range range{tensor.offset + row * c, tensor.offset + (row + rows) * c};
        if constexpr (!has_master) {
          if (kept.begin <= range.begin && range.end <= kept.end) {
            context_->device.write(parameters_.slice(range.begin - kept.begin, range.count()),
                                   [&](View<float> to) { source(layer_, tensor, run.index, to); });
            continue;
          }
        }
        values.resize(static_cast<std::size_t>(range.count()));
        source(layer_, tensor, run.index, {values.data(), range.count()});
        if constexpr (has_master)
          if (!master_.empty()) place(values, range, optimizer_range(), master_);
        place(values, range, kept, parameters_);
      }
    }
  }

  [[nodiscard]] Bytes parameter_buffer_bytes() const override {
    return {zero_ == 3 ? layout_.elements * static_cast<std::int64_t>(sizeof(T)) : 0};
  }
  [[nodiscard]] Bytes gradient_buffer_bytes() const override {
    return {zero_ >= 2 && !layout_.frozen ? layout_.elements * static_cast<std::int64_t>(sizeof(float)) : 0};
  }
  void start_gather(View<std::byte> buffer) override {
    gathered_ = typed<T>(buffer);
    gathering_ = shards_->start_all_gather(View<const T>(parameters_), gathered_, ends_);
  }
  void release_parameters() override { gathered_ = {}; }
  void set_gradient_buffer(View<std::byte> buffer) override { gradient_buffer_ = typed<float>(buffer); }
  void finish_gradients() override {
    if (layout_.frozen) return;
    shards_->finish(reducing_);
    context_->device.accumulate(own_.count(), gradient_buffer_.slice(own_.begin, own_.count()), gradients_);
    gradient_buffer_ = {};
  }

  /// The whole local parameters: gathered under ZeRO-3, into the workspace unless start_gather() was called.
  View<const T> acquire() {
    if (zero_ == 3 && empty()) return {};
    if (zero_ < 3 || !gathered_.empty()) {
      shards_->finish(gathering_);
      return zero_ < 3 ? parameters_ : gathered_;
    }
    View<T> all = context_->workspace.template take<T>(layout_.elements);
    shards_->all_gather(View<const T>(parameters_), all, ends_);
    return all;
  }

  /// False when the next backward pass is the first to write gradients in [0, written_end) of the layout.
  [[nodiscard]] bool adds_gradients() const { return zero_ < 2 && !is_first_; }

  /// Where a backward pass adds the layer's gradient, or writes it where adds_gradients() is false: the store's own, or
  /// another (ZeRO-2/3), in the workspace unless set_gradient_buffer() gave the place.
  View<float> open_gradients() {
    if (zero_ < 2 || empty()) return gradients_;
    View<float> all =
        gradient_buffer_.empty() ? context_->workspace.template take<float>(layout_.elements) : gradient_buffer_;
    zero(added_part(all));
    return all;
  }

  /// Ends a backward pass: under ZeRO-2/3 the data ranks' gradients are added, shard by shard, to the store's; those in
  /// a buffer set by set_gradient_buffer() by finish_gradients().
  void close_gradients(View<float> gradients) {
    if (zero_ < 2) is_first_ = false;
    if (zero_ < 2 || empty()) return;
    sum_whole(gradients);
    View<float> shard = gradients.slice(own_.begin, own_.count());
    if (!gradient_buffer_.empty()) {
      reducing_ = shards_->start_reduce_scatter(gradients, shard, ends_);
      return;
    }
    shards_->reduce_scatter(gradients, shard, ends_);
    context_->device.accumulate(own_.count(), shard, gradients_);
  }

  /// After the last micro-batch: begins to make the gradient that of the whole batch, which it is after synchronise().
  void start_synchronise() override {
    if (zero_ < 2 && context_->overlap && trains()) begin_reduction();
  }
  /// The gradient of the whole batch, whole (ZeRO-0) or in this rank's shard.
  void synchronise() override {
    if (!trains()) return;
    if (zero_ < 2) {
      if (!reduction_begun_) begin_reduction();
      reduction_begun_ = false;
      shards_->finish(reducing_);
    }
    if (replicas_ != nullptr) replicas_->all_reduce(optimizer_gradients(), comm::ReduceOp::sum);
  }

  /// The synchronised gradients that this rank's optimizer works on: all (ZeRO-0) or this rank's shard.
  [[nodiscard]] View<float> optimizer_gradients() {
    return zero_ == 1 ? gradients_.slice(own_.begin, own_.count()) : gradients_;
  }
  /// The store from outside.
  [[nodiscard]] StoreView view() override {
    return {.layer = layer_,
            .layout = &layout_,
            .range = optimizer_range(),
            .gradients = optimizer_gradients(),
            .master = master_,
            .first_moment = first_moment_,
            .second_moment = second_moment_,
            .own = own_,
            .place = place_,
            .counted = counted_};
  }
  /// The elements of the store that optimizer_gradients() stands for.
  [[nodiscard]] Range optimizer_range() const { return zero_ >= 1 ? own_ : Range{0, layout_.elements}; }

  /// The device's sum of squares grows by this rank's part of the gradient: every parameter of the model is counted on
  /// one rank.
  void add_gradient_squares() override {
    if (!trains() || !counted_) return;
    const View<float> own = zero_ == 0 ? gradients_.slice(own_.begin, own_.count()) : optimizer_gradients();
    const auto part = [&](Range range) {
      const Range r = intersection(range, own_);
      if (r.count() > 0)
        context_->device.norm_squared(r.count(), own.slice(r.begin - own_.begin, r.count()),
                                      context_->device.sums().slice(device::gradient_squares, 1));
    };
    if (place_.tensor_rank == 0) return around_bias({0, layout_.elements}, part);
    part({0, layout_.whole_begin});
    part({layout_.whole_end, layout_.elements});
  }

  /// One step of AdamW under the device's gradient scale; parameters of more than one dimension decay. ZeRO-1/2 begin
  /// to gather the working parameters; acquire() ends it.
  void update() override {
    if (!trains()) return;
    const std::uint32_t number = static_cast<std::uint32_t>(2 * layer_ + (part_ == ParameterPart::table ? 1 : 0));
    const std::uint32_t degree = static_cast<std::uint32_t>(place_.tensor_degree);
    // Those of experts begin behind those of all layers.
    const std::uint32_t offset =
        part_ == ParameterPart::experts ? (1U << 16) * (1U + static_cast<std::uint32_t>(place_.expert_rank)) : 0;
    const auto stream_of = [&](int rank) { return (offset + number) * degree + static_cast<std::uint32_t>(rank); };
    const Range range = optimizer_range();
    const View<float> gradients = optimizer_gradients();
    const auto run = [&](Range part, bool decays, std::uint32_t stream) {
      const Range r = intersection(range, part);
      if (r.count() == 0) return;
      const std::int64_t first = r.begin - range.begin;
      const device::AdamWPart here{decays, stream, static_cast<std::uint64_t>(r.begin)};
      View<T> working = zero_ == 3 ? parameters_.slice(first, r.count()) : parameters_.slice(r.begin, r.count());
      const auto step = [&](auto m, auto v) {
        context_->device.adamw(r.count(), here, View<const float>(context_->device.gradient_scale()),
                               master_.slice(first, r.count()), gradients.slice(first, r.count()), m, v, working);
      };
      if (context_->moments == Precision::fp32)
        step(first_moment_.full.slice(first, r.count()), second_moment_.full.slice(first, r.count()));
      else
        step(first_moment_.half.slice(first, r.count()), second_moment_.half.slice(first, r.count()));
    };
    // What is replicated on tensor ranks rounds alike on all of them: by the first rank's stream.
    const std::uint32_t own = stream_of(place_.tensor_rank);
    const bool rounds = has_master || context_->moments != Precision::fp32;
    const bool shares = place_.tensor_rank > 0 && rounds && layout_.whole_end > layout_.whole_begin;
    const Range replicated =
        shares ? Range{layout_.whole_begin, layout_.whole_end} : Range{layout_.decay_end, layout_.decay_end};
    run({0, replicated.begin}, true, own);
    run({replicated.begin, layout_.decay_end}, true, stream_of(0));
    around_bias({layout_.decay_end, replicated.end}, [&](Range part) { run(part, false, stream_of(0)); });
    around_bias({replicated.end, layout_.elements}, [&](Range part) { run(part, false, own); });
    if (const Range r = intersection(range, {layout_.balance_begin, layout_.whole_end}); r.count() > 0)
      context_->device.balance_bias(r.count(), bias_.mean, bias_.rate,
                                    View<const float>(gradients.slice(r.begin - range.begin, r.count())),
                                    master_.slice(r.begin - range.begin, r.count()),
                                    parameters_.slice(zero_ == 3 ? r.begin - range.begin : r.begin, r.count()));
    if (zero_ == 1 || zero_ == 2) {
      gathering_ =
          shards_->start_all_gather(View<const T>(parameters_.slice(own_.begin, own_.count())), parameters_, ends_);
      if (!context_->overlap) shards_->finish(gathering_);
    }
  }

  /// Before the first micro-batch of a step.
  void zero_gradients() override {
    is_first_ = true;
    if (trains()) zero(zero_ >= 2 ? gradients_ : added_part(gradients_));
  }

 private:
  template <class U>
  void place(const std::vector<float>& values, Range range, Range have, View<U> all) {
    const Range part = intersection(have, range);
    if (part.count() == 0) return;
    context_->device.write(all.slice(part.begin - have.begin, part.count()), [&](View<U> to) {
      for (std::int64_t i = 0; i < to.count; ++i)
        to[i] = U(values[static_cast<std::size_t>(part.begin - range.begin + i)]);
    });
  }
  // Calls f(range) for what of a range is not a router's bias, which has no gradient.
  template <class F>
  void around_bias(Range range, const F& f) const {
    const Range bias{layout_.balance_begin, layout_.whole_end};
    if (bias.count() == 0) return f(range);
    f(intersection(range, {0, bias.begin}));
    f(intersection(range, {bias.end, layout_.elements}));
  }
  void zero(View<float> gradients) {
    if (!gradients.empty()) context_->device.zero(raw_bytes(gradients));
  }
  // What no product writes.
  [[nodiscard]] View<float> added_part(View<float> gradients) const {
    return gradients.slice(layout_.written_end, layout_.elements - layout_.written_end);
  }
  template <class U>
  static View<U> typed(View<std::byte> buffer) {
    return {reinterpret_cast<U*>(buffer.data), buffer.count / static_cast<std::int64_t>(sizeof(U))};
  }
  void begin_reduction() {
    reduction_begun_ = true;
    sum_whole(gradients_);
    if (shards_->size() == 1) return;
    if (zero_ == 0)
      reducing_ = shards_->start_all_reduce(gradients_, comm::ReduceOp::sum);
    else if (zero_ == 1)
      reducing_ = shards_->start_reduce_scatter(gradients_, gradients_.slice(own_.begin, own_.count()), ends_);
  }
  // Whole tensors under sequence parallelism, where each tensor rank saw its own tokens only, and of adapters.
  void sum_whole(View<float> gradients) {
    const std::int64_t n = layout_.whole_end - layout_.whole_begin;
    const bool sums = context_->spec.cuts_over_tensor() || layout_.partial_whole;
    if (sums && context_->spec.tensor > 1 && n > 0)
      context_->tensor.all_reduce(gradients.slice(layout_.whole_begin, n), comm::ReduceOp::sum);
  }

  Context<D>* context_;
  comm::Group* shards_;  ///< the ranks that have the same part of the parameters
  StorePlace place_;
  ParameterPart part_;
  ParameterLayout layout_;
  int layer_;
  comm::Group* replicas_;
  bool counted_;
  BiasUpdate bias_;
  int zero_;
  Range own_;
  std::vector<std::int64_t> ends_;  ///< of the shards of all these ranks, where they are not equal
  View<T> parameters_;
  View<float> gradients_;
  MomentView first_moment_;
  MomentView second_moment_;
  View<float> master_;
  View<T> gathered_;             ///< by start_gather(), until release_parameters()
  View<float> gradient_buffer_;  ///< by set_gradient_buffer(), until finish_gradients()
  comm::Pending reducing_;       ///< gradients, to synchronise() (ZeRO-0/1) or finish_gradients()
  comm::Pending gathering_;      ///< parameters, to acquire()
  bool reduction_begun_ = false;
  bool is_first_ = true;  ///< no gradient has been written in this step
};

}  // namespace galvatron::runtime
