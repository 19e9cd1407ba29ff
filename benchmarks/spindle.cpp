// Spindle's planner on the papers' models: what each freedom of a plan is worth, how long plans take to find, how far
// they are from the best of all, and what placement saves. Prints the tables of docs/spindle.md.
//
//   benchmark_spindle [--only plans|times|exact|placement] [--levels N]
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <galvatron/core/text.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/spindle.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;
using Random = std::mt19937_64;

struct Arguments {
  std::string only;
  int levels = 500;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--only", a.only, "one of plans, times, exact, placement");
  app.add_option("--levels", a.levels, "random levels of each row (default: 500)");
}

// CPU seconds of this program, which has one thread: other programs on the machine do not count.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// ---- the papers' models

// Layers of a component, milliseconds of one (alpha + beta * samples of a device), width and tokens of a sample.
struct Tower {
  const char* name;
  int layers;
  double alpha;
  double beta;
  int width;
  int tokens;
};

struct Model {
  std::string name;
  spindle::Problem problem;
  spindle::Terms terms;
};

// Adds components as MetaOps; those of one name share parameters.
class Builder {
 public:
  Builder(std::string name, int devices) {
    out_.name = std::move(name);
    out_.problem.devices = devices;
    // NVLink of 200 GB/s in each direction, and 400 Gb/s for the 8 devices of a node.
    out_.terms.island_devices = 8;
    out_.terms.island_rate = 200e9;
    out_.terms.rate = 50e9 / 8;
  }

  int add(const Tower& tower, std::int64_t batch, std::vector<int> after = {}) {
    spindle::MetaOp metaop;
    metaop.name = text_of(tower.name, out_.problem.count());
    metaop.operators = tower.layers;
    metaop.curve = spindle::linear_curve(batch, tower.alpha / 1e3, tower.beta / 1e3, out_.problem.devices);
    for (const int before : after)
      metaop.level = std::max(metaop.level, out_.problem.metaops[static_cast<std::size_t>(before)].level + 1);
    metaop.after = std::move(after);
    out_.problem.metaops.push_back(std::move(metaop));
    const double activation = 2.0 * static_cast<double>(batch) * tower.tokens * tower.width;
    const double parameters = 12.0 * tower.width * tower.width;
    const auto shared = shared_.emplace(tower.name, static_cast<int>(shared_.size())).first->second;
    out_.terms.sizes.push_back({activation, activation, 2 * parameters, 16 * parameters, shared});
    return static_cast<int>(out_.problem.count()) - 1;
  }
  Model end() { return std::move(out_); }

 private:
  Model out_;
  std::map<std::string, int> shared_;
};

// Contrastive tasks of two encoders of ImageBind each.
Model clip(int tasks, int devices) {
  static constexpr Tower text{"text", 24, 0.7, 0.050989, 1024, 77};
  static constexpr Tower vision{"vision", 32, 0.725, 0.251699, 1280, 257};
  static constexpr Tower audio{"audio", 12, 0.675, 0.09836, 768, 229};
  static constexpr Tower depth{"depth", 12, 0.6375, 0.029989, 384, 197};
  static constexpr Tower thermal{"thermal", 12, 0.675, 0.084055, 768, 197};
  static constexpr Tower motion{"motion", 6, 0.65, 0.05866, 512, 391};
  struct Task {
    const Tower& first;
    const Tower& second;
    int batch;
  };
  const Task all[] = {{text, vision, 256},    {vision, audio, 128}, {vision, depth, 128}, {text, audio, 256},
                      {vision, thermal, 128}, {vision, motion, 64}, {text, depth, 128},   {text, thermal, 128},
                      {audio, motion, 64},    {text, motion, 64}};
  Builder builder(text_of("CLIP-", tasks), devices);
  for (int t = 0; t < tasks; ++t) {
    builder.add(all[t].first, all[t].batch);
    builder.add(all[t].second, all[t].batch);
  }
  return builder.end();
}

// An adaptor, the encoder and the decoder for each task; milliseconds follow from the tokens of the task.
Model ofasys(int tasks, int devices) {
  struct Task {
    Tower adaptor;
    int batch;
    double encoder;
    double decoder;
  };
  static constexpr Tower vision{"vision", 12, 0.675, 0.111025, 768, 197};
  const Task all[] = {{vision, 128, 0.197896, 0.021037},
                      {vision, 64, 0.197896, 0.031637},
                      {{"audio", 6, 0.675, 0.177881, 768, 384}, 64, 0.302392, 0.031637},
                      {{"text", 2, 0.675, 0.232779, 768, 512}, 64, 0.387276, 0.042292},
                      {{"text", 2, 0.675, 0.11057, 768, 256}, 64, 0.19718, 0.063765},
                      {vision, 128, 0.197896, 0.015757},
                      {{"audio", 6, 0.675, 0.130747, 768, 288}, 64, 0.22886, 0.021037}};
  Builder builder(text_of("OFASys-", tasks), devices);
  for (int t = 0; t < tasks; ++t) {
    const int adaptor = builder.add(all[t].adaptor, all[t].batch);
    const int encoder = builder.add({"encoder", 6, 0.7, all[t].encoder, 1024, 256}, all[t].batch, {adaptor});
    builder.add({"decoder", 6, 0.7, all[t].decoder, 1024, 32}, all[t].batch, {encoder});
  }
  return builder.end();
}

Model qwen_val(int devices) {
  static constexpr Tower vision{"vision", 48, 0.7625, 1.665945, 1664, 1024};
  static constexpr Tower audio{"audio", 32, 0.725, 1.69913, 1280, 1500};
  const auto language = [](double beta) { return Tower{"language", 32, 1.0, beta, 4096, 512}; };
  Builder builder("QWen-VAL", devices);
  const int first = builder.add(vision, 64);
  const int second = builder.add(audio, 64);
  const int both[] = {builder.add(vision, 32), builder.add(audio, 32)};
  builder.add(language(3.679255), 64, {first});
  builder.add(language(5.575198), 64, {second});
  builder.add(language(7.508684), 32, {both[0], both[1]});
  return builder.end();
}

std::vector<Model> models(int devices) {
  std::vector<Model> out;
  for (const int tasks : {1, 4, 7, 10}) out.push_back(clip(tasks, devices));
  for (const int tasks : {4, 7}) out.push_back(ofasys(tasks, devices));
  out.push_back(qwen_val(devices));
  return out;
}

// ---- tables

// Every MetaOp on its largest count, one after the other.
double in_sequence(const spindle::Problem& problem) {
  double out = 0;
  for (const spindle::MetaOp& metaop : problem.metaops) out += metaop.operators * metaop.curve.fastest();
  return out;
}

double greedy(const spindle::Problem& problem) {
  return std::min(spindle::waves_seconds(spindle::greedy_waves(problem, true)),
                  spindle::waves_seconds(spindle::greedy_waves(problem, false)));
}

// The best plans of the levels, one after the other.
double with_barriers(const spindle::Problem& problem) {
  double out = 0;
  for (const spindle::Level& level : spindle::levels_of(problem)) out += spindle::best_plan(level.problem).seconds;
  return out;
}

void print_plans() {
  std::printf(
      "| model | devices | in sequence | Spindle's waves | waves by level | waves | above the optimum | above the "
      "bound | "
      "number | seconds |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const int devices : {8, 16, 32, 64, 256})
    for (const Model& model : models(devices)) {
      const double own = greedy(model.problem);
      const double levels = with_barriers(model.problem);
      const double begin = now();
      const spindle::Plan plan = spindle::best_plan(model.problem);
      const double took = now() - begin;
      std::printf("| %s | %d | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.2f %% | %.2f %%%s | %zu | %.0f ms |\n",
                  model.name.c_str(), devices, in_sequence(model.problem) * 1e3, own * 1e3, levels * 1e3,
                  plan.seconds * 1e3, 100 * (plan.seconds / spindle::continuous_seconds(model.problem) - 1),
                  100 * (plan.seconds / plan.bound - 1), plan.proven ? ", proven" : "", plan.waves.size(), took * 1e3);
    }
}

// All tasks of CLIP-10 and OFASys-7 and three of CLIP-7: 20 tasks.
Model twenty_tasks(int devices) {
  Model out = clip(10, devices);
  for (const Model& other : {ofasys(7, devices), clip(3, devices)}) {
    const auto first = static_cast<int>(out.problem.count());
    for (spindle::MetaOp metaop : other.problem.metaops) {
      for (int& before : metaop.after) before += first;
      out.problem.metaops.push_back(std::move(metaop));
    }
  }
  out.name = "20 tasks";
  return out;
}

void print_times() {
  std::printf(
      "| model | MetaOps | devices | Spindle's waves | plan | above the bound | by |\n|---|---|---|---|---|---|---|\n");
  const auto row = [](const Model& model) {
    std::vector<double> times;
    spindle::Plan plan;
    for (int turn = 0; turn < 5; ++turn) {
      const double begin = now();
      plan = spindle::best_plan(model.problem);
      times.push_back(now() - begin);
    }
    std::ranges::sort(times);
    const double begin = now();
    const double own = greedy(model.problem);
    std::printf("| %s | %zu | %d | %.1f ms | %.0f ms | %.2f %% | %.2f %% |\n", model.name.c_str(),
                model.problem.count(), model.problem.devices, (now() - begin) * 1e3, times[2] * 1e3,
                100 * (plan.seconds / plan.bound - 1), 100 * (own / plan.bound - 1));
  };
  for (const int devices : {8, 64, 1024}) {
    row(clip(10, devices));
    row(ofasys(7, devices));
    row(twenty_tasks(devices));
  }
}

// Random levels, small enough that the best waves are known.
void print_exact(int count) {
  std::printf(
      "| MetaOps | operators | best above the optimum | Spindle's above the best | at worst | beam equals the best | "
      "beam "
      "above the best, at worst |\n|---|---|---|---|---|---|---|\n");
  struct Row {
    int metaops;
    int operators;
  };
  for (const Row row : {Row{2, 32}, Row{3, 8}, Row{3, 16}, Row{4, 8}, Row{5, 6}}) {
    Random random(20261126);
    const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    const auto between = [&](double least, double most) {
      return std::uniform_real_distribution<double>(least, most)(random);
    };
    double best = 0;
    double own = 0;
    double worst = 0;
    double beam_worst = 0;
    int equal = 0;
    int all = 0;
    while (all < count) {
      spindle::Problem level{draw(4, 16), {}};
      for (int m = 0; m < row.metaops; ++m)
        level.metaops.push_back({"m",
                                 draw(row.operators / 2, row.operators),
                                 spindle::linear_curve(std::int64_t{4} << draw(0, 4), between(1e-4, 7e-4),
                                                       between(2e-5, 4e-4), level.devices),
                                 {},
                                 0});
      const spindle::Plan plan = spindle::best_plan(level, {.steps = 2'000'000'000});
      if (!plan.proven) continue;
      ++all;
      spindle::Work work{1'000'000'000};
      const double start = greedy(level);
      const std::vector<spindle::Wave> waves =
          spindle::detail::Beam(level, {.buckets = 96, .width = 4, .lengths = 24}, work).run(start);
      const double beam = waves.empty() ? start : spindle::waves_seconds(waves);
      best += plan.seconds / spindle::continuous_seconds(level) - 1;
      own += start / plan.seconds - 1;
      worst = std::max(worst, start / plan.seconds - 1);
      beam_worst = std::max(beam_worst, beam / plan.seconds - 1);
      if (beam <= plan.seconds * (1 + 1e-9)) ++equal;
    }
    std::printf("| %d | %d | %.2f %% | %.2f %% | %.1f %% | %.1f %% | %.1f %% |\n", row.metaops, row.operators,
                100 * best / all, 100 * own / all, 100 * worst, 100.0 * equal / all, 100 * beam_worst);
  }
}

// Devices one after the other, in the order of the parts.
spindle::Placement sequential(const std::vector<spindle::Wave>& waves) {
  spindle::Placement out;
  for (const spindle::Wave& wave : waves) {
    int next = 0;
    out.emplace_back();
    for (const spindle::Part& part : wave.parts)
      for (std::vector<int>& devices = out.back().emplace_back(); std::ssize(devices) < part.devices;)
        devices.push_back(next++);
  }
  return out;
}

void print_placement() {
  std::printf(
      "| model | devices | waves | transfers in sequence | placed | planned with them | reduction in sequence | placed "
      "| "
      "planned with them | by |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const int devices : {16, 64})
    for (const Model& model : models(devices)) {
      const spindle::Plan plan = spindle::best_plan(model.problem);
      spindle::Pricing pricing(model.problem, model.terms, plan.waves);
      const spindle::Price order = pricing(sequential(plan.waves));
      const spindle::Price placed = pricing(spindle::place(model.problem, model.terms, plan.waves));
      const double begin = now();
      const auto whole = value_or_throw(spindle::best_placed_plan(model.problem, model.terms));
      std::printf("| %s | %d | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.0f ms |\n",
                  model.name.c_str(), devices, plan.seconds * 1e3, order.transfer_seconds * 1e3,
                  placed.transfer_seconds * 1e3, whole.price.transfer_seconds * 1e3, order.reduce_seconds * 1e3,
                  placed.reduce_seconds * 1e3, whole.price.reduce_seconds * 1e3, (now() - begin) * 1e3);
    }
}

int run(const Arguments& a) {
  const auto wanted = [&](const char* name) { return a.only.empty() || a.only == name; };
  if (wanted("plans")) print_plans();
  if (wanted("times")) print_times();
  if (wanted("exact")) print_exact(a.levels);
  if (wanted("placement")) print_placement();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_spindle", "Spindle's planner: freedoms, times, exact plans and placement.", argc, argv,
                 options, run);
}
