// Components of multi-task models from a few numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/multi_task.hpp>

namespace galvatron {

enum class ComponentKind : std::uint8_t {
  text,            ///< token embedding with learned positions, and GPT's blocks
  patches,         ///< embedding of patches, and ViT's blocks: images, spectrograms, depth maps, sensors
  text_embedding,  ///< of tokens alone, without positions
  encoder,         ///< T5's blocks without a mask, but with scores divided by the root of head_dim
  decoder,         ///< the same with a mask and cross attention, and a language loss
  llama,           ///< Llama's blocks, and a language loss
  adaptor,         ///< a norm and a linear layer between two widths
  contrastive,     ///< the loss of two towers
  classifier,      ///< the loss of classes, from the mean of the tokens
};
inline constexpr std::array component_kinds{
    ComponentKind::text,    ComponentKind::patches,     ComponentKind::text_embedding,
    ComponentKind::encoder, ComponentKind::decoder,     ComponentKind::llama,
    ComponentKind::adaptor, ComponentKind::contrastive, ComponentKind::classifier};
constexpr const char* name_of(ComponentKind kind) {
  constexpr std::array names{"text",  "patches", "text_embedding", "encoder",   "decoder",
                             "llama", "adaptor", "contrastive",    "classifier"};
  return names[static_cast<std::size_t>(kind)];
}

/// The numbers of a component; what its kind does not have stays as it is.
struct ComponentShape {
  ComponentKind kind = ComponentKind::text;
  int layers = 0;               ///< L: blocks
  std::int64_t hidden = 0;      ///< H; of a contrastive loss the width of its rows
  std::int64_t heads = 1;       ///< A
  std::int64_t kv_heads = 0;    ///< of Llama's blocks; 0: A
  std::int64_t ffn = 0;         ///< width of the MLP; 0: 4 H
  std::int64_t vocabulary = 0;  ///< V, or classes
  std::int64_t tokens = 0;      ///< positions, class token included
  std::int64_t patch = 0;       ///< numbers of a patch
  bool class_token = false;     ///< of patches
  bool causal = true;           ///< of text
  std::int64_t output = 0;      ///< width behind: through a projection of samples, or an adaptor; 0: H as it is
  bool pools = true;            ///< with `output`: one vector of a sample
  // What differs between towers of text and patches.
  ActivationKind activation = ActivationKind::gelu;
  double norm_epsilon = 1e-5;
  bool embedding_norm = false;        ///< a norm behind the embedding
  bool patch_bias = true;             ///< of the embedding of patches
  std::int64_t end_token = no_token;  ///< of text: the projection reads where it stands first (LayerSpec::end_token)

  friend bool operator==(const ComponentShape&, const ComponentShape&) = default;
};

namespace detail {

/// A layer with a forward pass of its own in the chain of a component: (T, H) to (T, W).
inline LayerSpec between_widths(const ComponentShape& shape, ForwardPass pass) {
  // It has no attention: as many heads as any tensor degree that divides its width may ask for.
  const std::int64_t heads = shape.hidden <= model_limits::heads ? shape.hidden : shape.hidden & -shape.hidden;
  LayerSpec layer{.hidden = shape.hidden,
                  .heads = std::min(heads, model_limits::heads),
                  .kv_heads = std::min(heads, model_limits::heads),
                  .head_dim = 1,
                  .ffn = shape.hidden,
                  .positions = shape.tokens,
                  .norm_epsilon = shape.norm_epsilon,
                  .class_token = shape.class_token && pass == &projection_forward,
                  .end_token = pass == &projection_forward ? shape.end_token : no_token,
                  .forward_pass = pass};
  layer.place.before[0] = {all_tokens, shape.hidden};
  layer.place.after[0] = {pass == &projection_forward ? TokenRatio{1, shape.tokens} : all_tokens, shape.output};
  return layer;
}

inline LayerSpec head_of(LayerSpec block, HeadKind kind, std::int64_t vocabulary) {
  block.kind = LayerKind::head;
  block.head = kind;
  block.vocabulary = vocabulary;
  block.bias_rows = 0;
  block.memory = no_tokens;
  block.place = {};
  block.tied = false;
  return block;
}

inline std::vector<LayerSpec> text_layers(const ComponentShape& s) {
  ModelSpec model = gpt({}, {.layers = s.layers,
                             .hidden = s.hidden,
                             .heads = s.heads,
                             .vocabulary = s.vocabulary,
                             .positions = s.tokens,
                             .ffn = s.ffn,
                             .tied = false,
                             .norm_epsilon = s.norm_epsilon});
  std::vector<LayerSpec> out{model.embedding};
  out.front().closing_norm = s.embedding_norm;
  for (LayerSpec& block : model.blocks) {
    block.causal = s.causal;
    block.activation = s.activation;
    out.push_back(block);
  }
  return out;
}

inline std::vector<LayerSpec> patch_layers(const ComponentShape& s) {
  LayerSpec block = gpt_block_of(GptShape{
      .hidden = s.hidden, .heads = s.heads, .positions = s.tokens, .ffn = s.ffn, .norm_epsilon = s.norm_epsilon});
  block.causal = block.tied = false;
  block.activation = s.activation;
  ModelSpec model = model_of_equal_blocks({}, block, s.layers);
  model.embedding.patch_width = s.patch;
  model.embedding.class_token = s.class_token;
  model.embedding.bias = s.patch_bias;
  model.embedding.closing_norm = s.embedding_norm;
  std::vector<LayerSpec> out{model.embedding};
  out.insert(out.end(), model.blocks.begin(), model.blocks.end());
  return out;
}

inline std::vector<LayerSpec> relative_layers(const ComponentShape& s, bool decodes) {
  const ModelSpec model = t5({}, {.encoder_layers = 1,
                                  .decoder_layers = 1,
                                  .hidden = s.hidden,
                                  .heads = s.heads,
                                  .ffn = s.ffn > 0 ? s.ffn : 4 * s.hidden,
                                  .vocabulary = s.vocabulary > 0 ? s.vocabulary : 1,
                                  .source = s.tokens,
                                  .target = s.tokens,
                                  .tied = false});
  LayerSpec block = decodes ? model.blocks[1] : model.blocks[0];
  block.layers = s.layers;
  block.place = {};
  block.closing_norm = false;
  block.score_width = 0;  // T5 has smaller initial weights of queries instead
  if (decodes) {
    const BundlePart own{all_tokens, s.hidden};
    block.place = {.before = {own, own}, .after = {own, own}, .inputs = {0, 1}};
  }
  std::vector<LayerSpec> out(s.layers > 0 ? static_cast<std::size_t>(s.layers) : 0, block);
  if (!decodes && !out.empty()) out.back().closing_norm = true;
  if (decodes) out.push_back(head_of(model.head, HeadKind::language, s.vocabulary));
  return out;
}

inline std::vector<LayerSpec> llama_layers(const ComponentShape& s) {
  const ModelSpec model = llama({}, {.layers = s.layers,
                                     .hidden = s.hidden,
                                     .heads = s.heads,
                                     .kv_heads = s.kv_heads,
                                     .ffn = s.ffn > 0 ? s.ffn : 4 * s.hidden,
                                     .vocabulary = s.vocabulary,
                                     .positions = s.tokens});
  std::vector<LayerSpec> out = model.blocks;
  out.push_back(model.head);
  return out;
}

}  // namespace detail

/// The layers of a component. Not checked: see checked() of a multi-task model.
template <class = void>
std::vector<LayerSpec> component_layers(const ComponentShape& shape) {
  LayerSpec one{.hidden = shape.hidden, .vocabulary = shape.vocabulary, .positions = shape.tokens};
  std::vector<LayerSpec> out;
  switch (shape.kind) {
    case ComponentKind::text:
      out = detail::text_layers(shape);
      break;
    case ComponentKind::patches:
      out = detail::patch_layers(shape);
      break;
    case ComponentKind::text_embedding:
      one.kind = LayerKind::embedding;
      one.position = PositionKind::rotary;
      return {one};
    case ComponentKind::encoder:
      return detail::relative_layers(shape, false);
    case ComponentKind::decoder:
      return detail::relative_layers(shape, true);
    case ComponentKind::llama:
      return detail::llama_layers(shape);
    case ComponentKind::adaptor:
      return {detail::between_widths(shape, &adaptor_forward)};
    case ComponentKind::contrastive:
      one.positions = 2;
      return {detail::head_of(one, HeadKind::contrastive, 1)};
    case ComponentKind::classifier:
      return {detail::head_of(one, HeadKind::classifier, shape.vocabulary)};
  }
  if (shape.output > 0)
    out.push_back(detail::between_widths(shape, shape.pools ? &projection_forward : &adaptor_forward));
  return out;
}
GALVATRON_IN_PLANNER(std::vector<LayerSpec> component_layers<>(const ComponentShape&))

/// The part of a model of one task that becomes a component.
enum class ModelPart : std::uint8_t {
  embedding,
  tower,     ///< embedding and blocks
  backbone,  ///< blocks and head
  blocks,
  head,
};
inline constexpr std::array model_parts{ModelPart::embedding, ModelPart::tower, ModelPart::backbone, ModelPart::blocks,
                                        ModelPart::head};
constexpr const char* name_of(ModelPart part) {
  constexpr std::array names{"embedding", "tower", "backbone", "blocks", "head"};
  return names[static_cast<std::size_t>(part)];
}

/// The layers of a part of a model, each with parameters of its own: a head has no embedding's table.
inline std::vector<LayerSpec> part_of(const ModelSpec& model, ModelPart part) {
  std::vector<LayerSpec> out;
  if (part == ModelPart::embedding || part == ModelPart::tower) out.push_back(model.embedding);
  if (part != ModelPart::embedding && part != ModelPart::head)
    out.insert(out.end(), model.blocks.begin(), model.blocks.end());
  if (part == ModelPart::head || part == ModelPart::backbone) out.push_back(model.head);
  for (LayerSpec& layer : out) layer.tied = false;
  return out;
}

/// A component of these numbers.
inline Component component(std::string name, const ComponentShape& shape, std::vector<std::string> inputs = {},
                           std::string memory = {}) {
  return {std::move(name), component_layers(shape), std::move(inputs), std::move(memory)};
}

}  // namespace galvatron
