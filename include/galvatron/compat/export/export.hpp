// Plans in the words of other trainers.
//
//     const auto exported = value_or_throw(galvatron::export_plan(plan, galvatron::ExportTarget::megatron));
//     std::cout << exported.text;
//     for (const std::string& what : exported.not_expressed) std::cerr << what << "\n";
#pragma once

#include <galvatron/compat/export/deepspeed.hpp>
#include <galvatron/compat/export/exported.hpp>
#include <galvatron/compat/export/families.hpp>
#include <galvatron/compat/export/hetu.hpp>
#include <galvatron/compat/export/megatron.hpp>
#include <galvatron/compat/export/price.hpp>
#include <galvatron/compat/export/target.hpp>
#include <galvatron/compat/export/torchtitan.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

/// A consistent plan (why_inconsistent) for `target`; what that cannot express is in the result. Errors (usage): a plan
/// that DeepSpeed cannot run at all.
inline Result<Exported> export_plan(const Plan& plan, ExportTarget target) {
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
