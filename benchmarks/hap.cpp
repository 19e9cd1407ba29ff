// HAP's searches: how long they take, what the joint search gains over the alternation, what the paper's pruning of
// stage-wise costs loses, and the order in which it puts the systems of the paper. Prints the tables of docs/hap.md.
//
//   benchmark_hap [--only times|alternation|pruning|published] [--graphs N]
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
  app.add_option("--only", a.only, "one of times, alternation, pruning, published");
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

// ---- published seconds

// On 2 machines with V100 and 6 with P100, as many of each as there are devices: seconds of a step, read off the
// figures of the paper (+- 2 %). 0: out of memory.
struct PublishedRow {
  int devices;
  double hap, even, proportional, deepspeed;
};
struct PublishedModel {
  const char* name;
  hap::Graph (*graph)(int devices);
  std::vector<PublishedRow> rows;
};

// Convolutions of 3 x 3 on 32 x 32 pixels, pools behind 2, 2, 4, 4 and 4 of them, and three linear layers.
hap::Graph vgg19(int devices) {
  using hap::Operation;
  hap::Graph graph;
  const std::int64_t batch = 64 * devices;
  std::int64_t channels = 3;
  std::int64_t side = 32;
  const auto name = [&] { return text_of("t", graph.tensors.size()); };
  const auto parameter = [&](std::vector<std::int64_t> shape) {
    return graph.add(Operation::parameter, {}, name(), std::move(shape));
  };
  int x = graph.add(Operation::placeholder, {}, name(), {batch, channels, side, side});
  for (const auto& [width, layers] : {std::pair(64, 2), {128, 2}, {256, 4}, {512, 4}, {512, 4}}) {
    for (int i = 0; i < layers; ++i) {
      const std::vector<std::int64_t> shape{batch, width, side, side};
      x = graph.add(Operation::convolution, {x, parameter({width, channels, 3, 3})}, name(), shape);
      x = graph.add(Operation::relu, {x}, name(), shape);
      channels = width;
    }
    side /= 2;
    x = graph.add(Operation::pool, {x}, name(), {batch, channels, side, side});
  }
  x = graph.add(Operation::pool, {x}, name(), {batch, channels, 7, 7});  // to the size that the linear layers take
  x = graph.add(Operation::flatten, {x}, name(), {batch, channels * 7 * 7});
  for (const std::int64_t width : {4096, 4096, 10}) {
    const int w = parameter({width, graph.tensor(x).shape[1]});
    x = graph.add(Operation::linear, {x, w}, name(), {batch, width});
    if (width > 10) x = graph.add(Operation::relu, {x}, name(), {batch, width});
  }
  graph.loss = graph.add(Operation::cross_entropy, {x}, "loss", {});
  return graph;
}
hap::Graph vit_54m(int devices) {
  const ModelSpec model =
      vit("ViT", {.layers = 12, .hidden = 612, .heads = 12, .image = 32, .patch = 4, .classes = 10});
  return hap::graph_of(model, 64 * devices, model.positions());
}
ModelSpec bert_base() {
  return bert("BERT-Base", {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522, .positions = 128});
}
hap::Graph bert_102m(int devices) { return hap::graph_of(bert_base(), 64 * devices, 128); }
// Two experts a device in every third block, two for each token, in slots for 2.5 s / E tokens.
hap::Graph bert_moe(int devices) {
  ModelSpec model = bert_base();
  for (std::size_t i = 2; i < model.blocks.size(); i += 3) {
    LayerSpec& block = model.blocks[i];
    block.experts = 2 * devices;
    block.active_experts = 2;
    block.router.capacity = 1.25;
  }
  return hap::graph_of(model, 32 * devices, 128);
}

// Devices at the fitted rates, computing `speed` times as fast, with all-reduces at `rate` bytes per second and other
// collectives in the fitted proportions.
hap::Devices published_devices(int count, double speed, double rate) {
  hap::Devices out;
  for (int j = 0; j < count; ++j) out.flops.push_back(speed * (j < count / 4 ? 3.859e12 : 2.149e12));
  out.bandwidth = {rate, rate * 9.463 / 5.906, rate * 9.740 / 5.906, rate * 24.588 / 5.906};
  return out;
}

// Data parallelism: what ranks compute, and the all-reduce of all gradients.
struct DataParallel {
  double flops = 0;
  double bytes = 0;

  explicit DataParallel(const hap::Graph& graph) {
    for (const hap::Node& node : graph.nodes) {
      flops += 3 * hap::forward_flops(graph, node, hap::Dialect::paper);
      if (node.operation == hap::Operation::parameter) bytes += 4 * graph.tensor(node.output).elements();
    }
  }
  [[nodiscard]] double computing(const std::vector<double>& speeds, const hap::Ratios& ratios) const {
    double longest = 0;
    for (std::size_t j = 0; j < ratios.size(); ++j) longest = std::max(longest, ratios[j] * flops / speeds[j]);
    return longest;
  }
  [[nodiscard]] double even(const hap::Devices& on) const { return computing(on.flops, hap::even_ratios(on.count())); }
  [[nodiscard]] double proportional(const hap::Devices& on) const {
    return computing(on.flops, hap::proportional_ratios(on.flops));
  }
};

// How far proportional shares are from the published seconds at this speed, when even ones take exactly theirs;
// infinite where even ones would take longer at that.
double misfit(const PublishedModel& model, double speed) {
  double squares = 0;
  for (const PublishedRow& row : model.rows) {
    const DataParallel data(model.graph(row.devices));
    const hap::Devices on = published_devices(row.devices, speed, 1);
    const double reducing = row.even - data.even(on);
    if (reducing <= 0.02 * row.even) return INFINITY;
    squares += std::pow((data.proportional(on) + reducing) / row.proportional - 1, 2);
  }
  return squares;
}

// 1, or where even shares would then take longer than published the speed that fits best.
double fitted_speed(const PublishedModel& model) {
  if (misfit(model, 1) < INFINITY) return 1;
  double best = 1;
  for (double speed = 1; speed < 100; speed *= 1.01)
    if (misfit(model, speed) < misfit(model, best)) best = speed;
  return best;
}

void print_published_row(const char* name, const PublishedRow& row, double hap, double even, double proportional) {
  const auto seconds = [](double value) {
    return value > 0 ? galvatron::detail::formatted("%.3g", value) : std::string("-");
  };
  std::printf("| %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", name, row.devices, seconds(row.hap).c_str(),
              seconds(row.even).c_str(), seconds(row.proportional).c_str(), seconds(row.deepspeed).c_str(),
              seconds(hap).c_str(), seconds(even).c_str(), seconds(proportional).c_str());
}

double best_seconds(const hap::Graph& graph, const hap::Devices& devices, bool even) {
  const hap::Prices prices(graph, devices, hap::Dialect::paper);
  const hap::Instance instance(prices);
  return even ? hap::best_program(instance, hap::even_ratios(devices.count()))->seconds
              : hap::best_program_and_ratios(instance)->seconds;
}

void print_published() {
  std::printf(
      "| model | devices | HAP | even | proportional | DeepSpeed | HAP | even | proportional |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  const PublishedModel dense[] = {{"VGG19",
                                   vgg19,
                                   {{8, .21, 1.24, 1.05, 1.21},
                                    {16, .30, 1.29, 1.17, 1.37},
                                    {32, .41, 1.39, 1.39, 1.49},
                                    {64, .67, 1.59, 1.51, 1.57}}},
                                  {"ViT",
                                   vit_54m,
                                   {{8, .445, .559, .455, .566},
                                    {16, .468, .556, .461, .610},
                                    {32, .493, .604, .531, .645},
                                    {64, .521, .632, .531, .693}}},
                                  {"BERT-Base",
                                   bert_102m,
                                   {{8, .88, .91, .93, .98},
                                    {16, .93, 1.04, .97, 1.11},
                                    {32, .97, 1.31, 1.04, 1.30},
                                    {64, 1.00, 1.34, 1.28, 1.37}}}};
  double speed = 0;
  for (const PublishedModel& model : dense) {
    speed = fitted_speed(model);
    for (const PublishedRow& row : model.rows) {
      const hap::Graph graph = model.graph(row.devices);
      const DataParallel data(graph);
      const double reducing = row.even - data.even(published_devices(row.devices, speed, 1));
      const hap::Devices devices = published_devices(row.devices, speed, data.bytes / reducing);
      print_published_row(model.name, row, best_seconds(graph, devices, false), row.even,
                          data.proportional(devices) + reducing);
    }
  }
  // The speed is that of BERT-Base. DeepSpeed's seconds are those of the best program with even shares.
  for (const PublishedRow& row : {PublishedRow{8, 1.36, 0, 0, 1.39}, PublishedRow{16, 1.78, 0, 0, 1.89},
                                  PublishedRow{32, 2.35, 0, 0, 2.46}, PublishedRow{64, 3.80, 0, 0, 3.83}}) {
    const hap::Graph graph = bert_moe(row.devices);
    double low = 1e6;
    double high = 1e12;
    while (high > low * 1.001) {
      const double rate = std::sqrt(low * high);
      (best_seconds(graph, published_devices(row.devices, speed, rate), true) > row.deepspeed ? low : high) = rate;
    }
    const hap::Devices devices = published_devices(row.devices, speed, high);
    print_published_row("BERT-MoE", row, best_seconds(graph, devices, false), best_seconds(graph, devices, true), 0);
  }
}

int run(const Arguments& a) {
  const auto wanted = [&](const char* name) { return a.only.empty() || a.only == name; };
  if (wanted("times")) print_times();
  if (wanted("alternation")) print_alternation(a.graphs);
  if (wanted("pruning")) print_pruning(a.graphs);
  if (wanted("published")) print_published();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_hap",
                 "HAP's searches: times, the alternation and the paper's pruning beside the best; published seconds.",
                 argc, argv, options, run);
}
