// Cuts: where the stages of a good assignment may begin, and what the other stages take at least.
//
// A stage that begins later has less to do, so that for a limit on the slowest stage the furthest begins follow from
// the front, stage by stage, and the earliest from the back. Between them a dynamic program over begins adds up least
// seconds. Layers are whole here, unlike in Bounds, whose multipliers see memory and seconds of all stages at once.
//
// Everything is done for each of the ways to count what stages do once an iteration: see Weighings.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>
#include <galvatron/search/stage_role.hpp>
#include <galvatron/search/ties.hpp>
#include <galvatron/search/weighings.hpp>

namespace galvatron::search {

/// What is known of any assignment with less than some seconds.
struct StageLimit {
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  double seconds = infinite;                   ///< the limit on the assignment
  Weighed most{infinite, infinite, infinite};  ///< no stage has more of T + share * once
  Weighed ramps{};                             ///< weighed, of all stages at least
  Weighed slowest{};                           ///< the slowest stage has that at least
};

class Cuts {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  Cuts(const Problem& problem, const Weighings& weighings, const Bounds& bounds)
      : p_(problem), w_(weighings), bounds_(bounds), once_(bounds.onces().back() / problem.stages()) {}

  /// No assignment is faster. It is not worth being larger than `enough`.
  /// @param executor  shares the work, if there is one
  template <class Executor = Team>
  [[nodiscard]] double bound(double enough = infinite, Executor* executor = nullptr) const {
    double whole = bounds_.seconds();
    for (std::size_t k = 0; k < w_.size(); ++k) {
      const double slowest = p_.objective.weights.steady > 0 ? least_slowest(k, w_.ramps(k).back()) : 0;
      whole = std::max(whole, w_.seconds(k, w_.ramps(k).back(), slowest, once_));
    }
    if (whole >= enough || enough == infinite) return whole;
    double out = enough;
    const std::vector<Tie> ties = ties_of(p_, bounds_, false);
    for (std::size_t first = 0; first < ties.size() && std::max(whole, ties[first].bound) < out; first += group) {
      const std::vector<std::optional<Cuts>> within = narrowed(ties, first, out, executor);
      for (std::size_t i = 0; i < within.size(); ++i)
        if (within[i]) out = std::min(out, std::max({whole, ties[first + i].bound, within[i]->least()}));
    }
    return out;
  }

  /// Looks at assignments with less than `limit` seconds and with these ends from here on; false when there are none.
  bool narrow(double limit, const Tie& ends = {}) {
    limit_ = limit;
    set_ends(ends);
    windows_.low.assign(static_cast<std::size_t>(p_.stages()) + 1, 0);
    windows_.high.assign(windows_.low.size(), p_.count());
    for (std::size_t k = 0; k < w_.size(); ++k) {
      most_[k] = p_.stages() > 1 ? w_.most_slowest(k, limit, once_) : infinite;
      if (!narrow_by(k, most_[k])) return false;
    }
    add_up();
    return limit == infinite || least() < limit;
  }
  /// Looks at assignments whose stages begin in these windows from here on, whatever their seconds, of which it knows
  /// nothing then.
  void narrow(const Windows& windows) {
    limit_ = infinite;
    windows_ = windows;
    after_.clear();
  }
  [[nodiscard]] double limit() const { return limit_; }
  static constexpr std::size_t group = 8;  ///< ties that are looked at together
  /// The cuts for each of a group of ties, from `first` on; nothing where none has less than `limit` seconds.
  template <class Executor>
  [[nodiscard]] std::vector<std::optional<Cuts>> narrowed(const std::vector<Tie>& ties, std::size_t first, double limit,
                                                          Executor* executor) const {
    std::vector<std::optional<Cuts>> out(std::min(group, ties.size() - first));
    share(executor, out.size(), [&](std::size_t i) {
      const Tie& tie = ties[first + i];
      if (tie.bound < limit && !out[i].emplace(*this).narrow(limit, tie)) out[i].reset();
    });
    return out;
  }
  /// No assignment with less than the limit is faster.
  [[nodiscard]] double least() const {
    const Rest& all = after_.front();
    double out = 0;
    for (std::size_t k = 0; k < w_.size(); ++k)
      out = std::max(out, all.slowest[k] < infinite ? w_.seconds(k, all.ramps[k], all.slowest[k], once_) : infinite);
    return out;
  }

  /// What a stage must keep within, so that an assignment has less seconds than the limit.
  [[nodiscard]] StageLimit stage_limit() const { return {limit_, most_, after_.front().ramps, after_.front().slowest}; }
  /// The first layer of stage `stage`, 0 to P, is one of these.
  [[nodiscard]] int earliest(int stage) const { return windows_.low[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] int latest(int stage) const { return windows_.high[static_cast<std::size_t>(stage)]; }
  /// Of any assignment whose stages before `stage`, the next of which begins with layer `begin`, have these figures.
  [[nodiscard]] double with_stages(int stage, int begin, double sum, double slowest, double once) const {
    const Rest& rest = after_[index(stage, begin)];
    const double left = p_.stages() - stage;
    once = std::max(once, once_);
    double out = 0;
    for (std::size_t k = 0; k < w_.size(); ++k)
      out = std::max(out, w_.seconds_with(k, once, sum + rest.ramps.front(), sum + rest.ramps[k], left,
                                          std::max(slowest, rest.slowest.front()), rest.slowest[k]));
    return out;
  }

 private:
  struct Rest {
    Weighed ramps{infinite, infinite, infinite};
    Weighed slowest{infinite, infinite, infinite};
  };

  [[nodiscard]] int cut(int stage) const { return p_.cuts[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] std::size_t index(int stage, int begin) const {
    return offset_[static_cast<std::size_t>(stage)] + static_cast<std::size_t>(begin - earliest(stage));
  }
  // What the ends add to their stages where they are known.
  void set_ends(const Tie& ends) {
    known_ends_ = ends.tag >= 0;
    if (!known_ends_) return;
    for (std::size_t k = 0; k < w_.size(); ++k) {
      const auto besides = [&](const Choice& c, int stage) -> Segments::Besides {
        return {c.seconds() + w_.share(k) * c.once(), static_cast<double>(p_.least_slots(stage).kept(c)),
                workspace_of(c)};
      };
      first_[k] = besides(ends.first, 0);
      last_[k] = besides(ends.last, p_.stages() - 1);
    }
  }
  // Least seconds of a stage, weighed.
  [[nodiscard]] double stage_seconds(std::size_t k, int stage, int begin, int end) const {
    const Segments& segments = w_.segments(k);
    if (known_ends_ && begin == 0) return segments.seconds(stage, 1, end, first_[k]);
    if (known_ends_ && end == p_.count()) return segments.seconds(stage, begin, end - 1, last_[k]);
    return segments.seconds(stage, begin, end);
  }

  // The least begin of a stage after one that begins with `begin`, and the largest of any.
  [[nodiscard]] int least_next(int stage, int begin) const { return begin + 1 + (stage == 0 ? p_.leading : 0); }
  [[nodiscard]] int most_next(int stage) const { return p_.count() - p_.trailing - (p_.stages() - 1 - stage); }

  // The largest begin of the stage after; -1 when there is none.
  [[nodiscard]] int furthest(std::size_t k, int stage, int begin, double seconds) const {
    int good = least_next(stage, begin);
    int bad = most_next(stage) + 1;
    if (good >= bad || stage_seconds(k, stage, begin, good) > seconds) return -1;
    while (bad - good > 1) {
      const int middle = (good + bad) / 2;
      (stage_seconds(k, stage, begin, middle) <= seconds ? good : bad) = middle;
    }
    return good;
  }
  // The least begin of a stage that ends before `end`; -1 when there is none.
  [[nodiscard]] int nearest(std::size_t k, int stage, int end, double seconds) const {
    int good = end - 1 - (stage + 1 == p_.stages() ? p_.trailing : 0);
    int bad = p_.leading + stage - 1;
    if (good <= bad || stage_seconds(k, stage, good, end) > seconds) return -1;
    while (good - bad > 1) {
      const int middle = (good + bad) / 2;
      (stage_seconds(k, stage, middle, end) <= seconds ? good : bad) = middle;
    }
    return good;
  }
  [[nodiscard]] bool feasible(std::size_t k, double seconds) const {
    int begin = 0;
    for (int stage = 0; stage + 1 < p_.stages(); ++stage) {
      begin = furthest(k, stage, begin, seconds);
      if (begin < 0) return false;
    }
    return stage_seconds(k, p_.stages() - 1, begin, p_.count()) <= seconds;
  }

  // What the slowest stage takes at least.
  // @param high  about as much as all take
  [[nodiscard]] double least_slowest(std::size_t k, double high) const {
    if (!p_.cuts.empty()) {
      double slowest = 0;
      for (int i = 0; i < p_.stages(); ++i) slowest = std::max(slowest, stage_seconds(k, i, cut(i), cut(i + 1)));
      return slowest;
    }
    double low = 0;
    high += 1e-9;
    while (!feasible(k, high)) {
      low = high;
      high *= 2;
      if (high > 1e200) return infinite;
    }
    for (int round = 0; round < 40 && high - low > 1e-5 * high; ++round) {
      const double middle = (low + high) / 2;
      (feasible(k, middle) ? high : low) = middle;
    }
    return low;
  }

  // Narrows the windows to stages of at most `most` seconds; false when there are none.
  bool narrow_by(std::size_t k, double most) {
    const int stages = p_.stages();
    if (!p_.cuts.empty()) {
      windows_ = {p_.cuts, p_.cuts};
      for (int i = 0; i < stages; ++i)
        if (stage_seconds(k, i, cut(i), cut(i + 1)) > most) return false;
      return true;
    }
    windows_.low.back() = p_.count();
    windows_.high.front() = 0;
    for (int i = 0; i + 1 < stages; ++i) {
      const int next = furthest(k, i, latest(i), most);
      if (next < 0) return false;
      int& high = windows_.high[static_cast<std::size_t>(i) + 1];
      high = std::min(high, next);
    }
    for (int i = stages - 1; i > 0; --i) {
      const int begin = nearest(k, i, earliest(i + 1), most);
      int& low = windows_.low[static_cast<std::size_t>(i)];
      low = std::max(low, begin);
      if (begin < 0 || low > latest(i)) return false;
    }
    return stage_seconds(k, 0, 0, earliest(1)) <= most;
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
    after_.back() = {};
    for (std::size_t k = 0; k < w_.size(); ++k) after_.back().ramps[k] = after_.back().slowest[k] = 0;
    for (int i = stages; i-- > 0;)
      for (int begin = earliest(i); begin <= latest(i); ++begin) {
        Rest& rest = after_[index(i, begin)];
        if (pairs > most_pairs) {
          for (std::size_t k = 0; k < w_.size(); ++k) {
            rest.ramps[k] = ramp(k, begin, p_.count());
            rest.slowest[k] = 0;
          }
          continue;
        }
        for (int end = std::max(earliest(i + 1), least_next(i, begin)); end <= latest(i + 1); ++end) {
          const Rest& next = after_[index(i + 1, end)];
          if (next.slowest.front() == infinite) continue;
          if (!add_stage(i, begin, end, next, rest)) break;
        }
      }
  }
  // Takes the stages from `begin` on into account whose first ends before `end`; false when it takes too long.
  bool add_stage(int stage, int begin, int end, const Rest& next, Rest& rest) const {
    Weighed seconds{};
    for (std::size_t k = 0; k < w_.size(); ++k) {
      seconds[k] = stage_seconds(k, stage, begin, end);
      if (seconds[k] > most_[k]) return false;
    }
    const bool deferred = p_.objective.weights.deferred > 0;
    for (std::size_t k = 0; k < w_.size(); ++k) {
      // The first weighing has the seconds of micro-batches alone.
      const double own = deferred ? ramp(k, begin, end) : seconds[w_.weighs_ramps(k) ? k : 0];
      rest.ramps[k] = std::min(rest.ramps[k], own + next.ramps[k]);
      rest.slowest[k] = std::min(rest.slowest[k], std::max(seconds[k], next.slowest[k]));
    }
    return true;
  }
  [[nodiscard]] double ramp(std::size_t k, int begin, int end) const {
    return w_.ramps(k)[static_cast<std::size_t>(end)] - w_.ramps(k)[static_cast<std::size_t>(begin)];
  }

  static constexpr std::size_t most_pairs = 100'000;

  const Problem& p_;
  const Weighings& w_;
  const Bounds& bounds_;
  double once_;  // the largest of any assignment, at least
  bool known_ends_ = false;
  std::array<Segments::Besides, Weighings::most> first_;
  std::array<Segments::Besides, Weighings::most> last_;
  double limit_ = infinite;
  Weighed most_{infinite, infinite, infinite};
  Windows windows_;
  std::vector<std::size_t> offset_;
  std::vector<Rest> after_;  // by stage and begin
};

}  // namespace galvatron::search
