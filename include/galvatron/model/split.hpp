// Attention and MLP as layers of their own, so that each may have its strategy and stages may begin between them.
#pragma once

#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// True when blocks are halves.
constexpr bool has_split_layers(const ModelSpec& model) {
  return !model.blocks.empty() && model.blocks.front().part != BlockPart::whole;
}

/// The model with two layers for each block: attention with its norm and residual, then the MLP with its own. Block i
/// becomes layers 2 i and 2 i + 1. Errors (usage): blocks that are neither GPT's nor Llama's.
inline Result<ModelSpec> split_layers(const ModelSpec& model) {
  if (has_split_layers(model)) return model;
  ModelSpec out = model;
  out.blocks.clear();
  for (const LayerSpec& block : model.blocks) {
    if (!block.is_plain_block())
      return usage_error("the model " + model.name +
                         " has other blocks than GPT's and Llama's: only those are planned as attention and MLP "
                         "separately; leave --split-layers out");
    for (const BlockPart part : {BlockPart::attention, BlockPart::mlp}) {
      out.blocks.push_back(block);
      out.blocks.back().part = part;
    }
  }
  return out;
}

}  // namespace galvatron
