// What operations and training steps reach on one GPU, beside what bounds them: the peak that is named for products and
// attention, the copy of the same run for everything else.
//
//   benchmark_gpu [--seconds S] [--peak TFLOPS] [--steps N]
//
// Without a GPU it says so and exits with 77.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/strategy/compose.hpp>
#include <galvatron/train/detail/profile_compute.hpp>
#include <galvatron/train/gpus.hpp>

#include "cheap_tokens.hpp"
#include "guarded.hpp"

namespace {

using namespace galvatron;
using Bench = train::detail::Bench<train::CudaPlatform>;

struct Arguments {
  double least = 0.02;
  double peak = 989;
  int steps = 8;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--seconds", a.least, "for each operation (default: 0.02)")->check(CLI::PositiveNumber);
  app.add_option("--peak", a.peak, "TFLOP/s of the card in bf16 (default: 989, an H100 SXM)")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", a.steps, "of each training run; the first does not count (default: 8)")
      ->check(CLI::Range(2, 1000));
}

void operations(const Arguments& a) {
  train::detail::on_one_gpu(1, 0, {}, [&](train::OneGpuWorld&, const train::CudaPlatform& platform) {
    Bench bench(platform, {.pool_bytes = std::int64_t{2} << 30, .near_bytes = std::int64_t{8} << 20});
    std::printf("%-44s %12s %12s %8s\n", "operation, bf16", "microseconds", "rate", "of roof");
    const auto computes = [&](const std::string& name, double flops, double seconds) {
      std::printf("%-44s %12.1f %7.1f TF/s %7.1f%%\n", name.c_str(), seconds * 1e6, flops / seconds * 1e-12,
                  flops / seconds * 1e-10 / a.peak);
    };
    const std::int64_t tokens = 16384;
    for (const std::int64_t hidden : {std::int64_t{768}, std::int64_t{1600}, std::int64_t{4096}})
      for (const auto& [layout, n, k] :
           {std::tuple(GemmLayout::nt, 4 * hidden, hidden), std::tuple(GemmLayout::nn, hidden, 4 * hidden)}) {
        const std::string shape = std::to_string(tokens) + " x " + std::to_string(n) + " x " + std::to_string(k);
        computes("product " + std::string(name_of(layout)) + " " + shape,
                 2.0 * static_cast<double>(tokens) * static_cast<double>(n) * static_cast<double>(k),
                 bench.gemm<bfloat16>(layout, tokens, n, k, a.least));
      }
    for (const std::int64_t hidden : {std::int64_t{768}, std::int64_t{1600}, std::int64_t{4096}}) {
      const double flops =
          8.0 * static_cast<double>(hidden) * static_cast<double>(hidden) * static_cast<double>(tokens);
      computes(
          "product tn " + std::to_string(4 * hidden) + " x " + std::to_string(hidden) + " x " + std::to_string(tokens),
          flops, bench.gemm<bfloat16>(GemmLayout::tn, 4 * hidden, hidden, tokens, a.least));
    }
    for (const auto& [length, head_dim, heads] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1024, 64, 192}, {4096, 128, 64}, {8192, 128, 32}})
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        // Causal: half of the scores.
        const double flops = (pass == Pass::forward ? 2.0 : 5.0) * static_cast<double>(length * length) *
                             static_cast<double>(head_dim * heads);
        computes("attention " + std::string(name_of(pass)) + " " + std::to_string(length) + ", " +
                     std::to_string(heads) + " heads of " + std::to_string(head_dim),
                 flops, bench.attention<bfloat16>(pass, length, head_dim, heads, a.least));
      }
    const std::int64_t copied = std::int64_t{1} << 28;
    const double copy =
        2.0 * static_cast<double>(copied) / bench.memory_bound<bfloat16>(MemoryBound::copy, copied, 1, a.least);
    struct Moved {
      MemoryBound kind;
      std::int64_t rows;
      std::int64_t columns;
      double bytes;  ///< of an element
    };
    // Bytes that each reads and writes at least, in bf16 with states in float.
    for (const Moved& moved : std::vector<Moved>{{MemoryBound::copy, copied, 1, 2},
                                                 {MemoryBound::fill, copied, 1, 1},
                                                 {MemoryBound::add, 1 << 25, 1, 6},
                                                 {MemoryBound::norm_forward, tokens, 1600, 4},
                                                 {MemoryBound::norm_backward, tokens, 1600, 8},
                                                 {MemoryBound::norm_forward, tokens, 4096, 4},
                                                 {MemoryBound::norm_backward, tokens, 4096, 8},
                                                 {MemoryBound::activation_forward, tokens, 4096, 4},
                                                 {MemoryBound::activation_backward, tokens, 4096, 6},
                                                 {MemoryBound::rotary, tokens, 4096, 4},
                                                 {MemoryBound::bias_gradient, tokens, 4096, 2},
                                                 {MemoryBound::embedding_forward, tokens, 4096, 4},
                                                 {MemoryBound::embedding_backward, tokens, 4096, 6},
                                                 {MemoryBound::softmax_statistics, 4096, 16384, 2},
                                                 {MemoryBound::softmax_backward, 4096, 16384, 4},
                                                 {MemoryBound::adamw, 1 << 26, 1, 30},
                                                 {MemoryBound::norm_squared, 1 << 26, 1, 4}}) {
      const double bytes = moved.bytes * static_cast<double>(moved.rows) * static_cast<double>(moved.columns);
      const double seconds = bench.memory_bound<bfloat16>(moved.kind, moved.rows, moved.columns, a.least);
      std::printf(
          "%-44s %12.1f %7.0f GB/s %7.1f%%\n",
          (std::string(name_of(moved.kind)) + " " + std::to_string(moved.rows) + " x " + std::to_string(moved.columns))
              .c_str(),
          seconds * 1e6, bytes / seconds * 1e-9, 100 * bytes / seconds / copy);
    }
  });
}

void steps(const Arguments& a) {
  struct Run {
    const char* model;
    std::int64_t batch;
    std::int64_t sequence;
    int blocks;  ///< the first ones; 0: all
  };
  std::printf("\n%-32s %12s %12s %12s %8s\n", "training step, bf16", "ms", "tokens/s", "GiB", "MFU");
  for (const Run& run : {Run{"gpt2-124m", 16, 1024, 0}, Run{"gpt2-1.5b", 8, 1024, 0}, Run{"llama2-7b", 4, 4096, 4}}) {
    ModelSpec model = value_or_throw(find_model(run.model));
    if (run.blocks > 0) {
      model.blocks.resize(static_cast<std::size_t>(run.blocks));
      for (LayerSpec& block : model.blocks) block.layers = run.blocks;
    }
    Plan plan;
    plan.model = run.model;
    plan.cluster = "cuda";
    plan.global_batch = run.batch;
    plan.sequence_length = run.sequence;
    plan.precision = Precision::bf16;
    plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, 1}};
    plan.layers.assign(model.blocks.size(), {});
    CheapTokens tokens(model.vocabulary());
    train::TrainOptions train_options;
    train_options.steps = a.steps;
    train_options.learning_rate = {.peak = 3e-4, .floor = 3e-4, .warmup_steps = 0, .steps = a.steps};
    const auto report = train::train_on_gpu<TypeList<Strategy<>>>(plan, model, tokens, train_options);
    const double seconds = report.iteration_seconds;
    const double done = model_flops(model, run.batch, run.sequence).count;
    const std::string name = std::string(run.model) +
                             (run.blocks > 0 ? ", " + std::to_string(run.blocks) + " blocks" : "") + ", " +
                             std::to_string(run.batch) + " x " + std::to_string(run.sequence);
    std::printf("%-32s %12.2f %12.0f %12.2f %7.1f%%\n", name.c_str(), seconds * 1e3,
                static_cast<double>(run.batch * run.sequence) / seconds,
                static_cast<double>(report.measured_memory[0].total().count) / (1 << 30),
                done / seconds * 1e-10 / a.peak);
  }
}

int benchmark(const Arguments& a) {
  if (const auto count = device::cuda::device_count(); !count) {
    std::printf("skipped: %s\n", count.error().message.c_str());
    return 77;
  }
  std::printf("%s\n", device::cuda::describe_device(0).name.c_str());
  operations(a);
  steps(a);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_gpu", "Operations and training steps on one GPU.", argc, argv, options, benchmark);
}
