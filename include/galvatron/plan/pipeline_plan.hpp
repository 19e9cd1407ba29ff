// Pipelines of multi-task models: the layers of all components one behind the other, cut into stages on equally many
// devices that take equally long over all tasks. Every task goes through them in micro-batches, one forward, one
// backward (plan/task_program.hpp). Encoders before a language model are stages of their own, as in DistTrain (Zhang et
// al., SIGCOMM 2025), or share one with its first layers, whatever is balanced:
//
//     layers     vision 0 .. 5  sound 0 .. 2 | llm 0 .. 9 | llm 10 .. 19
//     devices    0-3                         | 4-7        | 8-11             a stage each
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/model/multi_task.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/plan/wave_problem.hpp>

namespace galvatron {

/// The model with the samples of one micro-batch of each task, and how many micro-batches these are.
struct MicroBatched {
  MultiTaskModel model;
  std::vector<int> counts;

  /// At most `most` micro-batches of each task whose loss allows it.
  static MicroBatched of(MultiTaskModel model, const std::vector<TaskGraph>& graphs, int most) {
    MicroBatched out{std::move(model), {}};
    for (std::size_t t = 0; t < graphs.size(); ++t) {
      std::int64_t& batch = out.model.tasks[t].batch;
      int count = has_microbatches(out.model, graphs[t]) ? most : 1;
      while (batch % count != 0) --count;
      batch /= count;
      out.counts.push_back(count);
    }
    return out;
  }
};

namespace detail {

/// Components in an order in which each is behind those that it reads in any task.
inline std::vector<int> components_in_order(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs) {
  std::vector<int> depth(model.components.size());
  for (std::size_t round = 0; round < depth.size(); ++round)
    for (const TaskGraph& graph : graphs)
      for (const TaskPass& pass : graph.passes) {
        std::vector<int> reads = pass.inputs;
        if (pass.memory >= 0) reads.push_back(pass.memory);
        for (const int read : reads) {
          int& own = depth[static_cast<std::size_t>(pass.component)];
          own = std::max(own, depth[static_cast<std::size_t>(graph.pass(read).component)] + 1);
        }
      }
  std::vector<int> out(depth.size());
  std::iota(out.begin(), out.end(), 0);
  std::ranges::stable_sort(out, {}, [&](int c) { return depth[static_cast<std::size_t>(c)]; });
  return out;
}

/// Cuts a list of seconds into runs with the least largest sum: where each run ends.
inline std::vector<std::size_t> balanced_ends(const std::vector<double>& seconds, std::size_t runs) {
  const std::size_t n = seconds.size();
  std::vector<double> sums(n + 1);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + seconds[i];
  // [runs - 1][end]: the least largest sum, and where its last run begins
  std::vector<std::vector<std::pair<double, std::size_t>>> best(runs);
  for (std::size_t end = 0; end <= n; ++end) best[0].emplace_back(sums[end], 0);
  for (std::size_t r = 1; r < runs; ++r)
    for (std::size_t end = 0; end <= n; ++end) {
      auto& own = best[r].emplace_back(best[r - 1][end].first, end);
      for (std::size_t begin = 0; begin < end; ++begin)
        own = std::min(own, {std::max(best[r - 1][begin].first, sums[end] - sums[begin]), begin});
    }
  std::vector<std::size_t> out(runs, n);
  for (std::size_t r = runs - 1; r > 0; --r) out[r - 1] = best[r][out[r]].second;
  return out;
}

}  // namespace detail

/// A pipeline of so many stages, with as many micro-batches of a task in flight; none where the devices do not divide.
/// @param prices  of micro.model
inline std::optional<WavePlan> pipeline_plan(WavePrices& prices, const WaveKinds& kinds, const MicroBatched& micro,
                                             int stages) {
  if (prices.cluster().devices % stages != 0) return std::nullopt;
  const int devices = prices.cluster().devices / stages;
  for (const StrategySpec& spec : kinds.components)
    if (devices % spec.tensor != 0) return std::nullopt;
  const WaveProblem of = wave_problem(prices, kinds);
  const auto spec_of = [&](const MetaOpRun& run, int layer) {
    return prices.strategy_on(prices.kind_in(run, layer, kinds), devices, micro.model.task(run.task).batch);
  };
  std::vector<int> first(micro.model.components.size());  // of each component's layers in the list
  std::vector<double> seconds;
  for (const int c : detail::components_in_order(micro.model, prices.graphs())) {
    first[static_cast<std::size_t>(c)] = static_cast<int>(seconds.size());
    for (int i = 0; i < std::ssize(micro.model.component(c).layers); ++i) {
      double& own = seconds.emplace_back();
      for (const MetaOpRun& run : of.runs)
        if (run.component == c)
          own += prices(run, i, spec_of(run, i), 0).seconds.value * micro.counts[static_cast<std::size_t>(run.task)];
    }
  }
  if (std::ssize(seconds) < stages) return std::nullopt;
  const std::vector<std::size_t> ends = detail::balanced_ends(seconds, static_cast<std::size_t>(stages));
  WavePlan out{.ranks = prices.cluster().devices, .zero = kinds.zero, .in_flight = stages};
  for (const MetaOpRun& run : of.runs) {
    std::pair<int, StrategySpec> before{-1, {}};
    for (int i = 0; i < run.layers; ++i) {
      const auto at = static_cast<std::size_t>(first[static_cast<std::size_t>(run.component)] + i);
      const auto stage = static_cast<int>(std::ranges::upper_bound(ends, at) - ends.begin());
      const std::pair now{stage, spec_of(run, i)};
      if (now == before) {
        out.waves.back().parts.back().last = i;
        continue;
      }
      before = now;
      WavePart part{.task = run.task, .pass = run.pass, .first = i, .last = i, .ranks = {}, .strategy = now.second};
      for (int rank = 0; rank < now.second.ranks(); ++rank) part.ranks.push_back(stage * devices + rank);
      out.waves.push_back({{std::move(part)}});
    }
  }
  return out;
}

}  // namespace galvatron
