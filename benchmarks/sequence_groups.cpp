// What do sequence-parallel groups that every batch chooses anew (FlexSP) save behind a slow link, against groups that
// stay, and what was predicted?
//
//   benchmark_sequence_groups --data FILE... [--steps N] [--batch N] [--tokens N] [--latency S] [--bandwidth B]
//                             [--ranks N] [--hidden H] [--layers L] [--cluster FILE] [--profile-seconds S]
//
// Trains a Llama on documents of any length (scripts/text_documents makes some), with Ulysses over a link of this
// latency and bandwidth (tests/comm/slow.hpp): with groups of all ranks, with the best groups of one size of each
// batch, and with groups that the solver chooses. The longest document needs all ranks. All runs go on together, a step
// of each after the other; the speed-up is the median of the ratios of one step of two runs.
//
// Predicted is what the planner's prices give for the same documents in the same groups, on the profile of this machine
// with the link in all of its messages.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/data/data.hpp>
#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/pack_plan.hpp>

#include "guarded.hpp"
#include "in_turn.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::in_turn;

struct Arguments {
  std::vector<std::string> data;
  int steps = 40;
  int ranks = 8;
  std::int64_t batch = 64;
  std::int64_t tokens = 512;
  std::int64_t hidden = 128;
  int layers = 4;
  double latency = 1e-4;
  double bandwidth = 50e6;
  std::string cluster;
  double profile_seconds = 35;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--data", a.data, "documents: JSON lines, or a text each (bytes are tokens)")->required();
  app.add_option("--steps", a.steps, "steps to train (default: 40)")->check(CLI::Range(5, 1000000));
  app.add_option("--ranks", a.ranks, "ranks of one core each (default: 8)")->check(CLI::Range(2, 64));
  app.add_option("--batch", a.batch, "documents of a step (default: 64)");
  app.add_option("--tokens", a.tokens, "tokens that a rank holds at once (default: 512)");
  app.add_option("--hidden", a.hidden, "width of the model (default: 128)");
  app.add_option("--layers", a.layers, "layers of the model (default: 4)");
  app.add_option("--latency", a.latency, "of the link, in seconds (default: 1e-4)");
  app.add_option("--bandwidth", a.bandwidth, "of the link, in bytes a second (default: 5e7)");
  app.add_option("--cluster", a.cluster, "a profile of this machine with these ranks (default: it is measured)");
  app.add_option("--profile-seconds", a.profile_seconds, "about how long to measure it (default: 35)");
}

/// A way to choose groups: (rows of a step's documents) -> their packing.
struct Way {
  std::string name;
  train::PackedBatches::Packer pack;
  std::vector<train::StepReport> steps{};
};

/// Seconds of the micro-batches of a packing by the prices of a problem.
double predicted(const train::Packing& packing, const flexsp::Problem& problem, int context) {
  double out = 0;
  for (std::int64_t m = 0; m < packing.microbatches(); ++m) {
    double slowest = problem.floor;
    for (std::int64_t g = 0; g < packing.groups(m); ++g) {
      const train::PackedSequence& sequence = packing.sequence(m, g);
      const int degree = sequence.ranks > 0 ? sequence.ranks : context;
      const auto option = std::ranges::find(problem.options, degree, &flexsp::GroupOption::degree);
      if (option == problem.options.end()) continue;
      double seconds = option->fixed;
      for (const Document& document : sequence.documents)
        if (document.sample != Document::padding) seconds += option->seconds(document.rows);
      slowest = std::max(slowest, seconds);
    }
    out += slowest;
  }
  return out;
}

int report(const Arguments& a) {
  const ModelSpec model = llama("llama", {.layers = a.layers,
                                          .hidden = a.hidden,
                                          .heads = 8,
                                          .kv_heads = 8,
                                          .ffn = a.hidden * 4,
                                          .vocabulary = 256,
                                          .positions = a.tokens * a.ranks,
                                          .head_dim = a.hidden / 8});
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.packed = true;
  plan.global_batch = a.batch;
  plan.sequence_length = a.tokens * a.ranks;
  plan.overlap = false;  // as in every plan for ranks that share cores
  plan.stages = {{0, a.layers - 1, 0, a.ranks}};
  plan.embedding = plan.head = {.sequence = SequenceKind::ulysses,
                                .context = a.ranks,
                                .zero = 3,
                                .groups = SequenceGroupKind::per_batch,
                                .recompute = RecomputeKind::none};
  plan.layers.assign(model.blocks.size(), plan.embedding);
  if (const std::string why = why_unfit(plan, model); !why.empty()) throw Failure(ErrorKind::usage, why);

  const Link link{{a.latency}, a.bandwidth, a.bandwidth, a.bandwidth};
  const Cluster cluster =
      with_link(a.cluster.empty() ? value_or_throw(train::profile_host({.ranks = a.ranks,
                                                                        .threads_per_rank = 1,
                                                                        .precisions = {Precision::fp32},
                                                                        .time_budget = {a.profile_seconds},
                                                                        .models = {model},
                                                                        .accepts_busy = true}))
                                  : value_or_throw(load_cluster(a.cluster)),
                link);
  const flexsp::Problem problem = value_or_throw(group_problem(plan, model, cluster));
  const train::Data data =
      value_or_throw(train::Data::open(std::vector<std::filesystem::path>(a.data.begin(), a.data.end()), model,
                                       {.seed = 1, .documents = train::DocumentOptions{.skip_empty = true}}));
  value_or_throw(train::check_documents(*data.documents(), model, plan.sequence_length));

  const train::PackingOptions all = train::packing_options(plan, model);
  std::vector<Way> ways;
  ways.push_back({"all ranks", [&](std::int64_t, std::span<const std::int64_t> rows) {
                    return value_or_throw(train::pack(rows, all));
                  }});
  ways.push_back({"of one size, chosen for each batch", [&](std::int64_t, std::span<const std::int64_t> rows) {
                    train::Packing best;
                    double least = 0;
                    for (const flexsp::GroupOption& option : problem.options) {
                      if (a.ranks % option.degree != 0 || std::ranges::max(rows) > option.capacity) continue;
                      train::PackingOptions one = all;
                      one.max_tokens = option.capacity;
                      one.groups = a.ranks / option.degree;
                      one.multiple = option.degree;
                      train::Packing packing = value_or_throw(train::pack(rows, one));
                      for (train::PackedSequence& sequence : packing.sequences) sequence.ranks = option.degree;
                      const double seconds = predicted(packing, problem, a.ranks);
                      if (least == 0 || seconds < least) {
                        least = seconds;
                        best = std::move(packing);
                      }
                    }
                    return best;
                  }});
  ways.push_back({"chosen for each batch", [&](std::int64_t, std::span<const std::int64_t> rows) {
                    return train::packing_of(*flexsp::solve(problem, rows), problem, plan.embedding, rows);
                  }});

  std::vector<std::unique_ptr<train::PackedBatches>> batches;
  for (const Way& way : ways)
    batches.push_back(std::make_unique<train::PackedBatches>(*data.documents(), a.batch, way.pack));
  Turns turns(ways.size(), a.ranks);
  train_all(ways.size(), turns, [&](std::size_t i) {
    train::TrainOptions training{.steps = a.steps};
    training.learning_rate.steps = a.steps;
    training.on_step = [&](const train::StepReport& step) { ways[i].steps.push_back(step); };
    train_one(plan, model, *batches[i], training, {a.latency, a.bandwidth}, turns, i);
  });

  const double update = value_or_throw(cost_of(plan, model, cluster)).update.value;
  const auto warm = static_cast<std::size_t>(a.steps / 10 + 1);
  std::printf(
      "%s of %lld x %d on %d ranks and %d cores, %lld documents a step, %lld tokens a rank at once, a link of "
      "%g s and %g MB/s\n\n"
      "| groups | micro-batches | tokens/s | ms a step | predicted | speed-up | predicted | off by | loss |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      model.name.c_str(), static_cast<long long>(a.hidden), a.layers, a.ranks, cluster.cores,
      static_cast<long long>(a.batch), static_cast<long long>(a.tokens), a.latency, 1e-6 * a.bandwidth);
  double first_expected = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Way& way = ways[i];
    double expected = 0, tokens = 0, seconds = 0, microbatches = 0;
    std::vector<double> ratios;
    const auto count = static_cast<double>(way.steps.size() - warm);
    for (std::size_t step = warm; step < way.steps.size(); ++step) {
      const auto packing = batches[i]->packing(static_cast<std::int64_t>(step));
      expected += (predicted(*packing, problem, a.ranks) + update) / count;
      microbatches += static_cast<double>(packing->microbatches()) / count;
      tokens += static_cast<double>(way.steps[step].tokens);
      seconds += turns.seconds(i)[step];
      ratios.push_back(turns.seconds(0)[step] / turns.seconds(i)[step]);
    }
    if (i == 0) first_expected = expected;
    const double speedup = median(ratios);
    std::printf("| %s | %.1f | %.0f | %.0f | %.0f |", way.name.c_str(), microbatches, tokens / seconds,
                1e3 * seconds / count, 1e3 * expected);
    if (i == 0)
      std::printf(" | | |");
    else
      std::printf(" %.2f | %.2f | %+.0f %% |", speedup, first_expected / expected,
                  100 * (first_expected / expected / speedup - 1));
    std::printf(" %.3f |\n", way.steps.back().loss);
  }
  std::printf("\ngroups of the last step: %s\n", ways.back().steps.back().packed->groups.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_sequence_groups", "What groups of every batch save.", argc, argv, options, report);
}
