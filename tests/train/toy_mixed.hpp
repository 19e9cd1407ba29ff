// Toy models beyond GPT and Llama, and learnable data for every family; for the tests of training.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>

#include <galvatron/data/batch_source.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/predictions.hpp>

#include "toy.hpp"

namespace toy {

inline ModelSpec bert(int layers) {
  return galvatron::bert("toy-bert", {.layers = layers,
                                      .hidden = 64,
                                      .heads = 8,
                                      .vocabulary = 97,
                                      .positions = 32,
                                      .ffn = 128,
                                      .norm_epsilon = 1e-5});
}
/// Images of 6 x 6 pixels: 9 patches and the class token.
inline ModelSpec vit(int layers) {
  return galvatron::vit(
      "toy-vit",
      {.layers = layers, .hidden = 64, .heads = 8, .ffn = 128, .image = 6, .patch = 2, .channels = 3, .classes = 10});
}
/// Images of 16 x 16 pixels: 8 x 8 tokens in windows of 4 x 4, shifted in every other block, then 4 x 4 tokens, which
/// are one window, and so on.
inline ModelSpec swin(std::array<int, 4> depths) {
  return galvatron::swin("toy-swin", {.depths = depths,
                                      .hidden = 32,
                                      .heads = {4, 4, 8, 8},
                                      .ffn_ratio = 2,
                                      .image = 16,
                                      .patch = 2,
                                      .window = 4,
                                      .channels = 3,
                                      .classes = 10});
}

/// The same with experts in the second block of every stage, whose widths differ.
inline ModelSpec swin_experts(std::array<int, 4> depths) {
  ModelSpec out = swin(depths);
  out.name = "toy-swin-experts";
  std::size_t block = 0;
  for (const int depth : depths)
    for (int i = 0; i < depth; ++i, ++block) {
      if (i % 2 == 0) continue;
      out.blocks[block].experts = 8;
      out.blocks[block].active_experts = 2;
      out.blocks[block].router = {.balance_loss = 0.05};
    }
  return out;
}

/// As many blocks on either side; the target is half as long as the source.
/// @param gated  SwiGLU instead of ReLU
inline ModelSpec t5(int layers, bool gated = false) {
  return galvatron::t5("toy-t5", {.encoder_layers = layers / 2,
                                  .decoder_layers = layers - layers / 2,
                                  .hidden = 64,
                                  .heads = 8,
                                  .ffn = 128,
                                  .vocabulary = 97,
                                  .source = 32,
                                  .target = 16,
                                  .activation = gated ? ActivationKind::swiglu : ActivationKind::relu,
                                  .norm_epsilon = 1e-5});
}

/// A Llama whose odd blocks have experts. Their routers differ: Mixtral's, DeepSeek-V2's with a shared expert behind a
/// gate, DeepSeek-V3's, all with the losses that no split of the batch changes.
inline ModelSpec experts(int layers) {
  ModelSpec out = model(true, layers);
  out.name = "toy-experts";
  for (int i = 1; i < layers; i += 2) {
    LayerSpec& block = out.blocks[static_cast<std::size_t>(i)];
    block.experts = 8;
    block.active_experts = 2;
    block.ffn = 32;
    block.router = {.balance_loss = 0.05, .z_loss = 0.01};
    if (i % 4 == 1) continue;
    block.shared_ffn = 64;
    block.shared_gate = i % 8 == 3;
    block.router =
        i % 8 == 3
            ? RouterSpec{.renormalise = false, .scale = 4, .groups = 4, .top_groups = 2}
            : RouterSpec{
                  .kind = RouterKind::sigmoid, .groups = 2, .top_groups = 1, .balance_loss = 0.01, .bias_rate = 1e-3};
  }
  return out;
}

/// The same with noise in what the experts get.
inline ModelSpec jittered_experts(int layers) {
  ModelSpec out = experts(layers);
  out.name = "toy-jitter";
  for (LayerSpec& block : out.blocks)
    if (block.experts > 0) block.router.jitter = 0.2;
  return out;
}

/// A Llama with other attention in every block: norms of the heads of queries and keys, with biases, or latent vectors,
/// of keys and values alone or of queries too. Positions are scaled. Every fourth block has experts.
inline ModelSpec attention_kinds(int layers) {
  ModelSpec out = model(true, layers);
  out.name = "toy-attention";
  for (int i = 0; i < layers; ++i) {
    LayerSpec& block = out.blocks[static_cast<std::size_t>(i)];
    block.rotary_scaling = {.factor = 4, .positions = 8, .fast = 2, .slow = 0.2, .amplitude = 1.1};
    block.rotary_scaling.score_rate = i % 2 == 0 ? 0.0 : 0.5;
    if (i % 2 == 0) {
      block.qkv_bias = i % 4 == 2;
      block.query_key_norm = QueryKeyNorm::heads;
      continue;
    }
    block.kv_heads = block.heads;
    block.head_dim = 12;
    block.latent = {.rank = 24, .query_rank = i % 4 == 3 ? 32 : 0, .rotary_dim = 4, .value_dim = i % 4 == 3 ? 8 : 12};
    if (i % 4 != 3) continue;
    block.experts = 4;
    block.active_experts = 2;
    block.ffn = 64;
    block.shared_ffn = 32;
  }
  return out;
}

/// A decoder whose blocks are Gemma's and Phi's by turns, with Gemma's embedding and norms, Phi's biases of logits
/// and a soft cap. One table for both ends.
inline ModelSpec decoder_kinds(int layers) {
  ModelSpec out = model(true, layers);
  out.name = "toy-decoders";
  for (int i = 0; i < layers; ++i) {
    LayerSpec& block = out.blocks[static_cast<std::size_t>(i)];
    if (i % 2 == 0) {
      block.norm = NormKind::rms_norm_from_one;
      block.norm_order = NormOrder::around;
      block.activation = ActivationKind::geglu;
      block.query_key_norm = QueryKeyNorm::heads;
      block.score_width = 24;
      block.rope_theta = i % 4 == 0 ? 100 : 10000;
      block.sliding_window = i % 4 == 0 ? 5 : 0;
      block.score_cap = i % 4 == 0 ? 0 : 0.5;
    } else {
      block.norm = NormKind::layer_norm;
      block.activation = ActivationKind::gelu;
      block.bias = true;
      block.parallel = true;
      block.rotary_dim = 4;
    }
  }
  out.head.norm = NormKind::rms_norm_from_one;
  out.head.logits_bias = true;
  out.head.logits_cap = 1.5;
  out.embedding.embedding_scale = 3;
  out.embedding.tied = out.head.tied = true;
  return out;
}

/// The first tokens of a source for the encoder, and those behind them for the decoder; the model's predictions count.
template <class Source>
class SidedTokens final : public train::BatchSource {
 public:
  /// @param tokens  of a side  @param of_source  what makes a source of both
  SidedTokens(const ModelSpec& model, std::int64_t tokens, std::int64_t of_source)
      : tokens_(of_source), source_(tokens), predictions_(predictions(model, tokens)) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    tokens_.inputs(step, first, samples, range, out);
  }
  void decoder_inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
                      View<std::int32_t> out) override {
    tokens_.inputs(step, first, samples, {source_ + range.first, range.count}, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    tokens_.targets(step, first, samples, {source_ + range.first, range.count}, out);
    for (std::int64_t row = 0; row < out.count; ++row)
      if (range.first + row / samples >= predictions_) out[row] = -1;
  }

 private:
  Source tokens_;
  std::int64_t source_;
  std::int64_t predictions_;
};

/// The tokens of `Tokens`, some of which are hidden by token 96.
class MaskedTokens final : public train::BatchSource {
 public:
  explicit MaskedTokens(std::int64_t tokens) : sequence_(tokens), tokens_(tokens) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    tokens_.inputs(step, first, samples, range, out);
    for (std::int64_t row = 0; row < out.count; ++row)
      if (is_hidden(step, first + row % samples, range.first + row / samples)) out[row] = 96;
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    tokens_.inputs(step, first, samples, range, out);
    for (std::int64_t row = 0; row < out.count; ++row)
      if (!is_hidden(step, first + row % samples, range.first + row / samples)) out[row] = -1;
  }

 private:
  bool is_hidden(std::int64_t step, std::int64_t sample, std::int64_t token) const {
    return (token + 5 * step + 3 * sample) % sequence_ < masked_tokens(sequence_);
  }
  std::int64_t sequence_;
  Tokens tokens_;
};

/// Images whose patterns tell their classes.
class Images final : public train::BatchSource {
 public:
  explicit Images(const ModelSpec& model) : numbers_(model.embedding.patch_width), classes_(model.head.vocabulary) {}
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<float> out) override {
    fill(step, first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<bfloat16> out) override {
    fill(step, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange,
               View<std::int32_t> out) override {
    for (std::int64_t i = 0; i < samples; ++i) out[i] = static_cast<std::int32_t>(class_of(step, first + i));
  }

 private:
  [[nodiscard]] std::int64_t class_of(std::int64_t step, std::int64_t sample) const {
    return (step * 7919 + sample * 104729 + step * sample) % classes_;
  }
  template <class T>
  void fill(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
            View<T> out) const {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i)
        for (std::int64_t k = 0; k < numbers_; ++k) {
          const std::int64_t place = (range.first + s) * numbers_ + k;
          const auto pattern = static_cast<double>((class_of(step, first + i) + 3) * (place + 1));
          const auto blur = static_cast<double>((step * 31 + first + i) * 57 + place);
          out[(s * samples + i) * numbers_ + k] = T(static_cast<float>(std::sin(pattern) + 0.2 * std::sin(blur)));
        }
  }
  std::int64_t numbers_;
  std::int64_t classes_;
};

/// Data that the model can learn from.
inline std::unique_ptr<train::BatchSource> source_of(const ModelSpec& model, std::int64_t tokens) {
  if (model.takes_images()) return std::make_unique<Images>(model);
  if (model.is_encoder_decoder()) return std::make_unique<SidedTokens<Tokens>>(model, tokens, 2 * tokens);
  if (model.head.head == HeadKind::masked_language) return std::make_unique<MaskedTokens>(tokens);
  return std::make_unique<Tokens>(tokens);
}

}  // namespace toy
