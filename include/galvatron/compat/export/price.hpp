// What an exported job costs: the plan that the target runs, priced as all plans are.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron {

/// The figures of an exported job. Prices are those of the plan's own trainer, so that plan and job differ by what the
/// target cannot express and by nothing else.
struct JobCost {
  Bytes peak;         ///< of the fullest rank
  Seconds iteration;  ///< of one iteration
  Bytes budget;       ///< of each device: the plan's, at most what the device has
  [[nodiscard]] bool fits() const { return peak <= budget; }
};

/// What `exported`, made of `plan`, costs on a cluster. Errors: those of cost_of for the plan that the target runs.
inline Result<JobCost> job_cost(const Exported& exported, const Plan& plan, const ModelSpec& model,
                                const Cluster& cluster) {
  const auto cost = cost_of(exported.job.value_or(plan), model, cluster);
  if (!cost) return tl::unexpected<Error>(cost.error());
  return JobCost{cost->peak(), cost->iteration, budget_of(plan, cluster)};
}

namespace detail {

/// A word of a shell command, quoted where it has to be.
inline std::string shell_word(const std::string& text) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Bytes as --memory takes them: `50GiB`, or a number of bytes.
inline std::string size_word(Bytes bytes) {
  for (const auto& [unit, shift] : {std::pair{"GiB", 30}, std::pair{"MiB", 20}})
    if (bytes.count > 0 && bytes.count % (std::int64_t{1} << shift) == 0) return text_of(bytes.count >> shift, unit);
  return std::to_string(bytes.count);
}

}  // namespace detail

/// The command that searches a plan like `plan`, for the same job, which `target` can be told, and writes it to `out`.
/// @param model, cluster  as the command line names them
inline std::string search_command(const Plan& plan, ExportTarget target, const std::string& model,
                                  const std::string& cluster, const ModelSpec& spec, Bytes device_memory,
                                  const std::string& out) {
  const Bytes budget = plan.predicted.budget;
  const bool names_moments = plan.moments != Precision::fp32 && target == ExportTarget::megatron;
  const bool interleaved = plan.schedule == ScheduleKind::interleaved && has_schedule(target, plan.schedule);
  return text_of(
      "galvatron plan --model ", detail::shell_word(model), " --cluster ", detail::shell_word(cluster),
      " --global-batch ", plan.global_batch,
      plan.sequence_length != spec.positions() ? text_of(" --seq ", plan.sequence_length) : "", " --precision ",
      name_of(plan.precision), names_moments ? " --moments " : "", names_moments ? name_of(plan.moments) : "",
      plan.trainer != cost::Trainer::galvatron ? text_of(" --trainer ", name_of(plan.trainer)) : "",
      budget.count > 0 && budget < device_memory ? " --memory " + detail::size_word(budget) : "", " --space uniform,",
      name_of(target), interleaved ? " --schedule 1f1b,interleaved" : "", " --out ", detail::shell_word(out));
}

}  // namespace galvatron
