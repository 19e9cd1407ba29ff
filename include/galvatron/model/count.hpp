// How many parameters a layer and a model have.
#pragma once

#include <cstdint>

#include <galvatron/model/layers.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Parameters of a layer; a tied head has no table.
constexpr std::int64_t parameters(const LayerSpec& layer) {
  const forward::Graph graph = forward_of(layer);
  std::int64_t sum = 0;
  for (int i = 0; i < graph.weight_count; ++i)
    if (const forward::WeightSpec& w = graph.weight(i); !(w.is_table && layer.kind == LayerKind::head && layer.tied))
      sum += w.rows.extent * w.columns.extent;
  return sum;
}

/// Parameters of the whole model; a tied table counts once.
inline std::int64_t parameters(const ModelSpec& model) {
  std::int64_t sum = parameters(model.embedding) + parameters(model.head);
  for (const LayerSpec& block : model.blocks) sum += parameters(block);
  return sum;
}

}  // namespace galvatron
