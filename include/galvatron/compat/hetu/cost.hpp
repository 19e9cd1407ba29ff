// Hetu-Galvatron's cost model as a policy: its profiles as values and its formulas (compat/hetu/cost/), its plans,
// their prices, and what its trainer makes of them. That cuts a batch into micro-batches rank by rank: a data rank of
// the embedding cuts its share of the samples, so that a plan priced in samples of all ranks may become another one.
//
//   batch 24, 8 micro-batches of 3, 2 data ranks   a rank has 12 samples -> 6 micro-batches of 2
//
// Source of the latter: galvatron/core/runtime/{dataloader,hybrid_parallel_config}.py and pipeline/{pipeline,utils}.py
// of PKU-DAIR/Hetu-Galvatron, state of June 2026.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <galvatron/compat/hetu/cost/model.hpp>
#include <galvatron/compat/hetu/cost/profile.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::cost::hetu {

/// Times of one stage and micro-batch.
struct StageTime {
  double no_sync = 0;  ///< C: without the synchronisation of gradients; embedding and head included
  double sync = 0;     ///< G: the layers alone, with it
};

/// Time of an iteration of m = `microbatches` over p stages, in the unit of `stages` (at least one):
///
///     R = max( sum C + (m-1) C_last,  max( min(p-1, m-1) C_0, sum_{i>0} C_i ) + C_0 max(0, m+1-p) )
///     R + max( 0, max_i( G_i - sum_{j<=i} C_j ) )
///
/// It looks at the first and the last stage only, so that it must not be used to compare uneven splits.
inline double iteration_time(std::span<const StageTime> stages, double microbatches) {
  const double m = microbatches;
  const auto p = static_cast<double>(stages.size());
  double sum = 0;
  double left_over = 0;
  for (const StageTime& stage : stages) {
    sum += stage.no_sync;
    left_over = std::max(left_over, stage.sync - sum);
  }
  const double first = stages.front().no_sync;
  const double run = std::max(sum + (m - 1) * stages.back().no_sync,
                              std::max(std::min(p - 1, m - 1) * first, sum - first) + first * std::max(0.0, m + 1 - p));
  return run + left_over;
}

struct Plan {
  int pipeline = 1;
  std::int64_t microbatches = 1;
  std::vector<int> division;          ///< layers of each stage
  std::vector<LayerStrategy> layers;  ///< (L)
  EndStrategy ends;
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// L layers over p stages, the remainder on the last.
inline std::vector<int> even_division(int layers, int pipeline) {
  std::vector<int> out(static_cast<std::size_t>(pipeline), layers / pipeline);
  out.back() += layers % pipeline;
  return out;
}

struct StagePrice {
  int first_layer = 0;
  int last_layer = 0;
  int devices = 1;
  double megabytes = 0;
  Seconds forward;   ///< of a micro-batch
  Seconds backward;  ///< of a micro-batch, without the synchronisation of gradients
};

struct PlanPrice {
  Seconds iteration;
  double samples_per_second = 0;
  std::vector<StagePrice> stages;
  [[nodiscard]] double peak_megabytes() const {
    double most = 0;
    for (const StagePrice& stage : stages) most = std::max(most, stage.megabytes);
    return most;
  }
};

/// Why a plan cannot be priced for the job, or nothing. One line.
inline std::string why_impossible(const Plan& plan, const Job& job) {
  if (plan.pipeline < 1 || plan.microbatches < 1) return "the degrees and micro-batches must be at least 1";
  if (plan.layers.size() != static_cast<std::size_t>(job.layers))
    return text_of("the plan has ", plan.layers.size(), " layers, and the model ", job.layers);
  if (job.devices % plan.pipeline != 0)
    return text_of(plan.pipeline, " stages do not divide ", job.devices, " devices");
  if (plan.division.size() != static_cast<std::size_t>(plan.pipeline))
    return text_of("the layers are divided into ", plan.division.size(), " stages, and the pipeline has ",
                   plan.pipeline);
  std::int64_t divided = 0;
  for (const int count : plan.division) {
    if (count < 1) return text_of("a stage has ", count, " layers; each needs at least 1");
    divided += count;
  }
  if (divided != job.layers)
    return text_of("the stages have ", divided, " layers together, and the model ", job.layers);
  if (job.global_batch % plan.microbatches != 0)
    return text_of(plan.microbatches, " micro-batches do not divide a batch of ", job.global_batch);
  const int stage = job.devices / plan.pipeline;
  const std::int64_t samples = job.global_batch / plan.microbatches;
  const auto check = [&](int degree, const std::string& what) -> std::string {
    if (degree < 1 || degree > stage || stage % degree != 0)
      return text_of(what, ": degree ", degree, " does not divide the ", stage, " devices of a stage");
    if (samples / (stage / degree) < 1)
      return text_of(what, ": a micro-batch of ", samples, " samples is less than one for each of ", stage / degree,
                     " data-parallel ranks");
    return "";
  };
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerStrategy& s = plan.layers[i];
    const std::string name = text_of("layer ", i);
    if (s.tensor > 1 && s.ulysses > 1) return name + ": both tensor and Ulysses parallel";
    if (std::string why = check(s.degree(), name); !why.empty()) return why;
  }
  return check(plan.ends.degree, "embedding and head");
}

/// Time and memory of a plan. Errors (usage): those of why_impossible, figures that are absurd or not in the profiles.
inline Result<PlanPrice> price(const Model& model, const Plan& plan) try {
  const Job& job = model.job();
  if (const std::string why = why_impossible(plan, job); !why.empty())
    return usage_error("not a plan for this job: " + why + "; mend the plan or the options");
  const int p = plan.pipeline;
  int tensor = plan.ends.tensor();
  for (const LayerStrategy& s : plan.layers) tensor = std::max(tensor, s.tensor);
  const double buffer = model.sequence_buffer(tensor, p, plan.microbatches);

  PlanPrice out;
  std::vector<StageTime> times;
  std::size_t layer = 0;
  std::optional<LayerStrategy> last;
  Cost cost;
  for (int stage = 0; stage < p; ++stage) {
    const auto count = static_cast<std::size_t>(plan.division[static_cast<std::size_t>(stage)]);
    const double in_flight = model.in_flight(stage, p, plan.microbatches);
    StageTime time;
    double forward = 0;
    double megabytes = 0;
    for (std::size_t end = layer + count; layer < end; ++layer) {
      if (last != plan.layers[layer]) cost = model.layer(plan.layers[layer], p, plan.microbatches);
      last = plan.layers[layer];
      time.no_sync += cost.no_sync;
      time.sync += cost.sync;
      forward += cost.forward;
      megabytes += std::ceil(cost.memory(in_flight));
    }
    double end_megabytes = 0;
    if (stage == 0 || stage == p - 1) {
      const End which = p == 1 ? End::whole : stage == 0 ? End::first : End::last;
      const Cost end = model.end(plan.ends, which, p, plan.microbatches);
      time.no_sync += end.no_sync;
      forward += end.forward;
      end_megabytes = end.memory(in_flight);
    }
    megabytes += std::ceil(end_megabytes + reserved_megabytes) + buffer;
    times.push_back(time);
    out.stages.push_back({static_cast<int>(layer - count), static_cast<int>(layer) - 1, job.devices / p, megabytes,
                          Seconds{forward / 1000}, Seconds{(time.no_sync - forward) / 1000}});
  }
  out.iteration = {iteration_time(times, static_cast<double>(plan.microbatches)) / 1000};
  out.samples_per_second = static_cast<double>(job.global_batch) / out.iteration.value;
  if (!(out.iteration.value > 0) || !std::isfinite(out.iteration.value) || !std::isfinite(out.peak_megabytes()))
    return usage_error("the profiles give a time of " + std::to_string(out.iteration.value) + " s and " +
                       std::to_string(out.peak_megabytes()) + " MB for a plan; check their figures");
  return out;
} catch (const Failure& failure) {
  return error_of(failure);
}

}  // namespace galvatron::cost::hetu

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

/// What the trainer makes of a plan that it does not run as price() says, a sentence without a full stop; else empty.
inline std::string why_not_run_as_priced(const cost::hetu::Plan& plan, const cost::hetu::Job& job) {
  const std::int64_t samples = job.global_batch / plan.microbatches;
  const auto data_ranks = [&](int degree) { return job.devices / plan.pipeline / degree; };
  const std::string uneven = text_of("a micro-batch of ", samples, " samples is not divided evenly among ");
  if (const int ranks = data_ranks(plan.ends.degree); samples % ranks != 0) {
    const HetuBatches run = hetu_batches(job.global_batch, ranks, plan.microbatches);
    return text_of(uneven, ranks, " data ranks: Hetu-Galvatron's trainer runs ", run.microbatches,
                   " micro-batches of up to ", counted(run.samples, "sample"), " a rank, and the price is that of ",
                   plan.microbatches, " of ", samples / ranks);
  }
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (const int ranks = data_ranks(plan.layers[i].degree()); samples % ranks != 0)
      return text_of(uneven, ranks, " data ranks of layer ", i, ": Hetu-Galvatron's trainer stops at such a layer");
  return {};
}

}  // namespace galvatron
