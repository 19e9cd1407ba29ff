// What a manifest says of a multi-task model: its components. A checkpoint goes on with any tasks that use some of
// them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::train {

namespace detail {

/// What must be equal for weights of one layer to be those of another.
inline nlohmann::json layer_architecture(const LayerSpec& layer) {
  using galvatron::detail::field_text;
  nlohmann::json out{{"kind", layer.kind == LayerKind::head        ? field_text(layer.head)
                              : layer.kind == LayerKind::embedding ? "embedding"
                              : pools(layer)                       ? "projection"
                                                                   : "block"},
                     {"parameters", parameters(layer)},
                     {"hidden", layer.hidden},
                     {"width", layer.after(0).width},
                     {"vocabulary", layer.vocabulary},
                     {"positions", layer.positions},
                     {"norm", field_text(layer.norm)},
                     {"norm_epsilon", layer.norm_epsilon}};
  if (layer.kind != LayerKind::block || layer.forward_pass != nullptr) return out;
  out["heads"] = layer.heads;
  out["kv_heads"] = layer.kv_heads;
  out["head_dim"] = layer.head_dim;
  out["ffn"] = layer.ffn;
  out["experts"] = layer.experts;
  out["activation"] = field_text(layer.activation);
  out["position"] = field_text(layer.position);
  out["rope_theta"] = layer.rope_theta;
  out["causal"] = layer.causal;
  return out;
}

inline nlohmann::json component_architecture(const Component& component) {
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t i = 0; i < component.layers.size(); ++i) {
    nlohmann::json layer = layer_architecture(component.layers[i]);
    if (!layers.empty()) {
      nlohmann::json before = layers.back();
      before.erase("count");
      if (before == layer) {
        layers.back()["count"] = layers.back()["count"].get<int>() + 1;
        continue;
      }
    }
    layer["count"] = 1;
    layers.push_back(std::move(layer));
  }
  return {{"name", component.name}, {"count", component.layers.size()}, {"layers", layers}};
}

/// The component of that name in an architecture; null: not found.
inline const nlohmann::json* find_component(const nlohmann::json& architecture, const std::string& name) {
  const auto components = architecture.find("components");
  if (components == architecture.end() || !components->is_array()) return nullptr;
  for (const nlohmann::json& component : *components)
    if (component.is_object() && component.value("name", "") == name) return &component;
  return nullptr;
}

}  // namespace detail

/// What must be equal for weights of one model to be those of another, component by component.
inline nlohmann::json model_architecture(const MultiTaskModel& model) {
  nlohmann::json components = nlohmann::json::array();
  for (const Component& component : model.components) components.push_back(detail::component_architecture(component));
  return {{"components", components}};
}

/// Why a checkpoint's weights are not those of `model`; empty when they are, of the components that both have.
inline std::string why_other_model(const TrainingState& training, const MultiTaskModel& model) {
  bool common = false;
  for (const Component& component : model.components) {
    const nlohmann::json* there = detail::find_component(training.architecture, component.name);
    if (there == nullptr) continue;
    common = true;
    if (*there != detail::component_architecture(component))
      return "it is of the model " + training.model + ", whose component \"" + component.name +
             "\" has other layers than that of " + model.name;
  }
  return common ? "" : "it is of the model " + training.model + ", which has none of the components of " + model.name;
}

/// The numbers that layers of `model` have in a checkpoint's files; -1: it is of a component that the checkpoint has
/// not.
inline std::vector<int> numbers_in(const TrainingState& training, const MultiTaskModel& model) {
  std::vector<int> out;
  for (const Component& component : model.components) {
    int first = 0;
    bool found = false;
    if (detail::find_component(training.architecture, component.name) != nullptr)
      for (const nlohmann::json& there : training.architecture.at("components")) {
        found = there.value("name", "") == component.name;
        if (found) break;
        first += there.value("count", 0);
      }
    for (std::size_t i = 0; i < component.layers.size(); ++i) out.push_back(found ? first + static_cast<int>(i) : -1);
  }
  return out;
}
/// Of a model of one task they are its numbers.
inline std::vector<int> numbers_in(const TrainingState& /*training*/, const ModelSpec& /*model*/) { return {}; }

}  // namespace galvatron::train
