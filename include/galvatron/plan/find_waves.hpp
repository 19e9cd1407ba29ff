// A plan of waves for a multi-task model on a cluster: passes as MetaOps with prices from their layers' programs,
// planned and placed by spindle/, and back as parts of layers on ranks.
//
// A pass is one MetaOp. Its operators are its blocks, and what stands before or behind these (an embedding, a
// projection, a head) goes with the first or the last of them; an operator's seconds are the pass's over their number,
// forward and backward. All layers have one tensor degree t: the planner sees
// runs of t neighbouring devices as one device each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/terms.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron {

struct WaveOptions {
  int ranks = 0;  ///< 0: all devices of the cluster
  Precision precision = Precision::bf16;
  int zero = 0;    ///< of the plan: 0 or 1
  int tensor = 0;  ///< degree of all layers; 0: the best of the powers of 2 inside a node
  spindle::Limits limits{};
};

/// A plan, and what the search says of it.
struct FoundWaves {
  WavePlan plan;
  int tensor = 1;
  double seconds = 0;  ///< of a step, as the search prices it
  double bound = 0;    ///< of the passes: no schedule takes less by these prices
};

namespace detail {

/// A multi-task model as a problem of waves. Its devices are runs of `tensor` ranks.
class WaveProblem {
 public:
  WaveProblem(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, const Cluster& cluster,
              const WaveOptions& options, int ranks, int tensor)
      : model_(model), graphs_(graphs), cluster_(cluster), options_(options), tensor_(tensor) {
    problem.devices = ranks / tensor;
    terms.island_devices = cluster.devices_per_node / tensor;
    terms.island_rate = cluster.inside_node.bandwidth;
    terms.rate = cluster.across_nodes.bandwidth;
    terms.memory = static_cast<double>(cluster.device.memory.count);
    std::vector<std::vector<int>> number;  // of MetaOps, by task and pass
    for (int task = 0; task < static_cast<int>(graphs.size()); ++task) {
      number.emplace_back();
      for (const TaskPass& pass : graphs[at(task)].passes) {
        const int own = static_cast<int>(passes_.size());
        passes_.push_back({task, static_cast<int>(number.back().size()), 0, 0, 0});
        number.back().push_back(own);
        add(task, pass, number.back());
      }
    }
  }

  spindle::Problem problem;
  spindle::Terms terms;

  /// The layers and ranks of the parts of a plan, whose operators are taken in order.
  [[nodiscard]] WavePlan waves(const spindle::PlacedPlan& placed) const {
    WavePlan out{.ranks = problem.devices * tensor_, .zero = options_.zero};
    std::vector<int> done(passes_.size(), 0);  // operators
    for (std::size_t w = 0; w < placed.plan.waves.size(); ++w) {
      Wave& wave = out.waves.emplace_back();
      const auto& parts = placed.plan.waves[w].parts;
      for (std::size_t p = 0; p < parts.size(); ++p) {
        const Pass& pass = passes_[at(parts[p].metaop)];
        int& first = done[at(parts[p].metaop)];
        const int end = first + parts[p].operators;
        const int operators = problem.metaops[at(parts[p].metaop)].operators;
        wave.parts.push_back({.task = pass.task,
                              .pass = pass.pass,
                              .first = first == 0 ? 0 : pass.first_block + first,
                              .last = end == operators ? pass.layers - 1 : pass.first_block + end - 1,
                              .ranks = {},
                              .strategy = {.tensor = tensor_, .data = parts[p].devices}});
        for (const int device : placed.placement[w][p])
          for (int rank = 0; rank < tensor_; ++rank) wave.parts.back().ranks.push_back(device * tensor_ + rank);
        first = end;
      }
    }
    return out;
  }

 private:
  struct Pass {
    int task, pass;
    int layers, first_block, blocks;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  void add(int task, const TaskPass& pass, const std::vector<int>& numbers) {
    const Component& component = model_.component(pass.component);
    Pass& own = passes_.back();
    own.layers = static_cast<int>(component.layers.size());
    for (const LayerSpec& layer : component.layers) {
      const bool block = layer.kind == LayerKind::block && layer.forward_pass == nullptr;
      if (!block && own.blocks == 0) ++own.first_block;
      own.blocks += block ? 1 : 0;
    }
    if (own.blocks == 0) own.first_block = 0;
    spindle::MetaOp metaop{.name = model_.task(task).name + "_" + component.name,
                           .operators = std::max(own.blocks, 1),
                           .curve = {},
                           .after = {},
                           .level = 0};
    for (int read : pass.inputs) metaop.after.push_back(numbers[at(read)]);
    if (pass.memory >= 0) metaop.after.push_back(numbers[at(pass.memory)]);
    std::ranges::sort(metaop.after);
    for (const int before : metaop.after) metaop.level = std::max(metaop.level, problem.metaops[at(before)].level + 1);
    price(task, pass, metaop);
    problem.metaops.push_back(std::move(metaop));
  }
  void price(int task, const TaskPass& pass, spindle::MetaOp& metaop) {
    const std::int64_t batch = model_.task(task).batch;
    const auto layers = static_cast<int>(model_.component(pass.component).layers.size());
    const double operators = metaop.operators;
    spindle::Sizes sizes{.parameters = pass.component};
    for (const int n : spindle::valid_counts(batch, problem.devices)) {
      double seconds = 0;
      for (int i = 0; i < layers; ++i) {
        const cost::LayerCounts counts = counts_of(task, pass, i, n);
        seconds += cost::time_of(counts.forward, options_.precision, cluster_).value +
                   cost::time_of(counts.backward, options_.precision, cluster_).value;
        if (n > 1) continue;
        sizes.kept_bytes += static_cast<double>(counts.stash.count) / operators;
        sizes.state_bytes += static_cast<double>(counts.states.count) / operators;
        sizes.gradient_bytes += 4 * static_cast<double>(parameters(layer(task, pass, i))) / tensor_ / operators;
        sizes.output_bytes = static_cast<double>(counts.activation.count);
      }
      metaop.curve.add(n, seconds / operators);
    }
    terms.sizes.push_back(sizes);
  }
  [[nodiscard]] LayerSpec layer(int task, const TaskPass& pass, int i) const {
    return layer_of(model_, graphs_[at(task)], pass, i);
  }
  [[nodiscard]] cost::LayerCounts counts_of(int task, const TaskPass& pass, int i, int data) const {
    return cost::layer_counts(layer(task, pass, i), {.tensor = tensor_, .data = data},
                              {.microbatch = model_.task(task).batch,
                               .sequence = pass.tokens,
                               .precision = options_.precision,
                               .stages = 2,
                               .overlap = false});
  }

  const MultiTaskModel& model_;
  const std::vector<TaskGraph>& graphs_;
  const Cluster& cluster_;
  const WaveOptions& options_;
  int tensor_;
  std::vector<Pass> passes_;  ///< of the MetaOps
};

/// Whether all layers may have this tensor degree.
inline bool fits_tensor(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, int tensor) {
  for (const TaskGraph& graph : graphs)
    for (const TaskPass& pass : graph.passes)
      for (int i = 0; i < static_cast<int>(model.component(pass.component).layers.size()); ++i)
        if (!is_fit(layer_of(model, graph, pass, i), {.tensor = tensor}, 1, pass.tokens)) return false;
  return true;
}

}  // namespace detail

/// The best plan of waves that the search finds. Errors (usage): more ranks than devices, a ZeRO stage above 1, a
/// tensor degree that does not fit, and those of checked(); (infeasible): no plan fits into the memory of a device.
inline Result<FoundWaves> find_waves(const MultiTaskModel& model, const Cluster& cluster,
                                     const WaveOptions& options = {}) {
  if (options.ranks < 0 || options.ranks > cluster.devices)
    return usage_error("a plan of waves for " + std::to_string(options.ranks) + " ranks, and the cluster has " +
                       std::to_string(cluster.devices) + " devices");
  if (options.zero < 0 || options.zero > 1)
    return usage_error("parameters of several parts are on unions of their ranks, which have ZeRO-0 or ZeRO-1");
  auto graphs = task_graphs(model);
  if (!graphs) return tl::unexpected<Error>(std::move(graphs.error()));
  const int ranks = options.ranks > 0 ? options.ranks : cluster.devices;
  const int most = options.tensor > 0 ? options.tensor : cluster.devices_per_node;
  Result<FoundWaves> best = usage_error("the tensor degree " + std::to_string(options.tensor) +
                                        " does not divide the ranks, the devices of a node or a width of the model");
  for (int tensor = options.tensor > 0 ? options.tensor : 1; tensor <= most; tensor *= 2) {
    if (ranks % tensor != 0 || cluster.devices_per_node % tensor != 0 || !detail::fits_tensor(model, *graphs, tensor))
      continue;
    const detail::WaveProblem problem(model, *graphs, cluster, options, ranks, tensor);
    const auto placed = spindle::best_placed_plan(problem.problem, problem.terms, options.limits);
    if (!placed && !best) best = tl::unexpected<Error>(placed.error());
    if (placed && (!best || placed->price.seconds < best->seconds))
      best = FoundWaves{problem.waves(*placed), tensor, placed->price.seconds, placed->plan.bound};
  }
  return best;
}

}  // namespace galvatron
