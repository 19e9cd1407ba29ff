// What a pipeline stage asks of each of its layers and their parameter stores, whatever their kind and strategy are;
// and how checkpoints and tests see a store.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <galvatron/core/document.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::runtime {

/// Elements [begin, end) of a store.
using Range = Sharding::Range;
constexpr Range intersection(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// One of the moments that the optimizer keeps: the view of the format that it has, the other is empty.
struct MomentView {
  View<float> full;
  View<bfloat16> half;

  MomentView() = default;
  /// Takes n elements from `region`. @param format  fp32 or bf16
  MomentView(device::Region& region, std::int64_t n, Precision format) {
    if (format == Precision::fp32)
      full = region.take<float>(n);
    else
      half = region.take<bfloat16>(n);
  }
  /// Calls f(view) with elements [first, first + n).
  template <class F>
  void visit(std::int64_t first, std::int64_t n, const F& f) const {
    if (half.empty())
      f(full.slice(first, n));
    else
      f(half.slice(first, n));
  }
  [[nodiscard]] std::int64_t count() const { return full.count + half.count; }
};

/// A store that is seen from outside: the optimizer's range of it, with the synchronised gradients of that range.
struct StoreView {
  int layer = 0;  ///< the layer's number in the model
  const ParameterLayout* layout = nullptr;
  Range range;
  View<const float> gradients;
  View<const float> master;
  MomentView first_moment;
  MomentView second_moment;
  Range own;  ///< the part of `range` that no other data rank has as its own
  StorePlace place;
  bool counted = true;  ///< false for the second copy of a tied table
};

using StoreVisitor = std::function<void(const StoreView&)>;

/// Writes the elements [index, index + values.count) of a whole tensor, counted row by row: a run within one row, or
/// whole rows. `layer` is the layer's number in the model. Rows beyond the vocabulary are padding, whose values do not
/// matter.
using ParameterSource =
    std::function<void(int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values)>;

/// What a stage asks of every store of its layers; ParameterStore says more of it.
class Store {
 public:
  virtual void initialise(const ParameterSource& source) = 0;
  virtual void zero_gradients() = 0;
  /// Gradients of ZeRO-0/1 over the data ranks: begins after the layer's last backward pass of a step, while layers
  /// before it run theirs, and ends in synchronise(), which without a start does both.
  virtual void start_synchronise() = 0;
  virtual void synchronise() = 0;
  virtual void add_gradient_squares() = 0;
  virtual void update() = 0;
  [[nodiscard]] virtual StoreView view() = 0;

  // ZeRO-2/3 traffic beside the work of other layers (train/zero_prefetch.hpp), in this order: start_gather, then the
  // layer's pass, in which it finds its parameters gathered; set_gradient_buffer before a pass that makes gradients,
  // and finish_gradients some time after it.

  /// Bytes of the whole parameters; 0 where they are whole anyway.
  [[nodiscard]] virtual Bytes parameter_buffer_bytes() const = 0;
  /// Bytes of the whole gradient.
  [[nodiscard]] virtual Bytes gradient_buffer_bytes() const = 0;

  /// Begins to gather the parameters into `buffer`, which is the layer's until release_parameters().
  virtual void start_gather(View<std::byte> buffer) = 0;
  virtual void release_parameters() = 0;
  /// The layer's next gradient goes to `buffer`, and from there over the data ranks until finish_gradients().
  virtual void set_gradient_buffer(View<std::byte> buffer) = 0;
  virtual void finish_gradients() = 0;

 protected:
  ~Store() = default;
};

/// How the traffic of a layer can run beside the work of its neighbours.
struct Streaming {
  std::vector<Store*> stores{};  ///< none: it cannot
  bool splits = false;           ///< gradients of weights come in the second part of a backward that is split
};

/// Passes that go forward alone.
template <class T>
struct Inference {
  /// Of each sample: how many tokens a pass has, no more than the layer was made for, and the position of the first; 0:
  /// all of a sequence, or packed documents.
  std::int64_t tokens = 0;
  std::int64_t first = 0;
  /// Of a block: keys and values of all positions, (positions * b, 2 kv) by token and sample. A pass adds those of its
  /// tokens, and attends to those before them; empty: to its own tokens alone. Behind other tokens a pass has one.
  View<T> cache{};
  /// Of a decoder's block: keys and values of the encoder's output, (memory rows, 2 kv). The pass at position 0 makes
  /// them, those behind it only read them; empty: every pass makes its own.
  View<T> memory{};
  /// Of a block with a cache and relative positions: memory of their biases (heads, 2 positions - 1).
  View<float> biases{};
  /// Of a head: logits of the last rows, (rows, V with padding), instead of losses. May be empty.
  View<float> logits{};
  /// Of a head: of every row what Device::softmax_statistics() has of it, (rows, 3). May be empty.
  View<float> statistics{};
};

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
  /// Where the tokens of an embedding and the targets of a head go, (rows), of a classifier (b), and the SampleStream
  /// of a block with noise; empty for the others.
  virtual View<std::int32_t> tokens(int slot) = 0;
  /// Where the patches of an embedding of images go, (this rank's patches, P).
  virtual View<T> patches(int /*slot*/) { return {}; }
  /// The micro-batch in a slot is a packed sequence of so many rows, of which this rank has a part, shared by a run of
  /// the ranks of Context::data: the first of them, and how many. The passes until the next call compute on its
  /// documents, which outlive them. It has no more rows of a rank than the layer was made for.
  virtual void pack(int /*slot*/, int /*first*/, int /*ranks*/, std::int64_t /*rows*/,
                    std::span<const Document> /*documents*/) {}
  /// Of a head: what a prediction weighs in the gradients of the next passes.
  virtual void weigh(double /*token_weight*/) {}
  /// The next passes go forward alone, without noise, and a head makes no gradients; nothing: those of training follow.
  virtual void infer(const std::optional<Inference<T>>& /*how*/) {}
  /// What a forward pass takes of the workspace, parameters that are gathered aside.
  [[nodiscard]] virtual Bytes forward_bytes() const { return {}; }
  /// From the input to y (rows_local, H). The head has no y: it adds to the device's sum of losses.
  virtual void forward(int slot, View<T> y) = 0;
  /// d: the gradient of the bundle behind the layer, part by part, becomes that of the bundle before it, for which it
  /// has capacity. Of a chain that is y (rows_local, H).
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
