// What does compressed dispatch of tokens to experts (LSH-MoE) save behind a slow link, and what does it cost in loss?
//
//   benchmark_expert_dispatch --data FILE... [--steps N] [--latency S] [--bandwidth B] [--model M] [--batch N]
//                             [--seq N] [--widths P...]
//
// Trains a model with experts on four ranks of this machine, whose tokens go to experts on all of them (ep 4), over a
// link of this latency and bandwidth (tests/comm/slow.hpp): with plain dispatch, and compressed with 6 hashes of
// several widths with the residual on, off and scaled. Tells the bytes that a rank sends to experts and back in a step,
// the median seconds of a step, the mean loss of the last tenth of the steps, and of compressed dispatch the rows that
// were sent over those that were not, and the distances of tokens from their means over the tokens, as roots of sums of
// squares.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/compiled.hpp>

#include "../tests/comm/slow.hpp"
#include "guarded.hpp"

namespace {

using namespace galvatron;

struct Arguments {
  std::vector<std::string> data;
  std::string model = "moe-tiny";
  int steps = 200;
  std::int64_t batch = 16;
  std::int64_t sequence = 128;
  double latency = 1e-4;
  double bandwidth = 50e6;
  std::vector<int> widths{4, 16};
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--data", a.data, "texts (bytes are tokens)")->required();
  app.add_option("--model", a.model, "a preset with experts (default: moe-tiny)");
  app.add_option("--steps", a.steps, "steps to train (default: 200)");
  app.add_option("--batch", a.batch, "samples of a step (default: 16)");
  app.add_option("--seq", a.sequence, "tokens of a sample (default: 128)");
  app.add_option("--latency", a.latency, "of the link, in seconds (default: 1e-4)");
  app.add_option("--widths", a.widths, "numbers that a hash chooses from (default: 4 16)");
  app.add_option("--bandwidth", a.bandwidth, "of the link, in bytes a second (default: 5e7)");
}

constexpr int ranks = 4;

Plan plan_of(const Arguments& a, const ModelSpec& model, DispatchKind dispatch, const LshOptions& lsh) {
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.global_batch = a.batch;
  plan.sequence_length = a.sequence;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, ranks}};
  for (const LayerSpec& block : model.blocks)
    plan.layers.push_back(block.experts > 0 ? StrategySpec{.data = ranks, .expert = ranks, .dispatch = dispatch}
                                            : StrategySpec{.data = ranks});
  plan.embedding = plan.head = {.data = ranks};
  plan.lsh = lsh;
  return plan;
}

void run(const Arguments& a, const ModelSpec& plain_model, const train::Data& data, const std::string& name,
         DispatchKind dispatch, const LshOptions& lsh) {
  const ModelSpec model = with_dispatch(plain_model, lsh);
  const Plan plan = plan_of(a, model, dispatch, lsh);
  if (const std::string why = why_unfit(plan, model); !why.empty()) throw Failure(ErrorKind::usage, why);
  train::TrainOptions training{.steps = a.steps};
  training.learning_rate.steps = a.steps;
  std::int64_t posted = 0;
  const auto batches = data.batches(plan.global_batch);
  const train::TrainReport report =
      train::detail::train_ranks<InstantiatedStrategies>(plan, model, *batches, training, [&](const auto& train_one) {
        comm::thread::run(
            ranks,
            [&](comm::thread::World& inner) {
              comm::slow::World world(inner, {a.latency, a.bandwidth});
              train_one(static_cast<comm::World&>(world), train::HostPlatform{1});
              if (world.rank() == 0) posted = world.posted();
            },
            training.world);
      });
  double loss = 0;
  double rate = 0;
  double error = 0;
  const std::size_t last = std::max<std::size_t>(report.steps.size() / 10, 1);
  for (std::size_t i = report.steps.size() - last; i < report.steps.size(); ++i) {
    loss += report.steps[i].loss / static_cast<double>(last);
    rate += report.steps[i].lsh_rate / static_cast<double>(last);
    error += report.steps[i].lsh_error / static_cast<double>(last);
  }
  std::printf("| %s | %.3f | %.1f | %.4f |", name.c_str(), 1e-6 * static_cast<double>(posted) / a.steps,
              1e3 * report.iteration_seconds, loss);
  dispatch == DispatchKind::lsh ? std::printf(" %.3f | %.3f |\n", rate, error) : std::printf(" | |\n");
  std::fflush(stdout);
}

int report(const Arguments& a) {
  const ModelSpec model = value_or_throw(load_model(a.model));
  const train::Data data = value_or_throw(train::Data::open(
      std::vector<std::filesystem::path>(a.data.begin(), a.data.end()), model, {.sequence = a.sequence, .seed = 1}));
  std::printf("%s, %d steps of %lld x %lld tokens, %d ranks, a link of %g s and %g MB/s\n\n", model.name.c_str(),
              a.steps, static_cast<long long>(a.batch), static_cast<long long>(a.sequence), ranks, a.latency,
              1e-6 * a.bandwidth);
  std::printf("| dispatch | MB a step | ms a step | loss | rate | error |\n|---|---|---|---|---|---|\n");
  run(a, model, data, "plain", DispatchKind::plain, {});
  for (const int width : a.widths)
    for (const ResidualKind residual : residual_kinds)
      run(a, model, data, "p = " + std::to_string(width) + ", residual " + name_of(residual), DispatchKind::lsh,
          {.width = width, .residual = residual});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_expert_dispatch", "What compressed dispatch to experts saves, and costs.", argc, argv,
                 options, report);
}
