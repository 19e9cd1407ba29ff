// What the readers of Hugging Face configurations share: what they refuse, and the checked model at their end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/activation_names.hpp>
#include <galvatron/model/check.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::detail {

/// The checked model that build(name, shape) makes, if all of the file was as it should be.
template <class Build, class Shape>
Result<ModelSpec> built(const JsonObject& fields, const Build& build, std::string name, const Shape& shape) {
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return checked(build(std::move(name), shape));
}

inline void refuse_indivisible(JsonObject& fields, std::string_view divisor_key, std::int64_t divisor,
                               std::string_view key, std::int64_t value, std::string_view but = "") {
  if (!fields.failed() && value % divisor != 0)
    fields.fail(fields.where() + ": \"" + std::string(divisor_key) + "\" " + std::to_string(divisor) +
                " does not divide \"" + std::string(key) + "\" " + std::to_string(value) + std::string(but));
}

/// Refuses a text value other than those in `supported`, of which the first is the value of an absent key.
inline void refuse_unless(JsonObject& fields, std::string_view key, std::initializer_list<const char*> supported,
                          const std::string& that_are = "") {
  const auto value = fields.optional<std::string>(key, *supported.begin());
  if (std::ranges::find(supported, value) == supported.end())
    fields.fail(fields.name(key) + ": \"" + one_line(value, 40) +
                "\" is not supported; supported: " + joined(supported) + that_are);
}

/// Fails the reader when a switch that galvatron has no code for is on.
inline void refuse_if(JsonObject& fields, std::string_view key, bool refused_value) {
  if (fields.optional<bool>(key, !refused_value) == refused_value)
    fields.fail(fields.name(key) + ": " + (refused_value ? "true" : "false") + " is not supported; only " +
                (refused_value ? "false" : "true") + " is");
}

/// Fails the reader when `key` has a value. A file without the key describes another model, so the way out names what
/// to use instead.
inline void refuse_present(JsonObject& fields, std::string_view key, std::string_view what, std::string_view way_out) {
  const nlohmann::json* value = fields.any(key);
  if (value != nullptr && !value->is_null())
    fields.fail(fields.name(key) + ": " + std::string(what) + " is not supported; " + std::string(way_out));
}

/// The activation that `key` names.
inline ActivationKind activation_from(JsonObject& fields, const char* key, const char* otherwise) {
  const auto name = fields.optional<std::string>(key, otherwise);
  const std::optional<ActivationKind> kind = huggingface_activation(name);
  if (!kind)
    fields.fail(fields.name(key) + ": \"" + one_line(name, 40) + "\" is not supported; supported: " +
                joined(huggingface_activations, ", ", [](const auto& known) { return known.first; }));
  return kind.value_or(ActivationKind::gelu);
}

inline void refuse_quantized(JsonObject& fields) {
  refuse_present(fields, "quantization_config", "a quantized model",
                 "take the config.json and the weights of the model before it was quantized");
}

}  // namespace galvatron::detail
