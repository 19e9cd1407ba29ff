// What galvatron train says of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/slowest_rank.hpp>
#include <galvatron/train/trainer.hpp>

#include "options.hpp"
#include "train_arguments.hpp"

namespace galvatron::tools {

struct TrainOutcome {
  Plan plan;
  std::int64_t validation_samples = 0;  // 0: none
  double tokens_per_byte = 0;           // of the data; 0: not known
  double validation_tokens_per_byte = 0;

  [[nodiscard]] std::optional<double> validation_loss() const {
    for (auto step = report.steps.rbegin(); step != report.steps.rend(); ++step)
      if (step->validation_loss) return step->validation_loss;
    return std::nullopt;
  }
  train::TrainReport report;
  std::vector<Bytes> predicted;
  std::vector<Bytes> measured;
  std::optional<double> others;  // share of the cores that other programs took
  std::optional<train::SlowestRank> slowest;
  PlanStage slowest_stage;  // that it is of

  /// The predicted iteration on the cores that other programs left.
  [[nodiscard]] Seconds beside_others() const {
    return {galvatron::beside_others(plan.predicted.iteration.value, others.value_or(0))};
  }
  [[nodiscard]] double tokens_per_second() const {
    if (!plan.packed) return static_cast<double>(plan.global_batch * plan.sequence_length) / report.iteration_seconds;
    double tokens = 0, seconds = 0;  // steps differ
    for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i) {
      tokens += static_cast<double>(report.steps[i].tokens);
      seconds += report.steps[i].seconds;
    }
    return tokens / seconds;
  }
};

void print_outcome_json(const TrainOutcome& o, const TrainArguments& a);
void print_outcome(const TrainOutcome& o, const TrainArguments& a);

/// Of a run that is resumed with all its steps behind it, as by what starts a job again until it ends well.
void print_nothing_to_do(const Plan& plan, const TrainArguments& a, const Common& common);

/// What the progress line says of a step beside its number, the most important first.
std::vector<std::string> progress_facts(const train::StepReport& step, const std::string& validated);

}  // namespace galvatron::tools
