// 04: profile this machine, search a plan for it, train with that plan. Needs galvatron::planner and galvatron::trainer
// (oneDNN, OpenMP), which have the search and all strategies compiled.
//
//   example_04_search_and_train [FILE...]      any text; every byte is a token
#include <cstdio>
#include <filesystem>
#include <vector>

#include <galvatron/galvatron.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> files(argv + 1, argv + argc);
  if (files.empty()) files = {"/usr/share/common-licenses/GPL-3"};
  const ModelSpec model = value_or_throw(find_model("gpt2-tiny"));

  // Two seconds give a coarse profile; `galvatron profile` takes its time and writes a file for load_cluster. Without
  // accepts_busy there is none when other programs take most of the cores.
  const Cluster cluster = value_or_throw(
      train::profile_host({.ranks = 4, .precisions = {Precision::fp32}, .time_budget = {2}, .accepts_busy = true}));
  const FoundPlan found = value_or_throw(find_plan(model, cluster,
                                                   {.global_batch = 16,
                                                    .sequence = 64,
                                                    .memory = 16_MiB,
                                                    .precision = Precision::fp32,
                                                    .space = value_or_throw(parse_space("dp,zero3,tp,pp"))}));
  if (!found.feasible) {
    std::fprintf(stderr, "%s\n", found.reason.c_str());
    return 3;
  }
  std::printf("%s\n", plan_words(found.plan).c_str());

  const auto report = value_or_throw(train::fit(
      found.plan, model, files, {.steps = 30, .learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = 3}}));
  std::printf("loss %.3f -> %.3f\n", report.steps.front().loss, report.steps.back().loss);
  std::printf("an iteration: predicted %s, measured %s: %s\n", format_seconds(found.cost.iteration).c_str(),
              format_seconds({report.iteration_seconds}).c_str(),
              against_prediction(found.cost.iteration, {report.iteration_seconds}).c_str());
  std::printf("the fullest rank: predicted %s, measured %s\n", format_bytes(found.cost.peak()).c_str(),
              format_bytes(report.measured_memory.front().total()).c_str());
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
