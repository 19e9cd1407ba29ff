// Plans in the words of other trainers.
//
//     const auto exported = value_or_throw(galvatron::export_plan(plan, galvatron::ExportTarget::megatron));
//     std::cout << exported.text;
//     for (const std::string& what : exported.not_expressed) std::cerr << what << "\n";
#pragma once

#include <galvatron/core/error.hpp>
#include <galvatron/plan/export/deepspeed.hpp>
#include <galvatron/plan/export/exported.hpp>
#include <galvatron/plan/export/families.hpp>
#include <galvatron/plan/export/hetu.hpp>
#include <galvatron/plan/export/megatron.hpp>
#include <galvatron/plan/export/price.hpp>
#include <galvatron/plan/export/target.hpp>
#include <galvatron/plan/export/torchtitan.hpp>
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
