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
  std::vector<double> times;      ///< (p) on each stage
  std::vector<double> megabytes;  ///< (p) that are not the layers', without the sequence-parallel buffer
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

/// Throws Failure (usage): a figure that the profiles lack.
inline Group make_group(const cost::hetu::Model& model, const Options& options, int pipeline,
                        std::int64_t microbatches) {
  const cost::hetu::Job& job = model.job();
  Group group{pipeline, microbatches, cost::hetu::even_division(job.layers, pipeline), {}, {}, {}};
  const int stage = job.devices / pipeline;
  // Adds the end `which` of the model, on stage number `at`.
  const auto add_end = [&](Ends& ends, cost::hetu::End which, int at) {
    const cost::hetu::Cost cost = value_or_throw(model.end(ends.strategy, which, pipeline, microbatches));
    const double in_flight = model.in_flight(at, pipeline, microbatches);
    ends.times[static_cast<std::size_t>(at)] = cost.no_sync;
    ends.megabytes[static_cast<std::size_t>(at)] = std::ceil(cost.memory(in_flight) + cost::hetu::reserved_megabytes);
  };
  const auto p = static_cast<std::size_t>(pipeline);
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
        group.ends.push_back({{degree, ulysses, zero3},
                              std::vector<double>(p, 0),
                              std::vector<double>(p, cost::hetu::reserved_megabytes)});
        add_end(group.ends.back(), pipeline == 1 ? End::whole : End::first, 0);
        if (pipeline > 1) add_end(group.ends.back(), End::last, pipeline - 1);
      }
    }
  }
  return group;
}

}  // namespace galvatron::search::hetu
