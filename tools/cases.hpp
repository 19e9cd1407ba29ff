// Case files: JSON files of problems with numbers, which commands answer in JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::tools {

/// A dense array, row by row.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  [[nodiscard]] std::int64_t extent(std::size_t i) const { return shape[i]; }
  [[nodiscard]] View<const float> view() const { return {values.data(), static_cast<std::int64_t>(values.size())}; }
};

/// One problem of a case file, an object. Whatever is wrong throws Failure (usage) with the file, the case and the key.
class Case {
 public:
  /// @param where  opens the messages: `cases.json: case 2`
  Case(const nlohmann::json& value, std::string where);

  /// Whether there is something under `key` that is not null.
  [[nodiscard]] bool has(std::string_view key) const;
  template <class T>
  [[nodiscard]] T required(std::string_view key, const T& least = std::numeric_limits<T>::lowest(),
                           const T& most = std::numeric_limits<T>::max()) const {
    JsonObject fields(value_, where_);
    return checked(fields, fields.required<T>(key, least, most));
  }
  template <class T>
  [[nodiscard]] T optional(std::string_view key, T otherwise, const T& least = std::numeric_limits<T>::lowest(),
                           const T& most = std::numeric_limits<T>::max()) const {
    JsonObject fields(value_, where_);
    return checked(fields, fields.optional<T>(key, otherwise, least, most));
  }
  [[nodiscard]] Case object(std::string_view key) const;
  /// Whatever is under `key`, which must be there.
  [[nodiscard]] const nlohmann::json& value(std::string_view key) const;
  /// A list of integers in [least, most], at least one.
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most) const;
  /// What opens the messages about a key.
  [[nodiscard]] std::string name(std::string_view key) const;
  /// The numbers of nested arrays with these extents; -1: any, at least 1.
  [[nodiscard]] Array array(std::string_view key, const std::vector<std::int64_t>& shape) const;

  /// The object itself, and what opens the messages about it.
  [[nodiscard]] const nlohmann::json& whole() const { return value_; }
  [[nodiscard]] const std::string& where() const { return where_; }

  /// Throws with the place of the case before `why`, or of the key.
  [[noreturn]] void refuse_case(const std::string& why) const;
  [[noreturn]] void refuse_key(std::string_view key, const std::string& why) const;
  /// An answer: nested arrays of this shape. Numbers that are not finite are refused: the case was too large for fp32.
  [[nodiscard]] nlohmann::ordered_json reals(std::string_view key, const std::vector<std::int64_t>& shape,
                                             View<const float> values) const;
  [[nodiscard]] nlohmann::ordered_json real(std::string_view key, double value) const;

 private:
  template <class T>
  T checked(const JsonObject& fields, T value) const {
    value_or_throw(fields.finish_allowing_unknown_keys());
    return value;
  }

  const nlohmann::json& value_;
  std::string where_;
};

/// An answer: nested arrays of this shape, row by row.
nlohmann::ordered_json nested(const std::vector<std::int64_t>& shape, View<const std::int32_t> values);

/// Calls answer(case) for every case of a file, a list: the list of answers. Throws Failure (usage) for a file that is
/// no list of objects.
template <class Answer>
nlohmann::ordered_json answers_of(const std::string& path, const Answer& answer) {
  const nlohmann::json file = value_or_throw(read_json_file(path));
  if (!file.is_array())
    refuse(path, ": expected a list of cases, found ", JsonObject::describe(file), "; name a file of cases");
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < file.size(); ++i) out.push_back(answer(Case(file[i], text_of(path, ": case ", i))));
  return out;
}

}  // namespace galvatron::tools
