// 05: train with a plan that is part of the program. Needs galvatron::trainer (oneDNN, OpenMP).
//
//   example_05_frozen_plan [FILE...]      any text; every byte is a token
//
// The plan was searched once and written as a header, for this and every later build:
//   galvatron profile --ranks 4 --precision fp32 --out cluster.json
//   galvatron plan --model gpt2-tiny --cluster cluster.json --global-batch 16 --seq 64 --precision fp32
//       --memory 9MiB --out 05_frozen_plan.json
//   galvatron export 05_frozen_plan.json --to header --out 05_frozen_plan.hpp
#include <cstdio>
#include <filesystem>
#include <vector>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

#include "05_frozen_plan.hpp"

using namespace galvatron;

// What the compiler knows of the plan: two stages of pairs, and a budget that all stages keep.
static_assert(frozen_plan::plan.ranks() == 4 && frozen_plan::plan.stages.size() == 2);
static_assert(frozen_plan::plan.predicted_stages[0].peak <= frozen_plan::plan.budget);
static_assert(frozen_plan::plan.layer(0).recompute == RecomputeKind::full, "the first layer is computed again");
static_assert(frozen_plan::Strategies::size == 4, "what the program instantiates, and no more");

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> files(argv + 1, argv + argc);
  if (files.empty()) files = {"/usr/share/common-licenses/GPL-3"};
  const Plan plan = frozen_plan::plan.plan();
  const ModelSpec model = value_or_throw(find_model(plan.model));
  std::printf("%s on %d ranks\n", plan_words(plan).c_str(), plan.ranks());

  const auto report = value_or_throw(train::fit<frozen_plan::Strategies>(
      plan, model, files, {.steps = 30, .learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = 3}}));
  std::printf("loss %.3f -> %.3f\n", report.steps.front().loss, report.steps.back().loss);
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage)
    std::printf(
        "stage %zu planned %s, used %s\n", stage, format_bytes(plan.predicted.stages[stage].peak).c_str(),
        format_bytes(report.measured_memory[static_cast<std::size_t>(plan.stages[stage].first_rank)].total()).c_str());
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
