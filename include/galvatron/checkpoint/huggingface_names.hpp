// Where the parameters of GPT-2 and Llama models stand in published checkpoints (Hugging Face transformers).
//
//   GPT-2   transformer.wte.weight (V, H)            table of the embedding, and of a tied head
//           transformer.h.N.attn.c_attn.weight       (H, 3 H): Conv1D keeps weights transposed, (inputs, outputs);
//                                                    columns of queries, keys, values
//   Llama   model.layers.N.self_attn.q_proj.weight   (A * head_dim, H), k_proj and v_proj apart: rows of qkv_weight
//           model.layers.N.mlp.gate_proj.weight      (ffn, H), up_proj apart: rows of mlp_in_weight
//
// Rotary positions turn the pairs (j, j + head_dim / 2), as here, so that no rows are permuted. Published GPT-2 files
// leave "transformer." out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::train {

/// A tensor of a published file: rows [row, row + shape.rows) of a parameter, or their transpose.
struct HuggingFaceTensor {
  std::string name;
  int layer = 0;  ///< number in the model; the embedding is 0
  ParameterName parameter{};
  std::int64_t row = 0;
  TensorShape shape;        ///< of the part of the parameter
  bool transposed = false;  ///< the file has (columns, rows)
  bool vector = false;      ///< the file has one dimension

  /// The shape in the file.
  [[nodiscard]] std::vector<std::int64_t> file_shape() const {
    if (vector) return {shape.rows};
    if (transposed) return {shape.columns, shape.rows};
    return {shape.rows, shape.columns};
  }
};

enum class HuggingFaceFamily : std::uint8_t { gpt2, llama };

/// The family whose checkpoints have the model's parameters. Errors (usage): a model that is neither.
inline Result<HuggingFaceFamily> huggingface_family(const ModelSpec& model) {
  bool gpt2 = !model.blocks.empty();
  bool llama = gpt2;
  for (const LayerSpec& block : model.blocks) {
    const bool plain = block.is_plain_block() && block.causal;
    gpt2 = gpt2 && plain && block.bias && block.norm == NormKind::layer_norm &&
           block.activation == ActivationKind::gelu && block.position == PositionKind::learned &&
           block.kv_heads == block.heads;
    llama = llama && plain && block.norm == NormKind::rms_norm && block.activation == ActivationKind::swiglu &&
            block.position == PositionKind::rotary;
  }
  if (gpt2) return HuggingFaceFamily::gpt2;
  if (llama) return HuggingFaceFamily::llama;
  return usage_error("the model " + model.name +
                     " is neither a GPT-2 nor a Llama, whose Hugging Face checkpoints are known; choose one of them");
}

/// The tensors of a model's published checkpoint: every parameter once.
inline std::vector<HuggingFaceTensor> huggingface_tensors(const ModelSpec& model, HuggingFaceFamily family) {
  std::vector<HuggingFaceTensor> out;
  const bool gpt2 = family == HuggingFaceFamily::gpt2;
  const std::int64_t h = model.hidden();
  const std::int64_t v = model.vocabulary();
  int number = 0;
  const auto matrix = [&](std::string name, ParameterName parameter, std::int64_t rows, std::int64_t columns,
                          bool transposed = false, std::int64_t row = 0) {
    out.push_back({std::move(name), number, parameter, row, {rows, columns}, transposed, false});
  };
  const auto vector = [&](std::string name, ParameterName parameter, std::int64_t rows, std::int64_t row = 0) {
    out.push_back({std::move(name), number, parameter, row, {rows, 1}, false, true});
  };
  const auto norm = [&](const std::string& name, ParameterName gamma, ParameterName beta) {
    vector(name + ".weight", gamma, h);
    if (gpt2) vector(name + ".bias", beta, h);
  };
  using enum ParameterName;

  matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", table, v, h);
  if (gpt2) matrix("transformer.wpe.weight", positions, model.positions(), h);
  for (const LayerSpec& block : model.blocks) {
    const std::string prefix = (gpt2 ? "transformer.h." : "model.layers.") + std::to_string(number) + ".";
    ++number;
    const std::int64_t q = block.heads * block.head_dim;
    const std::int64_t kv = block.kv_heads * block.head_dim;
    const std::int64_t f = block.ffn;
    norm(prefix + (gpt2 ? "ln_1" : "input_layernorm"), norm1_gamma, norm1_beta);
    norm(prefix + (gpt2 ? "ln_2" : "post_attention_layernorm"), norm2_gamma, norm2_beta);
    // Rows [row, row + outputs) of a weight of `inputs` columns, and of its bias.
    const auto linear = [&](const std::string& name, ParameterName weight, ParameterName bias, std::int64_t outputs,
                            std::int64_t inputs, std::int64_t row = 0) {
      matrix(prefix + name + ".weight", weight, outputs, inputs, gpt2, row);
      if (block.bias) vector(prefix + name + ".bias", bias, outputs, row);
    };
    if (gpt2) {
      linear("attn.c_attn", qkv_weight, qkv_bias, 3 * q, h);
      linear("attn.c_proj", attention_out_weight, attention_out_bias, h, q);
      linear("mlp.c_fc", mlp_in_weight, mlp_in_bias, f, h);
      linear("mlp.c_proj", mlp_out_weight, mlp_out_bias, h, f);
    } else {
      linear("self_attn.q_proj", qkv_weight, qkv_bias, q, h);
      linear("self_attn.k_proj", qkv_weight, qkv_bias, kv, h, q);
      linear("self_attn.v_proj", qkv_weight, qkv_bias, kv, h, q + kv);
      linear("self_attn.o_proj", attention_out_weight, attention_out_bias, h, q);
      linear("mlp.gate_proj", mlp_in_weight, mlp_in_bias, f, h);
      linear("mlp.up_proj", mlp_in_weight, mlp_in_bias, f, h, f);
      linear("mlp.down_proj", mlp_out_weight, mlp_out_bias, h, f);
    }
  }
  ++number;
  norm(gpt2 ? "transformer.ln_f" : "model.norm", norm1_gamma, norm1_beta);
  if (!model.head.tied) matrix("lm_head.weight", table, v, h);
  return out;
}

/// Tensors that published files have and that are no parameters: masks, frequencies.
inline bool is_huggingface_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> endings = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
  for (const std::string_view ending : endings)
    if (name.ends_with(ending)) return true;
  return false;
}

}  // namespace galvatron::train
