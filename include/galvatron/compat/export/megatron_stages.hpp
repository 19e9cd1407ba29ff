// How Megatron-LM is told the lengths of stages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron::detail {

/// Arguments with their values, which may be empty: of virtual stages, of a first and last stage that are not as long
/// as the others, of ends that count as layers, or a drawing, `'Et*4|t*3|t*3|t*2L'`; none for equal stages.
inline std::vector<std::pair<std::string, std::string>> megatron_stage_settings(const Plan& plan) {
  const std::vector<LayerRange> chunks = chunks_of(plan);
  // Whether chunks [first, end) are equally long.
  const auto equal = [&](std::size_t first, std::size_t end) {
    return std::all_of(chunks.begin() + static_cast<std::ptrdiff_t>(first),
                       chunks.begin() + static_cast<std::ptrdiff_t>(std::max(first, end)),
                       [&](const LayerRange& chunk) { return size_of(chunk) == size_of(chunks[first]); });
  };
  const auto size = [](const LayerRange& chunk) { return std::to_string(size_of(chunk)); };
  const std::size_t stages = chunks.size();
  std::vector<std::pair<std::string, std::string>> out;
  if (equal(0, stages)) {
    if (plan.virtual_stages > 1) out.emplace_back("--num-layers-per-virtual-pipeline-stage", size(chunks.front()));
  } else if (plan.virtual_stages == 1 && equal(1, stages - 1)) {
    const bool last = !equal(1, stages);
    if (!last || !equal(0, stages - 1)) out.emplace_back("--decoder-first-pipeline-num-layers", size(chunks.front()));
    if (last) out.emplace_back("--decoder-last-pipeline-num-layers", size(chunks.back()));
  } else if (const int least = size_of(chunks[1]) - 1;
             plan.virtual_stages > 1 && equal(1, stages - 1) && size_of(chunks.front()) >= least &&
             size_of(chunks.back()) >= least && size_of(chunks.front()) <= least + 1 &&
             size_of(chunks.back()) <= least + 1) {
    out.emplace_back("--num-virtual-stages-per-pipeline-rank", std::to_string(plan.virtual_stages));
    if (size_of(chunks.front()) == least) out.emplace_back("--account-for-embedding-in-pipeline-split", "");
    if (size_of(chunks.back()) == least) out.emplace_back("--account-for-loss-in-pipeline-split", "");
  } else {
    const auto drawn = [](const LayerRange& chunk) {
      return size_of(chunk) > 1 ? text_of("t*", size_of(chunk)) : std::string(size_of(chunk) == 1 ? "t" : "");
    };
    out.emplace_back("--pipeline-model-parallel-layout", "'E" + joined(chunks, "|", drawn) + "L'");
  }
  return out;
}

}  // namespace galvatron::detail
