// Is the planner right? Measures every plan of a small model on this machine's ranks and compares with the predictions.
//
//   benchmark_planner [--cluster cluster.json] [--model gpt|llama|bert] [--precision fp32|bf16] [--batch 8x64]
//                     [--ranks 4] [--space runnable] [--rounds 8] [--steps 4] [--out plans.csv]
//                     [--profile-seconds 60]
//
// Every strategy of the space that all layers can share, with every pipeline degree, number of micro-batches and
// schedule, is trained for a few steps, in `rounds` rounds about a minute apart. Other programs and a slower phase of a
// shared machine only ever add time, so the fastest round counts, as the fastest sweep does in the profile. A run
// during which other programs took more than 3 % of the cores is repeated, at most four times, unless that has not
// helped for a while. Where it did not help, their share of the cores is left out of the time that is compared, and a
// line says how much it was. Under three memory budgets the search chooses; a plan of its that is none of those is
// measured with them. Printed: for every budget the chosen plan against the fastest measured that fits, Spearman's
// correlation of predicted and measured times, and the median absolute error. Without --cluster the machine is profiled
// first, the products of the model among the rest.
//
// A mixed cluster (`galvatron profile --unequal`) has ranks of unequal speed. Its plans are data parallel over all
// ranks, with equal shares of the samples and with shares of their speed, and pipelines of all runs of ranks, with as
// many layers each and with layers by speed. `scripts/unequal_ranks` makes such ranks.
#include <algorithm>
#include <cinttypes>
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
#include <galvatron/cluster/mixed_json.hpp>
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

/// What is trained.
struct Job {
  ModelSpec model;
  std::int64_t global_batch = 8;
  std::int64_t sequence = 64;
  Precision precision = Precision::fp32;
};

/// Small models of three families.
ModelSpec small_model(const std::string& family, std::int64_t positions) {
  if (family == "llama")
    return llama("small-llama", {.layers = 4,
                                 .hidden = 256,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .ffn = 704,
                                 .vocabulary = 2048,
                                 .positions = positions});
  if (family == "bert")
    return bert("small-bert", {.layers = 4, .hidden = 256, .heads = 8, .vocabulary = 2048, .positions = positions});
  return gpt("small", {.layers = 4, .hidden = 256, .heads = 8, .vocabulary = 2048, .positions = positions});
}

// A share of the cores that makes a measurement worth repeating.
constexpr double disturbing = 0.03;

struct Candidate {
  Plan plan;
  double predicted = 0;  // seconds with all cores
  Bytes peak;
  double measured = INFINITY;  // seconds, beside others
  double others = 0;           // the share of the cores that other programs took meanwhile

  [[nodiscard]] bool is_disturbed() const { return others >= disturbing; }
  /// What is compared: the seconds that it takes with all cores.
  [[nodiscard]] double alone() const { return is_disturbed() ? measured / beside_others(1, others) : measured; }
};

/// A plan of all that a job says, without stages and strategies.
Plan plan_of(const Job& job, const ClusterView& cluster) {
  Plan plan;
  plan.model = job.model.name;
  plan.cluster = cluster.name();
  plan.global_batch = job.global_batch;
  plan.sequence_length = job.sequence;
  plan.precision = job.precision;
  plan.overlap = std::ranges::all_of(cluster.groups(), cost::can_overlap);
  return plan;
}

/// Appends the plan, if it is one.
void offer(std::vector<Candidate>& all, Plan plan, const Job& job, const ClusterView& cluster) {
  const Result<PlanCost> cost = cost_of(plan, job.model, cluster);
  if (cost) all.push_back({std::move(plan), cost->iteration.value, cost->peak()});
}

std::vector<Candidate> candidates(const Job& job, const Cluster& cluster, int ranks, const Space& space) {
  std::vector<Candidate> out;
  const int blocks = static_cast<int>(job.model.blocks.size());
  for (const int stages : pipeline_degrees(space, ranks)) {
    if (stages > blocks) continue;
    for (const StrategySpec& spec : strategies(space, ranks / stages)) {
      for (int microbatches = 1; microbatches <= 8; microbatches *= 2)
        for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe}) {
          if (schedule == ScheduleKind::gpipe && (stages == 1 || microbatches == 1)) continue;  // the same as 1f1b
          Plan plan = plan_of(job, cluster);
          plan.microbatches = microbatches;
          plan.schedule = schedule;
          plan.stages = even_stages(blocks, stages, 1, ranks / stages);
          plan.layers.assign(job.model.blocks.size(), spec);
          plan.embedding = plan.head = spec;
          plan.embedding.recompute = plan.head.recompute = RecomputeKind::cheap;
          offer(out, std::move(plan), job, cluster);
        }
    }
  }
  return out;
}

/// Speeds of the ranks of a mixed cluster, of which the slowest has 1.
std::vector<double> speeds_of(const ClusterView& cluster, Precision precision) {
  std::vector<double> out;
  for (const Cluster& group : cluster.groups())
    out.insert(out.end(), static_cast<std::size_t>(group.devices), group.peak_flops(precision) / group.devices);
  const double least = *std::ranges::min_element(out);
  for (double& speed : out) speed /= least;
  return out;
}

/// Cuts `layers` layers over runs of ranks, by how fast they are together or, if not, evenly. Each has one at least.
std::vector<int> cut_layers(int layers, const std::vector<double>& weights, bool by_speed) {
  std::vector<int> out(weights.size(), 1);
  for (int left = layers - static_cast<int>(weights.size()); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < out.size(); ++i)
      if ((out[i] + 1) / (by_speed ? weights[i] : 1) < (out[best] + 1) / (by_speed ? weights[best] : 1)) best = i;
    ++out[best];
  }
  return out;
}

/// Plans on all ranks of a mixed cluster, as the head of this file says.
void offer_unequal(std::vector<Candidate>& all, const Job& job, const ClusterView& cluster) {
  const std::vector<double> speeds = speeds_of(cluster, job.precision);
  std::vector<int> groups;
  for (int group = 0; group < cluster.count(); ++group)
    groups.insert(groups.end(), static_cast<std::size_t>(cluster.group(group).devices), group);
  const int ranks = cluster.devices();
  for (unsigned cuts = 0; cuts < 1U << (ranks - 1); ++cuts) {  // a bit for each border of two stages
    std::vector<PlanStage> stages;
    std::vector<double> weights;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 0 || (cuts >> (rank - 1) & 1U) != 0) {
        stages.push_back({.first_rank = rank, .rank_count = 0, .group = groups[static_cast<std::size_t>(rank)]});
        weights.push_back(0);
      }
      PlanStage& stage = stages.back();
      ++stage.rank_count;
      stage.rank_groups.push_back(groups[static_cast<std::size_t>(rank)]);
      stage.sample_ratios.push_back(static_cast<int>(std::lround(speeds[static_cast<std::size_t>(rank)])));
      weights.back() += speeds[static_cast<std::size_t>(rank)];
    }
    for (PlanStage& stage : stages)
      if (std::ranges::count(stage.rank_groups, stage.group) == stage.rank_count) stage.rank_groups.clear();
    if (stages.size() > job.model.blocks.size()) continue;
    for (const bool by_speed : {false, true}) {
      Plan plan = plan_of(job, cluster);
      plan.stages = stages;
      const std::vector<int> layers = cut_layers(static_cast<int>(job.model.blocks.size()), weights, by_speed);
      int layer = 0;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        PlanStage& stage = plan.stages[i];
        stage.first_layer = layer;
        stage.last_layer = (layer += layers[i]) - 1;
        if (stage.rank_count == 1) stage.sample_ratios.clear();
        if (!by_speed) std::ranges::fill(stage.sample_ratios, 1);
      }
      for (const int zero : {0, 1, 3})
        for (const RecomputeKind recompute : {RecomputeKind::cheap, RecomputeKind::none, RecomputeKind::full})
          for (int microbatches = 1; microbatches <= 8; microbatches *= 2) {
            plan.microbatches = microbatches;
            plan.layers.clear();
            for (const PlanStage& stage : plan.stages) {
              StrategySpec spec{
                  .data = stage.rank_count, .zero = stage.rank_count > 1 ? zero : 0, .recompute = recompute};
              if (stage.rank_count > 1) spec.shard_kind = ShardKind::by_ratio;
              plan.layers.insert(plan.layers.end(), static_cast<std::size_t>(stage.last_layer - stage.first_layer + 1),
                                 spec);
            }
            plan.embedding = plan.layers.front();
            plan.head = plan.layers.back();
            plan.embedding.recompute = plan.head.recompute = RecomputeKind::cheap;
            offer(all, plan, job, cluster);
          }
    }
  }
}

/// Plans of a mixed cluster, at most `most`: evenly spread over all, in the order of their predicted times.
std::vector<Candidate> unequal_candidates(const Job& job, const ClusterView& cluster, std::size_t most) {
  std::vector<Candidate> all;
  offer_unequal(all, job, cluster);
  std::ranges::sort(all, {}, &Candidate::predicted);
  const auto same = std::ranges::unique(all, {}, &Candidate::plan);
  all.erase(same.begin(), same.end());
  std::vector<Candidate> out;
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i)
    out.push_back(all[i * (all.size() - 1) / std::max<std::size_t>(std::min(most, all.size()) - 1, 1)]);
  return out;
}

// Keeps the fastest of what `measure` returns until it was left alone, at most five times.
// @param in_vain  how many plans in a row were not left alone: from five on, none is measured again
template <class Measure>
void measure_undisturbed(Candidate& candidate, int& in_vain, const Measure& measure) {
  bool alone = false;
  for (int attempt = 0; attempt < (in_vain < 5 ? 5 : 1) && !alone; ++attempt) {
    const CoreWatch watch;
    const double seconds = measure();
    const double others = watch.others().value_or(0);
    if (seconds < candidate.measured) candidate.measured = seconds, candidate.others = others;
    alone = others < disturbing;
  }
  in_vain = alone ? 0 : in_vain + 1;
}

// The median of all steps but the first.
double seconds_of(const Candidate& candidate, const ModelSpec& model, int steps, int threads) {
  CheapTokens tokens(model.vocabulary());
  train::TrainOptions options;
  options.steps = steps;
  options.threads_per_rank = threads;  // with which the cluster was measured, also where a plan leaves ranks out
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
  out << "predicted_ms,measured_ms,others_share,alone_ms,peak_bytes,plan\n";
  for (const Candidate& c : all)
    out << c.predicted * 1e3 << ',' << c.measured * 1e3 << ',' << c.others << ',' << c.alone() * 1e3 << ','
        << c.peak.count << ",\"" << plan_words(c.plan) << "\"\n";
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
      measured.push_back(c.alone());
      errors.push_back(std::abs(c.predicted / c.alone() - 1));
      best = std::min(best, c.alone());
    }
    const Candidate& c = all[chosen[b]];
    std::printf("%-12.1f %6zu %9.3f %8.1f%% %9.2f %9.2f %7.1f%%  %s\n", static_cast<double>(budgets[b].count) / 1e6,
                predicted.size(), spearman(predicted, measured), 100 * train::detail::median_of(errors),
                c.alone() * 1e3, best * 1e3, 100 * (c.alone() / best - 1), plan_words(c.plan).c_str());
  }
}

// A line where others made measured times too long.
void print_disturbance(const std::vector<Candidate>& all) {
  std::vector<double> shares;
  for (const Candidate& c : all)
    if (c.is_disturbed()) shares.push_back(c.others);
  if (!shares.empty())
    std::printf(
        "busy machine: beside %zu of the plans other programs took %.0f %% of the cores each time, in the median;"
        " their times are less by that share\n",
        shares.size(), 100 * train::detail::median_of(shares));
}

struct Arguments {
  std::string cluster;
  std::string model = "gpt";
  std::string precision = "fp32";
  std::string batch = "8x64";
  std::string space = "runnable";
  std::string out;
  int ranks = 4;
  int rounds = 8;
  int steps = 4;
  int most = 80;
  double profile_seconds = 60;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--cluster", a.cluster, "a cluster file of this machine; without it the machine is profiled first");
  app.add_option("--profile-seconds", a.profile_seconds, "without --cluster: how long to profile")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--model", a.model, "4 layers of width 256 of this family")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpt", "llama", "bert"}));
  app.add_option("--precision", a.precision, "of the arithmetic")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--batch", a.batch, "samples x tokens of a step")->capture_default_str();
  app.add_option("--most", a.most, "plans of a mixed cluster")->capture_default_str()->check(CLI::Range(2, 10000));
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

int benchmark(const Arguments& a) {
  const Space space = value_or_throw(parse_space(a.space));
  Job job;
  int read = 0;
  if (std::sscanf(a.batch.c_str(), "%" SCNd64 "x%" SCNd64 "%n", &job.global_batch, &job.sequence, &read) != 2 ||
      static_cast<std::size_t>(read) != a.batch.size() || job.global_batch < 1 || job.sequence < 1)
    throw Failure(ErrorKind::usage, "--batch is SAMPLESxTOKENS, as 8x64, not " + a.batch);
  job.precision = a.precision == "bf16" ? Precision::bf16 : Precision::fp32;
  job.model = small_model(a.model, job.sequence);
  const ModelSpec& model = job.model;
  const train::ProfileOptions profiled{
      .ranks = a.ranks, .precisions = {job.precision}, .time_budget = {a.profile_seconds}, .models = {model}};
  const MixedCluster cluster = a.cluster.empty() ? alone(value_or_throw(train::profile_host(profiled)))
                                                 : value_or_throw(load_mixed_cluster(a.cluster));
  const ClusterView view(cluster);
  std::vector<Candidate> all = view.is_mixed() ? unequal_candidates(job, view, static_cast<std::size_t>(a.most))
                                               : candidates(job, view.group(0), a.ranks, space);
  if (all.size() < 2)
    throw Failure(ErrorKind::usage, "no two plans of these ranks and this space: try another --space");
  // Budgets: a quarter of the plans, half of them, and all fit.
  std::vector<Bytes> peaks;
  for (const Candidate& c : all) peaks.push_back(c.peak);
  std::ranges::sort(peaks);
  const std::vector<Bytes> budgets{peaks[peaks.size() / 4], peaks[peaks.size() / 2], peaks.back()};
  std::vector<std::size_t> chosen;
  for (const Bytes budget : budgets) {
    SearchOptions options;
    options.global_batch = job.global_batch;
    options.sequence = job.sequence;
    options.memory = budget;
    options.precision = job.precision;
    options.space = space;
    const FoundPlan found = value_or_throw(find_plan(model, view, options));
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
  int in_vain = 0;
  for (int round = 0; round < a.rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      measure_undisturbed(all[i], in_vain,
                          [&] { return seconds_of(all[i], model, a.steps, view.group(0).threads_per_rank); });
      if ((i + 1) % 25 == 0)
        std::fprintf(stderr, "round %d of %d, plan %zu of %zu\n", round + 1, a.rounds, i + 1, all.size());
    }
    if (!a.out.empty()) write_csv(all, a.out);
    std::printf("%zu plans of %s in %s on %d ranks, batch %s, fastest of %d rounds\n", all.size(), model.name.c_str(),
                a.precision.c_str(), view.devices(), a.batch.c_str(), round + 1);
    print_budgets(all, budgets, chosen);
    print_disturbance(all);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_planner", "Measures plans of a small model on this machine and compares with predictions.",
                 argc, argv, options, benchmark);
}
