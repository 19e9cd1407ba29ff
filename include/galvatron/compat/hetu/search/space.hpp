// The space that Hetu-Galvatron sweeps, and its price: every number of micro-batches that divides the batch, every
// pipeline degree, and for one of each the strategies of layers and of the ends.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/compat/hetu/search/stage.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/strategy/divisors.hpp>

namespace galvatron::search::hetu {

struct Options {
  std::int64_t microbatches = 0;  ///< 0: every divisor of the batch
  bool coarse = false;            ///< one strategy for all layers
  int most_tensor = 8;            ///< largest degree of tensor and Ulysses parallelism
  int most_pipeline = 8;          ///< largest number of stages
  /// Only plans whose micro-batches divide evenly among the data-parallel ranks. Hetu drops the remainder: it counts 15
  /// samples on 8 ranks as 8.
  bool whole_samples = false;
};

/// Embedding and head under a strategy, on the first and last stage; with one stage both are on it.
struct Ends {
  cost::hetu::EndStrategy strategy;
  double first_time = 0;
  double last_time = 0;  ///< 0 with one stage
  double first_megabytes = 0;
  double last_megabytes = 0;  ///< with one stage that of the first
};

/// All strategies with p stages and m micro-batches.
struct Group {
  int pipeline = 1;
  std::int64_t microbatches = 1;
  std::vector<int> division;  ///< layers of each stage
  std::vector<cost::hetu::LayerStrategy> strategies;
  std::vector<cost::hetu::Cost> costs;  ///< of a layer, by strategy
  std::vector<Ends> ends;
};

/// Powers of two that divide `n`, up to `most`: the degrees that Hetu profiles.
inline std::vector<int> degrees(int n, int most) {
  std::vector<int> out = divisors(n, true);
  std::erase_if(out, [most](int degree) { return degree > most; });
  return out;
}

/// MB of a stage that are not its layers', without the sequence-parallel buffer.
inline double end_megabytes(const Group& group, const Ends& ends, std::size_t stage) {
  if (stage == 0) return ends.first_megabytes;
  return stage + 1 == group.division.size() ? ends.last_megabytes : cost::hetu::reserved_megabytes;
}

/// Throws Failure (usage): a figure that the profiles lack.
inline Group make_group(const cost::hetu::Model& model, const Options& options, int pipeline,
                        std::int64_t microbatches) {
  const cost::hetu::Job& job = model.job();
  Group group{pipeline, microbatches, cost::hetu::even_division(job.layers, pipeline), {}, {}, {}};
  const int stage = job.devices / pipeline;
  // Adds the end `which` of the model, on stage number `at`.
  const auto add_end = [&](Ends& ends, cost::hetu::End which, int at, double& time, double& megabytes) {
    const cost::hetu::Cost cost = value_or_throw(model.end(ends.strategy, which, pipeline, microbatches));
    time = cost.no_sync;
    megabytes = std::ceil(cost.memory(model.in_flight(at, pipeline, microbatches)) + cost::hetu::reserved_megabytes);
  };
  for (const int degree : degrees(stage, options.most_tensor)) {
    if (model.local_batch(pipeline, degree, microbatches) < 1) continue;
    if (options.whole_samples && job.global_batch / microbatches % (stage / degree) != 0) continue;
    for (const bool ulysses : {false, true}) {
      if (ulysses && degree == 1) continue;
      const int shards = ulysses ? stage : stage / degree;
      for (const bool zero3 : {false, true}) {
        if (zero3 && (shards == 1 || job.data == cost::hetu::DataKind::zero3)) continue;
        for (const bool recompute : {false, true}) {
          group.strategies.push_back({ulysses ? 1 : degree, ulysses ? degree : 1, zero3, recompute});
          group.costs.push_back(value_or_throw(model.layer(group.strategies.back(), pipeline, microbatches)));
        }
        using cost::hetu::End;
        Ends& ends = group.ends.emplace_back();
        ends.strategy = {degree, ulysses, zero3};
        add_end(ends, pipeline == 1 ? End::whole : End::first, 0, ends.first_time, ends.first_megabytes);
        if (pipeline > 1) add_end(ends, End::last, pipeline - 1, ends.last_time, ends.last_megabytes);
      }
    }
  }
  return group;
}

/// The stages of a group with the strategies `chosen`; no capacities yet.
inline std::vector<Stage> stages_of(const cost::hetu::Model& model, const Group& group,
                                    const std::vector<std::size_t>& chosen) {
  std::vector<Stage> out;
  for (std::size_t i = 0; i < group.division.size(); ++i) {
    const double in_flight = model.in_flight(static_cast<int>(i), group.pipeline, group.microbatches);
    Stage stage;
    stage.count = group.division[i];
    for (const std::size_t s : chosen) {
      const cost::hetu::Cost& cost = group.costs[s];
      stage.items.push_back({cost.no_sync, cost.sync - cost.no_sync, std::ceil(cost.memory(in_flight))});
    }
    out.push_back(std::move(stage));
  }
  return out;
}

/// (p) MB that the layers of each stage may take, whole.
inline std::vector<double> capacities(const cost::hetu::Model& model, const Group& group, const Ends& ends,
                                      double buffer) {
  const double usable = cost::hetu::Model::usable_megabytes(model.job().memory_gigabytes);
  std::vector<double> out;
  for (std::size_t i = 0; i < group.division.size(); ++i)
    out.push_back(std::floor(usable - buffer - end_megabytes(group, ends, i) + 1e-9));
  return out;
}

/// (p) times of embedding and head on each stage.
inline std::vector<double> end_times(const Group& group, const Ends& ends) {
  std::vector<double> out(group.division.size(), 0);
  out.back() += ends.last_time;
  out.front() += ends.first_time;
  return out;
}

}  // namespace galvatron::search::hetu
