// Components of a multi-task model in Hugging Face's format. One component, or several one behind the other, that have
// the layers of a GPT-2, a Llama or another model of its families, or a run of them, begin with its weights; and a
// checkpoint of theirs is written as that model, or only such as have all its layers.
//
//     config.json of a Llama    embedding | block 0 .. block L-1 | norm, head
//     components                "text"    | "llm" (a backbone)                     or a tower: embedding and blocks
//
// A projection or an adaptor behind a component's layers has no place in the file. Of a CLIP components are its towers
// with their projections, and its loss (model/clip.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/huggingface_writer.hpp>
#include <galvatron/checkpoint/multi_task_manifest.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/clip.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/multi_task.hpp>

namespace galvatron::train {

namespace detail {

/// Layers of a multi-task model and those of a model of one task that they are.
struct LayerOfModel {
  int layer = 0;   ///< of the multi-task model
  int number = 0;  ///< in the model of one task
};

inline tl::unexpected<Error> no_component(const MultiTaskModel& model, const std::string& name) {
  return usage_error("the model " + model.name + " has no component \"" + galvatron::detail::one_line(name, 60) + "\"");
}

/// Errors (usage): no such component, or layers that are no run of the model's.
inline Result<std::vector<LayerOfModel>> layers_in(const MultiTaskModel& model, const std::vector<std::string>& names,
                                                   const ModelSpec& of) {
  std::vector<LayerOfModel> out;
  int number = -1;
  for (const std::string& name : names) {
    const int c = model.find(name);
    if (c < 0) return no_component(model, name);
    const std::vector<LayerSpec>& layers = model.component(c).layers;
    if (number < 0) number = layers.front().kind == LayerKind::embedding ? 0 : 1;
    if (names.size() == 1 && layers.front().kind == LayerKind::head) number = of.layers() - 1;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].forward_pass != nullptr) continue;  // a projection or an adaptor
      LayerSpec there = number < of.layers() ? of.layer(number) : LayerSpec{};
      there.tied = layers[i].tied;
      if (number >= of.layers() || layer_architecture(there) != layer_architecture(layers[i]))
        return usage_error("layer " + std::to_string(i) + " of the component \"" + name + "\" is not layer " +
                           std::to_string(number) + " of the model " + of.name +
                           ": a component, or several in their order, are a run of its layers; describe them by "
                           "\"model\" and \"part\" (docs/multitask.md)");
      out.push_back({model.first_layer(c) + static_cast<int>(i), number++});
    }
  }
  return out;
}

/// The part of a CLIP that has the component's layers, if there is one.
inline std::optional<ClipPart> part_in(const ClipShape& clip, const Component& component) {
  for (const ClipPart part : clip_parts)
    if (std::ranges::equal(component.layers, part_of(clip, part), {}, layer_architecture, layer_architecture))
      return part;
  return std::nullopt;
}

/// Layers of components that are parts of a CLIP; those of the CLIP are numbered as in clip_model(). Errors (usage): no
/// such component, or layers that are no part's.
inline Result<std::vector<LayerOfModel>> layers_in(const MultiTaskModel& model, const std::vector<std::string>& names,
                                                   const ClipShape& clip) {
  const MultiTaskModel whole = clip_model("clip", clip, 1);
  std::vector<LayerOfModel> out;
  for (const std::string& name : names) {
    const int c = model.find(name);
    if (c < 0) return no_component(model, name);
    const auto part = part_in(clip, model.component(c));
    if (!part)
      return usage_error("the component \"" + name +
                         "\" is no part of this CLIP, its tower of texts, of images or their loss; describe it by "
                         "\"model\" and \"part\" (docs/multitask.md)");
    for (int i = 0; i < static_cast<int>(model.component(c).layers.size()); ++i)
      out.push_back({model.first_layer(c) + i, whole.first_layer(static_cast<int>(*part)) + i});
  }
  return out;
}

}  // namespace detail

/// Published weights as those of components. Immutable after open(): ranks may share one.
class ComponentWeights {
 public:
  /// The weights of a folder with a config.json, for these components. Errors (usage): those of load_model(),
  /// load_clip() and HuggingFaceWeights::open; components that are no run of the model's layers, or no part of the
  /// CLIP.
  static Result<ComponentWeights> open(const std::filesystem::path& folder, const MultiTaskModel& model,
                                       const std::vector<std::string>& names) {
    if (describes_clip(folder))
      return load_clip(folder).and_then([&](const ClipShape& clip) { return of_clip(clip, folder, model, names); });
    auto of = load_model(folder.string());
    if (!of) return tl::unexpected<Error>(std::move(of.error()));
    auto layers = detail::layers_in(model, names, *of);
    if (!layers) return tl::unexpected<Error>(std::move(layers.error()));
    auto weights = HuggingFaceWeights::open(folder, *of);
    if (!weights) return tl::unexpected<Error>(std::move(weights.error()));
    ComponentWeights out(std::move(*weights), std::move(*layers));
    if (of->head.tied) out.tied_head_ = of->layers() - 1;
    return out;
  }

  /// As a source of the model's parameters. This must outlive it. A head that shares its table there begins with a
  /// copy.
  /// @param otherwise  the parameters of other layers
  [[nodiscard]] runtime::ParameterSource weights(runtime::ParameterSource otherwise) const {
    return [this, own = weights_.weights(), otherwise = std::move(otherwise)](int layer, const ParameterTensor& tensor,
                                                                              std::int64_t index, View<float> values) {
      const auto at = std::ranges::find(layers_, layer, &detail::LayerOfModel::layer);
      if (at == layers_.end()) return otherwise(layer, tensor, index, values);
      const bool shared = at->number == tied_head_ && tensor.name == ParameterName::table;
      own(shared ? 0 : at->number, tensor, index, values);
    };
  }

 private:
  ComponentWeights(HuggingFaceWeights weights, std::vector<detail::LayerOfModel> layers)
      : weights_(std::move(weights)), layers_(std::move(layers)) {}
  static Result<ComponentWeights> of_clip(const ClipShape& clip, const std::filesystem::path& folder,
                                          const MultiTaskModel& model, const std::vector<std::string>& names) {
    auto layers = detail::layers_in(model, names, clip);
    if (!layers) return tl::unexpected<Error>(std::move(layers.error()));
    auto weights = HuggingFaceWeights::open(folder, clip);
    if (!weights) return tl::unexpected<Error>(std::move(weights.error()));
    return ComponentWeights(std::move(*weights), std::move(*layers));
  }

  HuggingFaceWeights weights_;
  std::vector<detail::LayerOfModel> layers_;
  int tied_head_ = -1;
};

/// Writes components of a checkpoint, which have all layers of a model one behind the other, as Hugging Face publishes
/// it (write_huggingface()): embedding and head have tables of their own. Returns the names of the files.
/// @param of  the model, of which `names` are the layers; its table is taken as not shared
/// Errors (usage): those of Checkpoint::open and write_huggingface(); components that are not all of the model's
/// layers.
inline Result<std::vector<std::string>> write_components(const std::filesystem::path& folder,
                                                         const std::filesystem::path& checkpoint,
                                                         const MultiTaskModel& model,
                                                         const std::vector<std::string>& names, ModelSpec of,
                                                         Precision precision) {
  const auto layers = detail::layers_in(model, names, of);
  if (!layers) return tl::unexpected<Error>(layers.error());
  MultiTaskModel own{model.name, {}, {}};
  for (const std::string& name : names) {
    const Component& component = own.components.emplace_back(model.component(model.find(name)));
    if (component.layers.back().forward_pass != nullptr || std::ssize(*layers) != of.layers())
      return usage_error("the components " + joined(names) + " are not all layers of the model " + of.name +
                         ", so that there is no model of it to write; name those that have them, from the embedding to "
                         "the head");
  }
  const auto opened = Checkpoint::open(checkpoint, own);
  if (!opened) return tl::unexpected<Error>(opened.error());
  of.embedding.tied = of.head.tied = false;
  return write_huggingface(folder, opened->weights(), of, precision);
}

/// The same of a CLIP: `names` are its towers and its loss, in any order. Errors (usage): those of Checkpoint::open;
/// components that are not all of its parts.
inline Result<std::vector<std::string>> write_components(const std::filesystem::path& folder,
                                                         const std::filesystem::path& checkpoint,
                                                         const MultiTaskModel& model,
                                                         const std::vector<std::string>& names, const ClipShape& clip,
                                                         Precision precision) {
  MultiTaskModel own{model.name, std::vector<Component>(clip_parts.size()), {}};
  for (const std::string& name : names)
    if (const int c = model.find(name); c >= 0)
      if (const auto part = detail::part_in(clip, model.component(c)))
        own.components[static_cast<std::size_t>(*part)] = model.component(c);
  if (std::ranges::any_of(own.components, [](const Component& part) { return part.layers.empty(); }))
    return usage_error("the components " + joined(names) +
                       " are not the parts of this CLIP, so that there is no model of it to write; name its tower of "
                       "texts, that of images and their loss");
  const auto opened = Checkpoint::open(checkpoint, own);
  if (!opened) return tl::unexpected<Error>(opened.error());
  return write_huggingface(folder, opened->weights(), clip_config(clip, precision), clip_tensors(clip), precision);
}

}  // namespace galvatron::train
