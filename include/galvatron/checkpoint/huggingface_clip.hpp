// Where the parameters of a CLIP stand in its Hugging Face checkpoint, and the config.json of it.
//
//   text_model.embeddings.token_embedding.weight    (V, H), and position_embedding.weight
//   text_model.encoder.layers.N.self_attn.q_proj    (H, H), k_proj and v_proj apart: rows of qkv_weight
//   text_model.final_layer_norm, text_projection    norm and linear layer of the projection
//   vision_model.embeddings.patch_embedding.weight  (H, C, p, p); class_embedding (H)
//   vision_model.pre_layrnorm                       norm behind the embedding, in their spelling
//   vision_model.post_layernorm, visual_projection  norm and linear layer of the projection
//   logit_scale                                     a scalar
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface_tensors.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/model/activation_names.hpp>
#include <galvatron/model/clip.hpp>
#include <galvatron/model/parameter.hpp>

namespace galvatron::train {

namespace detail {

class ClipTensors : public TensorList {
 public:
  explicit ClipTensors(const ClipShape& clip) {
    using enum ParameterName;
    const ComponentShape& text = clip.text;
    prefix_ = "text_model.embeddings.";
    matrix("token_embedding.weight", table, {text.vocabulary, text.hidden});
    matrix("position_embedding.weight", positions, {text.tokens, text.hidden});
    blocks("text_model.", text);
    projection("text_model.final_layer_norm", "text_projection", text);

    const ComponentShape& vision = clip.vision;
    const std::int64_t h = vision.hidden;
    prefix_ = "vision_model.embeddings.";
    matrix("class_embedding", class_token, {1, h}).dimensions = {h};
    matrix("patch_embedding.weight", patch_weight, {h, vision.patch}).dimensions = {h, clip.channels, clip.patch,
                                                                                    clip.patch};
    matrix("position_embedding.weight", positions, {vision.tokens, h});
    prefix_ = "vision_model.";
    norm("pre_layrnorm", closing_gamma, closing_beta, h);
    blocks("vision_model.", vision);
    projection("vision_model.post_layernorm", "visual_projection", vision);
    matrix("logit_scale", logit_scale, {1, 1}).dimensions.emplace();
  }

 private:
  void norm(const std::string& name, Name gamma, Name beta, std::int64_t h) {
    vector(name + ".weight", gamma, h);
    vector(name + ".bias", beta, h);
  }
  void blocks(const std::string& tower, const ComponentShape& s) {
    using enum ParameterName;
    const std::int64_t h = s.hidden;
    const std::int64_t f = s.ffn;
    for (int i = 0; i < s.layers; ++i) {
      ++number_;
      prefix_ = tower + "encoder.layers." + std::to_string(i) + ".";
      norm("layer_norm1", norm1_gamma, norm1_beta, h);
      norm("layer_norm2", norm2_gamma, norm2_beta, h);
      linear("self_attn.q_proj", qkv_weight, qkv_bias, true, {h, h});
      linear("self_attn.k_proj", qkv_weight, qkv_bias, true, {h, h}, h);
      linear("self_attn.v_proj", qkv_weight, qkv_bias, true, {h, h}, 2 * h);
      linear("self_attn.out_proj", attention_out_weight, attention_out_bias, true, {h, h});
      linear("mlp.fc1", mlp_in_weight, mlp_in_bias, true, {f, h});
      linear("mlp.fc2", mlp_out_weight, mlp_out_bias, true, {h, f});
    }
    prefix_.clear();
    ++number_;
  }
  void projection(const std::string& norm_name, const std::string& name, const ComponentShape& s) {
    using enum ParameterName;
    norm(norm_name, norm1_gamma, norm1_beta, s.hidden);
    matrix(name + ".weight", transform_weight, {s.output, s.hidden});
    ++number_;
  }
};

inline nlohmann::ordered_json clip_tower_config(const ComponentShape& s, const char* type) {
  return {{"model_type", type},
          {"hidden_size", s.hidden},
          {"intermediate_size", s.ffn},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"layer_norm_eps", s.norm_epsilon},
          {"hidden_act", huggingface_name(s.activation)},
          {"attention_dropout", 0.0},
          {"projection_dim", s.output}};
}

}  // namespace detail

/// The tensors of a CLIP's published checkpoint, in which every parameter is once. Layers are those of clip_model().
inline std::vector<HuggingFaceTensor> clip_tensors(const ClipShape& clip) {
  return std::move(detail::ClipTensors(clip).out);
}
/// Tensors that files of older versions have and that are no parameters.
inline bool is_clip_buffer(std::string_view name) { return name.ends_with(".embeddings.position_ids"); }

/// The config.json of a CLIP, as transformers and load_clip() read it.
inline nlohmann::ordered_json clip_config(const ClipShape& clip, Precision precision) {
  nlohmann::ordered_json text = detail::clip_tower_config(clip.text, "clip_text_model");
  text["vocab_size"] = clip.text.vocabulary;
  text["max_position_embeddings"] = clip.text.tokens;
  text["eos_token_id"] = clip.text.end_token == largest_token ? 2 : clip.text.end_token;
  nlohmann::ordered_json vision = detail::clip_tower_config(clip.vision, "clip_vision_model");
  vision["image_size"] = clip.image();
  vision["patch_size"] = clip.patch;
  vision["num_channels"] = clip.channels;
  return {{"architectures", {"CLIPModel"}},
          {"model_type", "clip"},
          {"projection_dim", clip.text.output},
          {"logit_scale_init_value", clip.logit_scale},
          {"text_config", std::move(text)},
          {"vision_config", std::move(vision)},
          {"torch_dtype", precision == Precision::fp32 ? "float32" : "bfloat16"}};
}

}  // namespace galvatron::train
