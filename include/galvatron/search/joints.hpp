// Joints: ways to have filled the first stages of a pipeline, and which of them are worth going on from.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/search/dominance.hpp>
#include <galvatron/search/stage_role.hpp>

namespace galvatron::search {

/// What the stages so far put into the objective. What beats another in all of it beats it whatever follows.
struct JointFigures {
  double sum = 0;      ///< of ramps
  double slowest = 0;  ///< stage
  double once = 0;     ///< an iteration, of the stage that takes longest over it
};

/// A way to have filled the stages so far.
template <class Table>
struct Joint {
  JointFigures figures;
  double bound = 0;  ///< what the stages so far contribute to the bound
  std::int64_t peak = 0;
  std::int32_t parent = -1;  ///< in the states of the stage before
  std::int32_t length = 0;   ///< of the last stage
  const StageOption* option = nullptr;
  const Table* table = nullptr;  ///< that has the option

  friend bool operator<(const Joint& a, const Joint& b) {
    const JointFigures& f = a.figures;
    const JointFigures& g = b.figures;
    if (f.sum != g.sum) return f.sum < g.sum;
    if (f.slowest != g.slowest) return f.slowest < g.slowest;
    if (f.once != g.once) return f.once < g.once;
    if (a.parent != b.parent) return a.parent < b.parent;
    return a.length != b.length ? a.length < b.length : a.option->label < b.option->label;
  }
};

/// The few figures that beat others last. Of the ways to fill stages one in fifty is kept, and most of the others are
/// beaten by one of these, before anything else is asked of them.
class RecentBeaters {
 public:
  [[nodiscard]] bool beat(const JointFigures& figures) {
    for (std::size_t i = 0; i < size_; ++i) {
      const JointFigures by = recent_[i];
      if (by.sum > figures.sum || by.slowest > figures.slowest || by.once > figures.once) continue;
      if (i > 0) std::swap(recent_[i], recent_[i - 1]);
      return true;
    }
    return false;
  }
  /// Figures that none of them beats.
  void add(const JointFigures& figures) {
    if (size_ < recent_.size()) ++size_;
    recent_[size_ - 1] = figures;
  }

 private:
  std::array<JointFigures, 16> recent_{};
  std::size_t size_ = 0;
};

/// Keeps the joints, sorted, that no other beats.
template <class Table>
void keep_unbeaten(std::vector<Joint<Table>>& joints) {
  std::sort(joints.begin(), joints.end());
  detail::Staircase<double> onces;  // of every slowest
  std::erase_if(joints, [&](const Joint<Table>& joint) {
    if (onces.reaches(joint.figures.slowest, joint.figures.once)) return true;
    onces.add(joint.figures.slowest, joint.figures.once);
    return false;
  });
}

/// Keeps so many joints of the least score, in their order. Returns whether there were more.
template <class Table, class Score>
bool thin(std::vector<Joint<Table>>& joints, std::size_t most, const Score& score) {
  if (joints.size() <= most) return false;
  std::vector<double> scores;
  for (const Joint<Table>& joint : joints) scores.push_back(score(joint));
  const auto last = scores.begin() + static_cast<std::ptrdiff_t>(most) - 1;
  std::nth_element(scores.begin(), last, scores.end());
  const double worst = *last;
  std::erase_if(joints, [&](const Joint<Table>& joint) { return score(joint) > worst; });
  if (joints.size() > most) joints.resize(most);
  return true;
}

}  // namespace galvatron::search
