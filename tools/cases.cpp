#include "cases.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <galvatron/core/text.hpp>

namespace galvatron::tools {

namespace {

using nlohmann::json;

// Appends the numbers below `value`; extents that are open become what is found first.
void append_numbers(const json& value, const std::string& where, std::size_t level, Array& out) {
  if (level == out.shape.size()) {
    constexpr double most = std::numeric_limits<float>::max();
    if (!value.is_number() || !(std::abs(value.get<double>()) <= most))
      refuse(where, ": expected a number of single precision, found ", JsonObject::describe(value));
    out.values.push_back(value.get<float>());
    return;
  }
  if (!value.is_array() || value.empty())
    refuse(where, ": expected an array that is not empty, found ", JsonObject::describe(value));
  std::int64_t& extent = out.shape[level];
  if (extent < 0) extent = static_cast<std::int64_t>(value.size());
  if (extent != static_cast<std::int64_t>(value.size()))
    refuse(where, ": expected an array of ", extent, ", found ", JsonObject::describe(value));
  for (std::size_t i = 0; i < value.size(); ++i) append_numbers(value[i], text_of(where, "[", i, "]"), level + 1, out);
}

template <class T>
nlohmann::ordered_json nested_from(const std::vector<std::int64_t>& shape, std::size_t level, const T*& next) {
  if (level == shape.size()) return *next++;
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < shape[level]; ++i) out.push_back(nested_from(shape, level + 1, next));
  return out;
}

}  // namespace

Case::Case(const json& value, std::string where) : value_(value), where_(std::move(where)) {
  checked(JsonObject(value_, where_), 0);
}

bool Case::has(std::string_view key) const {
  const auto at = value_.find(std::string(key));
  return at != value_.end() && !at->is_null();
}

Case Case::object(std::string_view key) const {
  JsonObject fields(value_, where_);
  checked(fields.required_object(key), 0);
  checked(fields, 0);
  return {value_.at(std::string(key)), fields.name(key)};
}

const json& Case::value(std::string_view key) const {
  if (!has(key)) refuse_case(text_of("the key \"", key, "\" is missing"));
  return value_.at(std::string(key));
}

std::vector<std::int64_t> Case::integers(std::string_view key, std::int64_t least, std::int64_t most) const {
  JsonObject fields(value_, where_);
  auto out = checked(fields, fields.numbers<std::int64_t>(key, least, most));
  if (out.empty()) refuse_key(key, "expected at least one number");
  return out;
}

std::string Case::name(std::string_view key) const { return JsonObject(value_, where_).name(key); }

Array Case::array(std::string_view key, const std::vector<std::int64_t>& shape) const {
  JsonObject fields(value_, where_);
  Array out{shape, {}};
  append_numbers(checked(fields, std::cref(fields.required_array(key))), fields.name(key), 0, out);
  return out;
}

void Case::refuse_case(const std::string& why) const { refuse(where_, ": ", why); }
void Case::refuse_key(std::string_view key, const std::string& why) const { refuse(where_, ": \"", key, "\": ", why); }

nlohmann::ordered_json Case::real(std::string_view key, double value) const {
  if (!std::isfinite(value))
    refuse(where_, ": the answer \"", key, "\" is not finite: the numbers of this case are too large for fp32");
  return value;
}

nlohmann::ordered_json Case::reals(std::string_view key, const std::vector<std::int64_t>& shape,
                                   View<const float> values) const {
  for (const float value : values) static_cast<void>(real(key, static_cast<double>(value)));
  const float* next = values.data;
  return nested_from(shape, 0, next);
}

nlohmann::ordered_json nested(const std::vector<std::int64_t>& shape, View<const std::int32_t> values) {
  const std::int32_t* next = values.data;
  return nested_from(shape, 0, next);
}

}  // namespace galvatron::tools
