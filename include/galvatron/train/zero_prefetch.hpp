// ZeroPrefetch: the ZeRO-2/3 traffic of a chunk's layers beside the computation of their neighbours.
//
// While a layer works, the parameters of the next one are gathered and the gradients of the one before are reduced. For
// that a run of equal layers has two places for parameters and two for gradients, which its layers take in turns:
//
//     computing     | layer i                 | layer i + 1             |
//     parameters    | gather i + 1 -> place 1 | gather i + 2 -> place 0 |
//     gradients     |                         | reduce i from place 0   |
//
// The places are at that end of the workspace where the activations are not. A run ends where layers have other sizes
// or another layout: its first layer waits for its parameters, its last one for its gradients. The memory formulas give
// every layer that streams two buffers (cost::parameter_counts), so no run takes more than the plan says.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/layer.hpp>

namespace galvatron::train {

class ZeroPrefetch {
  using Phase = program::Phase;

 public:
  /// @param splits  backward comes in two parts
  ZeroPrefetch(device::Region& workspace, bool splits) : workspace_(&workspace), splits_(splits) {}

  /// The next layer of the chunk.
  /// @param moves  activations change their layout between the layer before and this one
  void add(const runtime::Streaming& layer, bool moves) {
    const bool follows = !layers_.empty() && !moves && alike(layers_.back().streaming, layer);
    layers_.push_back({layer, follows});
  }

  /// Before layer `i` works. A phase goes through all layers: `forward` from the first on, the others from the last.
  /// @param high  which end of the workspace is free
  void before(Phase phase, std::size_t i, bool high) {
    const BufferSizes sizes = sizes_of(phase, i);
    if (sizes.empty()) return;
    const runtime::Streaming& layer = layers_[i].streaming;
    const bool gathers = sizes.parameters.count > 0;
    if (!running_) {
      begin(sizes, high);
      if (gathers) start_gather(layer, parameters_[turn_]);
    }
    if (gathers && goes_on(phase, i))
      start_gather(layers_[phase == Phase::forward ? i + 1 : i - 1].streaming, parameters_[1 - turn_]);
    if (sizes.gradients.count > 0) {
      finish(turn_);
      each_with_part(layer, gradients_[turn_], &runtime::Store::gradient_buffer_bytes,
                     [](runtime::Store& store, View<std::byte> part) { store.set_gradient_buffer(part); });
      reducing_[turn_] = &layer;
    }
  }

  /// After it.
  void after(Phase phase, std::size_t i) {
    const BufferSizes sizes = sizes_of(phase, i);
    if (sizes.empty()) return;
    if (sizes.parameters.count > 0)
      for (runtime::Store* store : layers_[i].streaming.stores) store->release_parameters();
    turn_ = 1 - turn_;
    if (!goes_on(phase, i)) end();
  }

 private:
  struct Layer {
    runtime::Streaming streaming;
    bool follows = false;  ///< it and the layer before are of one run
  };
  /// What one layer takes in a pass.
  struct BufferSizes {
    Bytes parameters, gradients;
    [[nodiscard]] bool empty() const { return parameters.count == 0 && gradients.count == 0; }
  };

  using Size = Bytes (runtime::Store::*)() const;
  static Bytes size_of(const runtime::Streaming& layer, Size size) {
    Bytes sum;
    for (const runtime::Store* store : layer.stores) sum += (store->*size)();
    return sum;
  }
  /// Calls f(store, its part of the buffer) for the stores of a layer.
  template <class F>
  static void each_with_part(const runtime::Streaming& layer, View<std::byte> buffer, Size size, const F& f) {
    std::int64_t first = 0;
    for (runtime::Store* store : layer.stores) {
      const std::int64_t bytes = (store->*size)().count;
      f(*store, buffer.slice(first, bytes));
      first += bytes;
    }
  }
  static void start_gather(const runtime::Streaming& layer, View<std::byte> buffer) {
    each_with_part(layer, buffer, &runtime::Store::parameter_buffer_bytes,
                   [](runtime::Store& store, View<std::byte> part) { store.start_gather(part); });
  }
  static bool alike(const runtime::Streaming& a, const runtime::Streaming& b) {
    const auto same = [&](Size size) {
      return std::ranges::equal(a.stores, b.stores, [size](const runtime::Store* x, const runtime::Store* y) {
        return (x->*size)() == (y->*size)();
      });
    };
    return !a.stores.empty() && a.splits == b.splits && same(&runtime::Store::parameter_buffer_bytes) &&
           same(&runtime::Store::gradient_buffer_bytes);
  }
  [[nodiscard]] BufferSizes sizes_of(Phase phase, std::size_t i) const {
    const runtime::Streaming& layer = layers_[i].streaming;
    if (layer.stores.empty()) return {};
    const bool reduces = phase == (splits_ && layer.splits ? Phase::weights : Phase::backward);
    return {phase != Phase::weights ? size_of(layer, &runtime::Store::parameter_buffer_bytes) : Bytes{},
            reduces ? size_of(layer, &runtime::Store::gradient_buffer_bytes) : Bytes{}};
  }
  [[nodiscard]] bool goes_on(Phase phase, std::size_t i) const {
    return phase == Phase::forward ? i + 1 < layers_.size() && layers_[i + 1].follows : layers_[i].follows;
  }

  void begin(const BufferSizes& sizes, bool high) {
    running_ = true;
    high_ = high;
    turn_ = 0;
    mark_ = high ? workspace_->high() : workspace_->low();
    for (View<std::byte>& place : parameters_) place = take(sizes.parameters);
    for (View<std::byte>& place : gradients_) place = take(sizes.gradients);
  }
  View<std::byte> take(Bytes bytes) {
    return high_ ? workspace_->take_high<std::byte>(bytes.count) : workspace_->take<std::byte>(bytes.count);
  }
  void end() {
    finish(turn_);  // the older one
    finish(1 - turn_);
    if (high_)
      workspace_->restore_high(mark_);
    else
      workspace_->restore_low(mark_);
    running_ = false;
  }
  void finish(std::size_t place) {
    if (reducing_[place] != nullptr)
      for (runtime::Store* store : reducing_[place]->stores) store->finish_gradients();
    reducing_[place] = nullptr;
  }

  device::Region* workspace_;
  bool splits_;
  std::vector<Layer> layers_;
  bool running_ = false;
  bool high_ = true;
  std::int64_t mark_ = 0;  ///< of the workspace, before the run
  std::size_t turn_ = 0;   ///< the places of the layer that works now
  std::array<View<std::byte>, 2> parameters_;
  std::array<View<std::byte>, 2> gradients_;
  std::array<const runtime::Streaming*, 2> reducing_{};  ///< layers by place
};

}  // namespace galvatron::train
