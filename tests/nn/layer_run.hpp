// Runs one layer forward and backward on rank threads, and puts the ranks' parts together as whole tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <galvatron/comm/thread/thread.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/nn/make_layer.hpp>
#include <galvatron/strategy/layout.hpp>

#include "reference.hpp"
#include "whole_tensors.hpp"

namespace galvatron::test {

/// The strategies that the comparisons with the reference instantiate.
using ComparedStrategies = TypeList<
    Strategy<DataParallel<>, ZeRO<0>, TensorParallel<>, SequenceParallel<none>, Recompute<none>>,
    Strategy<DataParallel<>, ZeRO<0>, TensorParallel<>, SequenceParallel<none>, Recompute<full>>,
    Strategy<DataParallel<>, ZeRO<1>, TensorParallel<>, SequenceParallel<megatron>, Recompute<none>>,
    Strategy<DataParallel<>, ZeRO<3>, TensorParallel<>, SequenceParallel<megatron>, Recompute<full>>,
    Strategy<DataParallel<>, ZeRO<1>, TensorParallel<>, SequenceParallel<megatron>, Recompute<selective>>,
    Strategy<DataParallel<>, ZeRO<0>, TensorParallel<>, SequenceParallel<ulysses>, ContextParallel<>>,
    Strategy<DataParallel<>, ZeRO<3>, TensorParallel<>, SequenceParallel<ulysses>, ContextParallel<>,
             Recompute<selective>>,
    Strategy<DataParallel<>, ZeRO<0>, TensorParallel<>, SequenceParallel<ring>, ContextParallel<>>,
    Strategy<DataParallel<>, ZeRO<3>, TensorParallel<>, SequenceParallel<ring>, ContextParallel<>,
             Recompute<selective>>,
    Strategy<DataParallel<>, ZeRO<3>, TensorParallel<>, SequenceParallel<ring>, ContextParallel<>, Recompute<full>>>;

/// What a layer is run on, whole. Blocks have `x` and `dy`, embeddings `tokens` and `dy`, heads `x` and `tokens`.
struct LayerInput {
  Tokens shape;
  Tensor x;                          ///< (rows, H)
  std::vector<std::int32_t> tokens;  ///< (rows); of a classifier (b)
  Tensor patches;                    ///< ((S - 1) * b, P), of an embedding of images
  Tensor dy;                         ///< (rows, H)
  double token_weight = 1;           ///< of a head's loss
};

/// What came out, whole.
struct LayerOutput {
  Tensor y;              ///< (rows, H), not of heads
  Tensor dx;             ///< (rows, H), not of embeddings
  double loss = 0;       ///< a head's sum of cross-entropies
  Parameters gradients;  ///< rows of the vocabulary beyond its end included
};

namespace detail {

/// Calls f(local row, whole row) for every token of the pieces, which lie one after the other.
void for_each_row(const std::vector<Region>& pieces, std::int64_t samples, auto f) {
  std::int64_t first = 0;
  for (const Region& part : pieces) {
    const std::int64_t b = part.batch_end - part.batch_begin;
    for (std::int64_t s = part.sequence_begin; s < part.sequence_end; ++s)
      for (std::int64_t i = part.batch_begin; i < part.batch_end; ++i)
        f(first + (s - part.sequence_begin) * b + i - part.batch_begin, s * samples + i);
    first += part.tokens();
  }
}

/// Copies rows of `width` between a local tensor and the whole one.
template <class T>
void take_part(const std::vector<Region>& part, std::int64_t samples, std::int64_t width, const Tensor& whole,
               View<T> local) {
  for_each_row(part, samples, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t c = 0; c < width; ++c)
      local[from * width + c] = T(static_cast<float>(whole[reference::at(to * width + c)]));
  });
}
template <class T>
void give_part(const std::vector<Region>& part, std::int64_t samples, std::int64_t width, View<T> local,
               Tensor& whole) {
  for_each_row(part, samples, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t c = 0; c < width; ++c)
      whole[reference::at(to * width + c)] = static_cast<double>(static_cast<float>(local[from * width + c]));
  });
}

}  // namespace detail

/// One forward and backward pass of `layer` under `spec`, with T as the element type of activations.
template <class T>
LayerOutput run_layer(const LayerSpec& layer, const StrategySpec& spec, const Parameters& parameters,
                      const LayerInput& in) {
  const std::int64_t h = layer.hidden;
  const cost::Batch batch{
      .microbatch = in.shape.samples, .sequence = in.shape.sequence, .precision = precision_of<T>, .stages = 2};
  const cost::LayerCounts counts = cost::layer_counts(layer, spec, batch);
  const ActivationLayout layout = activation_layout(spec, 0, in.shape.samples, in.shape.sequence);
  LayerOutput out;
  if (layer.kind != LayerKind::head) out.y.resize(reference::at(in.shape.rows() * h));
  if (layer.kind != LayerKind::embedding) out.dx.resize(reference::at(in.shape.rows() * h));
  std::mutex mutex;
  comm::thread::run(spec.ranks(), [&](comm::thread::World& world) {
    const int rank = world.rank();
    const Bytes workspace = max(counts.forward_workspace, counts.backward_workspace);
    const std::int64_t library = device::Host::library_workspace_bytes(1);
    const device::Mapping mapping(
        {counts.states.count + counts.stash.count + 2 * counts.activation.count + workspace.count + library}, false);
    std::int64_t end = 0;
    const auto region = [&](const char* name, Bytes bytes) {
      const device::Region made = mapping.region(name, end, bytes);
      end += bytes.count;
      return made;
    };
    device::Region states = region("states", counts.states);
    device::Region stash = region("stash", counts.stash);
    device::Region boundary = region("boundary", counts.activation * 2);
    device::Region transient = region("workspace", workspace);
    device::Region scratch = region("library", {library});
    device::Host host(1, scratch.take<std::byte>(library));

    using G = comm::thread::Group;
    const auto context =
        nn::make_context(host, transient, world, 0, spec, in.shape.samples / spec.data, in.shape.sequence);
    const nn::Surroundings<G, T> around{.number = layer.kind == LayerKind::embedding ? 0 : 1,
                                        .token_weight = static_cast<float>(in.token_weight)};
    const std::unique_ptr<nn::Layer<T>> made =
        value_or_throw(nn::make_layer<ComparedStrategies, T>(context, layer, around, states));
    made->take_stash(stash, 1, 0);
    made->initialise([&](int, const ParameterTensor& which, std::int64_t index, View<float> values) {
      const Tensor& whole = parameters.at(which.name);
      for (std::int64_t i = 0; i < values.count; ++i) {
        const auto place = reference::at(index + i);
        values[i] = place < whole.size() ? static_cast<float>(whole[place]) : 1e3F;  // padding must not matter
      }
    });
    made->zero_gradients();

    std::vector<Region> part;
    for (int i = 0; i < layout.pieces(); ++i) part.push_back(layout.region(rank, i));
    std::vector<Region> samples = part;
    if (spec.context == 1) {  // between a tensor-parallel region's ends, all tokens
      samples[0].sequence_begin = 0;
      samples[0].sequence_end = in.shape.sequence;
    }
    const std::int64_t tokens = layout.pieces() * part[0].tokens();
    if (layer.patch_width > 0) {
      std::vector<Region> patches = part;  // without the class tokens
      patches[0].sequence_begin = std::max<std::int64_t>(part[0].sequence_begin - 1, 0);
      patches[0].sequence_end = part[0].sequence_end - 1;
      detail::take_part(patches, in.shape.samples, layer.patch_width, in.patches, made->patches(0));
    } else if (layer.kind == LayerKind::head && layer.head == HeadKind::classifier) {
      for (std::int64_t i = part[0].batch_begin; i < part[0].batch_end; ++i)
        made->tokens(0)[i - part[0].batch_begin] = in.tokens[reference::at(i)];
    } else if (layer.kind != LayerKind::block) {
      detail::for_each_row(samples, in.shape.samples, [&](std::int64_t from, std::int64_t to) {
        made->tokens(0)[from] = in.tokens[reference::at(to)];
      });
    }
    if (layer.kind != LayerKind::embedding) detail::take_part(part, in.shape.samples, h, in.x, made->input(0));
    const View<T> y = boundary.take<T>(tokens * h);
    const View<T> d = boundary.take<T>(tokens * h);
    made->forward(0, y);
    const double loss = made->take_loss();
    if (layer.kind != LayerKind::head) detail::take_part(part, in.shape.samples, h, in.dy, d);
    made->backward(0, d);
    made->synchronise();

    const std::lock_guard lock(mutex);
    out.loss += loss;
    if (layer.kind != LayerKind::head) detail::give_part(part, in.shape.samples, h, y, out.y);
    if (layer.kind != LayerKind::embedding) detail::give_part(part, in.shape.samples, h, d, out.dx);
    made->visit([&](const nn::StoreView& store) {
      give_store(store, store.gradients, rank % spec.tensor, spec.tensor,
                 [&](ParameterName name) -> Tensor& { return out.gradients[name]; });
    });
  });
  return out;
}

}  // namespace galvatron::test
