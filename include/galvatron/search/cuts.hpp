// Cuts: where the stages of a good assignment may begin, and what the other stages take at least.
//
// A stage that begins later has less to do, so that for a limit on the slowest stage the furthest begins follow from
// the front, stage by stage, and the earliest from the back. Between them a dynamic program over begins adds up least
// seconds. Layers are whole here, unlike in Bounds, whose multipliers see memory and seconds of all stages at once.
//
// Limits are on T, the seconds of a micro-batch, and on T + once / (alone turns): turns times the latter, of any stage,
// is in the objective as well, because the slowest stage has no smaller T and the largest once is no smaller.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>

namespace galvatron::search {

/// What is known of a stage of any assignment with less than some seconds.
struct StageLimit {
  double slowest = std::numeric_limits<double>::infinity();  ///< no stage takes longer
  double loaded = std::numeric_limits<double>::infinity();   ///< nor has more of T + share * once
  double share = 0;
  double seconds = std::numeric_limits<double>::infinity();  ///< the limit on the assignment
  double sum = 0;                                            ///< of the ramps of all stages, at least
  double slowest_of_all = 0;                                 ///< the slowest stage takes that at least
};

class Cuts {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  /// @param segments  of T
  /// @param loads     of T + share(problem) * once
  Cuts(const Problem& problem, const Segments& segments, const Segments& loads, const Bounds& bounds)
      : p_(problem),
        s_(segments),
        loads_(loads),
        ramps_(bounds.ramps()),
        once_(bounds.onces().back() / problem.stages()) {}

  /// Seconds per micro-batch of the slowest stage that one second once an iteration counts for.
  static double share(const Problem& problem) {
    const Objective& o = problem.objective;
    return o.weights.turns > 0 ? 1 / (o.alone * o.weights.turns) : 0;
  }

  /// No assignment is faster.
  [[nodiscard]] double bound() const {
    if (p_.objective.weights.turns <= 0) return p_.objective(ramps_.back(), 0, once_);
    return std::max(p_.objective(ramps_.back(), least_slowest(s_), once_),
                    p_.objective(ramps_.back(), least_slowest(loads_), 0));
  }

  /// Looks at assignments with less than `limit` seconds from here on; false when there are none.
  bool narrow(double limit) {
    const Objective& o = p_.objective;
    limit_ = limit;
    slowest_ = loaded_ = infinite;
    if (o.weights.turns > 0 && p_.stages() > 1) {
      const auto most = [&](double once) {
        return ((limit - once) / o.alone - o.weights.ramp * ramps_.back()) / o.weights.turns * (1 + 1e-9);
      };
      slowest_ = most(once_);
      loaded_ = most(0);
    }
    low_.assign(static_cast<std::size_t>(p_.stages()) + 1, 0);
    high_.assign(low_.size(), p_.count());
    if (!narrow_by(s_, slowest_) || !narrow_by(loads_, loaded_)) return false;
    add_up();
    return limit == infinite || least() < limit;
  }
  /// No assignment with less than the limit is faster.
  [[nodiscard]] double least() const {
    const Rest& all = after_.front();
    return all.sum < infinite ? p_.objective(all.sum, all.slowest, once_) : infinite;
  }

  /// What a stage must keep within, so that an assignment has less seconds than the limit.
  [[nodiscard]] StageLimit stage_limit() const {
    return {slowest_, loaded_, share(p_), limit_, after_.front().sum, after_.front().slowest};
  }
  /// The first layer of stage `stage`, 0 to P, is one of these.
  [[nodiscard]] int earliest(int stage) const { return low_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] int latest(int stage) const { return high_[static_cast<std::size_t>(stage)]; }
  /// Of any assignment whose stages before `stage`, the next of which begins with layer `begin`, have these figures.
  [[nodiscard]] double with_stages(int stage, int begin, double sum, double slowest, double once) const {
    const std::size_t i = index(stage, begin);
    return p_.objective(sum + after_[i].sum, std::max(slowest, after_[i].slowest), std::max(once, once_));
  }

 private:
  struct Rest {
    double sum = infinite;      // of ramps
    double slowest = infinite;  // stage
  };

  [[nodiscard]] int cut(int stage) const { return p_.cuts[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] std::size_t index(int stage, int begin) const {
    return offset_[static_cast<std::size_t>(stage)] + static_cast<std::size_t>(begin - earliest(stage));
  }
  // The least begin of a stage after one that begins with `begin`, and the largest of any.
  [[nodiscard]] int least_next(int stage, int begin) const { return begin + 1 + (stage == 0 ? p_.leading : 0); }
  [[nodiscard]] int most_next(int stage) const { return p_.count() - p_.trailing - (p_.stages() - 1 - stage); }

  // The largest begin of the stage after; -1 when there is none.
  [[nodiscard]] int furthest(const Segments& s, int stage, int begin, double seconds) const {
    int good = least_next(stage, begin);
    int bad = most_next(stage) + 1;
    if (good >= bad || s.seconds(stage, begin, good) > seconds) return -1;
    while (bad - good > 1) {
      const int middle = (good + bad) / 2;
      (s.seconds(stage, begin, middle) <= seconds ? good : bad) = middle;
    }
    return good;
  }
  // The least begin of a stage that ends before `end`; -1 when there is none.
  [[nodiscard]] int nearest(const Segments& s, int stage, int end, double seconds) const {
    int good = end - 1 - (stage + 1 == p_.stages() ? p_.trailing : 0);
    int bad = p_.leading + stage - 1;
    if (good <= bad || s.seconds(stage, good, end) > seconds) return -1;
    while (good - bad > 1) {
      const int middle = (good + bad) / 2;
      (s.seconds(stage, middle, end) <= seconds ? good : bad) = middle;
    }
    return good;
  }
  [[nodiscard]] bool feasible(const Segments& s, double seconds) const {
    int begin = 0;
    for (int stage = 0; stage + 1 < p_.stages(); ++stage) {
      begin = furthest(s, stage, begin, seconds);
      if (begin < 0) return false;
    }
    return s.seconds(p_.stages() - 1, begin, p_.count()) <= seconds;
  }

  // What the slowest stage takes at least.
  [[nodiscard]] double least_slowest(const Segments& s) const {
    if (!p_.cuts.empty()) {
      double slowest = 0;
      for (int i = 0; i < p_.stages(); ++i) slowest = std::max(slowest, s.seconds(i, cut(i), cut(i + 1)));
      return slowest;
    }
    double low = 0;
    double high = ramps_.back() + 1e-9;
    while (!feasible(s, high)) {
      low = high;
      high *= 2;
      if (high > 1e200) return infinite;
    }
    for (int round = 0; round < 40 && high - low > 1e-5 * high; ++round) {
      const double middle = (low + high) / 2;
      (feasible(s, middle) ? high : low) = middle;
    }
    return low;
  }

  // Narrows the windows to stages of at most `most` seconds; false when there are none.
  bool narrow_by(const Segments& s, double most) {
    const int stages = p_.stages();
    if (!p_.cuts.empty()) {
      low_ = high_ = p_.cuts;
      for (int i = 0; i < stages; ++i)
        if (s.seconds(i, cut(i), cut(i + 1)) > most) return false;
      return true;
    }
    low_.back() = p_.count();
    high_.front() = 0;
    for (int i = 0; i + 1 < stages; ++i) {
      const int next = furthest(s, i, latest(i), most);
      if (next < 0) return false;
      int& high = high_[static_cast<std::size_t>(i) + 1];
      high = std::min(high, next);
    }
    for (int i = stages - 1; i > 0; --i) {
      const int begin = nearest(s, i, earliest(i + 1), most);
      int& low = low_[static_cast<std::size_t>(i)];
      low = std::max(low, begin);
      if (begin < 0 || low > latest(i)) return false;
    }
    return s.seconds(0, 0, earliest(1)) <= most;
  }

  void add_up() {
    const int stages = p_.stages();
    offset_.assign(1, 0);
    std::size_t pairs = 0;
    for (int i = 0; i <= stages; ++i) {
      const auto width = static_cast<std::size_t>(latest(i) - earliest(i) + 1);
      offset_.push_back(offset_.back() + width);
      if (i < stages) pairs += width * static_cast<std::size_t>(latest(i + 1) - earliest(i + 1) + 1);
    }
    after_.assign(offset_.back(), {});
    after_.back() = {0, 0};
    for (int i = stages; i-- > 0;)
      for (int begin = earliest(i); begin <= latest(i); ++begin) {
        Rest& rest = after_[index(i, begin)];
        if (pairs > most_pairs) {
          rest = {ramp(begin, p_.count()), 0};
          continue;
        }
        for (int end = std::max(earliest(i + 1), least_next(i, begin)); end <= latest(i + 1); ++end) {
          const Rest& next = after_[index(i + 1, end)];
          if (next.sum == infinite) continue;
          const double seconds = s_.seconds(i, begin, end);
          if (seconds > slowest_ || loads_.seconds(i, begin, end) > loaded_) break;
          const double own = p_.objective.weights.postponed > 0 ? ramp(begin, end) : seconds;
          rest.sum = std::min(rest.sum, own + next.sum);
          rest.slowest = std::min(rest.slowest, std::max(seconds, next.slowest));
        }
      }
  }
  [[nodiscard]] double ramp(int begin, int end) const {
    return ramps_[static_cast<std::size_t>(end)] - ramps_[static_cast<std::size_t>(begin)];
  }

  static constexpr std::size_t most_pairs = 100'000;

  const Problem& p_;
  const Segments& s_;
  const Segments& loads_;
  const std::vector<double>& ramps_;
  double once_;
  double limit_ = infinite;
  double slowest_ = infinite;
  double loaded_ = infinite;
  std::vector<int> low_;   // (P + 1) first layers of stages
  std::vector<int> high_;  // (P + 1)
  std::vector<std::size_t> offset_;
  std::vector<Rest> after_;  // by stage and begin
};

}  // namespace galvatron::search
