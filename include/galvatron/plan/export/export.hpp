// Plans in the words of other trainers.
//
//     const auto exported = galvatron::export_plan(plan, galvatron::ExportTarget::megatron);
//     std::cout << exported.text;
//     for (const std::string& what : exported.not_expressed) std::cerr << what << "\n";
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <galvatron/plan/export/deepspeed.hpp>
#include <galvatron/plan/export/exported.hpp>
#include <galvatron/plan/export/hetu.hpp>
#include <galvatron/plan/export/megatron.hpp>
#include <galvatron/plan/export/torchtitan.hpp>
#include <galvatron/plan/plan.hpp>

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

/// A consistent plan (why_inconsistent) for `target`. Never fails: what the target cannot express is in the result.
inline Exported export_plan(const Plan& plan, ExportTarget target) {
  switch (target) {
    case ExportTarget::megatron:
      return export_megatron(plan);
    case ExportTarget::torchtitan:
      return export_torchtitan(plan);
    case ExportTarget::deepspeed:
      return export_deepspeed(plan);
    case ExportTarget::hetu:
      break;
  }
  return export_hetu(plan);
}

}  // namespace galvatron
