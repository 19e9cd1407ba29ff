// Models from a few numbers, family by family: GPT-2, Llama, Gemma, Phi, BERT, ViT, T5, Swin, mixtures of experts. None
// is checked here: see checked().
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <galvatron/model/graph.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// The numbers of a model of the GPT-2 family; 0 stands for the usual value.
struct GptShape {
  int layers = 0;               ///< L
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< rows of the position table
  std::int64_t ffn = 0;         ///< width of the MLP, 4 H by default
  bool tied = true;
  double norm_epsilon = 1e-5;
  ActivationKind activation = ActivationKind::gelu;
};

/// The numbers of a model of the Llama family; 0 stands for the usual value.
struct LlamaShape {
  int layers = 0;               ///< L
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A
  std::int64_t kv_heads = 0;    ///< key/value heads, A by default
  std::int64_t ffn = 0;         ///< width of the MLP, of SwiGLU's gate and of up
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< the longest sequence
  std::int64_t head_dim = 0;    ///< H / A by default
  double rope_theta = 10000.0;
  RotaryScaling rotary_scaling{};
  std::int64_t rotary_dim = 0;  ///< elements of a head that positions turn; 0: all
  bool tied = false;
  bool bias = false;
  double norm_epsilon = 1e-5;
  bool qkv_bias = false;  ///< of queries, keys and values only
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  LatentAttention latent{};
  ActivationKind activation = ActivationKind::swiglu;
  std::int64_t sliding_window = 0;  ///< tokens that one attends to at most; 0: all before it
};

/// The numbers of a model of the Gemma family.
struct GemmaShape {
  LlamaShape decoder;            ///< `ffn` is the width of gate and of up
  bool norms_around = false;     ///< parts have norms behind them too (Gemma 2 and 3)
  std::int64_t score_width = 0;  ///< scores are divided by its root, head_dim by default
  double score_cap = 0;          ///< see LayerSpec
  double logits_cap = 0;         ///< see LayerSpec
};

/// The numbers of a model of the Phi family; 0 stands for the usual value.
struct PhiShape {
  int layers = 0;               ///< L
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A
  std::int64_t kv_heads = 0;    ///< key/value heads, A by default
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< the longest sequence
  std::int64_t ffn = 0;         ///< width of the MLP, 4 H by default
  std::int64_t rotary_dim = 0;  ///< elements of a head that positions turn; 0: all
  double rope_theta = 10000.0;
  RotaryScaling rotary_scaling{};
  bool tied = false;
  double norm_epsilon = 1e-5;
  ActivationKind activation = ActivationKind::gelu;
};

/// The numbers of a model of the BERT family; 0 stands for the usual value.
struct BertShape {
  int layers = 0;                ///< L
  std::int64_t hidden = 0;       ///< H
  std::int64_t heads = 0;        ///< A
  std::int64_t vocabulary = 0;   ///< V
  std::int64_t positions = 512;  ///< the longest sequence
  std::int64_t ffn = 0;          ///< width of the MLP, 4 H by default
  std::int64_t token_types = 2;  ///< segments
  double norm_epsilon = 1e-12;
};

/// The numbers of a Vision Transformer; 0 stands for the usual value.
struct VitShape {
  int layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t ffn = 0;       ///< 4 H by default
  std::int64_t image = 224;   ///< pixels of a side
  std::int64_t patch = 16;    ///< pixels of a side; divides `image`
  std::int64_t channels = 3;  ///< numbers of a pixel
  std::int64_t classes = 1000;
  double norm_epsilon = 1e-6;
};

/// The numbers of a model of the T5 family; 0 stands for the usual value.
struct T5Shape {
  int encoder_layers = 0;
  int decoder_layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;  ///< H / A by default
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 32128;
  std::int64_t source = 512;  ///< tokens of the encoder, in which the model's sequence is counted
  std::int64_t target = 512;  ///< tokens of the decoder beside `source` ones of the encoder; at most as many
  std::int64_t buckets = 32;  ///< of distances, each with a bias for every head
  bool tied = true;
  ActivationKind activation = ActivationKind::relu;  ///< of T5 1.1 and its successors geglu
  double norm_epsilon = 1e-6;
};

/// The numbers of a Swin Transformer.
struct SwinShape {
  std::array<int, 4> depths{};  ///< blocks of each stage; 0 for stages that a small model lacks at its end
  std::int64_t hidden = 0;      ///< of the first stage; it doubles from one to the next
  std::array<std::int64_t, 4> heads{};
  std::int64_t ffn_ratio = 4;  ///< MLP width over hidden
  std::int64_t image = 224;    ///< pixels of a side; a multiple of 8 patches (of fewer with fewer stages)
  std::int64_t patch = 4;      ///< pixels of a side
  std::int64_t window = 7;     ///< tokens of a side; divides those of a side in every stage, or all of a small image
  std::int64_t channels = 3;
  std::int64_t classes = 1000;
  double norm_epsilon = 1e-5;
};

/// The numbers of a model some or all of whose MLPs are experts; 0 stands for the usual value.
/// @tparam Dense  the shape of its family
template <class Dense>
struct MixtureShape {
  Dense dense;                      ///< `ffn` is the MLP's of a block without experts
  std::int64_t experts = 0;         ///< E
  std::int64_t active_experts = 0;  ///< k: of a token
  std::int64_t expert_ffn = 0;      ///< width of an expert, dense.ffn by default
  RouterSpec router{};
  std::int64_t shared_ffn = 0;  ///< width of the MLP beside the experts
  bool shared_gate = false;
  // Which blocks have experts: all but
  int first_dense = 0;                           ///< the first (first_k_dense_replace)
  int sparse_step = 1;                           ///< those whose number from 1 this does not divide
  std::span<const std::int64_t> dense_blocks{};  ///< and these, by number from 0; what it views outlives the shape

  [[nodiscard]] constexpr bool has_experts(int block) const {
    return block >= first_dense && (sparse_step < 2 || (block + 1) % sparse_step == 0) &&
           std::find(dense_blocks.begin(), dense_blocks.end(), std::int64_t{block}) == dense_blocks.end();
  }
  [[nodiscard]] constexpr int blocks_with_experts() const {
    int count = 0;
    for (int i = 0; i < dense.layers; ++i) count += has_experts(i) ? 1 : 0;
    return count;
  }
};
using MoeShape = MixtureShape<LlamaShape>;

/// The coefficient of the balance loss of each block with experts, RouterSpec::balance_loss, that amounts to the
/// router_aux_loss_coef of Hugging Face transformers. There the loss is c E sum_e f_e P_e with f_e = choices of e / T,
/// which add up to k, and tokens of all blocks are one pool: with even choices it is c k, and that of each of n blocks
/// is alpha here.
constexpr double balance_loss_of(double coefficient, std::int64_t active_experts, int blocks) {
  return blocks > 0 ? coefficient * static_cast<double>(active_experts) / blocks : 0.0;
}

/// An embedding, `layers` equal blocks and a head. `block` describes a block and carries the vocabulary.
inline ModelSpec model_of_equal_blocks(std::string name, LayerSpec block, int layers) {
  block.kind = LayerKind::block;
  block.layers = layers;
  ModelSpec model{std::move(name), block, {}, block};
  model.embedding.kind = LayerKind::embedding;
  model.head.kind = LayerKind::head;
  model.blocks.assign(layers > 0 ? static_cast<std::size_t>(layers) : 0, block);
  return model;
}

namespace detail {

/// A block of what all families but Swin's have in their shapes.
template <class Shape>
LayerSpec block_of(const Shape& shape) {
  LayerSpec block;
  block.hidden = shape.hidden;
  block.heads = block.kv_heads = shape.heads;
  block.head_dim = shape.heads > 0 ? shape.hidden / shape.heads : 0;
  if constexpr (requires { shape.head_dim; }) block.head_dim = shape.head_dim != 0 ? shape.head_dim : block.head_dim;
  block.ffn = shape.ffn;
  block.norm_epsilon = shape.norm_epsilon;
  if constexpr (requires { shape.vocabulary; }) block.vocabulary = shape.vocabulary;
  if constexpr (requires { shape.positions; }) block.positions = shape.positions;
  if constexpr (requires { shape.tied; }) block.tied = shape.tied;
  if constexpr (requires { shape.activation; }) block.activation = shape.activation;
  return block;
}
/// The same with an MLP of 4 H by default.
template <class Shape>
LayerSpec gpt_block_of(const Shape& shape) {
  LayerSpec block = block_of(shape);
  if (block.ffn == 0) block.ffn = 4 * block.hidden;
  return block;
}

}  // namespace detail

/// GPT-2 (Radford et al., 2019): learned positions, LayerNorm before each part, GELU, biases, tied head.
inline ModelSpec gpt(std::string name, const GptShape& shape) {
  return model_of_equal_blocks(std::move(name), detail::gpt_block_of(shape), shape.layers);
}

/// Llama (Touvron et al., 2023): rotary positions, RMSNorm before each part, SwiGLU, grouped-query attention, no
/// biases. Qwen's, OLMo's and DeepSeek's decoders differ in their attention.
inline ModelSpec llama(std::string name, const LlamaShape& shape) {
  LayerSpec block = detail::block_of(shape);
  if (shape.kv_heads != 0) block.kv_heads = shape.kv_heads;
  block.norm = NormKind::rms_norm;
  block.position = PositionKind::rotary;
  block.bias = shape.bias;
  block.rope_theta = shape.rope_theta;
  block.rotary_scaling = shape.rotary_scaling;
  block.rotary_dim = shape.rotary_dim;
  block.qkv_bias = shape.qkv_bias;
  block.query_key_norm = shape.query_key_norm;
  block.latent = shape.latent;
  block.sliding_window = shape.sliding_window;
  return model_of_equal_blocks(std::move(name), block, shape.layers);
}

/// Gemma (Gemma Team, 2024, arXiv 2403.08295): a Llama with gated GELU, gammas of norms as distances from 1, and an
/// embedding that is multiplied by the root of H. Gemma 2 and 3 have norms behind attention and MLP too.
inline ModelSpec gemma(std::string name, const GemmaShape& shape) {
  ModelSpec model = llama(std::move(name), shape.decoder);
  const auto change = [&shape](LayerSpec& layer) {
    layer.norm = NormKind::rms_norm_from_one;
    layer.activation = ActivationKind::geglu;
    layer.score_width = shape.score_width == layer.head_dim ? 0 : shape.score_width;
    layer.score_cap = shape.score_cap;
    if (shape.norms_around) layer.norm_order = NormOrder::around;
  };
  for (LayerSpec& block : model.blocks) change(block);
  change(model.embedding);
  change(model.head);
  model.embedding.embedding_scale = std::sqrt(static_cast<double>(shape.decoder.hidden));
  model.head.logits_cap = shape.logits_cap;
  return model;
}

/// Phi (Gunasekar et al., 2023, arXiv 2306.11644): attention and an MLP side by side behind one LayerNorm, rotary
/// positions of a part of each head, biases everywhere, those of logits too.
inline ModelSpec phi(std::string name, const PhiShape& shape) {
  LayerSpec block = detail::gpt_block_of(shape);
  if (shape.kv_heads != 0) block.kv_heads = shape.kv_heads;
  block.position = PositionKind::rotary;
  block.rope_theta = shape.rope_theta;
  block.rotary_scaling = shape.rotary_scaling;
  block.rotary_dim = shape.rotary_dim;
  block.parallel = true;
  ModelSpec model = model_of_equal_blocks(std::move(name), block, shape.layers);
  model.head.logits_bias = true;
  return model;
}

/// BERT (Devlin et al., 2019): learned positions and segments, bidirectional attention, a norm after each residual, and
/// the head of its masked language model, tied.
inline ModelSpec bert(std::string name, const BertShape& shape) {
  LayerSpec block = detail::gpt_block_of(shape);
  block.causal = false;
  block.tied = true;
  block.norm_order = NormOrder::after;
  block.head = HeadKind::masked_language;
  ModelSpec model = model_of_equal_blocks(std::move(name), block, shape.layers);
  model.embedding.token_types = shape.token_types;
  model.embedding.closing_norm = true;
  return model;
}

/// ViT (Dosovitskiy et al., 2021): patches and a class token, learned positions, blocks as GPT's without a mask, a
/// classifier of the class token.
inline ModelSpec vit(std::string name, const VitShape& shape) {
  const std::int64_t side = shape.patch > 0 ? shape.image / shape.patch : 0;
  LayerSpec block = detail::gpt_block_of(shape);
  block.vocabulary = shape.classes;
  block.positions = side * side + 1;
  block.causal = false;
  ModelSpec model = model_of_equal_blocks(std::move(name), block, shape.layers);
  model.embedding.vocabulary = 0;
  model.embedding.patch_width = shape.patch * shape.patch * shape.channels;
  model.embedding.class_token = true;
  model.head.head = HeadKind::classifier;
  model.head.class_token = true;
  return model;
}

/// T5 (Raffel et al., 2020): an encoder and a decoder with cross attention behind each other, biases by relative
/// position, scores that no width divides, RMS norms, no other biases. Every block has a table of positions of its own,
/// as in umT5 (Chung et al., 2023); T5 has one for all blocks of a side, which pipeline stages would have to keep
/// alike. The embedding looks up source and target tokens: the encoder reads the one, the first decoder the other, and
/// all decoders the encoder's output. Without encoders or decoders it has no blocks.
inline ModelSpec t5(std::string name, const T5Shape& shape) {
  const TokenRatio target{shape.target, shape.source};
  LayerSpec encoder = detail::block_of(shape);
  encoder.positions = shape.source;
  encoder.norm = NormKind::rms_norm;
  encoder.score_width = 1;
  encoder.position = PositionKind::relative;
  encoder.bias = false;
  encoder.causal = false;
  encoder.bias_rows = shape.buckets;
  LayerSpec layer = encoder;
  layer.layers = shape.encoder_layers + shape.decoder_layers;
  ModelGraph graph;
  graph.name = std::move(name);
  const auto add = [&graph](LayerSpec made, LayerKind kind, NodeOutput first, NodeOutput second = {}) {
    made.kind = kind;
    return NodeOutput{graph.add(made, first, second)};
  };
  LayerSpec end = layer;
  end.bias_rows = 0;
  end.target = target;
  NodeOutput x = add(end, LayerKind::embedding, {});
  NodeOutput y{x.node, 1};
  for (int i = 0; i < shape.encoder_layers; ++i) {
    layer.closing_norm = i + 1 == shape.encoder_layers;
    x = add(layer, LayerKind::block, x);
  }
  layer.closing_norm = false;
  layer.causal = true;
  layer.tokens = target;
  layer.memory = all_tokens;
  for (int i = 0; i < shape.decoder_layers; ++i) y = add(layer, LayerKind::block, y, x);
  layer.memory = no_tokens;
  layer.bias_rows = 0;
  layer.causal = encoder.causal;
  add(layer, LayerKind::head, y);
  auto chain = chain_of(graph);
  return chain ? std::move(*chain) : model_of_equal_blocks(graph.name, encoder, 0);
}

/// Swin (Liu et al., 2021): attention within windows, every other block's shifted, with a table of relative positions
/// in each block; between the four stages 2 x 2 tokens become one of twice the width, as a part of the next block; a
/// classifier of the mean. An image that is no larger than a window is one, and nothing is shifted. The sequence is
/// counted in tokens of the first stage.
inline ModelSpec swin(std::string name, const SwinShape& shape) {
  const std::int64_t side = shape.patch > 0 ? shape.image / shape.patch : 0;
  ModelSpec model;
  model.name = std::move(name);
  LayerSpec layer{.hidden = shape.hidden,
                  .vocabulary = shape.classes,
                  .positions = side * side,
                  .position = PositionKind::relative,
                  .causal = false,
                  .norm_epsilon = shape.norm_epsilon,
                  .layers = shape.depths[0] + shape.depths[1] + shape.depths[2] + shape.depths[3]};
  model.embedding = layer;
  model.embedding.kind = LayerKind::embedding;
  model.embedding.vocabulary = 0;
  model.embedding.patch_width = shape.patch * shape.patch * shape.channels;
  model.embedding.closing_norm = true;
  for (std::size_t stage = 0; stage < shape.depths.size(); ++stage) {
    layer.hidden = shape.hidden << stage;
    layer.heads = layer.kv_heads = shape.heads[stage];
    layer.head_dim = layer.heads > 0 ? layer.hidden / layer.heads : 0;
    layer.ffn = shape.ffn_ratio * layer.hidden;
    layer.tokens.whole = std::int64_t{1} << (2 * stage);
    layer.window = std::min(shape.window, side >> stage);
    layer.bias_rows = (2 * layer.window - 1) * (2 * layer.window - 1);
    for (int i = 0; i < shape.depths[stage]; ++i) {
      layer.merges = stage > 0 && i == 0;
      layer.shift = i % 2 == 1 && layer.window < side >> stage ? layer.window / 2 : 0;
      model.blocks.push_back(layer);
    }
  }
  model.head = model.blocks.empty() ? layer : model.blocks.back();
  model.head.kind = LayerKind::head;
  model.head.head = HeadKind::classifier;
  model.head.window = model.head.shift = model.head.bias_rows = 0;
  model.head.merges = false;
  return model;
}

namespace detail {
inline ModelSpec model_of(std::string name, const GptShape& shape) { return gpt(std::move(name), shape); }
inline ModelSpec model_of(std::string name, const LlamaShape& shape) { return llama(std::move(name), shape); }
inline ModelSpec model_of(std::string name, const BertShape& shape) { return bert(std::move(name), shape); }
inline ModelSpec model_of(std::string name, const T5Shape& shape) { return t5(std::move(name), shape); }
inline ModelSpec model_of(std::string name, const SwinShape& shape) { return swin(std::move(name), shape); }
}  // namespace detail

/// Mixtures of experts (Shazeer et al., 2017; Jiang et al., 2024): a dense model with a router and experts in place of
/// the MLPs of its blocks, or of some.
template <class Dense>
ModelSpec mixture(std::string name, const MixtureShape<Dense>& shape) {
  ModelSpec model = detail::model_of(std::move(name), shape.dense);
  for (int i = 0; i < static_cast<int>(model.blocks.size()); ++i) {
    if (!shape.has_experts(i)) continue;
    LayerSpec& block = model.blocks[static_cast<std::size_t>(i)];
    if (shape.expert_ffn != 0) block.ffn = shape.expert_ffn;
    block.experts = shape.experts;
    block.active_experts = shape.active_experts;
    block.router = shape.router;
    block.shared_ffn = shape.shared_ffn;
    block.shared_gate = shape.shared_gate;
  }
  return model;
}
/// The same of Llama's family.
inline ModelSpec moe(std::string name, const MoeShape& shape) { return mixture(std::move(name), shape); }

}  // namespace galvatron
