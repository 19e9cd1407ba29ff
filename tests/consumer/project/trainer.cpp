// A separate program that trains a step on two ranks, with galvatron::host.
#include <iostream>

#include <galvatron/galvatron.hpp>

int main(int, char** argv) {
  using namespace galvatron;
  using Both = Strategy<DataParallel<2>, ZeRO<1>>;
  const auto model = find_model("gpt2-tiny");
  if (!model) return 1;
  const auto plan = uniform_plan(Both{}, *model, {.global_batch = 2, .sequence = 16});
  if (!plan) return 1;
  const auto report = train::fit<Both>(*plan, *model, {argv[0]}, {.steps = 1});  // its own bytes as text
  if (!report || report->measured_memory != report->planned_memory) return 1;
  std::cout << "loss " << report->steps.front().loss << "\n";
  return report->steps.front().loss > 0 ? 0 : 1;
}
