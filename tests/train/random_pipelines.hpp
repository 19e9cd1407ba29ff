// Random plans of several pipelines over toy models; for the tests of rank threads and of processes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <galvatron/data/batch_share.hpp>
#include <galvatron/model/pipelines.hpp>
#include <galvatron/plan/wave_plan.hpp>

#include "random_strategy.hpp"
#include "run_tasks.hpp"
#include "toy_mixed.hpp"

namespace galvatron::test {

/// Models of one task that several pipelines may train.
inline std::vector<ModelSpec> pipeline_models(int layers) {
  ModelSpec gpt = toy::model(false, layers);
  gpt.embedding.tied = gpt.head.tied = false;
  for (LayerSpec& block : gpt.blocks) block.tied = false;
  return {gpt, toy::model(true, layers), toy::vit(layers), toy::experts(layers), toy::attention_kinds(layers)};
}

struct RandomPipelines {
  ModelSpec single;
  std::vector<std::int64_t> samples;  ///< of each pipeline
  MultiTaskModel model;
  WavePlan plan;
  std::vector<int> stages;  ///< of each pipeline

  [[nodiscard]] std::int64_t global_batch() const {
    return std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
  }
  [[nodiscard]] std::int64_t sequence() const { return single.takes_images() ? single.positions() : toy::sequence; }
};

/// The same global batch cut for the pipelines.
struct SharedBatch {
  std::unique_ptr<train::BatchSource> all;
  std::vector<std::unique_ptr<train::BatchShare>> shares;

  explicit SharedBatch(const RandomPipelines& of) : all(toy::source_of(of.single, of.sequence())) {
    std::int64_t offset = 0;
    for (const std::int64_t samples : of.samples) {
      shares.push_back(std::make_unique<train::BatchShare>(*all, offset));
      offset += samples;
    }
  }
  [[nodiscard]] std::vector<train::TaskSources> sources() const {
    std::vector<train::TaskSources> out;
    for (const auto& share : shares) out.push_back({share.get()});
    return out;
  }
};

/// Two to four pipelines of 1 to 4 stages on up to 16 ranks in any order, with samples, micro-batches and recomputation
/// of their own; the tensor degree of a layer is that of all.
/// @param ranks  exactly so many, some of which may do nothing; 0: any number
inline RandomPipelines random_pipelines(std::mt19937& random, int ranks = 0) {
  using toy::one_of;
  for (;;) {
    RandomPipelines out;
    out.single = one_of(random, pipeline_models(6));
    const int layers = out.single.layers();
    const StrategySpec kind = one_of(random, std::array{StrategySpec{}, StrategySpec{}, StrategySpec{.tensor = 2},
                                                        StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron}});
    out.plan = {.zero = static_cast<int>(random() % 4), .in_flight = 1 + static_cast<int>(random() % 4)};
    const int pipelines = 2 + static_cast<int>(random() % 3);
    std::vector<int> data;
    int taken = 0;
    for (int k = 0; k < pipelines; ++k) {
      out.stages.push_back(1 + static_cast<int>(random() % 4));
      data.push_back(one_of(random, std::array{1, 1, 2, 3}));
      out.plan.microbatches.push_back(1 + static_cast<int>(random() % 4));
      out.samples.push_back(data.back() * out.plan.microbatches.back() * (1 + static_cast<int>(random() % 2)));
      taken += out.stages.back() * data.back();
    }
    out.plan.ranks = ranks > 0 ? ranks : taken * kind.tensor;
    if (taken * kind.tensor > std::min(out.plan.ranks, 16)) continue;
    // Groups of tensor ranks in any order.
    std::vector<int> groups(static_cast<std::size_t>(out.plan.ranks / kind.tensor));
    std::iota(groups.begin(), groups.end(), 0);
    std::shuffle(groups.begin(), groups.end(), random);
    for (int k = 0; k < pipelines; ++k) {
      std::vector<int> first{0};  // layers of the stages
      const int stages = out.stages[static_cast<std::size_t>(k)];
      while (std::ssize(first) < stages) {
        const int at = 1 + static_cast<int>(random() % static_cast<unsigned>(layers - 1));
        if (std::ranges::find(first, at) == first.end()) first.push_back(at);
      }
      std::ranges::sort(first);
      for (int s = 0; s < stages; ++s) {
        WavePart part{.task = k,
                      .pass = 0,
                      .first = first[static_cast<std::size_t>(s)],
                      .last = s + 1 < stages ? first[static_cast<std::size_t>(s) + 1] - 1 : layers - 1,
                      .ranks = {},
                      .strategy = kind};
        part.strategy.data = data[static_cast<std::size_t>(k)];
        part.strategy.recompute = one_of(random, recompute_kinds);
        for (int d = 0; d < part.strategy.data; ++d) {
          for (int t = 0; t < kind.tensor; ++t) part.ranks.push_back(groups.back() * kind.tensor + t);
          groups.pop_back();
        }
        if (std::ssize(out.plan.waves) <= s) out.plan.waves.emplace_back();
        out.plan.waves[static_cast<std::size_t>(s)].parts.push_back(std::move(part));
      }
    }
    out.model = value_or_throw(pipelines_of(out.single, out.samples, out.sequence()));
    if (check_waves(out.model, value_or_throw(task_graphs(out.model)), out.plan)) return out;
  }
}

}  // namespace galvatron::test
