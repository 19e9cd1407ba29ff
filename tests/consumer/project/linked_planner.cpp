// A separate program that plans with the search of galvatron::planner.
#include <iostream>

#include <galvatron/plan.hpp>
#include <galvatron/search/compiled.hpp>

int main() {
  const auto model = galvatron::find_model("llama2-7b");
  const auto cluster = galvatron::find_cluster("8xa100-40g");
  if (!model || !cluster) return 1;
  const auto found = galvatron::find_plan(*model, *cluster, {.global_batch = 64});
  if (!found || !found->feasible || found->cost.peak() > cluster->device.memory) return 1;
  std::cout << galvatron::plan_words(found->plan) << "\n";
  return found->plan.ranks() == 8 ? 0 : 1;
}
