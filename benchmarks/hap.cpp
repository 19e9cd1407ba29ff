// HAP's searches: how long they take, what the joint search gains over the alternation, and what the paper's pruning of
// stage-wise costs loses. Prints the tables of docs/hap.md.
//
//   benchmark_hap [--only times|alternation|pruning] [--graphs N]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <galvatron/core/text.hpp>
#include <galvatron/hap/hap.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/zoo.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;
using Random = std::mt19937_64;

struct Arguments {
  std::string only;
  int graphs = 1000;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--only", a.only, "one of times, alternation, pruning");
  app.add_option("--graphs", a.graphs, "random graphs of each row (default: 1000)");
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Work>
double seconds_of_call(const Work& work) {
  std::vector<double> all;
  for (int turn = 0; turn < 5; ++turn) {
    const double begin = now();
    work();
    all.push_back(now() - begin);
  }
  std::ranges::sort(all);
  return all[all.size() / 2];
}

// 16 V100 and 48 P100 behind 10 Gb/s, at the rates that HAP's authors fitted; or as many speeds as devices.
hap::Devices devices_64(bool all_differ) {
  hap::Devices out;
  for (int j = 0; j < 64; ++j) out.flops.push_back(all_differ ? 2e12 + 3e10 * j : j < 16 ? 3.859e12 : 2.149e12);
  out.bandwidth = {5.906e9, 9.463e9, 9.740e9, 24.588e9};
  out.latency = {1e-4, 1e-4, 1e-4, 1e-4};
  return out;
}

void print_times_of(const ModelSpec& model, std::int64_t batch, bool all_differ) {
  const hap::Graph graph = hap::graph_of(model, batch, model.positions());
  const hap::Devices devices = devices_64(all_differ);
  const hap::Prices prices(graph, devices, hap::Dialect::paper);
  const hap::Instance instance(prices);
  const hap::Ratios ratios = hap::proportional_ratios(devices.flops);
  const double one = seconds_of_call([&] { return hap::best_program(hap::Instance(prices), ratios); });
  const double joint = seconds_of_call([&] { return hap::best_program_and_ratios(hap::Instance(prices)); });
  const double turns = seconds_of_call([&] { return hap::alternate(hap::Instance(prices)); });
  const double star = seconds_of_call([&] { return hap::a_star(instance, ratios, hap::CostModel::operations); });
  const double stages = seconds_of_call([&] { return hap::a_star(instance, ratios, hap::CostModel::stages); });
  std::printf("| %s | %zu | %d | %d | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f ms |\n", model.name.c_str(),
              instance.items().size(), static_cast<int>(batch), all_differ ? 64 : 2, one * 1e3, joint * 1e3,
              turns * 1e3, star * 1e3, stages * 1e3);
}

void print_times() {
  std::printf(
      "| model | operations | batch | speeds of 64 devices | program | program and ratios | alternation | A* | A*, "
      "stages |\n|---|---|---|---|---|---|---|---|---|\n");
  const ModelSpec base =
      bert("BERT-Base", {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522, .positions = 128});
  for (const std::int64_t batch : {8, 4096})
    for (const bool all_differ : {false, true}) print_times_of(base, batch, all_differ);
  for (const char* name : {"gpt2-1.5b", "vit-huge-32", "llama3-8b"})
    print_times_of(value_or_throw(find_model(name)), 64, false);
}

// ---- random graphs

int draw(Random& random, int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); }
double draw_between(Random& random, double least, double most) {
  return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
}
std::int64_t power(Random& random, int least, int most) { return std::int64_t{1} << draw(random, least, most); }

class Layers {
 public:
  explicit Layers(Random& random)
      : random_(random), batch_(power(random, 0, 6)), tokens_(power(random, 4, 9)), hidden_(power(random, 6, 10)) {
    x_ = graph_.add(hap::Operation::placeholder, {}, "x", {batch_, tokens_, hidden_});
  }

  void mlp(bool residual) {
    const std::int64_t width = hidden_ * (draw(random_, 0, 1) == 0 ? 1 : 4);
    const int wide = add(hap::Operation::gelu, {linear(x_, width)}, width);
    const int y = linear(wide, hidden_);
    x_ = residual ? add(hap::Operation::add, {x_, y}, hidden_) : y;
  }
  void attention() {
    const int n = add(hap::Operation::layer_norm, {x_}, hidden_);
    const int q = linear(n, hidden_);
    const int k = linear(n, hidden_);
    const int v = linear(n, hidden_);
    const int o = linear(add(hap::Operation::attention, {q, k, v}, hidden_), hidden_);
    x_ = add(hap::Operation::add, {x_, o}, hidden_);
  }
  hap::Graph end() {
    graph_.loss = graph_.add(hap::Operation::sum, {x_}, "loss", {});
    return std::move(graph_);
  }

 private:
  int linear(int x, std::int64_t outputs) {
    const int w = graph_.add(hap::Operation::parameter, {}, name(), {outputs, graph_.tensor(x).shape.back()});
    return add(hap::Operation::linear, {x, w}, outputs);
  }
  int add(hap::Operation operation, std::vector<int> inputs, std::int64_t width) {
    return graph_.add(operation, std::move(inputs), name(), {batch_, tokens_, width});
  }
  std::string name() { return text_of("t", graph_.tensors.size()); }

  Random& random_;
  std::int64_t batch_;
  std::int64_t tokens_;
  std::int64_t hidden_;
  hap::Graph graph_;
  int x_;
};

enum class Family { mlp, mlp_residual, block };

hap::Graph random_graph(Random& random, Family family) {
  Layers layers(random);
  for (int i = draw(random, 1, 2); i > 0; --i) {
    if (family == Family::block) layers.attention();
    layers.mlp(family != Family::mlp);
  }
  return layers.end();
}

hap::Devices random_devices(Random& random) {
  hap::Devices out;
  const double middle = draw_between(random, 1e12, 1e14);
  for (int j = draw(random, 2, 4); j > 0; --j) out.flops.push_back(middle * draw_between(random, 0.4, 2.5));
  const double bandwidth = draw_between(random, 1e9, 1e11);
  for (double& rate : out.bandwidth) rate = bandwidth * draw_between(random, 0.6, 1.7);
  if (draw(random, 0, 1) == 1) out.latency = {2e-5, 2e-5, 2e-5, 2e-5};
  return out;
}

// How often, and by how much, `other` is above the best.
class Gaps {
 public:
  void add(double other, double best) {
    ++all_;
    if (other <= best * (1 + 1e-9)) return;
    ++above_;
    sum_ += other / best - 1;
    largest_ = std::max(largest_, other / best - 1);
  }
  void print(const char* name) const {
    std::printf("| %s | %d | %d | %.2f %% | %.1f %% |\n", name, all_, above_, above_ > 0 ? 100 * sum_ / above_ : 0,
                100 * largest_);
  }

 private:
  int all_ = 0;
  int above_ = 0;
  double sum_ = 0;
  double largest_ = 0;
};

struct Row {
  Family family;
  const char* name;
};
constexpr Row rows[] = {
    {Family::mlp, "MLPs"}, {Family::mlp_residual, "MLPs with residuals"}, {Family::block, "attention and MLP"}};

// A row for each family of random graphs, of what `measure(devices, instance, gaps)` adds.
template <class Measure>
void print_gaps(int graphs, unsigned seed, const Measure& measure) {
  std::printf("| graphs | number | above | mean of those | largest |\n|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    Random random(seed);
    Gaps gaps;
    for (int i = 0; i < graphs; ++i) {
      const hap::Graph graph = random_graph(random, row.family);
      const hap::Devices devices = random_devices(random);
      const hap::Prices prices(graph, devices, hap::Dialect::paper);
      measure(devices, hap::Instance(prices), gaps);
    }
    gaps.print(row.name);
  }
}

void print_alternation(int graphs) {
  print_gaps(graphs, 20261126, [](const hap::Devices&, const hap::Instance& instance, Gaps& gaps) {
    gaps.add(hap::alternate(instance)->seconds, hap::best_program_and_ratios(instance)->seconds);
  });
}

void print_pruning(int graphs) {
  print_gaps(graphs, 20261127, [](const hap::Devices& devices, const hap::Instance& instance, Gaps& gaps) {
    const hap::Ratios ratios = hap::proportional_ratios(devices.flops);
    constexpr std::size_t most = 200'000;
    const auto right = hap::a_star(instance, ratios, hap::CostModel::stages, most);
    const auto paper = hap::a_star(instance, ratios, hap::CostModel::stages, most, hap::Pruning::paper);
    if (right && paper) gaps.add(paper->seconds, right->seconds);
  });
}

int run(const Arguments& a) {
  const auto wanted = [&](const char* name) { return a.only.empty() || a.only == name; };
  if (wanted("times")) print_times();
  if (wanted("alternation")) print_alternation(a.graphs);
  if (wanted("pruning")) print_pruning(a.graphs);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_hap", "HAP's searches: times, the alternation and the paper's pruning beside the best.",
                 argc, argv, options, run);
}
