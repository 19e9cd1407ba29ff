// 07: train a mixture of experts over 4 ranks, with the strategy as a type. Needs galvatron::trainer.
#include <cstdio>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;

// Attention: 2 tensor ranks, 2 data ranks. Experts: 4 ranks with 2 of the 8 experts each, whole ones.
using Folded = Strategy<TensorParallel<2>, SequenceParallel<megatron>, ExpertParallel<4, 1>>;

int main(int argc, char** argv) try {
  const ModelSpec model = value_or_throw(find_model("moe-tiny"));
  const Plan plan = value_or_throw(uniform_plan(Folded({.data = 2}), model, {.global_batch = 16, .sequence = 64}));
  train::TrainOptions options{.steps = 40, .learning_rate = {.peak = 1e-3, .floor = 1e-4}, .counts_loads = true};
  options.on_step = [](const train::StepReport& step) {
    if (step.step % 10 != 9) return;
    std::printf("step %2d  loss %.3f  largest load over the mean:", static_cast<int>(step.step) + 1, step.loss);
    for (const train::ExpertLoads& layer : step.loads) std::printf(" %.2f", layer.imbalance());
    std::printf("\n");
  };
  const char* file = argc > 1 ? argv[1] : "/usr/share/common-licenses/GPL-3";  // every byte is a token
  const auto report = value_or_throw(train::fit<Folded>(plan, model, {file}, options));
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
