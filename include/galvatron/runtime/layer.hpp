// Layer: what a pipeline stage asks of each of its layers, whatever their kind and strategy are.
#pragma once

#include <cstdint>
#include <functional>

#include <galvatron/device/device.hpp>
#include <galvatron/runtime/store_view.hpp>

namespace galvatron::runtime {

/// @tparam T  element type of activations
template <class T>
class Layer {
 public:
  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  virtual ~Layer() = default;

  /// Takes the memory that one micro-batch in flight needs, for each of `slots`, and what it needs between the two
  /// parts of its backward, for each of `deferred`; 0 where backward comes in one.
  virtual void take_stash(device::Region& stash, int slots, int deferred) = 0;
  /// Where the layer's input of a slot goes: (rows_local, H), or twice as many elements where tokens are merged; empty
  /// for an embedding.
  virtual View<T> input(int slot) = 0;
  /// Where a part of the bundle lies that the stage keeps once for several layers (LayerSpec::is_pass_through): the
  /// target past T5's encoder, the encoder's output beside its decoder. An embedding writes it, the others read it.
  virtual void set_pass_through(int /*slot*/, int /*part*/, View<T> /*rows*/) {}
  /// Where the tokens of an embedding and the targets of a head go, (rows), of a classifier (b); empty for the others.
  virtual View<std::int32_t> tokens(int slot) = 0;
  /// Where the patches of an embedding of images go, (this rank's patches, P).
  virtual View<T> patches(int /*slot*/) { return {}; }
  /// From the input to y (rows_local, H). The head has no y: it adds to the device's sum of losses.
  virtual void forward(int slot, View<T> y) = 0;
  /// d: the gradient of the bundle behind the layer, part by part, becomes that of the bundle before it, for which it
  /// has room. Of a chain that is y (rows_local, H).
  /// @param kept  -1, or where backward comes in two parts what a micro-batch keeps until the second, by number. Layers
  ///              whose program does not split do it all in the first part.
  virtual void backward(int slot, int kept, View<T> d) = 0;
  /// The second part of backward: the gradients of the weights.
  virtual void backward_weight(int /*slot*/, int /*kept*/) {}

  /// Calls f(store) for every parameter store of the layer.
  virtual void for_each_store(const std::function<void(Store&)>& f) = 0;
  /// How its ZeRO-2/3 traffic may run beside other layers' work; else it is waited for within the layer's passes.
  virtual Streaming streaming() { return {}; }
};

}  // namespace galvatron::runtime
