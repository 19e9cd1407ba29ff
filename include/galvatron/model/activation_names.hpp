// How Hugging Face's configurations name activations of one input.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Each kind by its own name, and further names that stand for GELU's tanh approximation. Source: ACT2FN of
/// transformers.
inline constexpr std::array<std::pair<std::string_view, ActivationKind>, 7> huggingface_activations{
    {{"gelu_new", ActivationKind::gelu},
     {"gelu_pytorch_tanh", ActivationKind::gelu},
     {"gelu_fast", ActivationKind::gelu},
     {"gelu", ActivationKind::exact_gelu},
     {"quick_gelu", ActivationKind::quick_gelu},
     {"relu", ActivationKind::relu},
     {"relu2", ActivationKind::squared_relu}}};

/// The kind of a name; none of one that is not in the list.
inline std::optional<ActivationKind> huggingface_activation(std::string_view name) {
  for (const auto& [known, kind] : huggingface_activations)
    if (known == name) return kind;
  return std::nullopt;
}
/// The first name of a kind that has one: of any but the gated ones.
inline std::string huggingface_name(ActivationKind kind) {
  const auto of = &std::pair<std::string_view, ActivationKind>::second;
  return std::string(std::ranges::find(huggingface_activations, kind, of)->first);
}

}  // namespace galvatron
