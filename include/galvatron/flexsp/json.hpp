// Coefficients as the case files of FlexSP have them.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/flexsp/coefficients.hpp>

namespace galvatron::flexsp {

/// A `problem`: devices, alpha1, alpha2, beta1 (ms), layers, hidden, alltoall_gb_per_s by degree, and
/// device_token_capacity, or memory_gb, states_mb and token_mb of which it comes. Errors (usage): a key that is missing
/// or out of range. Other keys inform.
/// @param where  opens the messages: a file's name
inline Result<Coefficients> coefficients_from_json(const nlohmann::json& value, const std::string& where) {
  constexpr double most = 1e12;
  JsonObject fields(value, where);
  Coefficients out;
  out.devices = fields.required<int>("devices", 1, most_devices);
  out.alpha1 = fields.required<double>("alpha1", 0, most);
  out.alpha2 = fields.required<double>("alpha2", 0, most);
  out.beta1 = fields.required<double>("beta1", 0, most);
  out.layers = fields.required<std::int64_t>("layers", 1, 1 << 20);
  out.hidden = fields.required<std::int64_t>("hidden", 1, 1 << 24);
  constexpr std::int64_t most_tokens = longest_document;
  const std::int64_t capacity = fields.optional<std::int64_t>("device_token_capacity", -1, 0, most_tokens);
  if (capacity >= 0) {
    out.device_capacity = capacity;
  } else {
    const double memory = fields.required<double>("memory_gb", 0, most);
    const double states = fields.required<double>("states_mb", 0, most);
    const double token = fields.required<double>("token_mb", 1e-9, most);
    if (token > 0)
      out.device_capacity = static_cast<std::int64_t>(
          std::clamp(std::floor((memory * 1024 - states) / token), 0.0, static_cast<double>(most_tokens)));
  }
  JsonObject of_degrees = fields.required_object("alltoall_gb_per_s");
  const std::string place = fields.name("alltoall_gb_per_s");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected(done.error());
  const nlohmann::json& bandwidths = value.at("alltoall_gb_per_s");
  if (!bandwidths.is_object()) return tl::unexpected(of_degrees.finish().error());
  for (const auto& item : bandwidths.items()) {
    const std::string& key = item.key();
    int degree = 0;
    const auto [rest, code] = std::from_chars(key.data(), key.data() + key.size(), degree);
    if (code != std::errc() || rest != key.data() + key.size() || degree < 2 || degree > most_devices)
      return usage_error(text_of(place, ": \"", galvatron::detail::one_line(key, 40),
                                 "\" is no degree of a group; its keys are whole numbers from 2 on"));
    out.all_to_all.emplace_back(degree, of_degrees.required<double>(key, 1e-9, most));
  }
  if (auto done = of_degrees.finish(); !done) return tl::unexpected(done.error());
  std::ranges::sort(out.all_to_all);
  for (std::size_t i = 1; i < out.all_to_all.size(); ++i)
    if (out.all_to_all[i].first == out.all_to_all[i - 1].first)
      return usage_error(text_of(place, ": degree ", out.all_to_all[i].first, " occurs twice; keep one of them"));
  return out;
}

}  // namespace galvatron::flexsp
