// RankLayout: ranks as a nest of the dimensions of parallelism, and the groups of ranks that follow from it.
//
// A layout is a list of modes, each with a size and a stride, as in CuTe's layout algebra:
//
//     (tp 2, cp 2, dp 2) : (1, 2, 4)     rank  0  1  2  3  4  5  6  7
//                                        tp    0  1  0  1  0  1  0  1
//                                        cp    0  0  1  1  0  0  1  1
//                                        dp    0  0  0  0  1  1  1  1
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
  friend constexpr bool operator==(RankModes, RankModes) = default;

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
    friend constexpr bool operator==(const Mode&, const Mode&) = default;
  };

  constexpr RankLayout() = default;
  constexpr explicit RankLayout(int first_rank) : first_rank_(first_rank) {}
  /// More than `capacity` modes: a compile error in constant evaluation.
  constexpr RankLayout& append(RankMode name, int size, int stride) {
    modes_[static_cast<std::size_t>(count_++)] = {name, size, stride};
    return *this;
  }
  /// Around the modes so far, which are without gaps.
  constexpr RankLayout& append(RankMode name, int size) { return append(name, size, ranks()); }

  friend constexpr bool operator==(const RankLayout& a, const RankLayout& b) {
    if (a.first_rank_ != b.first_rank_ || a.count_ != b.count_) return false;
    for (int i = 0; i < a.count_; ++i)
      if (!(a[i] == b[i])) return false;
    return true;
  }
  [[nodiscard]] constexpr int first_rank() const { return first_rank_; }
  [[nodiscard]] constexpr int modes() const { return count_; }
  [[nodiscard]] constexpr const Mode& operator[](int i) const { return modes_[static_cast<std::size_t>(i)]; }
  /// Ranks of all modes.
  [[nodiscard]] constexpr int ranks() const {
    int product = 1;
    for (int i = 0; i < count_; ++i) product *= (*this)[i].size;
    return product;
  }
  /// Ranks of the chosen modes together; 1 where there is none.
  [[nodiscard]] constexpr int size(RankModes chosen) const {
    int product = 1;
    for (int i = 0; i < count_; ++i)
      if (chosen.contains((*this)[i].name)) product *= (*this)[i].size;
    return product;
  }
  /// The stride of the first of the chosen modes, whatever its size; 1 where there is none.
  [[nodiscard]] constexpr int stride(RankModes chosen) const {
    for (int i = 0; i < count_; ++i)
      if (chosen.contains((*this)[i].name)) return (*this)[i].stride;
    return 1;
  }
  /// The coordinate of a rank in the chosen modes.
  [[nodiscard]] constexpr int coordinate(RankModes chosen, int rank) const {
    int sum = 0;
    int unit = 1;
    for (int i = 0; i < count_; ++i) {
      const Mode& mode = (*this)[i];
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
    for (int i = 0; i < count_; ++i) {
      const Mode& mode = (*this)[i];
      if (!chosen.contains(mode.name)) continue;
      sum += coordinate % mode.size * mode.stride;
      coordinate /= mode.size;
    }
    return sum;
  }
  /// The layout of the chosen modes alone, from the same first rank.
  [[nodiscard]] constexpr RankLayout sub(RankModes chosen) const { return filtered(chosen, true); }
  /// The layout of all other modes: with each of its ranks as the first, sub(chosen) tiles the layout.
  [[nodiscard]] constexpr RankLayout complement(RankModes chosen) const { return filtered(chosen, false); }
  /// The same ranks in the same order with as few modes as can be: modes of one rank are left out, and a mode that
  /// continues the one before it joins it under that one's name.
  [[nodiscard]] constexpr RankLayout coalesced() const {
    RankLayout out(first_rank_);
    for (int i = 0; i < count_; ++i) {
      const Mode& mode = (*this)[i];
      if (mode.size == 1) continue;
      if (out.count_ > 0) {
        Mode& last = out.modes_[static_cast<std::size_t>(out.count_ - 1)];
        if (mode.stride == last.size * last.stride) {
          last.size *= mode.size;
          continue;
        }
      }
      out.append(mode.name, mode.size, mode.stride);
    }
    return out;
  }

 private:
  [[nodiscard]] constexpr RankLayout filtered(RankModes chosen, bool wanted) const {
    RankLayout out(first_rank_);
    for (int i = 0; i < count_; ++i)
      if (const Mode& mode = (*this)[i]; chosen.contains(mode.name) == wanted)
        out.append(mode.name, mode.size, mode.stride);
    return out;
  }

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

/// The groups of ranks that differ in some modes of a layout alone, or one union of sets of ranks. Which group is meant
/// a rank tells; its members have an order, in which sums are added.
class RankGroup {
 public:
  static constexpr int most_sets = 4;
  /// Neighbours in a group are `stride` apart; 0 where the gaps differ. Of one rank: 1.
  struct Shape {
    int size = 1;
    int stride = 1;
    friend constexpr bool operator==(const Shape&, const Shape&) = default;
  };

  constexpr RankGroup(const RankLayout& layout, RankModes chosen)
      : layout_(layout), members_(layout.sub(chosen)), chosen_(chosen) {}
  /// The ranks of up to most_sets disjoint layouts, one after the other: one group, whichever rank.
  constexpr explicit RankGroup(std::span<const RankLayout> sets) {
    for (const RankLayout& set : sets) sets_[static_cast<std::size_t>(count_++)] = set;
  }

  [[nodiscard]] constexpr int size() const {
    if (count_ == 0) return members_.ranks();
    int sum = 0;
    for (int i = 0; i < count_; ++i) sum += sets_[static_cast<std::size_t>(i)].ranks();
    return sum;
  }
  /// Member `index` of the group of `rank`.
  [[nodiscard]] constexpr int member(int rank, int index) const {
    if (count_ == 0) return rank + along(members_, index) - along(members_, layout_.coordinate(chosen_, rank));
    int i = 0;
    for (; index >= sets_[static_cast<std::size_t>(i)].ranks(); ++i)
      index -= sets_[static_cast<std::size_t>(i)].ranks();
    const RankLayout& set = sets_[static_cast<std::size_t>(i)];
    return set.first_rank() + along(set, index);
  }
  /// The index of a rank in its group; -1 for a rank outside the union.
  [[nodiscard]] constexpr int index_of(int rank) const {
    if (count_ == 0) return layout_.coordinate(chosen_, rank);
    for (int i = 0; i < size(); ++i)
      if (member(rank, i) == rank) return i;
    return -1;
  }
  /// The group of `rank` in its order.
  [[nodiscard]] std::vector<int> ranks(int rank) const {
    std::vector<int> out;
    out.reserve(static_cast<std::size_t>(size()));
    for (int i = 0; i < size(); ++i) out.push_back(member(rank, i));
    return out;
  }
  [[nodiscard]] constexpr Shape shape() const {
    if (count_ == 0) {
      const RankLayout one = members_.coalesced();
      if (one.modes() == 0) return {};
      return {one.ranks(), one.modes() == 1 ? one[0].stride : 0};
    }
    Shape out{size(), 1};
    for (int i = 1; i < out.size; ++i) {
      const int gap = member(0, i) - member(0, i - 1);
      if (i == 1) out.stride = gap;
      if (gap != out.stride) return {out.size, 0};
    }
    return out;
  }

 private:
  // From the first rank of a layout to its rank `index` in the order of its modes.
  static constexpr int along(const RankLayout& layout, int index) {
    int sum = 0;
    for (int i = 0; i < layout.modes(); ++i) {
      sum += index % layout[i].size * layout[i].stride;
      index /= layout[i].size;
    }
    return sum;
  }

  RankLayout layout_;
  RankLayout members_;
  RankModes chosen_ = RankMode::tp;
  int count_ = 0;
  std::array<RankLayout, most_sets> sets_{};
};

}  // namespace galvatron
