// RankLayout: ranks as a nest of the dimensions of parallelism, and the groups of ranks that follow from it.
//
// A layout is a list of modes, each with a size and a stride, as in CuTe's layout algebra: in
// (tp 2, cp 2, dp 2) : (1, 2, 4) tensor ranks are neighbours and data ranks 4 apart (drawn at StrategySpec).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace galvatron {

/// Dimensions of parallelism: tensor, context, data, expert, pipeline.
enum class RankMode : std::uint8_t { tp, cp, dp, ep, pp };

/// A set of modes, such as RankMode::cp | RankMode::dp.
class RankModes {
 public:
  constexpr RankModes(RankMode mode) : bits_(1U << static_cast<unsigned>(mode)) {}  // NOLINT: a mode is a set
  [[nodiscard]] constexpr bool contains(RankMode mode) const {
    return (bits_ >> static_cast<unsigned>(mode) & 1U) != 0;
  }
  friend constexpr RankModes operator|(RankModes a, RankModes b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  unsigned bits_;
};
constexpr RankModes operator|(RankMode a, RankMode b) { return RankModes(a) | RankModes(b); }

/// A list of modes over ranks that begin at `first_rank`. Rank = first_rank + the sum of coordinate * stride. A
/// coordinate of several modes together counts in the order of the list, the first mode fastest; modes may share a
/// name. Any nesting is legal in which a mode's stride is a multiple of the ranks that modes of smaller strides span.
class RankLayout {
 public:
  static constexpr int capacity = 8;
  struct Mode {
    RankMode name = RankMode::tp;
    int size = 1;
    int stride = 1;
  };

  constexpr RankLayout() = default;
  constexpr explicit RankLayout(int first_rank) : first_rank_(first_rank) {}
  /// More than `capacity` modes: a compile error in constant evaluation.
  constexpr RankLayout& append(RankMode name, int size, int stride) {
    modes_[static_cast<std::size_t>(count_++)] = {name, size, stride};
    return *this;
  }
  [[nodiscard]] constexpr int first_rank() const { return first_rank_; }
  [[nodiscard]] constexpr std::span<const Mode> modes() const {
    return std::span(modes_).first(static_cast<std::size_t>(count_));
  }
  /// Ranks of the chosen modes together; 1 where there is none.
  [[nodiscard]] constexpr int size(RankModes chosen) const {
    int product = 1;
    for (const Mode& mode : modes())
      if (chosen.contains(mode.name)) product *= mode.size;
    return product;
  }
  /// The stride of the first of the chosen modes, whatever its size; 1 where there is none.
  [[nodiscard]] constexpr int stride(RankModes chosen) const {
    for (const Mode& mode : modes())
      if (chosen.contains(mode.name)) return mode.stride;
    return 1;
  }
  /// The coordinate of a rank in the chosen modes.
  [[nodiscard]] constexpr int coordinate(RankModes chosen, int rank) const {
    int sum = 0;
    int unit = 1;
    for (const Mode& mode : modes()) {
      if (!chosen.contains(mode.name)) continue;
      sum += (rank - first_rank_) / mode.stride % mode.size * unit;
      unit *= mode.size;
    }
    return sum;
  }
  /// How far a coordinate in the chosen modes is from coordinate 0: first_rank() + the offsets of disjoint sets of
  /// modes is the rank with these coordinates.
  [[nodiscard]] constexpr int offset(RankModes chosen, int coordinate) const {
    int sum = 0;
    for (const Mode& mode : modes()) {
      if (!chosen.contains(mode.name)) continue;
      sum += coordinate % mode.size * mode.stride;
      coordinate /= mode.size;
    }
    return sum;
  }
  /// The ranks that differ from `rank` in the chosen modes alone, itself among them, in the order in which sums are
  /// added: by their coordinate in these modes.
  [[nodiscard]] constexpr std::vector<int> group(RankModes chosen, int rank) const {
    const int first = rank - offset(chosen, coordinate(chosen, rank));
    std::vector<int> out;
    for (int i = 0; i < size(chosen); ++i) out.push_back(first + offset(chosen, i));
    return out;
  }

 private:
  int first_rank_ = 0;
  int count_ = 0;
  std::array<Mode, capacity> modes_{};
};

/// The ranks of a stage: tensor, context and data ranks from the inside out, or with the tensor ranks outermost.
constexpr RankLayout stage_layout(int tensor, int context, int data, bool tensor_outermost, int first_rank = 0) {
  RankLayout out(first_rank);
  return out.append(RankMode::tp, tensor, tensor_outermost ? context * data : 1)
      .append(RankMode::cp, context, tensor_outermost ? 1 : tensor)
      .append(RankMode::dp, data, tensor_outermost ? context : context * tensor);
}

}  // namespace galvatron
