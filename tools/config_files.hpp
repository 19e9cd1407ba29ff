// Files of other makers' formats as JSON values.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>

namespace galvatron::tools {

/// The value of a TOML document. Errors (usage): malformed text; a program that was built without toml++.
Result<nlohmann::json> json_of_toml(const std::string& text, const std::string& name);

/// The value of a YAML document, scalars without quotes as the numbers and truth values that they look like. Errors
/// (usage): malformed text, very many nodes (aliases are followed), a program that was built without yaml-cpp.
Result<nlohmann::json> json_of_yaml(const std::string& text, const std::string& name);

}  // namespace galvatron::tools
