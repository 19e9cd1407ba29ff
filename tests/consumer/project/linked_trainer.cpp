// A separate program that trains a step of a pipeline with the trainer of galvatron::trainer, which has every strategy.
#include <iostream>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

int main(int, char** argv) try {
  using namespace galvatron;
  const auto model = find_model("gpt2-tiny");
  if (!model) return 1;
  const auto plan = uniform_plan(Strategy<DataParallel<2>, ZeRO<3>, TensorParallel<2>, SequenceParallel<megatron>>{},
                                 *model, {.global_batch = 2, .sequence = 16});
  if (!plan) return 1;
  const auto report = train::fit(*plan, *model, {argv[1]}, {.steps = 1});
  if (!report || report->measured_memory != report->planned_memory) return 1;
  std::cout << "loss " << report->steps.front().loss << "\n";
  return report->steps.front().loss > 0 ? 0 : 1;
} catch (...) {
  return galvatron::report_exception();
}
