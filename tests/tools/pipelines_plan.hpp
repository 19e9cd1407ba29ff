// A plan file of several pipelines; for the tests of rank threads and of processes.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

inline nlohmann::json pipeline_part(int pipeline, int first, int last, int rank) {
  return {{"task", "pipeline-" + std::to_string(pipeline)},
          {"component", "model"},
          {"layers", {first, last}},
          {"ranks", {rank}},
          {"tensor", 1},
          {"sequence", "none"},
          {"data", 1},
          {"recompute", "cheap"}};
}

/// Twelve samples through one stage, and four through three.
inline nlohmann::json pipelines_plan() {
  return {{"format", "galvatron-waves"},
          {"version", 1},
          {"model", "llama-tiny"},
          {"cluster", "1xv100-32g+3xp100-16g"},
          {"global_batch", 16},
          {"pipelines", {12, 4}},
          {"sequence_length", 32},
          {"precision", "fp32"},
          {"order", "waves"},
          {"ranks", 4},
          {"zero", 1},
          {"microbatches", {{"pipeline-0", 3}, {"pipeline-1", 4}}},
          {"in_flight", 3},
          {"waves",
           {{{"parts", {pipeline_part(0, 0, 5, 0), pipeline_part(1, 0, 1, 1)}}},
            {{"parts", {pipeline_part(1, 2, 3, 2)}}},
            {{"parts", {pipeline_part(1, 4, 5, 3)}}}}}};
}
