// BMW: Galvatron's search for balanced workloads, as it was published; a local search over where stages begin.
//
// With C_i the seconds and O_i the bytes of stage i, the balance of time is alpha_t = 1 - max C_i / sum C_i, that of
// memory alpha_m = 1 - max O_i / sum O_i, both in [0, 1 - 1/P]. The cuts p_m balance memory, p_t time, and good cuts
// lie between them: start at p_m; search the strategies of every stage; move a layer off an end of the slowest stage to
// its neighbour; accept if the slowest stage is not slower than before, the fullest not fuller than under p_t, and all
// fit; go on until nothing is accepted. Source: Wang et al., Galvatron-BMW (arXiv 2307.02031), section 4.
//
// Solver searches cuts and strategies together and is never worse; this one is here to be compared with, and for
// problems beyond it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/solver.hpp>
#include <galvatron/search/stage_search.hpp>
#include <galvatron/search/weighings.hpp>

namespace galvatron::search {

/// How evenly stages are loaded; each in [0, 1 - 1/P].
struct Balance {
  double time = 0;    ///< alpha_t
  double memory = 0;  ///< alpha_m
};

inline Balance balance_of(const Evaluation& plan) {
  double slowest = 0;
  double seconds = 0;
  double fullest = 0;
  double bytes = 0;
  for (const StageCost& stage : plan.stages) {
    slowest = std::max(slowest, stage.seconds());
    seconds += stage.seconds();
    fullest = std::max(fullest, static_cast<double>(stage.peak));
    bytes += static_cast<double>(stage.peak);
  }
  return {seconds > 0 ? 1 - slowest / seconds : 0, bytes > 0 ? 1 - fullest / bytes : 0};
}

template <class Executor = Team>
class Bmw {
 public:
  /// @param executor  shares the work on a stage; the answers are the same without one
  explicit Bmw(const Problem& problem, Executor* executor = nullptr)
      : p_(problem), executor_(executor), bounds_(problem), weighings_(problem, bounds_) {}

  /// Cuts that make the fullest stage least full, each layer at the least that it may keep.
  [[nodiscard]] std::vector<int> memory_balanced() const {
    return balanced([this](int stage, const Choice& c) { return static_cast<double>(p_.least_slots(stage).kept(c)); });
  }
  /// Cuts that make the slowest stage fastest, each layer at its fastest.
  [[nodiscard]] std::vector<int> time_balanced() const {
    return balanced([](int, const Choice& c) { return c.seconds(); });
  }

  /// The plan that the local search ends with, or the time-balanced one if that is faster; nothing when neither fits.
  [[nodiscard]] std::optional<Solution> run() {
    std::optional<Solution> best;
    if (p_.movable() < p_.stages()) return best;
    for (const int tag : tags()) {
      tag_ = tag;
      done_.clear();
      auto found = climb();
      if (found && (!best || found->cost.seconds < best->cost.seconds)) best = std::move(found);
    }
    return best;
  }
  /// Labels made.
  [[nodiscard]] std::int64_t work() const { return work_; }

 private:
  // A stage with its best strategies.
  struct Stage {
    int stage = 0;
    int begin = 0;
    int end = 0;
    bool fits = false;
    std::vector<int> choices;
  };

  // The tags that tied ends may have, fastest ends first; -1 without a tie.
  [[nodiscard]] std::vector<int> tags() const {
    if (!p_.tied || p_.count() < 2) return {-1};
    std::vector<std::pair<double, int>> order;
    for (const Choice& a : p_.types[static_cast<std::size_t>(p_.layers.front())])
      for (const Choice& b : p_.types[static_cast<std::size_t>(p_.layers.back())])
        if (a.tag == b.tag) order.emplace_back(bounds_.with_ends(a, b), a.tag);
    std::sort(order.begin(), order.end());
    if (order.size() > most_tags) order.resize(most_tags);
    std::vector<int> out;
    for (const auto& [seconds, tag] : order) out.push_back(tag);
    return out;
  }

  // Contiguous stages whose largest sum of least weights is least: a dynamic program over stages.
  template <class Weight>
  [[nodiscard]] std::vector<int> balanced(Weight weight) const {
    if (!p_.cuts.empty()) return p_.cuts;
    const auto count = static_cast<std::size_t>(p_.count());
    const auto stages = static_cast<std::size_t>(p_.stages());
    constexpr double none = std::numeric_limits<double>::infinity();
    std::vector<double> before(count + 1, none);
    before[0] = 0;
    std::vector<std::vector<int>> from(stages, std::vector<int>(count + 1, 0));
    for (std::size_t stage = 0; stage < stages; ++stage) {
      std::vector<double> least;
      for (const LayerType& type : p_.types) {
        least.push_back(none);
        for (const Choice& c : type) least.back() = std::min(least.back(), weight(static_cast<int>(stage), c));
      }
      std::vector<double> sum{0};
      for (const int type : p_.layers) sum.push_back(sum.back() + least[static_cast<std::size_t>(type)]);
      std::vector<double> after(count + 1, none);
      const bool last = stage + 1 == stages;
      const std::size_t own = 1 + (stage == 0 ? static_cast<std::size_t>(p_.leading) : 0) +
                              (last ? static_cast<std::size_t>(p_.trailing) : 0);
      const std::size_t most = last ? count : count - static_cast<std::size_t>(p_.trailing) - (stages - 1 - stage);
      for (std::size_t end = last ? count : own; end <= most; ++end)
        for (std::size_t begin = 0; begin + own <= end; ++begin) {
          const double largest = std::max(before[begin], sum[end] - sum[begin]);
          if (largest >= after[end]) continue;
          after[end] = largest;
          from[stage][end] = static_cast<int>(begin);
        }
      before = std::move(after);
    }
    std::vector<int> cuts{p_.count()};
    for (std::size_t stage = stages; stage-- > 0;) cuts.push_back(from[stage][static_cast<std::size_t>(cuts.back())]);
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

  const Stage& searched(int stage, int begin, int end) {
    for (const Stage& made : done_)
      if (made.stage == stage && made.begin == begin && made.end == end) return made;
    StageRole role;
    role.stage = stage;
    role.begin = begin;
    role.shortest = role.longest = end - begin;
    role.first = stage == 0;
    role.last = stage + 1 == p_.stages();
    role.tag = tag_;
    const StageTable table(p_, bounds_, weighings_, role, limits_, p_.budget, StageLimit{}, executor_);
    work_ += table.work();
    Stage out{stage, begin, end, false, {}};
    const StageOption* best = nullptr;
    const auto seconds = [this](const StageOption& o) { return o.time + bounds_.once_share() * o.once; };
    for (const StageOption& option : table.options(end - begin))
      if (best == nullptr || seconds(option) < seconds(*best)) best = &option;
    if (best != nullptr) {
      out.fits = true;
      out.choices = table.choices(end - begin, *best);
    }
    done_.push_back(std::move(out));
    return done_.back();
  }

  // The best strategies for these cuts; nothing when a stage does not fit.
  std::optional<Solution> solved(const std::vector<int>& cuts) {
    Solution out;
    out.plan.first = cuts;
    for (int i = 0; i < p_.stages(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const Stage& stage = searched(i, cuts[at], cuts[at + 1]);
      if (!stage.fits) return std::nullopt;
      out.plan.choice.insert(out.plan.choice.end(), stage.choices.begin(), stage.choices.end());
    }
    out.cost = evaluate(p_, out.plan);
    return out;
  }

  [[nodiscard]] static double slowest_of(const Solution& s) {
    double out = 0;
    for (const StageCost& stage : s.cost.stages) out = std::max(out, stage.seconds());
    return out;
  }

  std::optional<Solution> climb() {
    const std::optional<Solution> timed = solved(time_balanced());
    const std::int64_t most_bytes = timed ? std::min(timed->cost.peak, p_.budget) : p_.budget;
    std::optional<Solution> best = timed;
    std::optional<Solution> at = solved(memory_balanced());
    std::vector<std::vector<int>> seen;
    while (at) {
      if (!best || at->cost.seconds < best->cost.seconds) best = at;
      seen.push_back(at->plan.first);
      at = moved(*at, most_bytes, seen);
    }
    return best;
  }

  // The faster of the accepted neighbours, if there is one that was not seen.
  std::optional<Solution> moved(const Solution& from, std::int64_t most_bytes,
                                const std::vector<std::vector<int>>& seen) {
    std::optional<Solution> out;
    if (!p_.cuts.empty()) return out;
    const double before = slowest_of(from);
    int slowest = 0;
    for (int i = 0; i < p_.stages(); ++i)
      if (from.cost.stages[static_cast<std::size_t>(i)].seconds() >
          from.cost.stages[static_cast<std::size_t>(slowest)].seconds())
        slowest = i;
    const auto at = static_cast<std::size_t>(slowest);
    const bool last = slowest + 1 == p_.stages();
    const int own =
        from.plan.first[at + 1] - from.plan.first[at] - (slowest == 0 ? p_.leading : 0) - (last ? p_.trailing : 0);
    if (own < 2) return out;
    for (const bool front : {true, false}) {
      if (front ? slowest == 0 : last) continue;
      std::vector<int> cuts = from.plan.first;
      cuts[front ? at : at + 1] += front ? 1 : -1;
      if (std::find(seen.begin(), seen.end(), cuts) != seen.end()) continue;
      auto next = solved(cuts);
      if (!next || slowest_of(*next) > before * (1 + 1e-12) || next->cost.peak > most_bytes) continue;
      if (!out || next->cost.seconds < out->cost.seconds) out = std::move(next);
    }
    return out;
  }

  static constexpr std::size_t most_tags = 4;

  const Problem& p_;
  Executor* executor_;
  Limits limits_{.labels = 16};
  Bounds bounds_;
  Weighings weighings_;
  int tag_ = -1;
  std::vector<Stage> done_;
  std::int64_t work_ = 0;
};

}  // namespace galvatron::search
