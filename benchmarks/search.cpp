// How long does the search take, how much memory, and how near is its answer to its bound?
//
//   benchmark_search [--threads 2] [--once]
//
// Every row runs in a process of its own, first with one thread, then with several; the plans must be the same.
// Printed: seconds with one thread (medians of three), how many times faster several are, the memory of the process,
// labels, and the gap to the bound ("proven": no plan of the space is faster). After the large models come rows in
// which one of layers, devices, kinds of layers and strategies grows. Last, what this machine allows: how many times
// the searches of one process so many processes do in the same time, each with one thread and nothing in common.
//
// --once searches every row once, with one thread: what scripts/search_constants adds up.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/strategy/space.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;

struct Row {
  std::string name;
  ModelSpec model;
  std::string cluster;
  std::int64_t batch = 1024;
  std::string space = "all";
  std::int64_t gib = 0;  // of memory; 0: all
};

// GPT-3 175B's shape with `layers` layers of `kinds` kinds, in turns of ten: MLPs that are wider and wider.
ModelSpec mixed(int layers, int kinds) {
  ModelSpec model = value_or_throw(find_model("gpt3-175b"));
  const LayerSpec block = model.blocks.front();
  model.name = "mixed";
  model.blocks.clear();
  for (int i = 0; i < layers; ++i) {
    model.blocks.push_back(block);
    model.blocks.back().ffn = block.ffn / 4 * (1 + i / 10 % kinds);
  }
  return model;
}

std::vector<Row> rows() {
  const auto named = [](const char* name) { return value_or_throw(find_model(name)); };
  std::vector<Row> out{
      {"llama2-70b", named("llama2-70b"), "1024xh100-80g", 1024},
      {"gpt3-175b", named("gpt3-175b"), "1024xh100-80g", 1536},
      {"gpt3-175b in 24 GiB", named("gpt3-175b"), "1024xh100-80g", 1536, "all", 24},
      {"gpt-1t", named("gpt-1t"), "4096xh100-80g", 4096},
      {"gpt-1t", named("gpt-1t"), "16384xh100-80g", 16384},
      {"100 layers of 4 kinds", mixed(100, 4), "1024xh100-80g", 1024},
      {"100 layers of 10 kinds", mixed(100, 10), "1024xh100-80g", 1024},
  };
  for (const int layers : {24, 48, 96, 192})
    out.push_back({std::to_string(layers) + " layers", mixed(layers, 1), "1024xh100-80g", 1024});
  for (const char* cluster : {"64xh100-80g", "256xh100-80g", "1024xh100-80g", "4096xh100-80g"})
    out.push_back({"96 layers", mixed(96, 1), cluster, 1024});
  for (const char* space : {"dp,tp,pp", "dp,zero3,tp,pp", "dp,zero3,tp,sp,pp,recompute", "all"})
    out.push_back({std::string("space ") + space, mixed(96, 1), "1024xh100-80g", 1024, space});
  return out;
}

FoundPlan run(const Row& row, int threads) {
  SearchOptions options;
  options.global_batch = row.batch;
  options.threads = threads;
  options.memory = {row.gib << 30};
  options.space = value_or_throw(parse_space(row.space));
  return value_or_throw(find_plan(row.model, value_or_throw(find_cluster(row.cluster)), options));
}

// The plan, with the median seconds of three searches, the one that made it among them.
FoundPlan median_of_three(const Row& row, int threads, FoundPlan first) {
  std::array<double, 3> seconds{first.statistics.seconds.value};
  for (std::size_t again = 1; again < seconds.size(); ++again)
    seconds[again] = run(row, threads).statistics.seconds.value;
  std::sort(seconds.begin(), seconds.end());
  first.statistics.seconds = {seconds[1]};
  return first;
}

void print_row(const Row& row, int threads, bool once) {
  FoundPlan first = run(row, 1);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const FoundPlan one = once ? std::move(first) : median_of_three(row, 1, std::move(first));
  const FoundPlan several = once ? one : median_of_three(row, threads, run(row, threads));
  if (one.plan.layers != several.plan.layers || one.plan.stages != several.plan.stages)
    throw Failure(ErrorKind::internal, row.name + ": the plan depends on the number of threads");
  const double gap = one.feasible ? 1 - one.statistics.bound.value / one.cost.iteration.value : 0;
  std::printf("| %s | %s | %lld | %.3f | %.2f | %ld | %lld | %s | %s |\n", row.name.c_str(), row.cluster.c_str(),
              static_cast<long long>(row.batch), one.statistics.seconds.value,
              one.statistics.seconds.value / several.statistics.seconds.value, usage.ru_maxrss / 1024,
              static_cast<long long>(one.statistics.labels),
              !one.feasible           ? "no plan"
              : one.statistics.proven ? "proven"
                                      : (std::to_string(gap * 100).substr(0, 4) + " %").c_str(),
              one.feasible ? plan_words(one.plan).c_str() : "");
}

// Runs `work` in so many processes at once; false when one of them fails.
template <class F>
bool in_processes(int count, const F& work) {
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child < 0) break;
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    int status = 0;
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "benchmark_search: %s\n", error.what());
      status = 1;
    }
    std::fflush(stdout);
    _exit(status);
  }
  bool good = static_cast<int>(children.size()) == count;
  for (const pid_t child : children) {
    int status = 0;
    good = waitpid(child, &status, 0) == child && status == 0 && good;
  }
  return good;
}

// Seconds in which so many processes search a row eight times each.
double seconds_of(const Row& row, int processes) {
  const auto begin = std::chrono::steady_clock::now();
  const bool good = in_processes(processes, [&] {
    for (int i = 0; i < 8; ++i) run(row, 1);
  });
  if (!good) throw Failure(ErrorKind::internal, "a process failed");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Arguments {
  int threads = 2;
  bool once = false;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--threads", a.threads, "compared with one thread")->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_flag("--once", a.once, "each row once, with one thread");
}

int benchmark(const Arguments& a) {
  std::printf("| model | cluster | batch | s | x with %d threads | MiB | labels | gap | plan |\n", a.threads);
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  const std::vector<Row> all = rows();
  for (const Row& row : all)
    if (!in_processes(1, [&] { print_row(row, a.threads, a.once); })) return 1;
  if (a.once) return 0;
  const double alone = seconds_of(all.back(), 1);
  std::printf("\n%d processes side by side: x %.2f\n", a.threads,
              a.threads * alone / seconds_of(all.back(), a.threads));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_search", "Time and memory of searches for large models.", argc, argv, options, benchmark);
}
