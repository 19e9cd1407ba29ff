// The weights of models, whose products a profile measures as they are, not between the points of a grid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/cluster/log_grid.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::train::detail {

/// A matrix that tokens are multiplied with.
struct Weight {
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  friend bool operator==(const Weight&, const Weight&) = default;
};

/// The products of a weight over numbers of tokens as a table of (m, n, k).
inline LogGrid<3>::Axes axes_of(op::Kind kind, const Weight& weight, const LogGrid<3>::Axis& tokens) {
  switch (kind) {
    case op::Kind::gemm_nt:
      return {tokens, {weight.outputs}, {weight.inputs}};
    case op::Kind::gemm_nn:
      return {tokens, {weight.inputs}, {weight.outputs}};
    default:
      break;
  }
  return {{{weight.outputs}, {weight.inputs}, tokens}};
}

/// The different weights of the models' layers on one of so many ranks or fewer, under every tensor degree.
inline std::vector<Weight> weights_of(std::span<const ModelSpec> models, int ranks) {
  std::vector<Weight> out;
  const auto add = [&](const LayerSpec& layer, int tensor) {
    const StrategySpec spec{.tensor = tensor};
    if (!is_fit(layer, spec, 1, layer.positions)) return;
    const cost::LayerCounts counts = cost::layer_counts(layer, spec, {.sequence = layer.positions});
    for (const op::Work& work : counts.forward)
      if (const Weight weight{work.n, work.k};
          work.kind == op::Kind::gemm_nt && std::ranges::find(out, weight) == out.end())
        out.push_back(weight);
  };
  for (const ModelSpec& model : models)
    for (int tensor = 1; tensor <= ranks; tensor *= 2) {
      add(model.embedding, tensor);
      for (const LayerSpec& block : model.blocks) add(block, tensor);
      add(model.head, tensor);
    }
  return out;
}

}  // namespace galvatron::train::detail
