// galvatron spindle: plans of waves for many tasks, and Spindle's cases.
#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/spindle/json.hpp>
#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/solve.hpp>
#include <galvatron/spindle/terms.hpp>
#include <galvatron/spindle/terms_json.hpp>

#include "cases.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

namespace {

nlohmann::ordered_json spindle_answer(const Case& one) {
  const spindle::Problem problem = value_or_throw(spindle::problem_from_json(one.whole(), one.where()));
  nlohmann::ordered_json out;
  out["continuous_ms"] = spindle::continuous_seconds(problem) * 1e3;
  if (one.has("terms")) {
    const spindle::Terms terms = value_or_throw(spindle::terms_from_json(one.whole(), one.where(), problem));
    const spindle::PlacedPlan placed = value_or_throw(spindle::best_placed_plan(problem, terms));
    out.update(spindle::placed_json(problem, placed));
    out["bound_ms"] = placed.plan.bound * 1e3;
    return out;
  }
  const spindle::Plan plan = spindle::best_plan(problem);
  out["waves"] = spindle::waves_json(problem, plan.waves);
  out["ms"] = plan.seconds * 1e3;
  out["bound_ms"] = plan.bound * 1e3;
  out["proven"] = plan.proven;
  return out;
}

void run_spindle_case(const Arguments& arguments, Common& common) {
  Options options("spindle case",
                  "Answers Spindle's cases: the continuous optimum of MetaOps with scaling curves, and the best waves "
                  "that are found, with a bound of all schedules. A file is a JSON list of cases; the answer is an "
                  "object by their names.");
  std::string path;
  options.require(options.text("file", path, "FILE", "the cases"));
  options.flag("--json", common.json, "accepted as everywhere; the answer is JSON anyway");
  options.examples("Example:\n  galvatron spindle case workloads.json --json");
  if (!options.parse(arguments, common)) return;
  std::vector<std::string> names;
  const nlohmann::ordered_json answers = answers_of(path, [&](const Case& one) {
    names.push_back(one.required<std::string>("name"));
    if (std::ranges::count(names, names.back()) > 1) one.refuse_key("name", "another case has it too");
    return spindle_answer(one);
  });
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < names.size(); ++i) out[names[i]] = answers[i];
  print_json(out);
}

}  // namespace

void run_spindle(const Arguments& arguments, Common& common) {
  run_verb("spindle", "Steps of many tasks in waves (Spindle).",
           {{"case", "answer the cases of a file", run_spindle_case}}, arguments, common);
}

}  // namespace galvatron::tools
