// Several pipelines over one model: each trains samples of its own of every global batch, in stages of its own number,
// and gradients of a layer are summed over all ranks that hold it. That is a multi-task model of one component that
// every task reads whole, so that plans of waves (plan/wave_plan.hpp) say who does what:
//
//     rank 0            layers 0-5                            samples 0-11 of 16     task pipeline-0
//     ranks 1, 2, 3     layers 0-1 -> 2-3 -> 4-5              samples 12-15          task pipeline-1
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

inline constexpr const char* pipelines_component = "model";
inline constexpr std::size_t most_pipelines = 1024;
inline std::string pipeline_name(std::size_t number) { return "pipeline-" + std::to_string(number); }

/// The model with a task for each pipeline, whose weight is its share of the samples: the weighted sum of the tasks'
/// losses is the model's loss of the whole batch. Layers have the model's numbers. Errors (usage): no pipeline, one
/// without samples, and those of checked(), for a model with tied tables or others that multi-task models do not have.
/// @param samples   of each pipeline in a step; pipeline k trains those behind the ones of the pipelines before it
/// @param sequence  tokens of a sample; 0: as many as the model has positions
inline Result<MultiTaskModel> pipelines_of(const ModelSpec& model, const std::vector<std::int64_t>& samples,
                                           std::int64_t sequence = 0) {
  MultiTaskModel out{.name = model.name, .components = {{.name = pipelines_component, .layers = {}}}, .tasks = {}};
  for (int i = 0; i < model.layers(); ++i) out.components.front().layers.push_back(model.layer(i));
  const auto all = static_cast<double>(std::accumulate(samples.begin(), samples.end(), std::int64_t{0}));
  for (std::size_t i = 0; i < samples.size(); ++i)
    out.tasks.push_back({.name = pipeline_name(i),
                         .inputs = {{pipelines_component, sequence}},
                         .loss = pipelines_component,
                         .batch = samples[i],
                         .weight = samples[i] > 0 ? static_cast<double>(samples[i]) / all : 1});
  return checked(std::move(out)).map_error([](Error error) {
    error.message = "several pipelines: " + error.message;
    return error;
  });
}

}  // namespace galvatron
