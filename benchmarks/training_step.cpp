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

struct Arguments {
  std::string model;
  std::string precision;
  int batch = 0;
  int sequence = 0;
  int steps = 0;
  int threads = 0;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("model", a.model, "a preset, or LAYERSxHIDDENxHEADSxVOCABULARY")->required();
  app.add_option("batch", a.batch, "sequences of a step")->required()->check(CLI::PositiveNumber);
  app.add_option("sequence", a.sequence, "tokens of a sequence")->required()->check(CLI::PositiveNumber);
  app.add_option("precision", a.precision, "fp32 or bf16")->required()->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("steps", a.steps, "steps; the first does not count")->required()->check(CLI::Range(2, 100000));
  app.add_option("threads", a.threads, "of the rank; 0: all cores")->check(CLI::NonNegativeNumber);
}

int benchmark(const Arguments& a) {
  const ModelSpec model = model_named(a.model);
  Plan plan;
  plan.model = a.model;
  plan.cluster = "host";
  plan.global_batch = a.batch;
  plan.sequence_length = a.sequence;
  plan.precision = a.precision == "bf16" ? Precision::bf16 : Precision::fp32;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, 1}};
  plan.layers.assign(model.blocks.size(), {});
  CheapTokens tokens(model.vocabulary());
  train::TrainOptions train_options;
  train_options.steps = a.steps;
  train_options.threads_per_rank = a.threads;
  train_options.learning_rate = {.peak = 3e-4, .floor = 3e-4, .warmup_steps = 0, .steps = a.steps};
  const train::TrainReport report = train::train<TypeList<Strategy<>>>(plan, model, tokens, train_options);
  std::printf("%.6f s/step %.1f tokens/s %lld bytes\n", report.iteration_seconds,
              static_cast<double>(plan.global_batch * plan.sequence_length) / report.iteration_seconds,
              static_cast<long long>(report.measured_memory[0].total().count));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_training_step", "Time of a training step on one rank of this machine.", argc, argv, options,
                 benchmark);
}
