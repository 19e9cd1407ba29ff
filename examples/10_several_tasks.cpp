// 10: train a model of several tasks in waves. Needs galvatron::trainer (oneDNN, OpenMP).
#include <galvatron/galvatron.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;
using I = std::int64_t;
struct Things final : train::BatchSource {  // of 64 kinds: words are the number of the kind, patches its bits
  void inputs(I step, I first, I samples, train::SequenceRange, View<std::int32_t> out) override {
    for (I i = 0; i < out.count; ++i) out[i] = static_cast<std::int32_t>((5 * step + first + i % samples) % 64);
  }
  void patches(I step, I first, I samples, train::SequenceRange range, View<float> out) override {
    const I width = out.count / (range.count * samples);
    for (I i = 0; i < out.count; ++i)
      out[i] = ((5 * step + first + i / width % samples) >> i % width % 6) % 2 == 0 ? -1.0F : 1.0F;
  }
  void targets(I, I, I, train::SequenceRange, View<std::int32_t>) override {}
} things;
int main() try {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));  // four tasks of two towers each
  const WavePlan plan = plan_by_levels(model, value_or_throw(task_graphs(model)), 4);
  const std::vector<train::TaskSources> data(model.tasks.size(),
                                             {&things, &things});  // both towers see the same things
  const auto steps = train::train_tasks<Tasks<in_waves>>(model, plan, data, {.steps = 200}).steps;
  for (std::size_t i = 0; i < model.tasks.size(); ++i)
    std::printf("%-13s %.2f -> %.2f\n", model.tasks[i].name.c_str(), steps.front().losses[i], steps.back().losses[i]);
  return steps.back().loss < steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
