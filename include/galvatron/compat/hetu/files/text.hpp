// Keys and values of Hetu-Galvatron's files: names with numbers in them, positive numbers, lists in strings.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron::detail {

/// The numbers at the places of '#' in `pattern` if `key` is of that form: ("a_8_b", "a_#_b") gives {8}.
inline std::optional<std::vector<std::int64_t>> numbers_in(std::string_view key, std::string_view pattern) {
  std::vector<std::int64_t> out;
  while (!pattern.empty()) {
    if (pattern.front() != '#') {
      if (key.empty() || key.front() != pattern.front()) return std::nullopt;
      key.remove_prefix(1);
    } else {
      std::int64_t number = 0;
      const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), number);
      if (failure != std::errc{} || key.front() == '-') return std::nullopt;
      out.push_back(number);
      key.remove_prefix(static_cast<std::size_t>(end - key.data()));
    }
    pattern.remove_prefix(1);
  }
  if (!key.empty()) return std::nullopt;
  return out;
}

/// A measured quantity: a number in [least, 1e12]. Errors (usage).
inline Result<double> measured_number(const nlohmann::json& value, const std::string& name, double least) {
  if (value.is_number()) {
    const auto x = value.get<double>();
    if (x >= least && x <= 1e12) return x;
  }
  return usage_error(name + ": expected a number " + (least > 0 ? "above 0" : "of at least 0") +
                     " and at most 1e12, found " + JsonObject::describe(value) + "; measure it again or mend the file");
}
inline constexpr double above_zero = 1e-12;

/// The integers of "1,2,4". Errors (usage): anything else, numbers outside [least, most], more than `longest` of them.
inline Result<std::vector<int>> integer_list(const std::string& text, const std::string& name, int least, int most,
                                             std::size_t longest) {
  std::vector<int> out;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (true) {
    int number = 0;
    const auto [next, failure] = std::from_chars(at, end, number);
    if (failure != std::errc{} || number < least || number > most || (next != end && *next != ',') ||
        out.size() == longest)
      return usage_error(name + ": expected at most " + std::to_string(longest) + " integers from " +
                         std::to_string(least) + " to " + std::to_string(most) + ", separated by commas, found \"" +
                         one_line(text, 60) + "\"");
    out.push_back(number);
    if (next == end) return out;
    at = next + 1;
  }
}

}  // namespace galvatron::detail
