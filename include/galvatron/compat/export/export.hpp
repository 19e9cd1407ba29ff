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
/// whose stages have different numbers of ranks, or one that DeepSpeed cannot run at all.
inline Result<Exported> export_plan(const Plan& plan, ExportTarget target) {
  for (const PlanStage& stage : plan.stages)
    if (stage.rank_count != plan.stages.front().rank_count)
      return usage_error("stages of " + std::to_string(plan.stages.front().rank_count) + " and of " +
                         std::to_string(stage.rank_count) +
                         " ranks: the trainers that plans are exported to have equally many in all stages; export it "
                         "as a header");
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
