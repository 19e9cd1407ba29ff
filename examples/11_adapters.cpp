// 11: low-rank adapters (LoRA) on a frozen model, on 4 rank threads. Needs galvatron::trainer.
//
//   example_11_adapters [FILE...]      any text; every byte is a token
#include <cstdio>
#include <filesystem>
#include <vector>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> files(argv + 1, argv + argc);
  if (files.empty()) files = {"/usr/share/common-licenses/GPL-3"};
  const AdapterSpec adapters = value_or_throw(with_adapter_targets({.rank = 8, .alpha = 16}, "q,k,v,o,gate,up,down"));
  const ModelSpec model = value_or_throw(with_adapters(value_or_throw(find_model("llama-tiny")), adapters));
  const Plan plan = value_or_throw(
      uniform_plan(Strategy<ZeRO<1>, TensorParallel<2>>({.data = 2}), model, {.global_batch = 16, .sequence = 64}));

  // Without TrainOptions::initial the frozen parameters are those of the seed.
  train::TrainOptions options{.steps = 40, .learning_rate = {.peak = 1e-2, .floor = 1e-3, .warmup_steps = 4}};
  options.on_step = [](const train::StepReport& step) {
    if (step.step % 10 == 9) std::printf("step %3d  loss %.3f\n", static_cast<int>(step.step) + 1, step.loss);
  };
  const auto report = value_or_throw(train::fit(plan, model, files, options));
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
