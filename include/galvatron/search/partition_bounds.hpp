// PartitionBounds: where the stages of a good assignment may begin, and what the stages after take at least.
//
// A stage that begins later has less to do, so that for a limit on the slowest stage the furthest begins follow from
// the front, stage by stage, and the earliest from the back. Between them a dynamic program over begins adds up the
// least seconds of stages (RangeBound). All is done for each surrogate objective (Relaxation).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/search/choices.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/range_bound.hpp>
#include <galvatron/search/relaxation.hpp>

namespace galvatron::search {

/// Where stages may begin.
struct Windows {
  std::vector<int> low;   ///< (P + 1) the earliest first layer of every stage; the number of layers
  std::vector<int> high;  ///< (P + 1) the latest

  /// Any that leave every stage a layer.
  explicit constexpr Windows(const Problem& p)
      : low(static_cast<std::size_t>(p.stages()) + 1, 0), high(low.size(), p.count()) {
    high.front() = 0;
    low.back() = p.count();
  }
};

/// Narrows windows by what a stage may have; false when there is no partition.
/// @param holds  holds(stage, begin, end): whether a stage may have these layers; if not, it may not have more either
template <class Holds>
constexpr bool narrow_windows(const Problem& p, Windows& windows, const Holds& holds) {
  const int stages = p.stages();
  if (!p.cuts.empty()) {
    windows.low = windows.high = p.cuts;
    for (int i = 0; i < stages; ++i)
      if (!holds(i, nth(p.cuts, i), nth(p.cuts, i + 1))) return false;
    return true;
  }
  // A stage that cannot have the layer alone with which it begins at the latest, or ends at the earliest, may begin or
  // end before or behind it.
  for (int i = 0; i + 1 < stages; ++i) {
    const int begin = nth(windows.high, i);
    const int first = begin + 1 + (i == 0 ? p.leading : 0);
    const int beyond = p.count() - p.trailing - (stages - 1 - i) + 1;
    if (first >= beyond) return false;
    const int next = first_where(first, beyond, [&](int end) { return !holds(i, begin, end); }) - 1;
    if (next < first && i == 0) return false;
    nth(windows.high, i + 1) = std::min(nth(windows.high, i + 1), next);
  }
  for (int i = stages - 1; i > 0; --i) {
    const int end = nth(windows.low, i + 1);
    const int first = p.leading + i;
    const int beyond = end - (i + 1 == stages ? p.trailing : 0);
    if (first >= beyond) return false;
    const int begin = first_where(first, beyond, [&](int from) { return holds(i, from, end); });
    if (begin == beyond && i + 1 == stages) return false;
    nth(windows.low, i) = std::max(nth(windows.low, i), begin);
    if (nth(windows.low, i) > nth(windows.high, i)) return false;
  }
  return holds(0, 0, nth(windows.low, 1));
}

class PartitionBounds {
 public:
  constexpr PartitionBounds(const Problem& problem, const Relaxation& relaxation)
      : p_(problem), r_(relaxation), windows_(problem) {}

  /// Looks at assignments with less than `limit` seconds and with these ends from here on; false when there are none.
  /// @param rounds  in which what stages of unequal devices fill together narrows them further
  constexpr bool narrow(double limit, const TiedEnds& ends = {}, int rounds = 3) {
    limit_ = limit;
    set_ends(ends);
    windows_ = Windows(p_);
    Surrogate fills{};
    for (std::size_t k = 0; k < r_.size(); ++k) fills[k] = r_.fills(k, 0, p_.count());
    if (!narrow_within(limit, fills)) return false;
    // Where devices differ, what all stages fill together is known better now: again, as long as it makes a difference.
    constexpr double worth = 1.002;
    for (int round = 0; round < rounds && p_.device_kinds() > 1 && limit < infinite; ++round) {
      const Surrogate known = std::exchange(fills, after_.front().fills);
      bool is_more = false;
      for (std::size_t k = 0; k < r_.size(); ++k) is_more = is_more || fills[k] > known[k] * worth;
      if (!is_more) break;
      if (!narrow_within(limit, fills)) return false;
    }
    return limit == infinite || least() < limit;
  }
  /// The fullest stage of no assignment has fewer bytes.
  [[nodiscard]] constexpr std::int64_t least_peak() const {
    const auto may_fit = [this](std::int64_t bytes) {
      const auto holds = [&](int stage, int begin, int end) {
        return r_.ranges(0, stage).least_peak(stage, range_of(0, stage, begin, end)) <= static_cast<double>(bytes);
      };
      Windows any(p_);
      return narrow_windows(p_, any, holds);
    };
    std::int64_t enough = 1;
    while (!may_fit(enough) && enough < std::int64_t{1} << 60) enough *= 2;
    return first_where(enough / 2 + 1, enough, may_fit);
  }
  /// No assignment with less than the limit is faster.
  [[nodiscard]] constexpr double least() const {
    const Rest& all = after_.front();
    double out = 0;
    for (std::size_t k = 0; k < r_.size(); ++k)
      out = std::max(out, all.slowest[k] < infinite ? r_.seconds(k, all.fills[k], all.slowest[k]) : infinite);
    return out;
  }
  /// The same where the only stage has a workspace of a class of the range bounds.
  [[nodiscard]] constexpr double least_in_class(std::size_t i) const {
    const double seconds = r_.ranges(0, 0).seconds_in_class(i, 0, range_of(0, 0, 0, p_.count()));
    return seconds < infinite ? r_.seconds(0, seconds, seconds) : infinite;
  }

  /// What a stage must keep within, so that an assignment has less seconds than the limit.
  [[nodiscard]] constexpr StageLimit stage_limit() const {
    return {limit_, most_, after_.front().fills, after_.front().slowest};
  }
  /// The first layer of stage `stage`, 0 to P, is one of these.
  [[nodiscard]] constexpr int earliest(int stage) const { return nth(windows_.low, stage); }
  [[nodiscard]] constexpr int latest(int stage) const { return nth(windows_.high, stage); }
  /// Of any assignment whose stages before `stage`, the next of which begins with layer `begin`, have these terms.
  [[nodiscard]] constexpr double with_stages(int stage, int begin, const Terms& before) const {
    const Rest& rest = after_[index(stage, begin)];
    const Terms all =
        joined(before, {rest.slowest.front(), rest.fills.front(), r_.per_iteration(), r_.link_beside(0, begin)});
    double out = 0;
    for (std::size_t k = 0; k < r_.size(); ++k)
      out = std::max(out, r_.seconds(k, all, p_.stages() - stage, before.fill + rest.fills[k], rest.slowest[k]));
    return out;
  }

 private:
  // The stages from one on.
  struct Rest {
    Surrogate fills{infinite, infinite, infinite};
    Surrogate slowest{infinite, infinite, infinite};
  };

  // Narrows the windows to stages that leave `fills` to all together, and adds up; false when there are none.
  constexpr bool narrow_within(double limit, const Surrogate& fills) {
    for (std::size_t k = 0; k < r_.size(); ++k) {
      most_[k] = r_.most_slowest(k, limit, fills[k]);
      const auto holds = [&](int stage, int begin, int end) {
        const double seconds = stage_seconds(k, stage, begin, end);
        return seconds <= most_[k] && seconds < infinite;
      };
      if (!narrow_windows(p_, windows_, holds)) return false;
    }
    add_up();
    return true;
  }

  [[nodiscard]] constexpr std::size_t index(int stage, int begin) const {
    return nth(offset_, stage) + static_cast<std::size_t>(begin - earliest(stage));
  }
  // What the ends add to their stages where they are known.
  constexpr void set_ends(const TiedEnds& ends) {
    first_ = last_ = {};
    if (ends.tag < 0) return;
    for (std::size_t k = 0; k < r_.size(); ++k) {
      const auto change = [&](int begin, int end, const Choice& c, const Slots& slots) -> StageRange {
        const double seconds = p_.objective.terms_of(c).time_with(r_.share(k));
        return {begin, end, seconds, static_cast<double>(slots.kept(c)), workspace_of(c)};
      };
      first_[k] = change(1, 0, ends.first, p_.slots_at(0, 0));
      last_[k] = change(0, -1, ends.last, p_.slots_at(p_.stages() - 1, p_.count() - 1));
    }
  }
  // A stage: the layers whose choices are open, and the ends.
  [[nodiscard]] constexpr StageRange range_of(std::size_t k, int stage, int begin, int end) const {
    StageRange out{begin, end};
    const auto add = [&out](const StageRange& own) {
      out = {out.begin + own.begin, out.end + own.end, out.seconds + own.seconds, out.bytes + own.bytes,
             std::max(out.workspace, own.workspace)};
    };
    if (stage == 0) add(first_[k]);
    if (stage + 1 == p_.stages()) add(last_[k]);
    return out;
  }
  // Least seconds of a stage in a surrogate.
  [[nodiscard]] constexpr double stage_seconds(std::size_t k, int stage, int begin, int end) const {
    return r_.ranges(k, stage).seconds(stage, range_of(k, stage, begin, end));
  }

  constexpr void add_up() {
    const int stages = p_.stages();
    offset_.assign(1, 0);
    std::size_t pairs = 0;
    for (int i = 0; i <= stages; ++i) {
      const auto width = static_cast<std::size_t>(latest(i) - earliest(i) + 1);
      offset_.push_back(offset_.back() + width);
      if (i < stages) pairs += width * static_cast<std::size_t>(latest(i + 1) - earliest(i + 1) + 1);
    }
    after_.assign(offset_.back(), {});
    after_.back() = {Surrogate{}, Surrogate{}};
    for (int i = stages; i-- > 0;)
      for (int begin = earliest(i); begin <= latest(i); ++begin) {
        Rest& rest = after_[index(i, begin)];
        if (pairs > 100'000 || limit_ == infinite) {
          for (std::size_t k = 0; k < r_.size(); ++k) rest.fills[k] = r_.fills(k, begin, p_.count());
          rest.slowest = {};
          continue;
        }
        for (int end = std::max(earliest(i + 1), begin + 1 + (i == 0 ? p_.leading : 0)); end <= latest(i + 1); ++end) {
          const Rest& next = after_[index(i + 1, end)];
          if (next.slowest.front() == infinite) continue;
          if (!add_stage(i, begin, end, next, rest)) break;
        }
      }
  }
  // Takes the stages from `begin` on into account whose first ends before `end`; false when it takes too long.
  constexpr bool add_stage(int stage, int begin, int end, const Rest& next, Rest& rest) const {
    Surrogate seconds{};
    for (std::size_t k = 0; k < r_.size(); ++k) {
      seconds[k] = stage_seconds(k, stage, begin, end);
      if (seconds[k] > most_[k]) return false;
    }
    const bool deferred = p_.objective.weights.deferred > 0;
    for (std::size_t k = 0; k < r_.size(); ++k) {
      const double fill = deferred ? r_.fills(k, begin, end) : seconds[r_.counts_alike(k) ? k : 0];
      rest.fills[k] = std::min(rest.fills[k], fill + next.fills[k]);
      rest.slowest[k] = std::min(rest.slowest[k], std::max(seconds[k], next.slowest[k]));
    }
    return true;
  }

  const Problem& p_;
  const Relaxation& r_;
  // In each surrogate, what tied ends that are known change of the range of their stages.
  std::array<StageRange, 3> first_;
  std::array<StageRange, 3> last_;
  double limit_ = infinite;
  Surrogate most_{infinite, infinite, infinite};
  Windows windows_;
  std::vector<std::size_t> offset_;
  std::vector<Rest> after_;  // by stage and begin
};

}  // namespace galvatron::search
