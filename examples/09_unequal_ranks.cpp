// 09: train on ranks of unequal speed and memory, each with as many samples and as much of ZeRO's states as suit it.
#include <cstdio>

#include <galvatron/galvatron.hpp>
#include <galvatron/train/compiled.hpp>

using namespace galvatron;

// Four data ranks; how much each has is decided when the program runs.
using Uneven = Strategy<DataParallel<4>, ZeRO<2>, Shards<by_ratio>>;

int main() try {
  const ModelSpec model = gpt("gpt", {.layers = 2, .hidden = 64, .heads = 4, .vocabulary = 256, .positions = 64});
  const UniformOptions shares{.global_batch = 16, .sample_ratios = {1, 1, 2, 4}, .state_ratios = {3, 1, 0, 4}};
  const Plan plan = value_or_throw(uniform_plan(Uneven{}, model, shares));
  for (int rank = 0; rank < 4; ++rank) {
    const cost::StageMemory memory = train::memory_of(train::stage_plan(plan, model, rank), Bytes{});
    std::printf("rank %d: states %s, activations %s\n", rank, format_bytes(memory.states).c_str(),
                format_bytes(memory.stash).c_str());
  }
  train::TrainOptions options{.steps = 20, .learning_rate = {.peak = 1e-3, .floor = 1e-4}};
  const auto report = value_or_throw(train::fit<Uneven>(plan, model, {"/usr/share/common-licenses/GPL-3"}, options));
  std::printf("loss %.3f to %.3f\n", report.steps.front().loss, report.steps.back().loss);
  return report.steps.back().loss < report.steps.front().loss ? 0 : 1;
} catch (...) {
  return report_exception();
}
