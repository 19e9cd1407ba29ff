// A plan of Hetu-Galvatron, and its price under Hetu's cost model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <galvatron/compat/hetu/cost/model.hpp>
#include <galvatron/compat/hetu/cost/pipeline.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::cost::hetu {

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
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (plan.pipeline < 1 || plan.microbatches < 1) return "the degrees and micro-batches must be at least 1";
  if (plan.layers.size() != static_cast<std::size_t>(job.layers))
    return "the plan has " + text(static_cast<std::int64_t>(plan.layers.size())) + " layers, and the model " +
           text(job.layers);
  if (job.devices % plan.pipeline != 0)
    return text(plan.pipeline) + " stages do not divide " + text(job.devices) + " devices";
  if (plan.division.size() != static_cast<std::size_t>(plan.pipeline))
    return "the layers are divided into " + text(static_cast<std::int64_t>(plan.division.size())) +
           " stages, and the pipeline has " + text(plan.pipeline);
  std::int64_t divided = 0;
  for (const int count : plan.division) {
    if (count < 1) return "a stage has " + text(count) + " layers; each needs at least 1";
    divided += count;
  }
  if (divided != job.layers)
    return "the stages have " + text(divided) + " layers together, and the model " + text(job.layers);
  if (job.global_batch % plan.microbatches != 0)
    return text(plan.microbatches) + " micro-batches do not divide a batch of " + text(job.global_batch);
  const int stage = job.devices / plan.pipeline;
  const auto check = [&](int degree, const std::string& what) -> std::string {
    if (degree < 1 || degree > stage || stage % degree != 0)
      return what + ": degree " + text(degree) + " does not divide the " + text(stage) + " devices of a stage";
    if (job.global_batch / plan.microbatches / (stage / degree) < 1)
      return what + ": a micro-batch of " + text(job.global_batch / plan.microbatches) +
             " samples is less than one for each of " + text(stage / degree) + " data-parallel ranks";
    return "";
  };
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerStrategy& s = plan.layers[i];
    const std::string name = "layer " + std::to_string(i);
    if (s.tensor > 1 && s.ulysses > 1) return name + ": both tensor and Ulysses parallel";
    if (std::string why = check(s.degree(), name); !why.empty()) return why;
  }
  return check(plan.ends.degree, "embedding and head");
}

/// Time and memory of a plan. Errors (usage): those of why_impossible, figures that the profiles lack, and times that
/// are no positive number because the profile's are absurd.
inline Result<PlanPrice> price(const Model& model, const Plan& plan) {
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
      if (last != plan.layers[layer]) {
        const auto priced = model.layer(plan.layers[layer], p, plan.microbatches);
        if (!priced) return tl::unexpected<Error>(priced.error());
        cost = *priced;
        last = plan.layers[layer];
      }
      time.no_sync += cost.no_sync;
      time.sync += cost.sync;
      forward += cost.forward;
      megabytes += std::ceil(cost.memory(in_flight));
    }
    double end_megabytes = 0;
    if (stage == 0 || stage == p - 1) {
      const auto end = model.end(plan.ends,
                                 p == 1       ? End::whole
                                 : stage == 0 ? End::first
                                              : End::last,
                                 p, plan.microbatches);
      if (!end) return tl::unexpected<Error>(end.error());
      time.no_sync += end->no_sync;
      forward += end->forward;
      end_megabytes = end->memory(in_flight);
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
}

}  // namespace galvatron::cost::hetu
