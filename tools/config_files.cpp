#include "config_files.hpp"

#include <sstream>
#include <string_view>
#include <utility>

#ifdef GALVATRON_TOML
#include <toml++/toml.h>
#endif
#ifdef GALVATRON_YAML
#include <yaml-cpp/yaml.h>
#endif

#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron::tools {

Result<nlohmann::json> json_of_toml([[maybe_unused]] const std::string& text, const std::string& name) {
#ifdef GALVATRON_TOML
  try {
    const toml::table table = toml::parse(text, name);
    std::ostringstream out;
    out << toml::json_formatter(table);
    return parse_json(out.str(), name);
  } catch (const toml::parse_error& e) {
    std::ostringstream where;
    where << e.source().begin;
    return usage_error(name + ": not valid TOML at " + detail::one_line(where.str()) + ": " +
                       detail::one_line(std::string(e.description())));
  }
#else
  return usage_error(name + ": this program was built without toml++; install libtomlplusplus-dev and build it again");
#endif
}

#ifdef GALVATRON_YAML
namespace {

constexpr int most_nodes = 100'000;  // aliases may stand for very many

nlohmann::json json_of(const YAML::Node& node, int depth, int& nodes) {
  if (depth > json_depth_limit || ++nodes > most_nodes)
    throw YAML::Exception(node.Mark(), "too many or too deep nodes");
  if (node.IsMap()) {
    nlohmann::json out = nlohmann::json::object();
    for (const auto& item : node) out[item.first.as<std::string>()] = json_of(item.second, depth + 1, nodes);
    return out;
  }
  if (node.IsSequence()) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& item : node) out.push_back(json_of(item, depth + 1, nodes));
    return out;
  }
  if (!node.IsScalar()) return nullptr;
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // in quotes
  if (text == "true" || text == "True" || text == "yes") return true;
  if (text == "false" || text == "False" || text == "no") return false;
  if (text == "null" || text == "~" || text.empty()) return nullptr;
  const nlohmann::json number = nlohmann::json::parse(text, nullptr, false);
  return number.is_number() ? number : nlohmann::json(text);
}

}  // namespace
#endif

Result<nlohmann::json> json_of_yaml([[maybe_unused]] const std::string& text, const std::string& name) {
#ifdef GALVATRON_YAML
  try {
    int nodes = 0;
    return json_of(YAML::Load(text), 0, nodes);
  } catch (const YAML::Exception& e) {
    return usage_error(name + ": not valid YAML: " + detail::one_line(std::string(e.what())));
  }
#else
  return usage_error(name + ": this program was built without yaml-cpp; install libyaml-cpp-dev and build it again");
#endif
}

}  // namespace galvatron::tools
