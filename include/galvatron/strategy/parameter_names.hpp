// The names of parameters in files: as in the code.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include <galvatron/strategy/parameters.hpp>

namespace galvatron {

/// In the order of ParameterName.
inline constexpr std::array<std::string_view, 36> parameter_names = {"table",
                                                                     "positions",
                                                                     "token_types",
                                                                     "class_token",
                                                                     "patch_weight",
                                                                     "patch_bias",
                                                                     "qkv_weight",
                                                                     "qkv_bias",
                                                                     "attention_out_weight",
                                                                     "attention_out_bias",
                                                                     "cross_query_weight",
                                                                     "cross_query_bias",
                                                                     "cross_memory_weight",
                                                                     "cross_memory_bias",
                                                                     "cross_out_weight",
                                                                     "cross_out_bias",
                                                                     "relative_positions",
                                                                     "merge_weight",
                                                                     "router",
                                                                     "mlp_in_weight",
                                                                     "mlp_in_bias",
                                                                     "mlp_out_weight",
                                                                     "mlp_out_bias",
                                                                     "norm1_gamma",
                                                                     "norm1_beta",
                                                                     "norm2_gamma",
                                                                     "norm2_beta",
                                                                     "norm3_gamma",
                                                                     "norm3_beta",
                                                                     "closing_gamma",
                                                                     "closing_beta",
                                                                     "merge_gamma",
                                                                     "merge_beta",
                                                                     "transform_weight",
                                                                     "transform_bias",
                                                                     "logits_bias"};
static_assert(static_cast<std::size_t>(ParameterName::logits_bias) + 1 == parameter_names.size());

inline constexpr std::array<std::string_view, user_parameters> user_parameter_names = {
    "user_0", "user_1", "user_2",  "user_3",  "user_4",  "user_5",  "user_6",  "user_7",
    "user_8", "user_9", "user_10", "user_11", "user_12", "user_13", "user_14", "user_15"};

constexpr std::string_view name_of(ParameterName name) {
  const auto number = static_cast<std::size_t>(name);
  return number < parameter_names.size() ? parameter_names[number]
                                         : user_parameter_names[number - first_user_parameter];
}

/// The parameter of that name, if there is one.
constexpr std::optional<ParameterName> parameter_named(std::string_view name) {
  for (std::size_t i = 0; i < parameter_names.size(); ++i)
    if (parameter_names[i] == name) return static_cast<ParameterName>(i);
  for (int i = 0; i < user_parameters; ++i)
    if (user_parameter_names[static_cast<std::size_t>(i)] == name) return user_parameter(i);
  return std::nullopt;
}

}  // namespace galvatron
