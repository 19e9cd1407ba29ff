// Settings: a configuration of nested keys, read by their dotted names.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/compat/check/job.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron {

/// Leaves of a JSON value by their names, `training.seq_len`. Errors stick: the first is `bad`.
class Settings {
 public:
  explicit Settings(const nlohmann::json& value) { add(value, ""); }

  /// True where the key is there, or keys below it.
  [[nodiscard]] bool has(const std::string& key) {
    seen_.insert(key);
    const auto below = leaves_.lower_bound(key + ".");
    return leaves_.contains(key) || (below != leaves_.end() && below->first.starts_with(key + "."));
  }
  [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise = "") {
    const nlohmann::json* found = find(key);
    if (found == nullptr || found->is_null()) return otherwise;
    return found->is_string() ? found->get<std::string>() : found->dump();
  }
  [[nodiscard]] bool flag(const std::string& key, bool otherwise = false) {
    const std::string found = text(key);
    if (found == "true" || found == "True" || found == "yes") return true;
    if (found == "false" || found == "False" || found == "no") return false;
    if (!found.empty() && found != "auto") fail(key, found, "true or false");
    return otherwise;
  }
  /// A whole number of at least `least`; "auto" counts as not given.
  [[nodiscard]] std::int64_t number(const std::string& key, std::int64_t otherwise, std::int64_t least = 0) {
    const std::string found = text(key);
    if (found.empty() || found == "auto") return otherwise;
    std::int64_t value = 0;
    const auto [end, failure] = std::from_chars(found.data(), found.data() + found.size(), value);
    if (failure == std::errc{} && end == found.data() + found.size() && value >= least && value <= (1 << 20))
      return value;
    fail(key, found, "a whole number up to 1048576");
    return otherwise;
  }
  [[nodiscard]] const std::string& bad() const { return bad_; }

  /// Tells what was not asked for: ignored are these keys, and all below those that end in a dot.
  void sort_rest(TrainerJob& job, std::span<const std::string_view> ignored) const {
    for (const auto& [key, value] : leaves_) {
      if (seen_.contains(key)) continue;
      const bool known = std::ranges::any_of(ignored, [&key = key](std::string_view each) {
        return each.ends_with('.') ? key.starts_with(each) : key == each;
      });
      (known ? job.ignored : job.unknown).push_back(detail::one_line(key, 100));
    }
  }

 private:
  void add(const nlohmann::json& value, const std::string& name) {
    if (!value.is_object() || value.empty()) {
      if (!name.empty()) leaves_.emplace(name, value);
      return;
    }
    for (const auto& [key, item] : value.items()) add(item, name.empty() ? key : name + "." + key);
  }
  const nlohmann::json* find(const std::string& key) {
    seen_.insert(key);
    const auto at = leaves_.find(key);
    return at == leaves_.end() ? nullptr : &at->second;
  }
  void fail(const std::string& key, const std::string& found, const std::string& wanted) {
    if (bad_.empty()) bad_ = key + " is " + detail::one_line(found, 60) + " and not " + wanted;
  }

  std::map<std::string, nlohmann::json> leaves_;
  std::set<std::string> seen_;
  std::string bad_;
};

}  // namespace galvatron
