// The coefficients of FlexSP's released solver: what a group takes by three fitted numbers and a bandwidth a degree.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/flexsp/problem.hpp>

namespace galvatron::flexsp {

/// One group of degree d takes, in ms, for documents of s tokens (FlexSP, section 4.1; the released profiles):
///
///     beta1 + sum of (alpha1 s^2 + alpha2 s) / d + 16 layers hidden s / (2^20 d v_d)
///
/// the last of which, four all-to-alls of bf16 activations a layer and pass, is 0 for d = 1. MB are 2^20 bytes, and a
/// MB over GB/s counts as a ms.
struct Coefficients {
  int devices = 1;
  double alpha1 = 0;
  double alpha2 = 0;
  double beta1 = 0;
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::vector<std::pair<int, double>> all_to_all;  ///< degree and GB/s, ascending; degree 1 needs none
  std::int64_t device_capacity = 0;                ///< tokens of a device
};

/// Tokens of a device: what the states leave of the memory.
inline std::int64_t token_capacity(double memory_gb, double states_mb, double token_mb) {
  return static_cast<std::int64_t>(std::floor((memory_gb * 1024 - states_mb) / token_mb));
}

/// The option of one degree. @param gb_per_s  of its all-to-alls
inline GroupOption option_of(const Coefficients& c, int degree, double gb_per_s) {
  const double d = degree;
  const double layer = 16.0 * static_cast<double>(c.layers) * static_cast<double>(c.hidden);
  const double messages = degree == 1 ? 0 : layer / (1048576.0 * d * gb_per_s);
  return {.degree = degree,
          .sequence = degree == 1 ? SequenceKind::none : SequenceKind::ulysses,
          .capacity = c.device_capacity * degree,
          .fixed = c.beta1 * 1e-3,
          .seconds = [square = c.alpha1 * 1e-3 / d, linear = (c.alpha2 / d + messages) * 1e-3](std::int64_t tokens) {
            const auto s = static_cast<double>(tokens);
            return (square * s + linear) * s;
          }};
}

/// Powers of two up to N, as published; any degrees too where `any` says so: these take the bandwidth of the next
/// larger degree that has one.
inline Problem problem_of(const Coefficients& c, int node_devices = 8, bool any = false) {
  Problem out{.devices = c.devices, .node_devices = node_devices, .options = {}};
  if (c.device_capacity < 1) return out;
  for (int d = 1; d <= c.devices; ++d) {
    const auto listed = std::ranges::find_if(c.all_to_all, [&](const auto& one) { return one.first >= d; });
    const bool exact = d == 1 || (listed != c.all_to_all.end() && listed->first == d);
    if (!any && !std::has_single_bit(static_cast<unsigned>(d))) continue;
    if (!exact && (!any || listed == c.all_to_all.end())) continue;
    if (!exact && d > node_devices && d % node_devices != 0) continue;
    out.options.push_back(option_of(c, d, d == 1 ? 1 : listed->second));
  }
  return out;
}

/// A model of the released profiles.
struct ReleasedModel {
  std::string_view name;
  double alpha1;
  double alpha2;
  double beta1;
  double token_mb;
  std::int64_t layers;
  std::int64_t hidden;
  double billions_192k;  ///< parameters where documents have up to 192,000 tokens: the position table grows
  double billions_384k;
};
inline constexpr std::array released_models{
    ReleasedModel{"gpt-7b", 5.128e-6, .1839576, 629.3563, 4.480441895, 32, 4096, 7.117447, 7.849869},
    ReleasedModel{"gpt-13b", 9.2852e-6, .3060189, 1132.5632, 4.220439453, 40, 5120, 13.116055, 14.031582},
    ReleasedModel{"gpt-30b", 15.4262e-6, .8035742, 2789.3644, 3.417381836, 60, 6656, 31.525139, 32.715320}};

/// The coefficients of a released model on A100s of 40 GB, 8 a node, of which 30 GB are used; nothing for other names.
/// @param limit  tokens of the longest document
inline std::optional<Coefficients> released_coefficients(std::string_view model, int devices, std::int64_t limit) {
  const auto* const at = std::ranges::find(released_models, model, &ReleasedModel::name);
  if (at == released_models.end()) return std::nullopt;
  Coefficients out{.devices = devices,
                   .alpha1 = at->alpha1,
                   .alpha2 = at->alpha2,
                   .beta1 = at->beta1,
                   .layers = at->layers,
                   .hidden = at->hidden,
                   .all_to_all = {},
                   .device_capacity = 0};
  constexpr std::array<std::pair<int, double>, 6> bandwidths{
      {{2, 119.54}, {4, 104.07}, {8, 96.5}, {16, 10.33}, {32, 5.94}, {64, 4.87}}};
  for (const auto& one : bandwidths)
    if (one.first <= devices) out.all_to_all.push_back(one);
  const double beyond = (static_cast<double>(limit) / 1000 - 192) / 192;
  const double billions = at->billions_192k + beyond * (at->billions_384k - at->billions_192k);
  const double token_mb = model == "gpt-7b" && devices == 16 ? 2.668764648 : at->token_mb;
  out.device_capacity = token_capacity(30, billions * 16 * 1024 / devices, token_mb);
  return out;
}

}  // namespace galvatron::flexsp
