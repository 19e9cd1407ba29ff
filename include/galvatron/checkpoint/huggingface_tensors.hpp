// Where the parameters of a model stand in its Hugging Face checkpoint.
//
//   GPT-2     transformer.wte.weight (V, H)            table of the embedding, and of a tied head
//             transformer.h.N.attn.c_attn.weight       (H, 3 H): Conv1D keeps weights transposed, (inputs, outputs);
//                                                      columns of queries, keys, values
//   Llama     model.layers.N.self_attn.q_proj.weight   (A * head_dim, H), k_proj and v_proj apart: rows of qkv_weight
//             model.layers.N.mlp.gate_proj.weight      (ffn, H), up_proj apart: rows of mlp_in_weight
//   Phi-3     model.layers.N.self_attn.qkv_proj.weight all rows of qkv_weight, and mlp.gate_up_proj.weight of
//                                                      mlp_in_weight: files of the Llama that it is, too
//   experts   mlp.experts.E.gate_proj.weight           of every expert, as a Llama's MLP; Mixtral's are
//                                                      block_sparse_moe.experts.E.w1, w3 (up) and w2 (down)
//             mlp.experts.gate_up_proj                 (E, 2 ffn, H), and down_proj (E, H, ffn): the same of all
//                                                      experts in one tensor, as transformers 5 keeps them
//   T5        decoder.block.N.layer.0.SelfAttention    q, k, v and o apart; layer.1 is EncDecAttention, of
//   cross_query_weight
//                                                      and cross_memory_weight; in encoders it is the MLP, wi_0 (gate)
//                                                      and wi_1 (up), or wi. The table of positions is block 0's, or
//                                                      that of each block (umT5)
//   DeepSeek  self_attn.q_b_proj.weight                (A * head_dim, rank): head by head, what positions turn last
//             self_attn.kv_a_proj_with_mqa.weight      (rank + r, H): the latent vector, then the turned key
//             self_attn.kv_b_proj.weight               (A * (head_dim - r + v), rank): head by head, keys, then values
//
// Rotary positions turn the pairs (j, j + head_dim / 2), as here; DeepSeek's are neighbours in the file. Where they
// turn r elements of a head (Phi), those are the first in the file, in pairs (j, j + r / 2). Published GPT-2 files
// leave "transformer." out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/huggingface_family.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/model/parameter.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

/// Where rows of a parameter stand in a tensor that has others too, or has them in another order: in runs of `run`
/// rows, `stride` apart.
struct FileRows {
  std::int64_t all = 0;  ///< rows of the file's tensor; 0: it has the part's rows in their order
  std::int64_t first = 0;
  std::int64_t run = 1;
  std::int64_t stride = 1;
  bool pairs = false;       ///< rows j and j + run / 2 of a run are neighbours in the file
  std::int64_t turned = 0;  ///< rows of a run that are first in the file, and here first in both halves of it

  /// The row of the file's tensor that is row i of the part.
  [[nodiscard]] constexpr std::int64_t operator()(std::int64_t i) const {
    if (all == 0) return i;
    return first + i / run * stride + in_run(i % run);
  }

 private:
  [[nodiscard]] constexpr std::int64_t in_run(std::int64_t j) const {
    const std::int64_t half = run / 2;
    const bool second = j >= half;
    if (pairs) return second ? 2 * (j - half) + 1 : 2 * j;
    if (turned == 0) return j;
    const std::int64_t in_half = second ? j - half : j;
    if (in_half < turned / 2) return second ? turned / 2 + in_half : in_half;
    return turned + in_half - turned / 2 + (second ? half - turned / 2 : 0);
  }
};

/// A tensor of a published file, or a part of one: rows [row, row + shape.rows) of a parameter, or their transpose.
struct HuggingFaceTensor {
  std::string name;
  int layer = 0;  ///< number in the model; the embedding is 0
  ParameterName parameter{};
  std::int64_t row = 0;
  TensorShape shape;                                      ///< of the part of the parameter
  bool transposed = false;                                ///< the file has (columns, rows)
  bool vector = false;                                    ///< the file has one dimension
  std::int64_t matrices = 0;                              ///< the file has three: so many matrices
  std::optional<std::vector<std::int64_t>> dimensions{};  ///< of the file's tensor, where they are others
  FileRows rows{};                                        ///< parts of one tensor follow each other

  /// The shape in the file.
  [[nodiscard]] std::vector<std::int64_t> file_shape() const {
    if (dimensions) return *dimensions;
    const std::int64_t all = rows.all == 0 ? shape.rows : rows.all;
    if (vector) return {all};
    if (matrices > 0) return {matrices, all / matrices, shape.columns};
    if (transposed) return {shape.columns, all};
    return {all, shape.columns};
  }
  /// Elements of the file's tensor.
  [[nodiscard]] std::int64_t file_count() const { return (rows.all == 0 ? shape.rows : rows.all) * shape.columns; }
};

/// How a file has the experts of a layer.
enum class ExpertTensors : std::uint8_t {
  each,      ///< each in tensors of its own
  together,  ///< all in one tensor
};
/// How a file has queries, keys and values, and gate and up.
enum class ProjectionTensors : std::uint8_t {
  each,      ///< each in a tensor of its own
  together,  ///< as Phi-3 has them: the former in one tensor, and the latter in one
};

namespace detail {

/// Lists tensors, those of a layer behind each other.
class TensorList {
 public:
  std::vector<HuggingFaceTensor> out;

 protected:
  using Name = ParameterName;

  HuggingFaceTensor& matrix(const std::string& name, Name parameter, TensorShape shape, std::int64_t row = 0) {
    out.push_back({.name = prefix_ + name, .layer = number_, .parameter = parameter, .row = row, .shape = shape});
    return out.back();
  }
  HuggingFaceTensor& vector(const std::string& name, Name parameter, std::int64_t rows, std::int64_t row = 0) {
    HuggingFaceTensor& tensor = matrix(name, parameter, {rows, 1}, row);
    tensor.vector = true;
    return tensor;
  }
  /// Rows [row, row + outputs) of a weight of `inputs` columns, and of its bias.
  void linear(const std::string& name, Name weight, Name bias, bool has_bias, TensorShape shape, std::int64_t row = 0,
              const FileRows& rows = {}) {
    HuggingFaceTensor& tensor = matrix(name + ".weight", weight, shape, row);
    tensor.transposed = transposed_;
    tensor.rows = rows;
    if (has_bias) vector(name + ".bias", bias, shape.rows, row).rows = rows;
  }

  int number_ = 0;           ///< of the layer
  std::string prefix_;       ///< of its names
  bool transposed_ = false;  ///< weights of linear layers are
};

/// Lists the tensors of a model: every parameter once.
class HuggingFaceTensors : public TensorList {
 public:
  HuggingFaceTensors(const ModelSpec& model, HuggingFaceFamily family, ExpertTensors experts,
                     ProjectionTensors projections)
      : model_(model),
        family_(family),
        experts_(experts),
        together_(projections == ProjectionTensors::together || family == HuggingFaceFamily::phi3),
        gpt2_(family == HuggingFaceFamily::gpt2) {
    using enum ParameterName;
    transposed_ = gpt2_;
    const std::int64_t h = model.hidden();
    matrix(gpt2_ ? "transformer.wte.weight" : "model.embed_tokens.weight", table, {model.vocabulary(), h});
    if (gpt2_) matrix("transformer.wpe.weight", positions, {model.positions(), h});
    for (const LayerSpec& block : model.blocks) {
      prefix_ = (gpt2_ ? "transformer.h." : "model.layers.") + std::to_string(number_++) + ".";
      const bool around = block.norm_order == NormOrder::around;
      norm(gpt2_ ? "ln_1" : "input_layernorm", norm1_gamma, norm1_beta);
      if (around) norm("post_attention_layernorm", attention_norm_gamma, attention_norm_beta);
      if (!block.parallel)
        norm(gpt2_    ? "ln_2"
             : around ? "pre_feedforward_layernorm"
                      : "post_attention_layernorm",
             norm2_gamma, norm2_beta);
      if (around) norm("post_feedforward_layernorm", mlp_norm_gamma, mlp_norm_beta);
      if (block.latent.rank > 0)
        latent_attention(block);
      else
        attention(block);
      if (block.experts > 0)
        mixture(block);
      else
        mlp(block);
    }
    prefix_.clear();
    ++number_;
    norm(gpt2_                              ? "transformer.ln_f"
         : family == HuggingFaceFamily::phi ? "model.final_layernorm"
                                            : "model.norm",
         norm1_gamma, norm1_beta);
    if (!model.head.tied) matrix("lm_head.weight", table, {model.vocabulary(), h});
    if (model.head.logits_bias) vector("lm_head.bias", logits_bias, model.vocabulary());
  }

 private:
  void norm(const std::string& name, Name gamma, Name beta) {
    vector(name + ".weight", gamma, model_.hidden());
    if (model_.head.norm == NormKind::layer_norm) vector(name + ".bias", beta, model_.hidden());
  }
  void attention(const LayerSpec& l) {
    using enum ParameterName;
    const std::int64_t h = l.hidden;
    const std::int64_t q = l.heads * l.head_dim;
    const std::int64_t kv = l.kv_heads * l.head_dim;
    const bool bias = l.bias || l.qkv_bias;
    if (gpt2_) {
      linear("attn.c_attn", qkv_weight, qkv_bias, bias, {3 * q, h});
    } else {
      const std::int64_t all = together_ ? q + 2 * kv : 0;
      const auto projection = [&](const char* name, std::int64_t rows, std::int64_t first, std::int64_t turned) {
        FileRows places;
        if (all > 0 || turned > 0)
          places = {.all = all > 0 ? all : rows,
                    .first = all > 0 ? first : 0,
                    .run = l.head_dim,
                    .stride = l.head_dim,
                    .turned = turned};
        linear(std::string("self_attn.") + (all > 0 ? "qkv_proj" : name), qkv_weight, qkv_bias, bias, {rows, h}, first,
               places);
      };
      projection("q_proj", q, 0, l.rotary_dim);
      projection("k_proj", kv, q, l.rotary_dim);
      projection("v_proj", kv, q + kv, 0);
    }
    linear(gpt2_                               ? "attn.c_proj"
           : family_ == HuggingFaceFamily::phi ? "self_attn.dense"
                                               : "self_attn.o_proj",
           attention_out_weight, attention_out_bias, l.bias, {h, q});
    if (l.query_key_norm == QueryKeyNorm::none) return;
    const bool heads = l.query_key_norm == QueryKeyNorm::heads;
    vector("self_attn.q_norm.weight", query_gamma, heads ? l.head_dim : q);
    vector("self_attn.k_norm.weight", key_gamma, heads ? l.head_dim : kv);
  }
  void latent_attention(const LayerSpec& l) {
    using enum ParameterName;
    const std::int64_t h = l.hidden;
    const std::int64_t d = l.head_dim;
    const std::int64_t heads = l.heads;
    const auto [rank, query_rank, r, v, epsilon] = l.latent;
    if (query_rank > 0) {
      matrix("self_attn.q_a_proj.weight", query_down_weight, {query_rank, h});
      vector("self_attn.q_a_layernorm.weight", query_gamma, query_rank);
    }
    const char* q = query_rank > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight";
    const std::int64_t inputs = query_rank > 0 ? query_rank : h;
    matrix(q, query_up_weight, {heads * r, inputs}).rows = {heads * d, d - r, r, d, true};
    matrix(q, query_up_weight, {heads * (d - r), inputs}, heads * r).rows = {heads * d, 0, d - r, d};
    const char* down = "self_attn.kv_a_proj_with_mqa.weight";
    matrix(down, latent_down_weight, {rank, h}).rows = {rank + r, 0, rank, rank};
    matrix(down, key_rotary_weight, {r, h}).rows = {rank + r, rank, r, r, true};
    vector("self_attn.kv_a_layernorm.weight", key_gamma, rank);
    const char* up = "self_attn.kv_b_proj.weight";
    const std::int64_t both = d - r + v;  // rows of a head
    matrix(up, latent_up_weight, {heads * (d - r), rank}).rows = {heads * both, 0, d - r, both};
    matrix(up, latent_up_weight, {heads * v, rank}, heads * (d - r)).rows = {heads * both, d - r, v, both};
    matrix("self_attn.o_proj.weight", attention_out_weight, {h, heads * v});
  }
  void mlp(const LayerSpec& l) {
    using enum ParameterName;
    const std::int64_t h = l.hidden;
    const std::int64_t f = l.ffn;
    const bool phi = family_ == HuggingFaceFamily::phi;
    if (together_) {
      linear("mlp.gate_up_proj", mlp_in_weight, mlp_in_bias, l.bias, {2 * f, h});
    } else {
      linear(gpt2_ ? "mlp.c_fc" : phi ? "mlp.fc1" : "mlp.gate_proj", mlp_in_weight, mlp_in_bias, l.bias, {f, h});
      if (inputs_of(l.activation) == 2) linear("mlp.up_proj", mlp_in_weight, mlp_in_bias, l.bias, {f, h}, f);
    }
    linear(gpt2_ ? "mlp.c_proj" : phi ? "mlp.fc2" : "mlp.down_proj", mlp_out_weight, mlp_out_bias, l.bias, {h, f});
  }
  void mixture(const LayerSpec& l) {
    using enum ParameterName;
    const std::int64_t h = l.hidden;
    const std::int64_t f = l.ffn;
    const bool together = experts_ == ExpertTensors::together;
    const bool old_names = family_ == HuggingFaceFamily::mixtral && !together;
    const std::string moe = old_names ? "block_sparse_moe." : "mlp.";
    matrix(moe + "gate.weight", router, {l.experts, h});
    if (l.router.kind == RouterKind::sigmoid) vector("mlp.gate.e_score_correction_bias", router_bias, l.experts);
    if (together) {
      matrix("mlp.experts.gate_up_proj", mlp_in_weight, {l.experts * 2 * f, h}).matrices = l.experts;
      matrix("mlp.experts.down_proj", mlp_out_weight, {l.experts * h, f}).matrices = l.experts;
    } else {
      for (std::int64_t e = 0; e < l.experts; ++e) {
        const std::string expert = moe + "experts." + std::to_string(e) + ".";
        matrix(expert + (old_names ? "w1" : "gate_proj") + ".weight", mlp_in_weight, {f, h}, e * 2 * f);
        matrix(expert + (old_names ? "w3" : "up_proj") + ".weight", mlp_in_weight, {f, h}, e * 2 * f + f);
        matrix(expert + (old_names ? "w2" : "down_proj") + ".weight", mlp_out_weight, {h, f}, e * h);
      }
    }
    if (l.shared_ffn == 0) return;
    const std::string shared = is_deepseek(family_) ? "mlp.shared_experts." : "mlp.shared_expert.";
    matrix(shared + "gate_proj.weight", shared_in_weight, {l.shared_ffn, h});
    matrix(shared + "up_proj.weight", shared_in_weight, {l.shared_ffn, h}, l.shared_ffn);
    matrix(shared + "down_proj.weight", shared_out_weight, {h, l.shared_ffn});
    if (l.shared_gate) matrix("mlp.shared_expert_gate.weight", shared_gate_weight, {1, h});
  }

  const ModelSpec& model_;
  HuggingFaceFamily family_;
  ExpertTensors experts_;
  bool together_;  ///< projections
  bool gpt2_;
};

/// Lists the tensors of a T5: every parameter once, but for tables of positions that another block of the side has.
class T5Tensors : public TensorList {
 public:
  T5Tensors(const ModelSpec& model, bool one_table) : one_table_(one_table) {
    using enum ParameterName;
    const std::int64_t h = model.hidden();
    matrix("shared.weight", table, {model.vocabulary(), h});
    int encoders = 0;
    for (const LayerSpec& l : model.blocks) {
      const bool decodes = l.memory.any();
      if (!decodes) ++encoders;
      prefix_ = (decodes ? "decoder.block." : "encoder.block.") +
                std::to_string(decodes ? number_ - encoders : number_) + ".layer.";
      ++number_;
      block(l, decodes);
      prefix_.clear();
      if (l.closing_norm) vector("encoder.final_layer_norm.weight", closing_gamma, h);
    }
    ++number_;
    vector("decoder.final_layer_norm.weight", norm1_gamma, h);
    matrix("lm_head.weight", table, {model.vocabulary(), h});
  }

 private:
  void block(const LayerSpec& l, bool decodes) {
    using enum ParameterName;
    const std::int64_t h = l.hidden;
    const std::int64_t q = l.heads * l.head_dim;
    const std::int64_t kv = l.kv_heads * l.head_dim;
    matrix("0.SelfAttention.q.weight", qkv_weight, {q, h});
    matrix("0.SelfAttention.k.weight", qkv_weight, {kv, h}, q);
    matrix("0.SelfAttention.v.weight", qkv_weight, {kv, h}, q + kv);
    matrix("0.SelfAttention.o.weight", attention_out_weight, {h, q});
    if (!one_table_ || prefix_.ends_with(".block.0.layer."))
      matrix("0.SelfAttention.relative_attention_bias.weight", relative_positions, {l.bias_rows, l.heads});
    vector("0.layer_norm.weight", norm1_gamma, h);
    if (decodes) {
      matrix("1.EncDecAttention.q.weight", cross_query_weight, {q, h});
      matrix("1.EncDecAttention.k.weight", cross_memory_weight, {kv, h});
      matrix("1.EncDecAttention.v.weight", cross_memory_weight, {kv, h}, kv);
      matrix("1.EncDecAttention.o.weight", cross_out_weight, {h, q});
      vector("1.layer_norm.weight", norm3_gamma, h);
    }
    const std::string mlp = decodes ? "2." : "1.";
    const bool gated = inputs_of(l.activation) == 2;
    matrix(mlp + (gated ? "DenseReluDense.wi_0.weight" : "DenseReluDense.wi.weight"), mlp_in_weight, {l.ffn, h});
    if (gated) matrix(mlp + "DenseReluDense.wi_1.weight", mlp_in_weight, {l.ffn, h}, l.ffn);
    matrix(mlp + "DenseReluDense.wo.weight", mlp_out_weight, {h, l.ffn});
    vector(mlp + "layer_norm.weight", norm2_gamma, h);
  }

  bool one_table_;
};

}  // namespace detail

/// Other blocks of a T5 read the table of positions of their side's first.
inline void repeat_position_tables(const ModelSpec& model, std::vector<HuggingFaceTensor>& tensors) {
  std::vector<HuggingFaceTensor> more;
  for (const HuggingFaceTensor& tensor : tensors)
    if (tensor.parameter == ParameterName::relative_positions)
      for (int layer = tensor.layer + 1;
           layer + 1 < model.layers() && model.layer(layer).memory == model.layer(tensor.layer).memory; ++layer) {
        more.push_back(tensor);
        more.back().layer = layer;
      }
  tensors.insert(tensors.end(), more.begin(), more.end());
}

/// The tensors of a model's published checkpoint, in which every parameter is once.
inline std::vector<HuggingFaceTensor> huggingface_tensors(const ModelSpec& model, HuggingFaceFamily family,
                                                          ExpertTensors experts = ExpertTensors::each,
                                                          ProjectionTensors projections = ProjectionTensors::each) {
  if (family == HuggingFaceFamily::t5 || family == HuggingFaceFamily::umt5)
    return std::move(detail::T5Tensors(model, family == HuggingFaceFamily::t5).out);
  return std::move(detail::HuggingFaceTensors(model, family, experts, projections).out);
}

/// Tensors that published files have and that are no parameters of the model: masks, frequencies, and DeepSeek-V3's
/// layer behind the others, which predicts a second token and which transformers leaves out.
inline bool is_huggingface_buffer(std::string_view name, const ModelSpec& model, HuggingFaceFamily family) {
  constexpr std::array<std::string_view, 3> endings = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
  if (std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); })) return true;
  if (model.is_encoder_decoder())  // copies of the table, and what old files of T5 have and no version reads
    return name.ends_with("coder.embed_tokens.weight") ||
           name.ends_with("EncDecAttention.relative_attention_bias.weight");
  return family == HuggingFaceFamily::deepseek_v3 &&
         name.starts_with("model.layers." + std::to_string(model.blocks.size()) + ".");
}

}  // namespace galvatron::train
