// 01: plan only. Needs galvatron::planner, the search compiled; or galvatron::galvatron alone, whose headers compile it
// here. No GPU, BLAS or MPI, and none of the devices planned for.
//
//   example_01_plan [MODEL [CLUSTER [SIZE]]]      example_01_plan llama2-70b 64xh100-80g 60GiB
#include <iostream>
#include <string>

#include <galvatron/files.hpp>
#include <galvatron/plan/compiled.hpp>

namespace {

int plan(const std::string& model_name, const std::string& cluster_name, const std::string& memory) {
  using namespace galvatron;
  const ModelSpec model = value_or_throw(load_model(model_name));      // a preset or a config.json
  const Cluster cluster = value_or_throw(load_cluster(cluster_name));  // a preset or a cluster file
  const FoundPlan found =
      value_or_throw(find_plan(model, cluster, {.global_batch = 512, .memory = value_or_throw(parse_bytes(memory))}));
  if (!found.feasible) {
    std::cerr << found.reason << "\n";
    return static_cast<int>(ErrorKind::infeasible);
  }
  std::cout << plan_words(found.plan) << ", " << format_seconds(found.cost.iteration) << " an iteration, found in "
            << format_seconds(found.statistics.seconds) << "\n\n"
            << value_or_throw(explain(found.plan, model, cluster));
  // save_plan(found.plan, "plan.json") writes what `galvatron train --plan plan.json` reads.
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return plan(argc > 1 ? argv[1] : "llama2-70b", argc > 2 ? argv[2] : "64xh100-80g", argc > 3 ? argv[3] : "60GiB");
} catch (...) {
  return galvatron::report_exception();
}
