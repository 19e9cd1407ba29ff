// What a search spends where. No constant changes what is proven, only how soon: docs/decisions/search.md has what
// happens when they are halved or doubled.
#pragma once

#include <cstddef>
#include <cstdint>

namespace galvatron::search::tuning {

/// Labels of one class at one layer that the last pass may keep, times the effort.
inline constexpr std::size_t most_labels = 16'384;
/// Labels that a search may make, and what takes as long: a second or so, times the effort.
inline constexpr std::int64_t most_work = 16'000'000;
/// Choices that the problems of a search may have together, about, times the effort: a search of more, on thousands of
/// devices, is narrowed (a choice takes some 150 bytes and a microsecond).
inline constexpr std::size_t most_choices = 10'000'000;
/// Comparisons of two labels, or extensions of a partial pipeline, that take as long as making a label.
inline constexpr std::size_t comparisons_of_a_label = 16;
/// Where few are enough to find a good plan: choices of the core, labels and partial pipelines whatever the limit of
/// work, numbers of micro-batches of a narrowed search.
inline constexpr std::size_t few = 8;
/// Prices of a byte in a range bound.
inline constexpr std::size_t prices = 24;
/// Classes of workspaces of a single stage.
inline constexpr int workspace_classes = 64;
/// Pieces that are pruned by the same plan, so that threads may share them.
inline constexpr std::size_t at_once = 4;

}  // namespace galvatron::search::tuning
