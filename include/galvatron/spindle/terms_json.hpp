// Terms of a case, if it has them, and plans with devices.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/spindle/json.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/terms.hpp>

namespace galvatron::spindle {

namespace detail {

// MetaOps with the same text under "parameters" share them.
inline Result<Sizes> sizes_from_json(const nlohmann::json& value, const std::string& where,
                                     std::map<std::string, int>& shared) {
  constexpr double most = 1e12;
  JsonObject fields(value, where);
  Sizes out;
  out.output_bytes = fields.optional<double>("output_mb", 0, 0, most) * 1e6;
  out.kept_bytes = fields.optional<double>("kept_mb", 0, 0, most) * 1e6;
  out.gradient_bytes = fields.optional<double>("gradient_mb", 0, 0, most) * 1e6;
  out.state_bytes = fields.optional<double>("state_mb", 0, 0, most) * 1e6;
  const auto parameters = fields.optional<std::string>("parameters", "");
  if (!parameters.empty()) out.parameters = shared.emplace(parameters, static_cast<int>(shared.size())).first->second;
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  return out;
}

}  // namespace detail

/// The `terms` of a case that has them: island_devices, island_gb_per_s, gb_per_s, wave_overhead_ms, memory_gb, and
/// output_mb, kept_mb, gradient_mb, state_mb, parameters of each MetaOp; 0 where they are missing.
/// Errors (usage): a number out of range, parameters that are shared by MetaOps of different lengths.
/// @param problem  of the same case
inline Result<Terms> terms_from_json(const nlohmann::json& value, const std::string& where, const Problem& problem) {
  constexpr double most = 1e12;
  JsonObject whole(value, where);
  JsonObject fields = whole.required_object("terms");
  if (auto done = whole.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  Terms out;
  out.island_devices = fields.optional<int>("island_devices", 1, 1, most_devices);
  out.island_rate = fields.optional<double>("island_gb_per_s", 0, 0, most) * 1e9;
  out.rate = fields.optional<double>("gb_per_s", 0, 0, most) * 1e9;
  out.wave_overhead = fields.optional<double>("wave_overhead_ms", 0, 0, most) / 1e3;
  out.memory = fields.optional<double>("memory_gb", 0, 0, most) * 1e9;
  if (auto done = fields.finish(); !done) return tl::unexpected(done.error());
  std::map<std::string, int> shared;
  std::map<int, std::size_t> first;
  for (std::size_t m = 0; m < problem.count(); ++m) {
    const std::string place = text_of(where, ": metaops[", m, "]");
    auto sizes = detail::sizes_from_json(value.at("metaops")[m], place, shared);
    if (!sizes) return tl::unexpected(sizes.error());
    if (sizes->parameters >= 0) {
      const std::size_t other = first.emplace(sizes->parameters, m).first->second;
      if (problem.metaops[other].operators != problem.metaops[m].operators)
        return usage_error(text_of(place, ": \"parameters\": shared with metaops[", other, "], which has ",
                                   problem.metaops[other].operators, " operators, not ", problem.metaops[m].operators));
    }
    out.sizes.push_back(*sizes);
  }
  return out;
}

/// Waves as waves_json has them, each with the devices of its parts, and what the step takes.
inline nlohmann::ordered_json placed_json(const Problem& problem, const PlacedPlan& placed) {
  nlohmann::ordered_json out;
  out["waves"] = waves_json(problem, placed.plan.waves);
  for (std::size_t w = 0; w < placed.placement.size(); ++w) out["waves"][w]["devices"] = placed.placement[w];
  out["ms"] = waves_seconds(placed.plan.waves) * 1e3;
  out["step_ms"] = placed.price.seconds * 1e3;
  out["transfer_ms"] = placed.price.transfer_seconds * 1e3;
  out["reduce_ms"] = placed.price.reduce_seconds * 1e3;
  out["peak_mb"] = placed.price.peak_bytes / 1e6;
  return out;
}

}  // namespace galvatron::spindle
