// Merged weights: a base with the adapters of a checkpoint in it, W + alpha / rank * B A, as weights of the model
// without adapters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/forward.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/parameter_store.hpp>

namespace galvatron::train {

/// A linear layer that has adapters.
struct AdaptedLinear {
  ParameterName weight{}, a{}, b{};
  std::int64_t rank = 0;
  std::int64_t inputs = 0;
  /// Rows of the weight that an adapter is of.
  struct Part {
    std::int64_t row = 0, rows = 0;  ///< of the weight
    std::int64_t first_row = 0;      ///< of B
    std::int64_t first_rank = 0;     ///< row of A
  };
  std::vector<Part> parts{};
};
/// Those of a layer.
inline std::vector<AdaptedLinear> adapted_linears(const LayerSpec& layer) {
  std::vector<AdaptedLinear> out;
  if (layer.adapters.rank == 0) return out;
  const forward::Graph graph = forward_of(layer);
  for (int i = 0; i < graph.node_count; ++i) {
    const forward::Node& node = graph.node(i);
    if (!node.has_adapter()) continue;
    const auto weight = [&](std::size_t k) -> const forward::WeightSpec& { return graph.weight(node.weights[k]); };
    AdaptedLinear& linear = out.emplace_back(AdaptedLinear{.weight = weight(0).name,
                                                           .a = weight(2).name,
                                                           .b = weight(3).name,
                                                           .rank = weight(3).columns.extent,
                                                           .inputs = weight(0).columns.extent});
    graph.for_each_adapter(node, [&](const forward::AdapterPart& part) {
      linear.parts.push_back(
          {part.before.extent, part.width.extent, part.rows_before.extent, part.index * linear.rank});
    });
  }
  return out;
}

/// The initial values of a seed, of tensors of which the name alone is known.
inline runtime::ParameterSource named_initial_values(const ModelSpec& model, std::uint64_t seed) {
  std::map<std::pair<int, ParameterName>, ParameterTensor> tensors;
  for_each_parameter(model, [&](int layer, const ParameterTensor& tensor) { tensors[{layer, tensor.name}] = tensor; });
  return [tensors = std::move(tensors), values_of = runtime::initial_values(seed)](
             int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    values_of(layer, tensors.at({layer, tensor.name}), index, values);
  };
}

/// The adapters of a checkpoint as a source of parameters, of which the name alone is known. It must outlive the
/// source.
inline runtime::ParameterSource adapters_in(const Checkpoint& checkpoint) {
  return [&checkpoint](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    const std::int64_t columns = checkpoint.shape(layer, tensor.name).columns;
    checkpoint.read(layer, tensor.name, StateKind::master, {index / columns, values.count / columns, 0, columns},
                    values.data);
  };
}

/// The weights of `adapted`, which has the adapters, without them: as a source of parameters of without_adapters().
/// @param base      of the frozen parameters
/// @param adapters  that were trained, in whole rows
inline runtime::ParameterSource merged_weights(const ModelSpec& adapted, runtime::ParameterSource base,
                                               runtime::ParameterSource adapters) {
  std::vector<std::vector<AdaptedLinear>> linears;  // by layer
  for (int i = 0; i < adapted.layers(); ++i) linears.push_back(adapted_linears(adapted.layer(i)));
  const auto scale = static_cast<float>(adapters_of(adapted).scale());
  return [linears = std::move(linears), base = std::move(base), adapters = std::move(adapters), scale](
             int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    base(layer, tensor, index, values);
    const auto& of_layer = linears[static_cast<std::size_t>(layer)];
    const auto linear = std::ranges::find(of_layer, tensor.name, &AdaptedLinear::weight);
    if (linear == of_layer.end()) return;
    const auto read = [&](ParameterName name, std::int64_t first, std::int64_t rows, std::int64_t columns) {
      std::vector<float> out(static_cast<std::size_t>(rows * columns));
      adapters(layer, ParameterTensor{.name = name}, first * columns, View<float>{out.data(), rows * columns});
      return out;
    };
    for (const AdaptedLinear::Part& part : linear->parts) {
      // Elements of the run that are in rows of this adapter.
      const std::int64_t begin = std::max(index, part.row * linear->inputs);
      const std::int64_t end = std::min(index + values.count, (part.row + part.rows) * linear->inputs);
      if (begin >= end) continue;
      const std::int64_t first = begin / linear->inputs;
      const std::int64_t rows = (end - 1) / linear->inputs + 1 - first;
      const std::vector<float> a = read(linear->a, part.first_rank, linear->rank, linear->inputs);
      const std::vector<float> b = read(linear->b, part.first_row + first - part.row, rows, linear->rank);
      for (std::int64_t row = first; row < first + rows; ++row) {
        const std::int64_t from = std::max(begin, row * linear->inputs);
        const std::int64_t to = std::min(end, (row + 1) * linear->inputs);
        std::vector<float> sums(static_cast<std::size_t>(to - from));
        for (std::int64_t k = 0; k < linear->rank; ++k) {
          const float factor = b[static_cast<std::size_t>((row - first) * linear->rank + k)];
          const float* const of_a = a.data() + k * linear->inputs + from - row * linear->inputs;
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += factor * of_a[i];
        }
        for (std::size_t i = 0; i < sums.size(); ++i)
          values[from - index + static_cast<std::int64_t>(i)] += scale * sums[i];
      }
    }
  };
}

}  // namespace galvatron::train
