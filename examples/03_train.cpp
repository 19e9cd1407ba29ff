// 03: train with a strategy that is named as a type, with headers alone. Needs galvatron::host (oneDNN, OpenMP); the
// other examples that train take the compiled trainer, in about half of the time to compile.
//
//   example_03_train [FILE...]      any text; every byte is a token
#include <cstdio>
#include <filesystem>
#include <vector>

#include <galvatron/galvatron.hpp>

using namespace galvatron;

// 4 ranks: pairs share the heads and the MLP of each layer, two pairs work on different samples, and what they keep of
// a layer is cut in two as well. Backward computes activations again. The program instantiates nothing else.
using Split = Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>>;

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> files(argv + 1, argv + argc);
  if (files.empty()) files = {"/usr/share/common-licenses/GPL-3"};
  const ModelSpec model = value_or_throw(find_model("gpt2-tiny"));
  const Plan plan = value_or_throw(uniform_plan(Split({.data = 2}), model, {.global_batch = 16, .sequence = 64}));

  train::TrainOptions options{.steps = 40, .learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = 4}};
  options.on_step = [](const train::StepReport& step) {
    if (step.step % 10 == 9) std::printf("step %3d  loss %.3f\n", static_cast<int>(step.step) + 1, step.loss);
  };
  const auto report = value_or_throw(train::fit<Split>(plan, model, files, options));

  for (int rank = 0; rank < plan.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    std::printf("rank %d planned %s, used %s\n", rank, format_bytes(report.planned_memory[at].total()).c_str(),
                format_bytes(report.measured_memory[at].total()).c_str());
  }
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
