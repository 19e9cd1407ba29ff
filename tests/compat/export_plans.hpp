// Plans for the tests of exports.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron::testing {

/// Every layer has `spec`, and keeps what norms and activations give where that recomputes nothing else; stages have
/// `sizes` layers. The batch is 64 x 2048 tokens in 8 micro-batches, bf16.
inline Plan plan_of(StrategySpec spec, const std::vector<int>& sizes = {8}) {
  if (spec.recompute == RecomputeKind::cheap) spec.recompute = RecomputeKind::none;
  Plan plan;
  plan.model = "llama2-7b";
  plan.cluster = "8xa100-80g";
  plan.global_batch = 64;
  plan.sequence_length = 2048;
  plan.precision = Precision::bf16;
  plan.microbatches = 8;
  int layer = 0;
  for (const int size : sizes) {
    const int rank = static_cast<int>(plan.stages.size()) * spec.ranks();
    plan.stages.push_back({layer, layer + size - 1, rank, spec.ranks()});
    layer += size;
  }
  plan.layers.assign(static_cast<std::size_t>(layer), spec);
  plan.embedding = plan.head = spec;
  plan.embedding.recompute = plan.head.recompute = RecomputeKind::cheap;
  REQUIRE(why_inconsistent(plan) == "");
  return plan;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// `key` is on a line of its own, as arguments and TOML have it.
inline bool has_line(const std::string& text, const std::string& line) {
  return has("\n" + text, "\n" + line + "\n") || has("\n" + text, "\n  " + line + "\n");
}

/// The one sentence that has `part`.
inline int told(const std::vector<std::string>& sentences, const std::string& part) {
  return static_cast<int>(
      std::count_if(sentences.begin(), sentences.end(), [&](const std::string& s) { return has(s, part); }));
}

/// Nothing is left out.
inline void check_whole(const Exported& exported) {
  CAPTURE(exported.not_expressed.empty() ? std::string() : exported.not_expressed.front());
  CHECK(exported.not_expressed.empty());
}

/// One sentence is told, and it has `part`.
inline void check_tells(const Exported& exported, const std::string& part) {
  CAPTURE(part);
  for (const std::string& sentence : exported.not_expressed) {
    CAPTURE(sentence);
    CHECK(has(sentence, part));
    CHECK(!has(sentence, "\n"));
  }
  CHECK(exported.not_expressed.size() == 1);
}

/// What the target runs is the plan, but for the ends' recomputation, of which there is none.
inline void check_same_job(const Exported& exported, const Plan& plan) {
  REQUIRE(exported.job.has_value());
  Plan job = *exported.job;
  CHECK(why_inconsistent(job) == "");
  job.embedding.recompute = plan.embedding.recompute;
  job.head.recompute = plan.head.recompute;
  CHECK(job == plan);
}

}  // namespace galvatron::testing
