// What does compressed dispatch of tokens to experts (LSH-MoE) save behind a slow link, what was predicted, and what
// does it cost in loss?
//
//   benchmark_expert_dispatch --data FILE... [--steps N] [--latency S] [--bandwidth B] [--model M] [--batch N]
//                             [--seq N] [--widths P...] [--cluster FILE] [--profile-seconds S]
//
// Trains a model with experts on four ranks of this machine, whose tokens go to experts on all of them (ep 4), over a
// link of this latency and bandwidth (tests/comm/slow.hpp): with plain dispatch, and compressed with 6 hashes of
// several widths with the residual on, off and scaled. All runs go on together, one step of each after the other, so
// that what else the machine does meets all of them alike: the time saved is the median of the differences of one
// step of two runs.
//
// Predicted is the iteration that the planner's prices give for the same plan, on the profile of this machine with the
// link in all of its messages, for the imbalance of the ranks' loads and the compression rate that were measured.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/profile/host.hpp>
#include <galvatron/train/compiled.hpp>

#include "guarded.hpp"
#include "in_turn.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::in_turn;

struct Arguments {
  std::vector<std::string> data;
  std::string model = "moe-tiny";
  int steps = 200;
  std::int64_t batch = 16;
  std::int64_t sequence = 128;
  double latency = 1e-4;
  double bandwidth = 50e6;
  std::vector<int> widths{4, 16};
  std::string cluster;
  double profile_seconds = 35;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--data", a.data, "texts (bytes are tokens)")->required();
  app.add_option("--model", a.model, "a preset with experts (default: moe-tiny)");
  app.add_option("--steps", a.steps, "steps to train (default: 200)")->check(CLI::Range(10, 1000000));
  app.add_option("--batch", a.batch, "samples of a step (default: 16)");
  app.add_option("--seq", a.sequence, "tokens of a sample (default: 128)");
  app.add_option("--latency", a.latency, "of the link, in seconds (default: 1e-4)");
  app.add_option("--bandwidth", a.bandwidth, "of the link, in bytes a second (default: 5e7)");
  app.add_option("--widths", a.widths, "numbers that a hash chooses from (default: 4 16)");
  app.add_option("--cluster", a.cluster, "a profile of this machine with 4 ranks (default: it is measured)");
  app.add_option("--profile-seconds", a.profile_seconds, "about how long to measure it (default: 35)");
}

constexpr int ranks = 4;

struct Run {
  std::string name;
  ModelSpec model;
  Plan plan;
  std::vector<train::StepReport> steps{};

  /// The mean over the last `count` steps of what `of` tells.
  template <class F>
  [[nodiscard]] double mean(std::size_t count, const F& of) const {
    double sum = 0;
    for (std::size_t i = steps.size() - count; i < steps.size(); ++i) sum += of(steps[i]);
    return sum / static_cast<double>(count);
  }
};

Plan plan_of(const Arguments& a, const ModelSpec& model, DispatchKind dispatch, const LshOptions& lsh) {
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.global_batch = a.batch;
  plan.sequence_length = a.sequence;
  plan.overlap = false;           // as in every plan for ranks that share cores
  plan.expert_imbalance = ranks;  // the experts compute all in one round
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, ranks}};
  for (const LayerSpec& block : model.blocks)
    plan.layers.push_back(block.experts > 0 ? StrategySpec{.data = ranks, .expert = ranks, .dispatch = dispatch}
                                            : StrategySpec{.data = ranks});
  plan.embedding = plan.head = {.data = ranks};
  plan.lsh = lsh;
  if (const std::string why = why_unfit(plan, model); !why.empty()) throw Failure(ErrorKind::usage, why);
  return plan;
}

std::vector<Run> runs_of(const Arguments& a) {
  const ModelSpec model = value_or_throw(load_model(a.model));
  std::vector<Run> out{{"plain", model, plan_of(a, model, DispatchKind::plain, {})}};
  for (const int width : a.widths)
    for (const ResidualKind residual : residual_kinds) {
      const LshOptions lsh{.width = width, .residual = residual};
      const ModelSpec with_gains = with_dispatch(model, lsh);
      out.push_back({"p = " + std::to_string(width) + ", residual " + name_of(residual), with_gains,
                     plan_of(a, with_gains, DispatchKind::lsh, lsh)});
    }
  return out;
}

void train_in_turn(const Arguments& a, std::vector<Run>& runs, Turns& turns) {
  train_all(runs.size(), turns, [&](std::size_t i) {
    Run& run = runs[i];
    const train::Data data =
        value_or_throw(train::Data::open(std::vector<std::filesystem::path>(a.data.begin(), a.data.end()), run.model,
                                         {.sequence = a.sequence, .seed = 1}));
    train::TrainOptions training{.steps = a.steps, .counts_loads = true};
    training.learning_rate.steps = a.steps;
    training.on_step = [&run](const train::StepReport& step) { run.steps.push_back(step); };
    in_turn::train_one(run.plan, run.model, *data.batches(run.plan.global_batch), training, {a.latency, a.bandwidth},
                       turns, i);
  });
}

/// This machine, with the link in all messages between its ranks.
Cluster cluster_of(const Arguments& a, const ModelSpec& model) {
  const Link link{{a.latency}, a.bandwidth, a.bandwidth, a.bandwidth};
  if (!a.cluster.empty()) return with_link(value_or_throw(load_cluster(a.cluster)), link);
  return with_link(value_or_throw(train::profile_host({.ranks = ranks,
                                                       .threads_per_rank = 1,
                                                       .precisions = {Precision::fp32},
                                                       .time_budget = {a.profile_seconds},
                                                       .models = {model},
                                                       .accepts_busy = true})),
                   link);
}

/// Choices of the rank that has most for its experts, over the mean: of a step, the mean of its layers.
double imbalance_of_ranks(const train::StepReport& step) {
  double sum = 0;
  for (const train::ExpertLoads& layer : step.loads) {
    std::vector<double> of_rank(ranks);
    double all = 0;
    for (std::size_t e = 0; e < layer.choices.size(); ++e) {
      of_rank[e * ranks / layer.choices.size()] += static_cast<double>(layer.choices[e]);
      all += static_cast<double>(layer.choices[e]);
    }
    sum += std::ranges::max(of_rank) * ranks / all / static_cast<double>(step.loads.size());
  }
  return sum;
}

PlanCost predicted(const Run& run, const Cluster& cluster, double rate, double imbalance) {
  Plan plan = run.plan;
  plan.expert_imbalance = imbalance;
  if (rate > 0) plan.lsh.rate = rate;
  return value_or_throw(cost_of(plan, run.model, cluster));
}

int report(const Arguments& a) {
  std::vector<Run> runs = runs_of(a);
  const Cluster cluster = cluster_of(a, runs.front().model);
  Turns turns(runs.size(), ranks);
  train_in_turn(a, runs, turns);

  const std::size_t warm = runs.front().steps.size() / 10;  // steps before those that count
  const std::size_t timed = runs.front().steps.size() - warm;
  const double imbalance = runs.front().mean(timed, imbalance_of_ranks);
  std::printf(
      "%s, %d steps of %lld x %lld tokens, %d ranks on %d cores, a link of %g s and %g MB/s; the rank that has most "
      "gets %.2f times the mean\n\n"
      "| dispatch | MB a rank sends to experts in a step | ms a step | predicted | ms saved | predicted | off by | "
      "loss | rate | error | ms hashing |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
      runs.front().model.name.c_str(), a.steps, static_cast<long long>(a.batch), static_cast<long long>(a.sequence),
      ranks, cluster.cores, a.latency, 1e-6 * a.bandwidth, imbalance);
  const auto timed_seconds = [&](std::size_t run) {
    return std::vector<double>(turns.seconds(run).begin() + static_cast<std::ptrdiff_t>(warm),
                               turns.seconds(run).end());
  };
  const double plain = predicted(runs.front(), cluster, 0, imbalance).iteration.value;
  const std::vector<double> plain_seconds = timed_seconds(0);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const std::size_t last = std::max<std::size_t>(run.steps.size() / 10, 1);
    const double rate = run.mean(timed, [](const auto& step) { return step.dispatch.rate(); });
    const double expected = predicted(run, cluster, rate, run.mean(timed, imbalance_of_ranks)).iteration.value;
    const std::vector<double> seconds = timed_seconds(i);
    std::printf("| %s | %.2f | %.0f | %.0f |", run.name.c_str(),
                1e-6 * run.mean(timed, [](const auto& step) { return step.dispatch.bytes; }) / ranks,
                1e3 * median(seconds), 1e3 * expected);
    if (i == 0) {
      std::printf(" | | |");
    } else {
      std::vector<double> saved;
      for (std::size_t step = 0; step < seconds.size(); ++step) saved.push_back(plain_seconds[step] - seconds[step]);
      const double measured = median(saved);
      std::printf(" %.0f | %.0f | %+.0f %% |", 1e3 * measured, 1e3 * (plain - expected),
                  100 * ((plain - expected) / measured - 1));
    }
    std::printf(" %.3f |", run.mean(last, [](const auto& step) { return step.loss; }));
    if (i == 0)
      std::printf(" | | |\n");
    else
      std::printf(" %.3f | %.3f | %.1f |\n", rate,
                  run.mean(last, [](const auto& step) { return step.dispatch.error(); }),
                  1e3 * run.mean(timed, [](const auto& step) { return step.dispatch.hashing_seconds; }));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_expert_dispatch", "What compressed dispatch to experts saves, and costs.", argc, argv,
                 options, report);
}
