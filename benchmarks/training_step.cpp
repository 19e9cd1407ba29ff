// Seconds of a training step on one rank, for benchmarks/peers/compare.sh.
//
//   benchmark_training_step MODEL BATCH SEQUENCE fp32|bf16 STEPS [THREADS]
//
// MODEL is a preset, or LAYERSxHIDDENxHEADSxVOCABULARY for a GPT. Prints one line: the median of the steps after the
// first, tokens per second, and the bytes of the rank's arena.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <galvatron/model/huggingface.hpp>
#include <galvatron/train/trainer.hpp>

#include "cheap_tokens.hpp"
#include "guarded.hpp"

namespace {

using namespace galvatron;

ModelSpec model_named(const std::string& name) {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int vocabulary = 0;
  if (std::sscanf(name.c_str(), "%dx%dx%dx%d", &layers, &hidden, &heads, &vocabulary) != 4)
    return value_or_throw(load_model(name));
  return gpt(name, {.layers = layers, .hidden = hidden, .heads = heads, .vocabulary = vocabulary, .positions = 1024});
}

int benchmark(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: benchmark_training_step MODEL BATCH SEQUENCE fp32|bf16 STEPS [THREADS]\n");
    return 2;
  }
  const ModelSpec model = model_named(argv[1]);
  Plan plan;
  plan.model = argv[1];
  plan.cluster = "host";
  plan.global_batch = std::atoi(argv[2]);
  plan.sequence_length = std::atoi(argv[3]);
  plan.precision = std::string(argv[4]) == "bf16" ? Precision::bf16 : Precision::fp32;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, 1}};
  plan.layers.assign(model.blocks.size(), {});
  CheapTokens tokens(model.vocabulary());
  train::TrainOptions options;
  options.steps = std::atoi(argv[5]);
  options.threads_per_rank = argc > 6 ? std::atoi(argv[6]) : 0;
  options.learning_rate = {.peak = 3e-4, .floor = 3e-4, .warmup_steps = 0, .steps = options.steps};
  const train::TrainReport report = train::train<TypeList<Strategy<>>>(plan, model, tokens, options);
  std::printf("%.6f s/step %.1f tokens/s %lld bytes\n", report.iteration_seconds,
              static_cast<double>(plan.global_batch * plan.sequence_length) / report.iteration_seconds,
              static_cast<long long>(report.measured_memory[0].total().count));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return guarded("benchmark_training_step", argc, argv, benchmark); }
