// Is the planner right? Measures every plan of a small model on this machine's ranks and compares with the predictions.
//
//   benchmark_planner [--cluster cluster.json] [--ranks 4] [--space runnable] [--rounds 8] [--steps 4]
//                     [--out plans.csv]
//
// Every strategy of the space that all layers can share, with every pipeline degree, number of micro-batches and
// schedule, is trained for a few steps, in `rounds` rounds about a minute apart. Other programs and a slower phase of a
// shared machine only ever add time, so the fastest round counts, as the fastest sweep does in the profile. A run
// during which other programs took more than 3 % of the cores is repeated, at most four times. Under three memory
// budgets the search chooses; a plan of its that is none of those is measured with them. Printed: for every budget the
// chosen plan against the fastest measured that fits, Spearman's correlation of predicted and measured times, and the
// median absolute error. Without --cluster the machine is profiled first.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/cluster/json.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/profile/host.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/train/compiled.hpp>

#include "cheap_tokens.hpp"
#include "guarded.hpp"

namespace {

using namespace galvatron;

constexpr std::int64_t global_batch = 8;
constexpr std::int64_t sequence = 64;

struct Candidate {
  Plan plan;
  double predicted = 0;
  Bytes peak;
  double measured = INFINITY;  // seconds
};

std::vector<Candidate> candidates(const ModelSpec& model, const Cluster& cluster, int ranks, const Space& space) {
  std::vector<Candidate> out;
  const int blocks = static_cast<int>(model.blocks.size());
  for (const int stages : pipeline_degrees(space, ranks)) {
    if (stages > blocks) continue;
    for (const StrategySpec& spec : strategies(space, ranks / stages)) {
      for (int microbatches = 1; microbatches <= 8; microbatches *= 2)
        for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe}) {
          if (schedule == ScheduleKind::gpipe && (stages == 1 || microbatches == 1)) continue;  // the same as 1f1b
          Candidate c;
          c.plan.model = model.name;
          c.plan.cluster = cluster.name;
          c.plan.global_batch = global_batch;
          c.plan.sequence_length = sequence;
          c.plan.precision = Precision::fp32;
          c.plan.overlap = cost::can_overlap(cluster);
          c.plan.microbatches = microbatches;
          c.plan.schedule = schedule;
          c.plan.stages = even_stages(blocks, stages, 1, ranks / stages);
          c.plan.layers.assign(model.blocks.size(), spec);
          c.plan.embedding = c.plan.head = spec;
          c.plan.embedding.recompute = c.plan.head.recompute = RecomputeKind::cheap;
          const Result<PlanCost> cost = cost_of(c.plan, model, cluster);
          if (!cost) continue;
          c.predicted = cost->iteration.value;
          c.peak = cost->peak();
          out.push_back(std::move(c));
        }
    }
  }
  return out;
}

// The least of what `measure` returns until it was left alone, at most five times.
template <class Measure>
double undisturbed(const Measure& measure) {
  double least = INFINITY;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const CoreWatch watch;
    least = std::min(least, measure());
    if (watch.others().value_or(0) < 0.03) break;
  }
  return least;
}

// The median of all steps but the first.
double seconds_of(const Candidate& candidate, const ModelSpec& model, int steps) {
  CheapTokens tokens(model.vocabulary());
  train::TrainOptions options;
  options.steps = steps;
  options.learning_rate = {.peak = 1e-3, .floor = 1e-3, .warmup_steps = 0, .steps = steps};
  const train::TrainReport report = train::train(candidate.plan, model, tokens, options);
  for (const cost::StageMemory& memory : report.measured_memory)
    if (memory.total() > candidate.peak)
      throw Failure(ErrorKind::internal, "a rank used more memory than predicted: " + plan_words(candidate.plan));
  std::vector<double> seconds;
  for (std::size_t i = 1; i < report.steps.size(); ++i) seconds.push_back(report.steps[i].seconds);
  return train::detail::median_of(seconds);
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) out[order[i]] = static_cast<double>(i);
  return out;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks_of(a);
  const std::vector<double> y = ranks_of(b);
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  const auto n = static_cast<double>(x.size());
  return 1 - 6 * squares / (n * (n * n - 1));
}

void write_csv(const std::vector<Candidate>& all, const std::string& path) {
  std::ofstream out(path);
  out << "predicted_ms,measured_ms,peak_bytes,plan\n";
  for (const Candidate& c : all)
    out << c.predicted * 1e3 << ',' << c.measured * 1e3 << ',' << c.peak.count << ",\"" << plan_words(c.plan) << "\"\n";
}

// A row for each budget; `chosen` are indices of `all`.
void print_budgets(const std::vector<Candidate>& all, const std::vector<Bytes>& budgets,
                   const std::vector<std::size_t>& chosen) {
  std::printf("%-12s %6s %9s %9s %9s %9s %8s  %s\n", "budget MB", "plans", "Spearman", "error", "chosen ms", "best ms",
              "lost", "chosen");
  for (std::size_t b = 0; b < budgets.size(); ++b) {
    std::vector<double> predicted;
    std::vector<double> measured;
    std::vector<double> errors;
    double best = INFINITY;
    for (const Candidate& c : all) {
      if (c.peak > budgets[b]) continue;
      predicted.push_back(c.predicted);
      measured.push_back(c.measured);
      errors.push_back(std::abs(c.predicted / c.measured - 1));
      best = std::min(best, c.measured);
    }
    const Candidate& c = all[chosen[b]];
    std::printf("%-12.1f %6zu %9.3f %8.1f%% %9.2f %9.2f %7.1f%%  %s\n", static_cast<double>(budgets[b].count) / 1e6,
                predicted.size(), spearman(predicted, measured), 100 * train::detail::median_of(errors),
                c.measured * 1e3, best * 1e3, 100 * (c.measured / best - 1), plan_words(c.plan).c_str());
  }
}

struct Arguments {
  std::string cluster;
  std::string space = "runnable";
  std::string out;
  int ranks = 4;
  int rounds = 8;
  int steps = 4;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--cluster", a.cluster, "a cluster file of this machine; without it the machine is profiled first");
  app.add_option("--ranks", a.ranks, "ranks of the plans")->capture_default_str()->check(CLI::Range(1, 64));
  app.add_option("--space", a.space, "what the plans are made of, as for galvatron plan")->capture_default_str();
  app.add_option("--rounds", a.rounds, "times that every plan is measured")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--steps", a.steps, "steps of a measurement; the first does not count")
      ->capture_default_str()
      ->check(CLI::Range(2, 1000));
  app.add_option("--out", a.out, "a table of all plans, as CSV");
}

int benchmark(const Arguments& arguments) {
  const auto& [file, space_text, csv, ranks, rounds, steps] = arguments;
  const Space space = value_or_throw(parse_space(space_text));
  const Cluster cluster =
      file.empty() ? value_or_throw(train::profile_host({.ranks = ranks})) : value_or_throw(load_cluster(file));
  const ModelSpec model =
      gpt("small", {.layers = 4, .hidden = 256, .heads = 8, .vocabulary = 2048, .positions = sequence});

  std::vector<Candidate> all = candidates(model, cluster, ranks, space);
  // Budgets: a quarter of the plans, half of them, and all fit.
  std::vector<Bytes> peaks;
  for (const Candidate& c : all) peaks.push_back(c.peak);
  std::ranges::sort(peaks);
  const std::vector<Bytes> budgets{peaks[peaks.size() / 4], peaks[peaks.size() / 2], peaks.back()};
  std::vector<std::size_t> chosen;
  for (const Bytes budget : budgets) {
    SearchOptions options;
    options.global_batch = global_batch;
    options.sequence = sequence;
    options.memory = budget;
    options.precision = Precision::fp32;
    options.space = space;
    const FoundPlan found = value_or_throw(find_plan(model, cluster, options));
    if (!found.feasible)
      throw Failure(ErrorKind::internal, "no plan fits " + std::to_string(budget.count) + " bytes: " + found.reason);
    Candidate c;
    c.plan = found.plan;
    c.plan.predicted = {};
    c.predicted = found.cost.iteration.value;
    c.peak = found.cost.peak();
    const auto same = std::ranges::find(all, c.plan, &Candidate::plan);
    chosen.push_back(static_cast<std::size_t>(same - all.begin()));
    if (same == all.end()) all.push_back(std::move(c));
  }

  // What is known is shown after every round: a run that is stopped has not been for nothing.
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].measured = std::min(all[i].measured, undisturbed([&] { return seconds_of(all[i], model, steps); }));
      if ((i + 1) % 25 == 0)
        std::fprintf(stderr, "round %d of %d, plan %zu of %zu\n", round + 1, rounds, i + 1, all.size());
    }
    if (!csv.empty()) write_csv(all, csv);
    std::printf("%zu plans of %s on %d ranks, batch %lld x %lld, fastest of %d rounds\n", all.size(),
                model.name.c_str(), ranks, static_cast<long long>(global_batch), static_cast<long long>(sequence),
                round + 1);
    print_budgets(all, budgets, chosen);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_planner", "Measures plans of a small model on this machine and compares with predictions.",
                 argc, argv, options, benchmark);
}
