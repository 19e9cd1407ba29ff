// A layer on rank threads: cuts whole tensors into the ranks' parts, and puts the results together.
#include "layer_run.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/train/compiled.hpp>

#include "../comm/metered.hpp"
#include "whole_tensors.hpp"

namespace galvatron::test {

namespace {

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

/// Copies rows of `width` between a local tensor and the whole one, from its row `first` on.
template <class T>
void take_part(const std::vector<Region>& part, std::int64_t samples, std::int64_t width, const Tensor& whole,
               View<T> local, std::int64_t first = 0) {
  for_each_row(part, samples, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t c = 0; c < width; ++c)
      local[from * width + c] = T(static_cast<float>(whole[reference::at((first + to) * width + c)]));
  });
}
template <class T>
void give_part(const std::vector<Region>& part, std::int64_t samples, std::int64_t width, View<T> local, Tensor& whole,
               std::int64_t first = 0) {
  for_each_row(part, samples, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t c = 0; c < width; ++c)
      whole[reference::at((first + to) * width + c)] = static_cast<double>(static_cast<float>(local[from * width + c]));
  });
}

/// The parts of the bundle behind a layer.
std::vector<int> parts_of(const LayerSpec& layer) {
  std::vector<int> out;
  for (int part = 0; part < most_parts; ++part)
    if (layer.after(part).tokens.any()) out.push_back(part);
  return out;
}
std::size_t index_of(const std::vector<int>& parts, int part) {
  const auto found = std::find(parts.begin(), parts.end(), part);
  return found == parts.end() ? 0 : static_cast<std::size_t>(found - parts.begin());
}

/// With runtime::Layer, T as the element type of activations.
template <class T>
LayerOutput run_in(const LayerSpec& layer, const StrategySpec& spec, const Parameters& parameters, const LayerInput& in,
                   const LayerRunOptions& options) {
  const bool splits_backward = options.splits_backward;
  const std::int64_t h = layer.hidden;
  const cost::Batch batch{.microbatch = in.shape.samples,
                          .sequence = in.shape.sequence,
                          .precision = precision_of<T>,
                          .stages = 2,
                          .splits_backward = splits_backward,
                          .expert_imbalance = options.expert_imbalance,
                          .lsh = options.lsh};
  const cost::LayerCounts counts = cost::layer_counts(layer, spec, batch);
  const ActivationLayout layout = activation_layout(spec, 0, in.shape.samples, in.shape.sequence);
  const BundlePart arriving = layer.before(layer.place.arrives);
  const std::int64_t input_h = arriving.width;
  const ActivationLayout input_layout =
      activation_layout(spec, 0, in.shape.samples, arriving.tokens.of(in.shape.sequence));
  LayerOutput out;
  if (layer.kind != LayerKind::head) out.y.resize(reference::at(rows_of(layer, in.shape) * h));
  if (layer.kind != LayerKind::embedding) out.dx.resize(in.x.size());
  out.posted.resize(reference::at(spec.ranks()));
  std::mutex mutex;
  comm::thread::run(spec.ranks(), [&](comm::thread::World& threads) {
    comm::metered::World world(threads);
    const int rank = world.rank();
    const Bytes workspace = max(max(counts.forward_workspace, counts.backward_workspace), counts.weights_workspace);
    const std::int64_t library = device::Host::library_workspace_bytes(1);
    const device::Mapping mapping(
        {counts.states.count + counts.stash.count + counts.deferred.count + counts.pass_through.count +
         counts.activation.count + counts.input.count + workspace.count + library},
        false);
    std::int64_t end = 0;
    const auto region = [&](const char* name, Bytes bytes) {
      const device::Region made = mapping.region(name, end, bytes);
      end += bytes.count;
      return made;
    };
    device::Region states = region("states", counts.states);
    device::Region stash = region("stash", counts.stash + counts.deferred);
    device::Region pass_through = region("pass_through", counts.pass_through);
    device::Region boundary = region("boundary", counts.activation + counts.input);
    device::Region transient = region("workspace", workspace);
    device::Region scratch = region("library", {library});
    device::Host host(1, scratch.take<std::byte>(library));

    const auto context =
        runtime::make_context(host, transient, world, 0, spec, in.shape.samples / spec.data, in.shape.sequence, true,
                              false, Precision::fp32, options.expert_imbalance, options.lsh);
    const runtime::LayerArguments<T> around{.number = layer.kind == LayerKind::embedding ? 0 : 1,
                                            .loss = {.weight = static_cast<float>(in.token_weight)},
                                            .token_weight = in.token_weight};
    const std::unique_ptr<runtime::Layer<T>> made =
        value_or_throw(runtime::make_layer<InstantiatedStrategies, T>(context, layer, around, states));
    made->take_stash(stash, 1, splits_backward ? 1 : 0);
    const std::vector<int> bundle = parts_of(layer);
    std::vector<ActivationLayout> streams;
    for (const int part_of_bundle : bundle)
      streams.push_back(
          activation_layout(spec, 0, in.shape.samples, layer.after(part_of_bundle).tokens.of(in.shape.sequence)));
    // Where this rank's rows of a stream begin, and the whole ones.
    const auto local_rows = [&](std::size_t stream) {
      return streams[stream].pieces() * streams[stream].region(rank).tokens();
    };
    const std::int64_t rows = local_rows(0) + (streams.size() > 1 ? local_rows(1) : 0);
    const std::size_t own = index_of(bundle, layer.place.outputs[0]);
    const std::size_t input = index_of(bundle, layer.place.arrives);
    const View<T> passed = pass_through.take<T>(streams.size() > 1 ? local_rows(1 - input) * h : 0);
    if (streams.size() > 1) made->set_pass_through(0, bundle[1 - input], passed);
    const auto given = [&](int, const ParameterTensor& which, std::int64_t index, View<float> values) {
      const Tensor& whole = parameters.at(which.name);
      for (std::int64_t i = 0; i < values.count; ++i) {
        const auto place = reference::at(index + i);
        values[i] = place < whole.size() ? static_cast<float>(whole[place]) : 1e3F;  // padding must not matter
      }
    };
    made->for_each_store([&](runtime::Store& store) { store.initialise(given); });
    // What was there before must not matter, neither in gradients nor in the workspace.
    const auto poison = [](View<const float> values) {
      std::fill_n(const_cast<float*>(values.data), values.count, std::numeric_limits<float>::quiet_NaN());
    };
    made->for_each_store([&](runtime::Store& store) { poison(store.view().gradients); });
    {
      const device::Scope scope(transient);
      poison(transient.take<float>(workspace.count / static_cast<std::int64_t>(sizeof(float))));
    }
    made->for_each_store([](runtime::Store& store) { store.zero_gradients(); });

    std::vector<Region> part;
    std::vector<Region> input_part;
    for (int i = 0; i < layout.pieces(); ++i) {
      part.push_back(layout.region(rank, i));
      input_part.push_back(input_layout.region(rank, i));
    }
    const ActivationLayout inside = region_layout(spec, 0, in.shape.samples, in.shape.sequence);
    std::vector<Region> samples;  // between a tensor-parallel region's ends
    for (int i = 0; i < inside.pieces(); ++i) samples.push_back(inside.region(rank, i));
    if (layer.patch_width > 0) {
      std::vector<Region> patches = part;  // without the class tokens
      const std::int64_t before = layer.class_token ? 1 : 0;
      patches[0].sequence_begin = std::max<std::int64_t>(part[0].sequence_begin - before, 0);
      patches[0].sequence_end = part[0].sequence_end - before;
      take_part(patches, in.shape.samples, layer.patch_width, in.patches, made->patches(0));
    } else if (layer.kind == LayerKind::head && layer.head == HeadKind::classifier) {
      for (std::int64_t i = part[0].batch_begin; i < part[0].batch_end; ++i)
        made->tokens(0)[i - part[0].batch_begin] = in.tokens[reference::at(i)];
    } else if (layer.has_jitter()) {
      SampleStream stream = reference::noise_stream;
      stream.first_sample = static_cast<std::uint64_t>(part[0].batch_begin);
      stream.write(made->tokens(0).data);
    } else if (layer.kind != LayerKind::block) {
      std::int64_t end_of_first = 0;
      for_each_row(samples, in.shape.samples, [&](std::int64_t from, std::int64_t to) {
        made->tokens(0)[from] = in.tokens[reference::at(to)];
        end_of_first = from + 1;
      });
      if (streams.size() > 1) {
        samples[0].sequence_end = streams[1].sequence;
        for_each_row(samples, in.shape.samples, [&](std::int64_t from, std::int64_t to) {
          made->tokens(0)[end_of_first + from] = in.tokens[reference::at(in.shape.rows() + to)];
        });
      }
    }
    // Calls f(the pieces of a stream, its first row here, its first row of all).
    const auto each_stream = [&](const auto& f) {
      std::int64_t here = 0;
      std::int64_t all = 0;
      for (std::size_t i = 0; i < streams.size(); ++i) {
        std::vector<Region> pieces;
        for (int k = 0; k < streams[i].pieces(); ++k) pieces.push_back(streams[i].region(rank, k));
        f(i, pieces, here, all);
        here += local_rows(i);
        all += streams[i].sequence * in.shape.samples;
      }
    };
    // What does not come as the input is a pass-through activation.
    if (layer.merges)
      take_part(input_part, in.shape.samples, input_h, in.x, made->input(0));
    else if (layer.kind != LayerKind::embedding)
      each_stream([&](std::size_t i, const auto& pieces, std::int64_t, std::int64_t all) {
        take_part(pieces, in.shape.samples, h, in.x, i == input ? made->input(0) : passed, all);
      });
    const View<T> y = boundary.take<T>(rows * h);
    const View<T> d = boundary.take<T>((layer.merges ? 2 : 1) * rows * h);
    each_stream([&](std::size_t i, const auto&, std::int64_t here, std::int64_t) {
      if (i == own) made->forward(0, y.slice(here * h, local_rows(i) * h));
    });
    // What passes by lies where it was kept.
    each_stream([&](std::size_t i, const auto&, std::int64_t here, std::int64_t) {
      const View<T> kept = i == input && layer.kind == LayerKind::block ? made->input(0) : passed;
      if (i != own) std::copy(kept.begin(), kept.end(), y.data + here * h);
    });
    const double loss = host.sums()[device::loss_sum];
    const double router_losses = host.sums()[device::balance_loss] + host.sums()[device::z_loss];
    if (layer.kind != LayerKind::head)
      each_stream([&](std::size_t, const auto& pieces, std::int64_t here, std::int64_t all) {
        take_part(pieces, in.shape.samples, h, in.dy, d.slice(here * h, d.count - here * h), all);
      });
    if (splits_backward) {
      made->backward(0, 0, d);
      made->backward_weight(0, 0);
    } else {
      made->backward(0, -1, d);
    }
    made->for_each_store([](runtime::Store& store) { store.synchronise(); });

    const std::lock_guard lock(mutex);
    out.posted[reference::at(rank)] = world.posted();
    out.loss += loss;
    out.router_losses += router_losses;
    each_stream([&](std::size_t, const auto& pieces, std::int64_t here, std::int64_t all) {
      const auto give = [&](View<T> local, Tensor& whole) {
        give_part(pieces, in.shape.samples, h, local.slice(here * h, local.count - here * h), whole, all);
      };
      if (layer.kind != LayerKind::head) give(y, out.y);
      if (layer.kind != LayerKind::embedding && !layer.merges) give(d, out.dx);
    });
    if (layer.merges) give_part(input_part, in.shape.samples, input_h, d, out.dx);
    made->for_each_store([&](runtime::Store& each) {
      const runtime::StoreView store = each.view();
      give_store(store, store.gradients, [&](ParameterName name) -> Tensor& { return out.gradients[name]; });
    });
  });
  return out;
}

}  // namespace

std::vector<int> sources_of_rows(const StrategySpec& spec, Tokens shape) {
  std::vector<int> out(reference::at(shape.rows()), -1);
  const bool cut = spec.cuts_over_tensor();
  const ActivationLayout layout = cut ? activation_layout(spec, 0, shape.samples, shape.sequence)
                                      : region_layout(spec, 0, shape.samples, shape.sequence);
  for (int rank = 0; rank < spec.ranks(); ++rank) {
    std::vector<Region> pieces;
    for (int i = 0; i < layout.pieces(); ++i) pieces.push_back(layout.region(rank, i));
    const std::int64_t share = shape.rows() / spec.ranks();
    for_each_row(pieces, shape.samples, [&](std::int64_t local, std::int64_t whole) {
      if (cut || local / share == spec.tensor_rank(rank)) out[reference::at(whole)] = rank;
    });
  }
  return out;
}

LayerOutput run_layer(const LayerSpec& layer, const StrategySpec& spec, const Parameters& parameters,
                      const LayerInput& in, const LayerRunOptions& options) {
  return options.precision == Precision::fp32 ? run_in<float>(layer, spec, parameters, in, options)
                                              : run_in<bfloat16>(layer, spec, parameters, in, options);
}

}  // namespace galvatron::test
