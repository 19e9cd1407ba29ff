// How the trainer of Hetu-Galvatron cuts a batch into micro-batches. A data rank of the embedding gets its share of the
// samples and cuts that; a plan that was priced in samples of all ranks together may become another one.
//
//   batch 24, 8 micro-batches of 3, 2 data ranks   a rank has 12 samples -> 6 micro-batches of 2
//
// Source: galvatron/core/runtime/{dataloader,hybrid_parallel_config}.py and pipeline/{pipeline,utils}.py of
// PKU-DAIR/Hetu-Galvatron, state of June 2026.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/compat/hetu/cost/plan.hpp>

namespace galvatron {

/// What a data rank runs.
struct HetuBatches {
  std::int64_t microbatches = 0;
  std::int64_t samples = 0;  ///< of all micro-batches but perhaps the last
  friend bool operator==(const HetuBatches&, const HetuBatches&) = default;
};

/// A rank's samples as torch.chunk cuts them: pieces of the same size, rounded up, as many as that makes. Batch, ranks
/// and micro-batches are at least 1; a batch of less than one sample a rank gives none.
constexpr HetuBatches hetu_batches(std::int64_t global_batch, std::int64_t data_ranks, std::int64_t microbatches) {
  const std::int64_t samples = global_batch / data_ranks;
  if (samples == 0) return {};
  const std::int64_t size = (samples + microbatches - 1) / microbatches;
  return {(samples + size - 1) / size, size};
}

/// What the trainer makes of a plan that it does not run as priced, in one sentence without a full stop; empty when it
/// does. The plan suits the job (cost::hetu::price takes it).
inline std::string why_not_run_as_priced(const cost::hetu::Plan& plan, const cost::hetu::Job& job) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  const std::int64_t samples = job.global_batch / plan.microbatches;
  const auto data_ranks = [&](int degree) { return job.devices / plan.pipeline / degree; };
  const std::string uneven = "a micro-batch of " + text(samples) + " samples is not divided evenly among ";
  if (const int ranks = data_ranks(plan.ends.degree); samples % ranks != 0) {
    const HetuBatches run = hetu_batches(job.global_batch, ranks, plan.microbatches);
    return uneven + text(ranks) + " data ranks: Hetu-Galvatron's trainer runs " + text(run.microbatches) +
           " micro-batches of up to " + text(run.samples) + (run.samples == 1 ? " sample" : " samples") +
           " a rank, and the price is that of " + text(plan.microbatches) + " of " + text(samples / ranks);
  }
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (const int ranks = data_ranks(plan.layers[i].degree()); samples % ranks != 0)
      return uneven + text(ranks) + " data ranks of layer " + std::to_string(i) +
             ": Hetu-Galvatron's trainer stops at such a layer";
  return {};
}

}  // namespace galvatron
