// StreamedStore: a parameter store under ZeRO-2/3 whose traffic runs beside the work of other layers.
#pragma once

#include <cstddef>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::runtime {

/// What a run of layers asks of the store of each (train/zero_prefetch.hpp), in this order: start_gather, then the
/// layer's pass, in which it finds its parameters gathered; set_gradient_buffer before a pass that makes gradients, and
/// finish_gradients some time after it.
class StreamedStore {
 public:
  StreamedStore() = default;
  StreamedStore(const StreamedStore&) = delete;
  StreamedStore& operator=(const StreamedStore&) = delete;

  /// Bytes of the whole parameters; 0 where they are whole anyway.
  [[nodiscard]] virtual Bytes parameter_room() const = 0;
  /// Bytes of the whole gradient.
  [[nodiscard]] virtual Bytes gradient_room() const = 0;

  /// Begins to gather the parameters into `room`, which is the layer's until release_parameters().
  virtual void start_gather(View<std::byte> room) = 0;
  virtual void release_parameters() = 0;
  /// The layer's next gradient goes to `room`, and from there over the data ranks until finish_gradients().
  virtual void set_gradient_buffer(View<std::byte> room) = 0;
  virtual void finish_gradients() = 0;

 protected:
  ~StreamedStore() = default;
};

/// How the traffic of a layer can run beside the work of its neighbours.
struct Streaming {
  StreamedStore* store = nullptr;  ///< null: it cannot
  bool splits = false;             ///< gradients of weights come in backward_weight, not in backward_input
};

}  // namespace galvatron::runtime
