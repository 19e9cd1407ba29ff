// Keys and values of Hetu-Galvatron's files: names with numbers in them, positive numbers, lists in strings. What
// cannot be read is thrown as a Failure (usage).
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
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
  for (const char c : pattern) {
    std::size_t read = 1;
    if (c == '#') {
      const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), out.emplace_back());
      if (failure != std::errc{} || key.front() == '-') return std::nullopt;
      read = static_cast<std::size_t>(end - key.data());
    } else if (!key.starts_with(c)) {
      return std::nullopt;
    }
    key.remove_prefix(read);
  }
  if (!key.empty()) return std::nullopt;
  return out;
}

/// A group size or degree.
inline bool is_degree(std::int64_t n) { return n >= 1 && n <= std::numeric_limits<int>::max(); }

/// A measured quantity: a number in [least, 1e12].
inline double measured_number(const nlohmann::json& value, const std::string& name, double least) {
  if (value.is_number()) {
    const auto x = value.get<double>();
    if (x >= least && x <= 1e12) return x;
  }
  throw Failure(ErrorKind::usage, name + ": expected a number " + (least > 0 ? "above 0" : "of at least 0") +
                                      " and at most 1e12, found " + JsonObject::describe(value) +
                                      "; measure it again or mend the file");
}
inline constexpr double above_zero = 1e-12;

inline void require_object(const nlohmann::json& value, const std::string& where) {
  if (!value.is_object())
    throw Failure(ErrorKind::usage, where + ": expected a JSON object, found " + JsonObject::describe(value));
}

/// Calls `take(numbers, value, name)` for every key of the form `pattern` of an object.
template <class F>
void for_figures(const nlohmann::json& object, const std::string& where, std::string_view pattern, F&& take) {
  require_object(object, where);
  for (const auto& [key, value] : object.items())
    if (const auto numbers = numbers_in(key, pattern)) take(*numbers, value, where + ": \"" + one_line(key, 60) + "\"");
}

/// The number `key` of an object, in [least, most].
inline double required_number(const nlohmann::json& object, const std::string& where, const char* key, double least,
                              double most) {
  JsonObject fields(object, where);
  const auto out = fields.required<double>(key, least, most);
  value_or_throw(fields.finish_allowing_unknown_keys());
  return out;
}

/// The integers of "1,2,4", at most `longest` of them in [least, most].
inline std::vector<int> integer_list(const std::string& text, const std::string& name, int least, int most,
                                     std::size_t longest) {
  std::vector<int> out;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    const auto [next, failure] = std::from_chars(at, end, out.emplace_back());
    if (failure != std::errc{} || out.back() < least || out.back() > most || (next != end && *next != ',') ||
        out.size() > longest)
      throw Failure(ErrorKind::usage, name + ": expected at most " + std::to_string(longest) + " integers from " +
                                          std::to_string(least) + " to " + std::to_string(most) +
                                          ", separated by commas, found \"" + one_line(text, 60) + "\"");
    if (next == end) return out;
    at = next;
  }
}

}  // namespace galvatron::detail
