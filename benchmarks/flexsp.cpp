// Sequence-parallel groups for every batch: how long a plan takes to find, how far it is from the bound, FlexSP's
// published table by simulation, and what each freedom beyond FlexSP adds. Prints the tables of docs/flexsp.md.
//
//   benchmark_flexsp [--lengths FILE] [--batches K] [--only times|gaps|table|freedoms]
//
// FILE has the tokens of Wikipedia's documents, one number a line; without it they are drawn from a distribution.
// Seconds of steps are the published coefficients', except where a model is named.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/file.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/coefficients.hpp>
#include <galvatron/flexsp/lengths.hpp>
#include <galvatron/flexsp/prices.hpp>
#include <galvatron/flexsp/solve.hpp>
#include <galvatron/flexsp/sweep.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;
using Lengths = std::vector<std::int64_t>;

constexpr int devices = 64;
constexpr std::size_t batch_size = 512;
constexpr std::int64_t first_batch = 3;  // the first that the published runs count

struct Arguments {
  std::string lengths;
  std::string only;
  int batches = 12;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--lengths", a.lengths, "tokens of Wikipedia's documents, one number a line");
  app.add_option("--batches", a.batches, "batches of each row (default: 12)");
  app.add_option("--only", a.only, "one of times, gaps, table, freedoms");
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

/// A corpus: lengths as they come, enough for any number of batches.
struct Corpus {
  std::string name;
  std::function<Lengths(std::int64_t limit, std::size_t count)> released;  // padded and dropped as the release does
};

Corpus drawn(std::string name, flexsp::TailedLengths distribution) {
  return {std::move(name), [distribution](std::int64_t limit, std::size_t count) {
            std::mt19937_64 random(1);
            Lengths out;
            while (out.size() < count) {
              const Lengths one{distribution.draw(random)};
              for (const std::int64_t tokens : flexsp::released_lengths(one, limit)) out.push_back(tokens);
            }
            return out;
          }};
}

std::vector<Corpus> corpora(const Arguments& a) {
  Corpus wikipedia = drawn("Wikipedia, drawn", {.tail = 0.016, .exponent = 1.77});
  if (!a.lengths.empty()) {
    const Lengths all = value_or_throw(
        flexsp::lengths_from_text(value_or_throw(read_text_file(a.lengths, std::int64_t{1} << 30)), a.lengths));
    wikipedia = {"Wikipedia", [all](std::int64_t limit, std::size_t count) {
                   Lengths out = flexsp::released_lengths(all, limit);
                   if (out.size() < count) throw Failure(ErrorKind::usage, "--lengths has too few documents");
                   return out;
                 }};
  }
  return {drawn("GitHub", flexsp::github_lengths), drawn("CommonCrawl", flexsp::common_crawl_lengths), wikipedia};
}

std::vector<Lengths> batches_of(const Corpus& corpus, std::int64_t limit, int count) {
  const auto end = static_cast<std::size_t>(first_batch + count) * batch_size;
  const Lengths all = corpus.released(limit, end);
  std::vector<Lengths> out;
  for (std::size_t k = static_cast<std::size_t>(first_batch) * batch_size; k < end; k += batch_size)
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(k),
                     all.begin() + static_cast<std::ptrdiff_t>(k + batch_size));
  return out;
}

flexsp::Problem released(const std::string& model, std::int64_t limit, int count = devices, bool any = false) {
  return flexsp::problem_of(*flexsp::released_coefficients(model, count, limit), 8, any);
}

flexsp::BatchPlan planned(const flexsp::Problem& problem, const Lengths& lengths, const flexsp::Limits& limits) {
  auto plan = flexsp::solve(problem, lengths, limits);
  if (!plan) throw Failure(ErrorKind::infeasible, "a document fits no group");
  return *plan;
}

// ---- times

void print_times(const Arguments& a) {
  std::printf(
      "| documents, devices | quick: median | slowest | gap, median | thorough: median | slowest | gap, median |\n"
      "|---|---|---|---|---|---|---|\n");
  struct Size {
    int documents;
    int devices;
    bool thorough;
  };
  const Corpus corpus = corpora(a).back();
  for (const Size& size :
       {Size{128, 16, true}, {256, 32, true}, {512, 64, true}, {1024, 256, false}, {4096, 1024, false}}) {
    const flexsp::Problem problem = released("gpt-7b", 192'000, size.devices);
    const Lengths all = corpus.released(192'000, static_cast<std::size_t>(size.documents * a.batches));
    std::printf("| %s %d, %d |", corpus.name.c_str(), size.documents, size.devices);
    for (const bool thorough : {false, true}) {
      if (thorough && !size.thorough) {
        std::printf(" - | - | - |");
        continue;
      }
      std::vector<double> seconds;
      std::vector<double> gaps;
      for (int k = 0; k < a.batches; ++k) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(k * size.documents);
        const Lengths batch(begin, begin + size.documents);
        const double start = now();
        const auto plan = planned(problem, batch, thorough ? flexsp::Limits::thorough() : flexsp::Limits::quick());
        seconds.push_back(now() - start);
        gaps.push_back(plan.seconds / plan.bound - 1);
      }
      std::printf(" %.1f ms | %.1f ms | %.2f %% |", percentile(seconds, 0.5) * 1e3, percentile(seconds, 1) * 1e3,
                  percentile(gaps, 0.5) * 100);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

// ---- gaps

void print_gaps(const Arguments& a) {
  std::printf(
      "| lengths | quick: median | 90 %% | largest | thorough: median | 90 %% | largest "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const Corpus& corpus : corpora(a)) {
    std::printf("| %s |", corpus.name.c_str());
    for (const bool thorough : {false, true}) {
      std::vector<double> gaps;
      for (const auto& model : flexsp::released_models)
        for (const std::int64_t limit : {192'000, 384'000}) {
          const flexsp::Problem problem = released(std::string(model.name), limit);
          for (const Lengths& batch : batches_of(corpus, limit, a.batches)) {
            const auto plan = planned(problem, batch, thorough ? flexsp::Limits::thorough() : flexsp::Limits::quick());
            gaps.push_back(plan.seconds / plan.bound - 1);
          }
        }
      std::printf(" %.2f %% | %.2f %% | %.2f %% |", percentile(gaps, 0.5) * 100, percentile(gaps, 0.9) * 100,
                  percentile(gaps, 1) * 100);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

// ---- the published table

struct Published {
  const char* model;
  std::int64_t limit;
  struct {
    double fixed;     // DeepSpeed-Ulysses
    double adaptive;  // "BatchAda"
    double flexsp;
  } seconds[3];  // of GitHub, CommonCrawl, Wikipedia
};
constexpr Published published[] = {
    {"gpt-7b", 192'000, {{28.8, 26.7, 19.9}, {24.3, 22.2, 16.1}, {8.2, 6.1, 4.8}}},
    {"gpt-7b", 384'000, {{32.2, 31.3, 25.6}, {27.0, 25.9, 19.0}, {8.4, 6.3, 5.7}}},
    {"gpt-13b", 192'000, {{48.0, 44.6, 34.4}, {40.1, 37.5, 29.7}, {14.1, 10.8, 8.9}}},
    {"gpt-13b", 384'000, {{54.3, 51.3, 42.0}, {53.2, 50.2, 38.8}, {15.2, 12.5, 10.6}}},
    {"gpt-30b", 192'000, {{121, 115, 84}, {110, 101, 71.4}, {29.5, 24.0, 18.0}}},
    {"gpt-30b", 384'000, {{134, 131, 110}, {117, 112, 88}, {33.3, 28.3, 21.9}}},
};

void print_table(const Arguments& a) {
  std::printf(
      "| model, limit | lengths | static | adaptive | FlexSP's sweep | ours | over static: published | sweep | ours "
      "| over adaptive: published | sweep | ours |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  const std::vector<Corpus> all = corpora(a);
  for (const Published& row : published)
    for (std::size_t c = 0; c < all.size(); ++c) {
      const flexsp::Problem problem = released(row.model, row.limit);
      double fixed = 0;
      double adaptive = 0;
      double sweep = 0;
      double ours = 0;
      const auto batches = batches_of(all[c], row.limit, a.batches);
      for (const Lengths& batch : batches) {
        const auto one = flexsp::homogeneous_plan(problem, batch, static_cast<int>(problem.options.size()) - 1);
        const auto best = flexsp::adaptive_plan(problem, batch, [&](const flexsp::GroupOption& option) {
          return option.degree != 32 || row.limit > 192'000;
        });
        if (!one || !best) throw Failure(ErrorKind::infeasible, "a document fits no group");
        fixed += one->seconds;
        adaptive += best->seconds;
        sweep += flexsp::swept_seconds(problem, batch);
        ours += planned(problem, batch, flexsp::Limits::thorough()).seconds;
      }
      const auto n = static_cast<double>(batches.size());
      const auto& paper = row.seconds[c];
      std::printf("| %s %dK | %s | %.2f s | %.2f s | %.2f s | %.2f s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
                  row.model, static_cast<int>(row.limit / 1000), all[c].name.c_str(), fixed / n, adaptive / n,
                  sweep / n, ours / n, paper.fixed / paper.flexsp, fixed / sweep, fixed / ours,
                  paper.adaptive / paper.flexsp, adaptive / sweep, adaptive / ours);
      std::fflush(stdout);
    }
}

// ---- freedoms

flexsp::Problem without_single_devices(flexsp::Problem problem) {
  std::erase_if(problem.options, [](const flexsp::GroupOption& option) { return option.degree == 1; });
  return problem;
}

void print_freedoms(const Arguments& a) {
  std::printf(
      "| prices | lengths | sweep, d >= 2 | and d = 1 | and micro-batches solved together | and any degrees "
      "| and ring attention |\n|---|---|---|---|---|---|---|\n");
  struct Row {
    std::string name;
    flexsp::Problem powers;
    std::optional<flexsp::Problem> any;
    std::optional<flexsp::Problem> ring;
  };
  std::vector<Row> rows;
  for (const auto& model : flexsp::released_models)
    rows.push_back({std::string(model.name) + " 192K, published coefficients",
                    released(std::string(model.name), 192'000),
                    released(std::string(model.name), 192'000, devices, true), std::nullopt});
  for (const auto& [name, on, recompute] : {std::tuple("gpt-6.7b", "64xa100-40g", RecomputeKind::full),
                                            std::tuple("llama3-8b", "64xh100-80g", RecomputeKind::none)}) {
    const ModelSpec model = value_or_throw(load_model(name));
    const Cluster cluster = value_or_throw(load_cluster(on));
    const auto problem = [&](bool any, bool ring) {
      flexsp::GroupSpace space{.any_degrees = any, .ring = ring, .recompute = recompute};
      return value_or_throw(flexsp::problem_of(model, cluster, Precision::bf16, cluster.device.memory, 192'000, space));
    };
    // Any degrees need ring attention where heads do not divide.
    rows.push_back({text_of(name, " on ", on), problem(false, false), problem(true, false), problem(true, true)});
  }
  const flexsp::Limits limits = flexsp::Limits::thorough();
  for (const Row& row : rows)
    for (const Corpus& corpus : corpora(a)) {
      double sums[5] = {};
      for (const Lengths& batch : batches_of(corpus, 192'000, std::max(1, a.batches / 3))) {
        sums[0] += flexsp::swept_seconds(without_single_devices(row.powers), batch);
        sums[1] += flexsp::swept_seconds(row.powers, batch);
        sums[2] += planned(row.powers, batch, limits).seconds;
        sums[3] += planned(*row.any, batch, limits).seconds;
        if (row.ring) sums[4] += planned(*row.ring, batch, limits).seconds;
      }
      std::printf("| %s | %s | 1 |", row.name.c_str(), corpus.name.c_str());
      for (int k = 1; k < 4; ++k) std::printf(" %.3f |", sums[0] / sums[k]);
      if (row.ring)
        std::printf(" %.3f |\n", sums[0] / sums[4]);
      else
        std::printf(" - |\n");
      std::fflush(stdout);
    }
}

int run(const Arguments& a) {
  const std::pair<const char*, void (*)(const Arguments&)> parts[] = {
      {"times", print_times}, {"gaps", print_gaps}, {"table", print_table}, {"freedoms", print_freedoms}};
  for (const auto& [name, print] : parts)
    if (a.only.empty() || a.only == name) {
      std::printf("\n%s\n\n", name);
      print(a);
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_flexsp", "Plans of sequence-parallel groups: times, gaps to the bound, speed-ups.", argc,
                 argv, options, run);
}
