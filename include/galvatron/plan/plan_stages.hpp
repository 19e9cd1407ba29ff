// PlanStage: a stage of a plan, and how stages share the layers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <galvatron/strategy/ratios.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron {

/// A run of layers on a run of ranks; with virtual stages see virtual_stage_layers.
struct PlanStage {
  int first_layer = 0;  ///< blocks count from 0; embedding and head are not counted
  int last_layer = 0;   ///< inclusive
  int first_rank = 0;
  int rank_count = 1;
  int group = 0;  ///< of devices of a mixed cluster that its ranks are on; stages of one group follow each other there
  /// Of its ranks: how many samples they have of a micro-batch, in proportion; empty: equally many. For layers whose
  /// shards are by ratio. A data rank has as many as its ranks together.
  std::vector<int> sample_ratios{};
  /// Of its ranks: how much they have, in proportion, of what ZeRO shards over them; empty: equal shards. For the same
  /// layers, as the others: each list is independent of the others.
  std::vector<int> state_ratios{};
  /// Of key/value heads with their query heads, which tensor ranks share, and inside the core of Ulysses context ranks.
  std::vector<int> head_ratios{};
  std::vector<int> width_ratios{};       ///< of hidden units of MLPs, which tensor ranks share
  std::vector<int> vocabulary_ratios{};  ///< of the rows of the vocabulary's table, which tensor ranks share
  std::vector<int> token_ratios{};       ///< of the tokens of a sequence, which ranks share between operations
  /// Of its ranks, the groups of devices that they are on, where these are several; empty: all are on `group`.
  std::vector<int> rank_groups{};
  /// Of its virtual stages, how many layers they have; empty: as many as the others, as near as possible. Those of all
  /// stages are told, or of none. 0 where it has the embedding or the head.
  std::vector<int> chunk_layers{};
  friend bool operator==(const PlanStage&, const PlanStage&) = default;
  /// Its lists, which it outlives.
  [[nodiscard]] RankRatios ratios() const {
    return {sample_ratios, state_ratios, head_ratios, width_ratios, vocabulary_ratios, token_ratios};
  }
  [[nodiscard]] bool has_ratios() const;
  /// The group of its rank `local`.
  [[nodiscard]] constexpr int group_of(int local) const {
    return rank_groups.empty() ? group : rank_groups[static_cast<std::size_t>(local)];
  }
};

/// A list of ratios of a stage's ranks.
struct RatioList {
  const char* key;  ///< in plan files
  const char* of;   ///< what is cut
  std::vector<int> PlanStage::* list;
};
inline constexpr std::array ratio_lists{RatioList{"sample_ratios", "samples", &PlanStage::sample_ratios},
                                        RatioList{"state_ratios", "states", &PlanStage::state_ratios},
                                        RatioList{"head_ratios", "heads", &PlanStage::head_ratios},
                                        RatioList{"width_ratios", "widths", &PlanStage::width_ratios},
                                        RatioList{"vocabulary_ratios", "the vocabulary", &PlanStage::vocabulary_ratios},
                                        RatioList{"token_ratios", "tokens", &PlanStage::token_ratios}};
inline bool PlanStage::has_ratios() const {
  return std::ranges::any_of(ratio_lists, [this](const RatioList& each) { return !(this->*each.list).empty(); });
}

/// Layers of a plan. With v virtual stages (interleaved and zb-v) they are cut into P v chunks in their order (see
/// first_layer_of_virtual_stage, and PlanStage::chunk_layers), and chunk c of stage s is one of them
/// (see virtual_stage_of): the stage's entry in `stages` tells its ranks and how many layers it has, not which. Two
/// stages, v = 2, eight layers:
///
///     interleaved   stage 0   layers 0-1 and 4-5      its entry says 0-3
///                   stage 1   layers 2-3 and 6-7      its entry says 4-7
///     zb-v          stage 0   layers 0-1 and 6-7      its entry says 0-3
///                   stage 1   layers 2-3 and 4-5      its entry says 4-7
struct LayerRange {
  int first = 0;
  int last = 0;
};

/// `stages` stages of `ranks` ranks each, which share `layers` layers as evenly as possible: the last ones have the
/// rest or, with virtual stages, those with one of the larger chunks in the middle.
/// @param kind  of the virtual stages
inline std::vector<PlanStage> even_stages(int layers, int stages, int virtual_stages, int ranks,
                                          ScheduleKind kind = ScheduleKind::interleaved) {
  std::vector<PlanStage> out;
  int first = 0;
  for (int i = 0; i < stages; ++i) {
    int size = virtual_stages > 1 ? 0 : (i + 1) * layers / stages - i * layers / stages;
    for (int chunk = 0; virtual_stages > 1 && chunk < virtual_stages; ++chunk) {
      const int index = virtual_stage_of(kind, stages, i, chunk);
      size += first_layer_of_virtual_stage(layers, stages * virtual_stages, index + 1) -
              first_layer_of_virtual_stage(layers, stages * virtual_stages, index);
    }
    out.push_back({first, first + size - 1, i * ranks, ranks});
    first += size;
  }
  return out;
}

/// The same with virtual stages of these lengths, in the order of the layers.
inline std::vector<PlanStage> stages_of_chunks(const std::vector<int>& chunks, int stages, int virtual_stages,
                                               int ranks, ScheduleKind kind = ScheduleKind::interleaved) {
  std::vector<PlanStage> out;
  int first = 0;
  for (int i = 0; i < stages; ++i) {
    PlanStage& stage = out.emplace_back(PlanStage{.first_layer = first, .first_rank = i * ranks, .rank_count = ranks});
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      stage.chunk_layers.push_back(chunks[static_cast<std::size_t>(virtual_stage_of(kind, stages, i, chunk))]);
      first += stage.chunk_layers.back();
    }
    stage.last_layer = first - 1;
  }
  return out;
}

/// Lengths of virtual stages that share the layers and, where they count as one each, the embedding and the head: as
/// evenly as possible, those at the ends having fewer. Llama 3 405B's 126 layers on 16 stages of 8 virtual ones: the
/// first has the embedding alone, the last the head, and the others a layer each.
inline std::vector<int> chunks_with_ends(int layers, int virtual_stages, bool embedding, bool head) {
  const int all = layers + (embedding ? 1 : 0) + (head ? 1 : 0);
  std::vector<int> out;
  for (int i = 0; i < virtual_stages; ++i)
    out.push_back(first_layer_of_virtual_stage(all, virtual_stages, i + 1) -
                  first_layer_of_virtual_stage(all, virtual_stages, i));
  if (embedding) --out.front();
  if (head) --out.back();
  return out;
}

/// What is wrong with the lengths of virtual stages; empty when nothing is.
inline std::string why_no_chunks(const std::vector<PlanStage>& stages, int virtual_stages, ScheduleKind kind) {
  const int count = static_cast<int>(stages.size());
  for (int i = 0; i < count; ++i) {
    const PlanStage& stage = stages[static_cast<std::size_t>(i)];
    const std::string name = "stage " + std::to_string(i);
    if (stage.chunk_layers.empty() != stages.front().chunk_layers.empty())
      return "chunk_layers are told of all stages or of none, and not of " + name + " as of the first";
    if (stage.chunk_layers.empty()) continue;
    if (std::ssize(stage.chunk_layers) != virtual_stages)
      return name + " has chunk_layers of " + std::to_string(stage.chunk_layers.size()) + " virtual stages, not of " +
             std::to_string(virtual_stages);
    int sum = 0;
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      const int own = stage.chunk_layers[static_cast<std::size_t>(chunk)];
      const int index = virtual_stage_of(kind, count, i, chunk);
      if (own < 0 || (own == 0 && index > 0 && index + 1 < count * virtual_stages))
        return name + " has a virtual stage without layers, embedding and head: every one has some of them";
      sum += own;
    }
    if (sum != stage.last_layer - stage.first_layer + 1)
      return name + " has chunk_layers of " + std::to_string(sum) + " layers together, and layers " +
             std::to_string(stage.first_layer) + " to " + std::to_string(stage.last_layer);
  }
  return {};
}

/// The most that a rank's ratio may be.
inline constexpr int most_ratio = 1 << 20;

/// What is wrong with the ratios and groups of a stage's ranks, as the end of a sentence; empty when nothing is.
inline std::string why_no_ratios(const PlanStage& stage) {
  for (const auto& [key, of, list] : ratio_lists) {
    const std::vector<int>& ratios = stage.*list;
    if (ratios.empty()) continue;
    if (std::ssize(ratios) != stage.rank_count)
      return " has " + std::to_string(ratios.size()) + " ratios of " + of + " for " + std::to_string(stage.rank_count) +
             " ranks";
    for (const int ratio : ratios)
      if (ratio < 0 || ratio > most_ratio)
        return " has the ratio " + std::to_string(ratio) + " of " + of + "; ratios are 0 to " +
               std::to_string(most_ratio);
    if (std::ranges::count(ratios, 0) == std::ssize(ratios)) return std::string(" has no ratio of ") + of + " above 0";
  }
  const auto wrong = [](int group) { return group < 0; };
  if (!stage.rank_groups.empty() && std::ssize(stage.rank_groups) != stage.rank_count)
    return " has " + std::to_string(stage.rank_groups.size()) + " groups of ranks for " +
           std::to_string(stage.rank_count) + " ranks";
  if (std::ranges::any_of(stage.rank_groups, wrong) ||
      (!stage.rank_groups.empty() && stage.rank_groups.front() != stage.group))
    return " has groups of ranks that do not begin with its group, " + std::to_string(stage.group) + ", or are below 0";
  return {};
}

}  // namespace galvatron
