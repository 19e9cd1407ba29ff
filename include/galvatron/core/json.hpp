// JSON: parsing with a place in the error message, and a reader of objects that trusts nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron {

/// Deeper nesting than this is refused: copying and printing a JSON value recurse.
inline constexpr int json_depth_limit = 100;

namespace detail {

/// "line 3, column 7" of the byte at `offset` (from 0) of a text.
inline std::string place_in(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

/// The offset of the bracket that opens one level too many, if any.
inline std::optional<std::size_t> offset_of_too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = quoted && c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > json_depth_limit) return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return std::nullopt;
}

/// What nlohmann-json found wrong, without its number and place.
inline std::string reason_of(const nlohmann::json::exception& error) {
  std::string_view why = error.what();
  if (const auto bracket = why.find("] "); bracket != std::string_view::npos) why.remove_prefix(bracket + 2);
  if (const auto at = why.find("column "); at != std::string_view::npos)
    if (const auto colon = why.find(": ", at); colon != std::string_view::npos) why.remove_prefix(colon + 2);
  return one_line(why);
}

struct RepeatedKey {
  std::string key;
};

}  // namespace detail

/// The JSON value of `text`; `source_name` (a file's path, say) opens every message. Errors (usage): malformed or
/// truncated text, with line and column; a key that occurs twice in an object; numbers beyond binary64; nesting deeper
/// than `json_depth_limit`.
template <class = void>
Result<nlohmann::json> parse_json(std::string_view text, std::string_view source_name) {
  const std::string source(source_name);
  if (const auto deep = detail::offset_of_too_deep(text))
    return usage_error(source + ": JSON nested deeper than " + std::to_string(json_depth_limit) + " levels at " +
                       detail::place_in(text, *deep));
  std::vector<std::set<std::string>> keys;
  const auto watch = [&keys](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      throw detail::RepeatedKey{value.get<std::string>()};
    return true;
  };
  if (text.empty()) return usage_error(source + ": not valid JSON: it is empty; write the file again");
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const detail::RepeatedKey& repeated) {
    return usage_error(source + ": the key \"" + detail::one_line(repeated.key, 60) +
                       "\" occurs twice in one JSON object; keep one of them");
  } catch (const nlohmann::json::parse_error& e) {
    const std::size_t offset = e.byte == 0 ? 0 : e.byte - 1;
    return usage_error(source + ": not valid JSON at " + detail::place_in(text, offset) + ": " + detail::reason_of(e) +
                       "; correct it, or write the file again");
  } catch (const nlohmann::json::exception& e) {
    return usage_error(source + ": not valid JSON: " + detail::reason_of(e));
  }
}
GALVATRON_IN_PLANNER(Result<nlohmann::json> parse_json<>(std::string_view, std::string_view))

/// The JSON value of a file of at most 256 MiB. Errors (usage): an unreadable file, and those of parse_json.
inline Result<nlohmann::json> read_json_file(const std::filesystem::path& path) {
  return read_text_file(path, std::int64_t{256} << 20).and_then([&](const std::string& text) {
    return parse_json(text, path.string());
  });
}

/// The text of a JSON value, ending in a newline. Never throws: bytes that are not UTF-8 become U+FFFD.
template <class = void>
std::string json_text(const nlohmann::json& value, int indent = 2) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}
GALVATRON_IN_PLANNER(std::string json_text<>(const nlohmann::json&, int))

/// Reads the fields of a JSON object. Errors stick: a bad field yields `T{}`, and `finish()` tells the first thing that
/// was wrong, so that a reader is a list of fields and one check at the end:
///
///     JsonObject fields(value, "plan.json");
///     plan.batch = fields.required<int>("global_batch", 1);
///     plan.name  = fields.optional<std::string>("name", "");
///     if (auto done = fields.finish(); !done) return tl::unexpected(done.error());
///
/// T is bool, an integer, a floating-point number or std::string. An integer must be written as one (3, not 3.0 or
/// "3") and fit T; nothing is narrowed. The JSON value must outlive the reader.
class JsonObject {
 public:
  /// `where` opens the messages: a file name, or a path in it such as `plan.json: stages[2]`.
  JsonObject(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {
    if (!value.is_object()) fail(where_ + ": expected a JSON object, found " + describe(value));
  }
  JsonObject(nlohmann::json&&, std::string) = delete;

  /// The field `key`, in [least, most].
  template <class T>
  T required(std::string_view key, const T& least = std::numeric_limits<T>::lowest(),
             const T& most = std::numeric_limits<T>::max()) {
    const nlohmann::json* field = find_required(key);
    return field == nullptr ? T{} : read<T>(*field, name(key), least, most);
  }

  /// The field `key`, in [least, most], or `otherwise` when there is none (null counts as none).
  template <class T>
  T optional(std::string_view key, T otherwise, const T& least = std::numeric_limits<T>::lowest(),
             const T& most = std::numeric_limits<T>::max()) {
    const nlohmann::json* field = any(key);
    if (field == nullptr || field->is_null()) return otherwise;
    return read<T>(*field, name(key), least, most);
  }

  /// The same into a variable, for lists of fields that a JsonWriter goes through too.
  template <class T, class... Limits>
  void field(std::string_view key, T& value, const Limits&... limits) {
    value = required<T>(key, static_cast<T>(limits)...);
  }
  template <class T, class... Limits>
  void field_or(std::string_view key, T& value, const std::type_identity_t<T>& otherwise, const Limits&... limits) {
    value = optional<T>(key, otherwise, static_cast<T>(limits)...);
  }
  /// One of some values, by the text that word(value) is.
  template <class T, class Values, class Word>
  void word(std::string_view key, T& value, const Values& values, const Word& word) {
    const auto text = required<std::string>(key);
    for (const T each : values) {
      value = each;
      if (text == word(each)) return;
    }
    fail(name(key) + ": unknown value \"" + detail::one_line(text, 40) + "\"; known are " + joined(values, ", ", word));
  }
  /// The object `key` with the fields that fields(object, value) lists.
  template <class T, class Fields>
  void object(std::string_view key, T& value, const Fields& fields) {
    if (const nlohmann::json* field = find_required(key)) read_object(*field, name(key), value, fields);
  }
  /// An array of objects with the fields that fields(object, item) lists. Two items of one key() contradict each other.
  template <class T, class Fields>
  void list(std::string_view key, std::vector<T>& items, const Fields& fields) {
    const nlohmann::json& values = required_array(key);
    items.clear();
    for (std::size_t i = 0; i < values.size() && !failed(); ++i) {
      read_object(values[i], where_ + ": " + std::string(key) + "[" + std::to_string(i) + "]", items.emplace_back(),
                  fields);
      if constexpr (requires { items[i].key(); })
        for (std::size_t j = 0; j < i; ++j)
          if (items[i].key() == items[j].key())
            fail(name(key) + ": entries " + std::to_string(j) + " and " + std::to_string(i) +
                 " are for the same thing; keep one of them");
    }
  }
  /// Whether there is a field `key`; a JsonWriter has one where it is `needed`.
  bool has(std::string_view key, [[maybe_unused]] bool needed) {
    const nlohmann::json* field = any(key);
    return field != nullptr && !field->is_null();
  }
  /// `otherwise` says what is wrong with the field `key` unless it holds.
  void check(std::string_view key, bool holds, const std::string& otherwise) {
    if (!holds) fail(name(key) + ": " + otherwise);
  }

  /// The array `key`; an empty one after an error.
  const nlohmann::json& required_array(std::string_view key) {
    static const nlohmann::json nothing = nlohmann::json::array();
    const nlohmann::json* field = find_required(key);
    if (field != nullptr && field->is_array()) return *field;
    if (field != nullptr) fail(name(key) + ": expected an array, found " + describe(*field));
    return nothing;
  }

  /// The array `key` of numbers in [least, most].
  template <class T>
  std::vector<T> numbers(std::string_view key, const T& least = std::numeric_limits<T>::lowest(),
                         const T& most = std::numeric_limits<T>::max()) {
    std::vector<T> out;
    for (const nlohmann::json& value : required_array(key))
      out.push_back(read<T>(value, name(key) + "[" + std::to_string(out.size()) + "]", least, most));
    return out;
  }

  /// Any value under `key`, marked as known; null pointer when there is none.
  const nlohmann::json* any(std::string_view key) {
    const std::string wanted(key);
    asked_.insert(wanted);
    if (!value_->is_object()) return nullptr;
    const auto at = value_->find(wanted);
    return at == value_->end() ? nullptr : &*at;
  }

  /// A reader of the object `key` of this one. Its own finish() tells its errors.
  JsonObject required_object(std::string_view key) {
    static const nlohmann::json nothing = nlohmann::json::object();
    const nlohmann::json* field = find_required(key);
    return {field == nullptr ? nothing : *field, name(key)};
  }

  /// `where` of this object, followed by the key: opens the messages about that field.
  [[nodiscard]] std::string name(std::string_view key) const { return where_ + ": \"" + std::string(key) + "\""; }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] bool contains(std::string_view key) const {
    return value_->is_object() && value_->contains(std::string(key));
  }
  /// Records an error found by the caller; the first one wins.
  void fail(std::string message) {
    if (!error_) error_ = Error{ErrorKind::usage, std::move(message)};
  }
  [[nodiscard]] bool failed() const { return error_.has_value(); }

  /// This object and those in it only inform: keys may be missing, and unknown ones are ignored.
  void only_informs() { only_informs_ = true; }

  /// The first error, or an error for the keys that nobody asked for.
  [[nodiscard]] Result<void> finish() {
    if (!error_ && !only_informs_)
      for (const auto& item : value_->items())
        if (asked_.find(item.key()) == asked_.end()) {
          fail(where_ + ": unknown key \"" + detail::one_line(item.key(), 60) + "\"; known are " +
               (asked_.empty() ? "none" : joined(asked_)));
          break;
        }
    return finish_allowing_unknown_keys();
  }
  /// The first error; keys that nobody asked for are ignored.
  [[nodiscard]] Result<void> finish_allowing_unknown_keys() const {
    if (error_) return tl::unexpected<Error>(*error_);
    return {};
  }

  /// What kind of value this is, for messages: `the string "x"`, `the number 3.5`, `an array of 3`.
  static std::string describe(const nlohmann::json& value) {
    if (value.is_string()) return "the string \"" + detail::one_line(value.get_ref<const std::string&>(), 40) + "\"";
    if (value.is_array()) return "an array of " + std::to_string(value.size());
    if (value.is_object()) return "an object";
    return (value.is_number() ? "the number " : "") + value.dump();
  }

 private:
  const nlohmann::json* find_required(std::string_view key) {
    const nlohmann::json* field = any(key);
    if (only_informs_) return field == nullptr || field->is_null() ? nullptr : field;
    if (field == nullptr) fail(where_ + ": the key \"" + std::string(key) + "\" is missing");
    return field;
  }

  template <class T, class Fields>
  void read_object(const nlohmann::json& from, std::string where, T& value, const Fields& fields) {
    JsonObject object(from, std::move(where));
    object.only_informs_ = only_informs_;
    fields(object, value);
    if (auto done = object.finish(); !done) fail(done.error().message);
  }

  template <class T>
  T read(const nlohmann::json& field, const std::string& name, [[maybe_unused]] const T& least,
         [[maybe_unused]] const T& most) {
    if constexpr (std::is_same_v<T, bool>) {
      if (field.is_boolean()) return field.get<bool>();
      fail(name + ": expected true or false, found " + describe(field));
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (field.is_string()) return field.get<std::string>();
      fail(name + ": expected a string, found " + describe(field));
    } else if constexpr (std::is_integral_v<T>) {
      const std::string range = "an integer" + range_text(least, most);
      const bool is_unsigned = field.is_number_unsigned();
      const auto fits = [&](auto n) {
        return std::in_range<T>(n) && static_cast<T>(n) >= least && static_cast<T>(n) <= most;
      };
      if (!field.is_number_integer()) {
        fail(name + ": expected " + range + ", found " + describe(field));
      } else if (is_unsigned ? fits(field.get<std::uint64_t>()) : fits(field.get<std::int64_t>())) {
        return field.get<T>();
      } else {
        const bool large = is_unsigned && std::cmp_greater(field.get<std::uint64_t>(), most);
        fail(name + ": expected " + (large ? "an integer of at most " + std::to_string(most) : range) + ", found " +
             field.dump());
      }
    } else {
      static_assert(std::is_floating_point_v<T>,
                    "galvatron: a JSON field is a bool, an integer, a number or a string.");
      const std::string range = "a number" + range_text(least, most);
      if (field.is_number()) {
        const auto x = field.get<double>();
        if (x >= static_cast<double>(least) && x <= static_cast<double>(most)) return static_cast<T>(x);
      }
      fail(name + ": expected " + range + ", found " + describe(field));
    }
    return T{};
  }

  template <class T>
  static std::string range_text(T least, T most) {
    const bool below = least != std::numeric_limits<T>::lowest();
    const bool above = most != std::numeric_limits<T>::max();
    const auto text = [](T x) { return nlohmann::json(x).dump(); };
    if (below && above) return " from " + text(least) + " to " + text(most);
    if (below) return " of at least " + text(least);
    if (above) return " of at most " + text(most);
    return std::is_integral_v<T> ? " from " + text(least) + " to " + text(most) : "";
  }

  const nlohmann::json* value_;
  std::string where_;
  std::set<std::string> asked_;
  std::optional<Error> error_;
  bool only_informs_ = false;
};

/// Writes the fields of an object that a JsonObject reads, with the same calls.
template <class Json>
class JsonWriter {
 public:
  explicit JsonWriter(Json& out) : out_(out) { out_ = Json::object(); }

  template <class T, class... Limits>
  void field(const std::string& key, const T& value, const Limits&...) {
    out_[key] = value;
  }
  template <class T, class... Limits>
  void field_or(const std::string& key, const T& value, const Limits&...) {
    out_[key] = value;
  }
  template <class T, class Values, class Word>
  void word(const std::string& key, T value, const Values&, const Word& word) {
    out_[key] = word(value);
  }
  template <class T, class Fields>
  void object(const std::string& key, T& value, const Fields& fields) {
    JsonWriter object(out_[key]);
    fields(object, value);
  }
  template <class T, class Fields>
  void list(const std::string& key, T& items, const Fields& fields) {
    Json& values = out_[key] = Json::array();
    for (auto& item : items) {
      JsonWriter object(values.emplace_back());
      fields(object, item);
    }
  }
  static bool has(std::string_view, bool needed) { return needed; }
  template <class Message>
  void check(const std::string&, bool, const Message&) {}

 private:
  Json& out_;
};

namespace detail {

/// A list of names, of which there is at least one; left alone where a file has none.
template <class T, class Values>
void names_field(JsonObject& fields, const char* key, std::vector<T>& items, const Values& values) {
  if (!fields.has(key, false)) return;
  items.clear();
  for (const nlohmann::json& item : fields.required_array(key)) {
    const auto at = std::ranges::find_if(values, [&](T each) { return item == std::string(name_of(each)); });
    if (at == std::end(values))
      return fields.fail(fields.name(key) + ": unknown value, " + JsonObject::describe(item) + "; known are " +
                         joined(values, ", ", [](T each) { return name_of(each); }));
    items.push_back(*at);
  }
  fields.check(key, !items.empty(), "at least one is needed");
}
template <class Json, class T, class Values>
void names_field(JsonWriter<Json>& fields, const char* key, const std::vector<T>& items, const Values&) {
  std::vector<std::string> names;
  for (const T each : items) names.emplace_back(name_of(each));
  fields.field(key, names);
}

}  // namespace detail

}  // namespace galvatron
