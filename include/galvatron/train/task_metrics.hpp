// What a run of several tasks writes after every step: the loss of each task beside those of all together.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/model/multi_task.hpp>
#include <galvatron/train/metrics.hpp>
#include <galvatron/train/task_trainer.hpp>

namespace galvatron::train {

/// The line of a step for MetricsFile::append_line, with its newline: as metrics_line() of a run of one task, and
/// `"tasks": {"caption": 2.31, ...}`, the loss of each without its weight. Where held-out data were measured,
/// `"held_out": {"caption": {"loss": 2.5, "retrieval": 0.41}, ...}`, the latter of contrastive tasks. A number that is
/// not finite is null. Tasks that pause are left out. The first step of another mix has what the change took, `"mix":
/// {"tasks": {"caption": 16, ...}, "plan_seconds": 0.004, "moved_bytes": 1280, "seconds": 0.01}`.
inline std::string metrics_line(const TaskStepReport& report, std::span<const TaskSpec> tasks) {
  nlohmann::ordered_json line{{"step", report.step + 1},
                              {"loss", report.loss},
                              {"gradient_norm", report.gradient_norm},
                              {"learning_rate", report.learning_rate},
                              {"seconds", report.seconds}};
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (report.batches[i] > 0) line["tasks"][tasks[i].name] = report.losses[i];
  for (std::size_t i = 0; i < report.held_out.size(); ++i) {
    if (report.batches[i] == 0) continue;
    nlohmann::ordered_json& own = line["held_out"][tasks[i].name];
    own["loss"] = report.held_out[i].loss;
    if (report.held_out[i].retrieves) own["retrieval"] = report.held_out[i].retrieval;
  }
  if (report.mix) {
    nlohmann::ordered_json& mix = line["mix"];
    for (std::size_t i = 0; i < tasks.size(); ++i)
      if (report.batches[i] > 0) mix["tasks"][tasks[i].name] = report.batches[i];
    mix["plan_seconds"] = report.mix->plan_seconds;
    mix["moved_bytes"] = report.mix->moved_bytes;
    mix["seconds"] = report.mix->seconds;
  }
  if (!report.skipped.empty()) line["skipped"] = report.skipped;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// The scalars of a step for TensorBoard; those of tasks are `tasks/NAME`, on held-out data `held_out/NAME` and
/// `retrieval/NAME`.
inline std::vector<Scalar> metrics_scalars(const TaskStepReport& report, std::span<const TaskSpec> tasks) {
  std::vector<Scalar> out{{"train/loss", report.loss},
                          {"train/gradient_norm", report.gradient_norm},
                          {"train/learning_rate", report.learning_rate},
                          {"speed/seconds", report.seconds}};
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (report.batches[i] > 0) out.push_back({"tasks/" + tasks[i].name, report.losses[i]});
  for (std::size_t i = 0; i < report.held_out.size(); ++i) {
    if (report.batches[i] == 0) continue;
    out.push_back({"held_out/" + tasks[i].name, report.held_out[i].loss});
    if (report.held_out[i].retrieves) out.push_back({"retrieval/" + tasks[i].name, report.held_out[i].retrieval});
  }
  return out;
}

}  // namespace galvatron::train
