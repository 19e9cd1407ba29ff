// Problems and plans as the case files of Spindle have them; times are milliseconds there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/spindle/curve.hpp>
#include <galvatron/spindle/problem.hpp>

namespace galvatron::spindle {

inline constexpr std::size_t most_metaops = 1024;  ///< of a case

namespace detail {

// A MetaOp and the names of its predecessors.
inline Result<MetaOp> metaop_from_json(const nlohmann::json& value, const std::string& where, int devices,
                                       std::vector<std::string>& after) {
  constexpr double most_ms = 1e9;
  JsonObject fields(value, where);
  MetaOp out;
  out.name = fields.required<std::string>("name");
  out.operators = fields.required<int>("operators", 1, 1 << 20);
  const auto batch = fields.required<std::int64_t>("batch", 1, std::int64_t{1} << 40);
  const auto fixed = fields.required<double>("alpha_ms", 0, most_ms);
  const auto per_sample = fields.required<double>("beta_ms", 0, most_ms);
  fields.check("alpha_ms", fixed + per_sample >= 1e-9, "an operator must take time: alpha_ms + beta_ms >= 1e-9");
  out.level = fields.optional<int>("level", -1, 0, 1 << 16);
  if (const nlohmann::json* list = fields.any("after"); list != nullptr && !list->is_null()) {
    fields.check("after", list->is_array(), "expected a list of names, found " + JsonObject::describe(*list));
    for (std::size_t i = 0; list->is_array() && i < list->size(); ++i) {
      fields.check("after", (*list)[i].is_string(),
                   "expected the name of a MetaOp, found " + JsonObject::describe((*list)[i]));
      if (!fields.failed()) after.push_back((*list)[i].get<std::string>());
    }
  }
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  out.curve = linear_curve(batch, fixed / 1e3, per_sample / 1e3, devices);
  return out;
}

}  // namespace detail

/// A case: devices and MetaOps by the linear form of their curves. Levels that are missing are depths.
/// Errors (usage): keys that are missing or out of range, names that occur twice or are unknown, cycles, levels that
/// contradict predecessors. Other keys inform.
/// @param where  opens the messages
inline Result<Problem> problem_from_json(const nlohmann::json& value, const std::string& where) {
  JsonObject fields(value, where);
  Problem out;
  out.devices = fields.required<int>("devices", 1, 1 << 16);
  const nlohmann::json& list = fields.required_array("metaops");
  fields.check("metaops", fields.failed() || (!list.empty() && list.size() <= most_metaops),
               text_of("expected 1 to ", most_metaops, " MetaOps, found ", list.size()));
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  std::vector<std::vector<std::string>> names(list.size());
  std::map<std::string, int> numbers;
  const auto place = [&](std::size_t i) { return text_of(where, ": metaops[", i, "]"); };
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto metaop = detail::metaop_from_json(list[i], place(i), out.devices, names[i]);
    if (!metaop) return tl::unexpected(metaop.error());
    if (!numbers.emplace(metaop->name, static_cast<int>(i)).second)
      return usage_error(text_of(place(i), ": \"name\": another MetaOp is called \"",
                                 galvatron::detail::one_line(metaop->name, 40), "\" too"));
    out.metaops.push_back(std::move(*metaop));
  }
  std::vector<std::vector<int>> after(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const std::string& name : names[i]) {
      const auto at = numbers.find(name);
      if (at == numbers.end())
        return usage_error(
            text_of(place(i), ": \"after\": there is no MetaOp \"", galvatron::detail::one_line(name, 40), "\""));
      if (std::ranges::count(after[i], at->second) == 0) after[i].push_back(at->second);
    }
    out.metaops[i].after = after[i];
  }
  const std::vector<int> depths = depths_of(after);
  for (std::size_t i = 0; i < depths.size(); ++i)
    if (out.metaops[i].level < 0) out.metaops[i].level = depths[i];
  if (const std::string wrong = problem_of(out); !wrong.empty()) return usage_error(where + ": " + wrong);
  return out;
}

/// Waves with their parts `[MetaOp, devices, operators]`.
inline nlohmann::ordered_json waves_json(const Problem& problem, const std::vector<Wave>& waves) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Wave& wave : waves) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const Part& part : wave.parts)
      parts.push_back({problem.metaops[static_cast<std::size_t>(part.metaop)].name, part.devices, part.operators});
    out.push_back({{"ms", wave.seconds * 1e3}, {"parts", std::move(parts)}});
  }
  return out;
}

}  // namespace galvatron::spindle
