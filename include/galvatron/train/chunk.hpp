// Chunk: a run of layers of one stage, forward and backward, with what passes between it and its neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/train/chunk_data.hpp>
#include <galvatron/train/exchange.hpp>
#include <galvatron/train/non_finite.hpp>
#include <galvatron/train/zero_prefetch.hpp>

namespace galvatron::train {

/// Makes a layer of a stage: (context, layer, arguments, states) -> layer. See runtime::make_layer.
template <class D, class T>
using LayerMaker =
    std::function<std::unique_ptr<runtime::Layer<T>>(const runtime::Context<D>& context, const LayerSpec& layer,
                                                     const runtime::LayerArguments<T>& around, device::Region& states)>;

/// What makes layers with the strategies of List; throws Failure (usage) for one that is not in it.
template <class List, class D, class T>
LayerMaker<D, T> layer_maker() {
  return [](const runtime::Context<D>& context, const LayerSpec& layer, const runtime::LayerArguments<T>& around,
            device::Region& states) {
    return value_or_throw(runtime::make_layer<List, T>(context, layer, around, states));
  };
}

/// Where a layer adds up what metrics tell of it.
struct LayerCounts {
  View<float> loads{};  ///< of its experts; empty: nobody asks
  runtime::DispatchCounts dispatch{};
};

/// @tparam D  the device  @tparam T  element type of activations and working parameters
template <class D, class T>
class Chunk {
  using Phase = program::Phase;

 public:
  /// Takes all memory that the chunk will ever use but transient tensors.
  /// @param counts  of a layer, of which 0 is the embedding
  /// @param embedding  where an earlier chunk of the stage has it, or null
  Chunk(D& device, comm::World& world, const StagePlan& stage, const ChunkPlan& plan, RankMemory& memory,
        const LayerMaker<D, T>& make, const std::function<LayerCounts(int layer)>& counts,
        runtime::Layer<T>* embedding = nullptr)
      : device_(device),
        world_(world),
        memory_(memory),
        stage_(stage),
        plan_(plan),
        embedding_(embedding),
        data_(device, stage_, plan_, world.rank()),
        prefetch_(memory.workspace, plan.deferred > 0) {
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
      add_layer(i, make, counts(plan_.layers[i].number));
      prefetch_.add(layers_.back()->streaming(), i > 0 && changes_after(i - 1));
    }
    for (auto& layer : layers_) layer->take_stash(memory.stash, plan_.slots, plan_.deferred);
    keep_pass_through();
    for (std::size_t i = 0; i + 1 < plan_.layers.size(); ++i) {
      const bool changes = changes_after(i);
      down_.push_back(changes ? exchange(i + 1, plan_.layouts[i], plan_.layouts[i + 1], inner_lane) : Exchange{});
      up_.push_back(changes ? exchange(i + 1, plan_.layouts[i + 1], plan_.layouts[i], inner_lane) : Exchange{});
    }
    const std::size_t end = layers_.size();
    for (int buffer = 0; buffer < plan_.buffers; ++buffer) {
      Border& border = borders_.emplace_back();
      if (plan_.has_previous) {
        border.receive_activation =
            exchange(0, plan_.previous, plan_.layouts.front(), activation_lane(plan_.place - 1, buffer));
        border.send_gradient = exchange(0, plan_.layouts.front(), plan_.previous, gradient_lane(plan_.place, buffer));
        border.gradient_out = memory.boundary.template take<T>(elements(0, before));
      }
      if (plan_.has_next) {
        border.send_activation = exchange(end, plan_.layouts.back(), plan_.next, activation_lane(plan_.place, buffer));
        border.receive_gradient =
            exchange(end, plan_.next, plan_.layouts.back(), gradient_lane(plan_.place + 1, buffer));
        border.activation_out = memory.boundary.template take<T>(elements(end - 1, behind));
      }
    }
  }

  [[nodiscard]] const std::vector<std::unique_ptr<runtime::Layer<T>>>& layers() const { return layers_; }

  void receive_activation(int microbatch) {
    border(microbatch).receive_activation.receive(world_, inputs(0, slot_of(microbatch)));
  }
  void send_activation(int microbatch) {
    Border& own = border(microbatch);
    own.send_activation.post(world_, parts(layers_.size() - 1, behind, own.activation_out));
  }
  /// Into the workspace, where backward finds it.
  void receive_gradient(int microbatch) {
    gradient_ = memory_.workspace.template take<T>(elements(layers_.size() - 1, behind));
    border(microbatch).receive_gradient.receive(world_, parts(layers_.size() - 1, behind, gradient_));
  }
  void send_gradient(int microbatch) {
    Border& own = border(microbatch);
    own.send_gradient.post(world_, parts(0, before, own.gradient_out));
  }

  /// The step's samples are packed like this, which outlives its passes; null: they have equally many tokens.
  void pack(const Packing* packing) {
    data_.pack(packing);
    const double prediction = packing == nullptr ? stage_.token_weight : 1.0 / static_cast<double>(packing->tokens());
    for (auto& layer : layers_) layer->weigh(prediction);
  }
  /// All layers forward. The device's sum of losses grows by this rank's samples, if the head is here.
  /// @param source  null on a device that only counts
  /// @param seed  of noise
  void forward(std::int64_t step, int microbatch, BatchSource* source, std::uint64_t seed) {
    const int slot = slot_of(microbatch);
    if (const PackedPart own = data_.packed_part(microbatch); own.sequence != nullptr)
      for (auto& layer : layers_)
        layer->pack(slot, own.first, own.ranks, own.sequence->rows(), own.sequence->documents);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const device::Scope scope(memory_.workspace);
      if constexpr (!D::counts_only) data_.read(*layers_[i], i, microbatch, {step, seed}, *source);
      prefetch_.before(Phase::forward, i, true);
      const int made = layer(i).place.outputs[0];
      if (i + 1 == layers_.size()) {
        Border& own = border(microbatch);
        own.send_activation.wait_sent(world_);  // the last micro-batch has left the buffer
        const ActivationBundle<T> out = parts(i, behind, own.activation_out);
        layers_[i]->forward(slot, part(out, made));
        for (int p = 0; p < most_parts && plan_.has_next; ++p)
          if (p != made && part(out, p).count > 0)
            device_.copy(raw_bytes(inputs(i, slot)[at(p)]), raw_bytes(out[at(p)]));
      } else if (!changes_after(i)) {
        layers_[i]->forward(slot, part(inputs(i + 1, slot), made));
      } else {
        const View<T> all = memory_.workspace.template take<T>(elements(i, behind));
        ActivationBundle<T> out = inputs(i, slot);
        if (made >= 0) out[at(made)] = part(parts(i, behind, all), made);
        layers_[i]->forward(slot, part(out, made));
        move(down_[i], out, inputs(i + 1, slot));
      }
      prefetch_.after(Phase::forward, i);
    }
  }

  /// All layers backward; where the schedule splits that, without the gradients of weights.
  /// @param last  micro-batch of the step
  void backward(int microbatch, bool last) {
    const int slot = slot_of(microbatch);
    const int kept = plan_.deferred > 0 ? microbatch % plan_.deferred : -1;
    pass_back(border(microbatch), [&](runtime::Layer<T>& layer) {
      layer.backward(slot, kept, gradient_);
      if (kept < 0 && last) start_synchronise(layer);
    });
  }
  /// The gradients of weights.
  void backward_weight(int microbatch, bool last) {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      prefetch_.before(Phase::weights, i, true);
      layers_[i]->backward_weight(slot_of(microbatch), microbatch % plan_.deferred);
      prefetch_.after(Phase::weights, i);
      if (last) start_synchronise(*layers_[i]);
    }
  }

  /// After a step: what is not finite here.
  void look_for_non_finite(NonFiniteSearch& search) {
    std::vector<View<const T>> sent;
    for (const Border& border : borders_) sent.push_back(border.activation_out);
    search.look(device_, memory_.workspace, plan_, layers_, std::span<const View<const T>>(sent));
  }

 private:
  // Messages of a chunk and its neighbours, with a buffer for what it sends each way.
  struct Border {
    Exchange receive_activation, send_activation, receive_gradient, send_gradient;
    View<T> activation_out;
    View<T> gradient_out;
  };
  [[nodiscard]] Border& border(int microbatch) {
    return borders_[static_cast<std::size_t>(microbatch % plan_.buffers)];
  }

  // The gradient of a bundle lies at one end of the workspace; a change of layout moves it to the other.
  template <class F>
  void pass_back(Border& own, F&& through) {
    device::Region& ws = memory_.workspace;
    bool low = true;
    const std::size_t last = layers_.size() - 1;
    View<T> whole = gradient_;
    if (!plan_.has_next) {
      const bool joint = last > 0 && drops_before(last) && !changes_after(last - 1);
      whole = ws.template take<T>(joint ? elements(last - 1, behind) : elements(last, behind));
      gradient_ = joint ? part(parts(last - 1, behind, whole), layer(last).place.inputs[0]) : whole;
    }
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (elements(i, before) > gradient_.count) {  // grows at the low end, where its beginning stays
        const View<T> smaller = gradient_;
        ws.restore_low(0);
        gradient_ = whole = ws.template take<T>(elements(i, before));
        if (!low) device_.copy(raw_bytes(smaller), raw_bytes(whole.slice(0, smaller.count)));
        ws.restore_high(0);
        low = true;
      }
      prefetch_.before(Phase::backward, i, low);
      through(*layers_[i]);
      prefetch_.after(Phase::backward, i);
      zero_where(parts(i, before, gradient_), [&](int p) { return layer(i).ends(p); });
      if (const std::int64_t count = elements(i, before); count < gradient_.count) {  // shrinks at the other end
        const View<T> larger = gradient_;
        gradient_ = whole = low ? ws.template take_high<T>(count) : ws.template take<T>(count);
        device_.copy(raw_bytes(larger.slice(0, count)), raw_bytes(whole));
        low = leave(low);
      }
      if (i == 0) continue;
      const auto dropped = [&](int p) { return !layer(i).before(p).tokens.any(); };
      if (!changes_after(i - 1)) {
        if (drops_before(i)) zero_where(parts(i - 1, behind, whole), dropped);
        gradient_ = whole;
        continue;
      }
      const std::int64_t count = elements(i - 1, behind);
      const View<T> to = low ? ws.template take_high<T>(count) : ws.template take<T>(count);
      move(up_[i - 1], parts(i, before, gradient_), parts(i - 1, behind, to));
      zero_where(parts(i - 1, behind, to), dropped);
      gradient_ = whole = to;
      low = leave(low);
    }
    if (plan_.has_previous) {
      own.send_gradient.wait_sent(world_);
      device_.copy(raw_bytes(gradient_), raw_bytes(own.gradient_out));
    }
    ws.restore_low(0);
    ws.restore_high(0);
  }
  // Frees the end of the workspace where the gradient was; false: it is at the high end now.
  bool leave(bool low) {
    low ? memory_.workspace.restore_low(0) : memory_.workspace.restore_high(0);
    return !low;
  }
  // Parts of a gradient that nothing behind reads.
  template <class Chosen>
  void zero_where(const ActivationBundle<T>& bundle, const Chosen& chosen) {
    for (int p = 0; p < most_parts; ++p)
      if (part(bundle, p).count > 0 && chosen(p)) device_.zero(raw_bytes(bundle[at(p)]));
  }

  // Messages travel in lanes of their own, named by the chunk that sends them, `place`, and its buffer: with two stages
  // the activations of one chunk and the gradients of another go from the same rank to the same rank.
  static constexpr int inner_lane = 0;
  [[nodiscard]] int activation_lane(int place, int buffer) const { return 1 + 2 * (place * plan_.buffers + buffer); }
  [[nodiscard]] int gradient_lane(int place, int buffer) const { return 1 + activation_lane(place, buffer); }

  void add_layer(std::size_t i, const LayerMaker<D, T>& make, const LayerCounts& counts) {
    const ChunkPlan::Entry& entry = plan_.layers[i];
    auto context = runtime::make_context(device_, memory_.workspace, world_, stage_.first_rank, entry.spec,
                                         samples_of(plan_.layouts[i], world_.rank()).count(), stage_.batch.sequence,
                                         stage_.batch.overlap, stage_.batch.precision == Precision::fp8,
                                         stage_.batch.moments, stage_.batch.expert_imbalance, stage_.batch.lsh);
    context.all_samples = plan_.layouts[i].batch;
    context.ratios = stage_.ratios;
    context.local_rank = world_.rank() - stage_.first_rank;
    context.exchanged = exchanged_samples(entry.spec, plan_.layouts[i], plan_.layouts[i].samples(), world_.rank());
    context.loads = counts.loads;
    context.dispatch = counts.dispatch;
    runtime::LayerArguments<T> around;
    around.number = entry.number;
    around.loss = {static_cast<float>(stage_.token_weight * entry.layer.loss_weight),
                   device_.sums().slice(device::sum_of_loss(entry.loss), 1)};
    around.token_weight = 1.0 / (static_cast<double>(stage_.global_batch) *
                                 static_cast<double>(entry.layer.tokens.of(stage_.batch.sequence)));
    const bool end = entry.layer.kind != LayerKind::block;
    if (entry.layer.kind == LayerKind::head && entry.layer.tied && stage_.batch.stages == 1)
      around.embedding = plan_.has_previous ? embedding_ : layers_.front().get();
    if (end && entry.layer.tied && stage_.batch.stages > 1) {  // both ends have one strategy
      const int local = world_.rank() - stage_.first_rank;
      around.replicas = &world_.group(std::vector{local, stage_.batch.last_first_rank + local});
    }
    layers_.push_back(make(context, entry.layer, around, memory_.states));
  }

  // A change of layout before the chunk's layer `crossing`, or behind the last.
  [[nodiscard]] Exchange exchange(std::size_t crossing, const ActivationLayout& from, const ActivationLayout& to,
                                  int lane) const {
    const bool end = crossing == layers_.size();
    Bundle bundle;
    for (int p = 0; p < most_parts; ++p) bundle[at(p)] = end ? layer(crossing - 1).after(p) : layer(crossing).before(p);
    return Exchange(from, to, bundle, world_.rank(), static_cast<std::int64_t>(sizeof(T)), lane);
  }
  // What layers share is kept from the chunk's first layer on, and once more in every other layout; what a layer keeps
  // for others without reading it, by itself.
  void keep_pass_through() {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (int slot = 0; slot < plan_.slots; ++slot) {
        ActivationBundle<T> kept{};
        for (int p = 0; p < most_parts; ++p) {
          const bool unread = layer(i).keeps_unread() && p == layer(i).place.arrives;
          if (!unread && !layer(i).is_pass_through(p)) continue;
          const bool shared = !unread && i > 0 && !changes_after(i - 1);
          kept[at(p)] =
              shared ? inputs(i - 1, slot)[at(p)] : memory_.stash.template take<T>(elements(i, layer(i).before(p)));
          layers_[i]->set_pass_through(slot, p, kept[at(p)]);
        }
        pass_through_.push_back(kept);
      }
  }
  // What comes to a layer: what the layer before made, in its own memory, and what goes past.
  [[nodiscard]] ActivationBundle<T> inputs(std::size_t i, int slot) const {
    ActivationBundle<T> out = pass_through_[i * static_cast<std::size_t>(plan_.slots) + static_cast<std::size_t>(slot)];
    const int arrives = layer(i).place.arrives;
    if (arrives >= 0 && !layer(i).keeps_unread()) out[at(arrives)] = layers_[i]->input(slot);
    return out;
  }

  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] const LayerSpec& layer(std::size_t i) const { return plan_.layers[i].layer; }
  // Bundles at the borders of a layer.
  using BundleOf = BundlePart (LayerSpec::*)(int) const;
  static constexpr BundleOf before = &LayerSpec::before;
  static constexpr BundleOf behind = &LayerSpec::after;
  static View<T> part(const ActivationBundle<T>& bundle, int p) { return p < 0 ? View<T>{} : bundle[at(p)]; }
  // The parts of a tensor that has a bundle.
  [[nodiscard]] ActivationBundle<T> parts(std::size_t i, BundleOf bundle, View<T> all) const {
    ActivationBundle<T> out{};
    std::int64_t begin = 0;
    for (int p = 0; p < most_parts; ++p) {
      const std::int64_t count = elements(i, (layer(i).*bundle)(p));
      if (count > 0 && begin < all.count) out[at(p)] = all.slice(begin, count);
      begin += count;
    }
    return out;
  }
  [[nodiscard]] std::int64_t elements(std::size_t i, BundleOf bundle) const {
    std::int64_t sum = 0;
    for (int p = 0; p < most_parts; ++p) sum += elements(i, (layer(i).*bundle)(p));
    return sum;
  }
  // Of this rank, in the layer's layout.
  [[nodiscard]] std::int64_t elements(std::size_t i, const BundlePart& part) const {
    ActivationLayout layout = plan_.layouts[i];
    layout.sequence = part.tokens.of(stage_.batch.sequence);
    std::int64_t tokens = 0;
    for (int piece = 0; piece < layout.pieces(); ++piece) tokens += layout.region(world_.rank(), piece).tokens();
    return tokens * part.width;
  }
  // True for the head of a model in which more comes out of the layer before.
  [[nodiscard]] bool drops_before(std::size_t i) const {
    for (int p = 0; p < most_parts; ++p)
      if (layer(i - 1).after(p).tokens.any() && !layer(i).before(p).tokens.any()) return true;
    return false;
  }

  static void start_synchronise(runtime::Layer<T>& layer) {
    layer.for_each_store([](runtime::Store& store) { store.start_synchronise(); });
  }
  [[nodiscard]] int slot_of(int microbatch) const { return microbatch % plan_.slots; }
  [[nodiscard]] bool changes_after(std::size_t layer) const { return plan_.layouts[layer] != plan_.layouts[layer + 1]; }
  void move(Exchange& change, const ActivationBundle<T>& from, const ActivationBundle<T>& to) {
    change.post(world_, from);
    change.receive(world_, to);
    change.wait_sent(world_);
  }

  D& device_;
  comm::World& world_;
  RankMemory& memory_;
  const StagePlan& stage_;
  const ChunkPlan& plan_;
  runtime::Layer<T>* embedding_;
  ChunkData<D, T> data_;
  std::vector<std::unique_ptr<runtime::Layer<T>>> layers_;
  ZeroPrefetch prefetch_;
  /// Of each layer, slot by slot: what is not kept by the layer itself.
  std::vector<ActivationBundle<T>> pass_through_;
  std::vector<Exchange> down_;   ///< activations from layer i to i + 1
  std::vector<Exchange> up_;     ///< gradients from layer i + 1 to i
  std::vector<Border> borders_;  ///< (buffers)
  View<T> gradient_;             ///< of the bundle behind the layer that is next in backward
};

}  // namespace galvatron::train
