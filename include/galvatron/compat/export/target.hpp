// The trainers that plans are exported to.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <galvatron/strategy/one_for_all.hpp>

namespace galvatron {

/// A trainer that plans are exported to.
enum class ExportTarget : std::uint8_t {
  megatron,    ///< arguments of Megatron-LM
  torchtitan,  ///< a job file, TOML
  deepspeed,   ///< a configuration, JSON
  hetu,        ///< a plan of Hetu-Galvatron, JSON
};
inline constexpr std::array export_targets{ExportTarget::megatron, ExportTarget::torchtitan, ExportTarget::deepspeed,
                                           ExportTarget::hetu};

constexpr const char* name_of(ExportTarget target) {
  switch (target) {
    case ExportTarget::megatron:
      return "megatron";
    case ExportTarget::torchtitan:
      return "torchtitan";
    case ExportTarget::deepspeed:
      return "deepspeed";
    case ExportTarget::hetu:
      return "hetu";
  }
  return "?";
}

constexpr std::optional<ExportTarget> export_target_named(std::string_view name) {
  for (const ExportTarget target : export_targets)
    if (name == name_of(target)) return target;
  return std::nullopt;
}

/// The space of the plans that a target can be told (parse_space).
constexpr OneForAll space_of(ExportTarget target) {
  switch (target) {
    case ExportTarget::megatron:
      return OneForAll::megatron;
    case ExportTarget::torchtitan:
      return OneForAll::torchtitan;
    case ExportTarget::deepspeed:
      return OneForAll::deepspeed;
    case ExportTarget::hetu:
      break;
  }
  return OneForAll::hetu;
}

}  // namespace galvatron
