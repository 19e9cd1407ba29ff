// Plans of several pipelines on mixed clusters: their simulated times, and the search against all plans of small cases.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/simulate/find_pipelines.hpp>
#include <galvatron/simulate/wave_peaks.hpp>

using namespace galvatron;

namespace {

ModelSpec small_model(int layers) {
  ModelSpec model = value_or_throw(find_model("llama-tiny"));
  for (LayerSpec* layer : {&model.embedding, &model.blocks.front(), &model.head}) {
    layer->hidden = 1024;
    layer->heads = layer->kv_heads = 8;
    layer->head_dim = 128;
    layer->ffn = 4096;
    layer->vocabulary = 8000;
    layer->positions = 512;
  }
  model.blocks.assign(static_cast<std::size_t>(layers), model.blocks.front());
  return model;
}

search::SearchOptions options_for(std::int64_t batch, Bytes memory = {}) {
  search::SearchOptions out;
  out.global_batch = batch;
  out.memory = memory;
  out.space.recompute = {RecomputeKind::none, RecomputeKind::full};
  out.space.sequence = {SequenceKind::none};
  return out;
}

// Every plan of one pipeline on each group, simulated; the least seconds of those that fit.
class AllPlans {
 public:
  AllPlans(const ModelSpec& model, const MixedCluster& cluster, const search::SearchOptions& options)
      : model_(model),
        options_(value_or_throw(search::completed(options, model, ClusterView(cluster)))),
        cluster_(galvatron::detail::beside_reserve(ClusterView(cluster), options_)) {}

  double best() {
    for (int tensor = 1; tensor <= 2; ++tensor)
      for (int zero = 0; zero <= 1; ++zero) {
        plan_ = {.ranks = ClusterView(cluster_).devices(), .zero = zero, .waves = std::vector<Wave>(16)};
        samples_.clear();
        add_group(0, tensor, options_.global_batch);
      }
    return best_;
  }
  int plans = 0;

 private:
  void add_group(int group, int tensor, std::int64_t left) {
    if (group == ClusterView(cluster_).count()) {
      if (left == 0) price();
      return;
    }
    const int devices = cluster_.groups[static_cast<std::size_t>(group)].devices;
    if (devices % tensor != 0) return;
    for (std::int64_t samples = 1; samples <= left; ++samples)
      for (int stages = 1; stages <= devices / tensor; ++stages)
        for (int count = 1; count <= samples; ++count)
          for (const RecomputeKind recompute : options_.space.recompute) {
            const int data = devices / tensor / stages;
            if (data * stages * tensor != devices || samples % (count * data) != 0) continue;
            samples_.push_back(samples);
            plan_.microbatches.push_back(count);
            stages_.push_back(stages);
            add_stages(group, {.tensor = tensor, .data = data, .recompute = recompute}, stages, 0, 0, left - samples);
            samples_.pop_back();
            plan_.microbatches.pop_back();
            stages_.pop_back();
          }
  }
  void add_stages(int group, const StrategySpec& spec, int stages, int stage, int first, std::int64_t left) {
    const int layers = model_.layers();
    if (stage == stages) {
      if (first == layers) add_group(group + 1, spec.tensor, left);
      return;
    }
    for (int last = stage + 1 == stages ? layers - 1 : first; last < layers; ++last) {
      WavePart part{.task = group, .pass = 0, .first = first, .last = last, .ranks = {}, .strategy = spec};
      for (int i = 0; i < spec.ranks(); ++i)
        part.ranks.push_back(ClusterView(cluster_).first_device(group) + stage * spec.ranks() + i);
      plan_.waves[static_cast<std::size_t>(stage)].parts.push_back(std::move(part));
      add_stages(group, spec, stages, stage + 1, last + 1, left);
      plan_.waves[static_cast<std::size_t>(stage)].parts.pop_back();
    }
  }
  void price() {
    ++plans;
    WavePlan plan = plan_;
    plan.in_flight = std::ranges::max(stages_);
    std::erase_if(plan.waves, [](const Wave& wave) { return wave.parts.empty(); });
    const MultiTaskModel model = value_or_throw(pipelines_of(model_, samples_, options_.sequence));
    const auto made = train::task_plan(model, plan, in_waves);
    if (!made) return;
    const train::TaskCosts costs(*made, layers_);
    const ClusterView view(cluster_);
    const auto peaks = simulate::peaks_of(*made, costs, options_.precision, view);
    for (int rank = 0; rank < plan.ranks; ++rank)
      if (peaks[static_cast<std::size_t>(rank)] > min(options_.memory, view.group(view.group_of(rank)).device.memory))
        return;
    best_ = std::min(best_, simulate::simulate_waves(*made, costs, view, options_.precision).step.value);
  }

  const ModelSpec& model_;
  search::SearchOptions options_;
  MixedCluster cluster_;
  train::LayerCosts layers_{Precision::bf16};
  WavePlan plan_;
  std::vector<std::int64_t> samples_;
  std::vector<int> stages_;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace

TEST_CASE("the search finds the best of all plans of one pipeline on each group of small clusters in most cases") {
  constexpr unsigned seed = 20261128;
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const auto one_of = [&](const auto& list) { return list[random() % std::size(list)]; };
  const char* const devices[] = {"p100-16g", "v100-32g", "a100-80g", "h100-80g"};
  double worst = 1;
  int plans = 0, best_ones = 0, none = 0, stages = 0;
  for (int i = 0; i < 40; ++i) {
    std::string name;
    for (int group = 0; group < 2; ++group)
      name += (group > 0 ? "+" : "") + std::to_string(1 + random() % 3) + "x" + one_of(devices);
    MixedCluster cluster = value_or_throw(mixed_preset(name));
    if (random() % 3 > 0)  // passes matter more than reductions
      for (Link& link : cluster.links) link.bandwidth = link.all_reduce_bandwidth = link.send_bandwidth = 200e9;
    const ModelSpec model = small_model(2 + static_cast<int>(random() % 3));
    const auto batch = static_cast<std::int64_t>(3 + random() % 6);
    const double memory = one_of(std::array{0.0, 2.9e9, 3.2e9, 3.6e9, 4.5e9});
    const auto options = options_for(batch, Bytes{static_cast<std::int64_t>(memory)});
    INFO("case ", i, ": ", name, ", batch ", batch, ", ", model.layers(), " layers, ", memory, " bytes");
    AllPlans all(model, cluster, options);
    const double best = all.best();
    plans += all.plans;
    const auto found = simulate::find_pipelines(model, ClusterView(cluster), options, Seconds{1e30});
    CHECK(found.best.has_value() == std::isfinite(best));
    if (!found.best || !std::isfinite(best)) {
      ++none;
      continue;
    }
    const double step = found.best->simulation.step.value;
    CHECK(step >= best * (1 - 1e-9));
    CHECK(step <= best * 1.15);
    CHECK(found.bound.value <= step);
    worst = std::max(worst, step / best);
    best_ones += step <= best * (1 + 1e-9) ? 1 : 0;
    stages += std::ssize(found.best->plan.waves) > 1 ? 1 : 0;
    // With less than its step asked for, nothing is found.
    CHECK_FALSE(simulate::find_pipelines(model, ClusterView(cluster), options, Seconds{step}).best.has_value());
  }
  MESSAGE("of ", plans, " plans found steps are ", worst, " times the best at most, and the best in ", best_ones,
          " of 40 cases; nothing fits in ", none, ", ", stages, " have stages");
  CHECK(best_ones > 20);
  CHECK(stages > 3);
}

TEST_CASE("what several pipelines cannot be is not searched") {
  const MixedCluster cluster = value_or_throw(mixed_preset("1xa100-80g+2xv100-32g"));
  const ModelSpec model = small_model(2);
  const auto finds = [&](const ModelSpec& of, const ClusterView& on, const search::SearchOptions& options) {
    return simulate::find_pipelines(of, on, options, Seconds{1e30}).best.has_value();
  };
  const search::SearchOptions options = options_for(6);
  CHECK(finds(model, ClusterView(cluster), options));
  CHECK_FALSE(finds(model, ClusterView(cluster.groups.front()), options));
  CHECK_FALSE(finds(value_or_throw(find_model("gpt2-tiny")), ClusterView(cluster), options));
  for (const auto& change : std::vector<std::function<void(search::SearchOptions&)>>{
           [](auto& o) { o.space.spread = false; }, [](auto& o) { o.moments = Precision::bf16; },
           [](auto& o) { o.microbatches = 2; }, [](auto& o) { o.schedules = {ScheduleKind::gpipe}; },
           [](auto& o) { o.one_strategy = true; }}) {
    search::SearchOptions other = options;
    change(other);
    CHECK_FALSE(finds(model, ClusterView(cluster), other));
  }
}
