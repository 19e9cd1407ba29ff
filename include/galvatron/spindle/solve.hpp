// The best plan of waves that counted work finds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <galvatron/spindle/beam.hpp>
#include <galvatron/spindle/exact.hpp>
#include <galvatron/spindle/greedy.hpp>
#include <galvatron/spindle/improve.hpp>
#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/work.hpp>

namespace galvatron::spindle {

struct Limits {
  std::int64_t steps = 0;  ///< of about a nanosecond; 0: what the number of devices and MetaOps deserves

  [[nodiscard]] Work work(const Problem& problem) const {
    const int times = std::max(problem.devices / 64, static_cast<int>(problem.count() + 23) / 24);
    return {steps > 0 ? steps : std::int64_t{20'000'000} * std::clamp(times, 1, 7)};
  }
};

namespace detail {

/// Dynamic programs of more steps are not tried; those of few are tried first.
inline constexpr double most_exact_steps = 1e10;
inline constexpr double few_exact_steps = 3e6;
inline constexpr std::int64_t exact_steps_of_two = 300'000'000;  // two MetaOps are solved exactly if these suffice

inline constexpr int most_fruitless = 8;  // turns without a better plan

inline constexpr double most_knapsack = 1 << 24;  // MetaOps x devices; beyond, plans are greedy

/// The search of one problem: every step keeps the best plan so far.
class Search {
 public:
  Search(const Problem& problem, Work& work) : problem_(problem), work_(work) {
    for (const bool extend : {true, false}) take(greedy_waves(problem, extend));
    independent_ = std::ranges::all_of(problem.metaops, [](const MetaOp& metaop) { return metaop.after.empty(); });
  }

  /// Whether no plan of waves is faster.
  bool run() {
    if (solve_exactly(few_exact_steps)) return true;
    const std::vector<Level> levels = levels_of(problem_);
    if (levels.size() > 1) take(waves_of_levels(levels));
    if (static_cast<double>(problem_.count()) * problem_.devices > most_knapsack) return false;
    for (const int width : {1, 2, 4}) take(beam(width));
    if (solve_exactly(most_exact_steps)) return true;
    refine();
    return false;
  }
  [[nodiscard]] std::vector<Wave>& waves() { return waves_; }
  /// All plans that were the best ones for a while, ascending in quality.
  [[nodiscard]] const std::vector<std::vector<Wave>>& history() const { return history_; }

 private:
  void take(std::vector<Wave> waves) {
    const double seconds = step_seconds(problem_, waves);
    if (waves.empty() || (!waves_.empty() && seconds >= seconds_)) return;
    merge_equal_waves(problem_, waves);
    waves_ = std::move(waves);
    seconds_ = step_seconds(problem_, waves_);
    history_.push_back(waves_);
  }

  bool solve_exactly(double most) {
    Work part{problem_.count() <= 2 ? exact_steps_of_two : work_.left / 2};
    ExactWaves exact(problem_, part);
    if (exact.steps() > most) return false;
    const std::int64_t before = part.left;
    const bool proven = exact.run(seconds_);
    work_.spend(before - part.left);
    take(std::move(exact.found()));
    return proven;
  }

  // Levels one after the other.
  std::vector<Wave> waves_of_levels(const std::vector<Level>& levels) {
    std::vector<Wave> out;
    for (const Level& level : levels) {
      Work work{work_.left / 4 / static_cast<std::int64_t>(levels.size())};
      const std::int64_t before = work.left;
      Search search(level.problem, work);
      search.run();
      work_.spend(before - work.left);
      for (Wave& wave : search.waves()) {
        for (Part& part : wave.parts) part.metaop = level.metaops[static_cast<std::size_t>(part.metaop)];
        out.push_back(std::move(wave));
      }
    }
    return out;
  }

  std::vector<Wave> beam(int width, double spread = 0, std::uint64_t seed = 0) {
    return Beam(problem_, {.buckets = 96, .width = width, .lengths = 24, .spread = spread, .seed = seed}, work_)
        .run(seconds_);
  }

  // Windows of the plan, and beams whose prices are a little off, in turns until nothing is found for a while.
  void refine() {
    std::mt19937_64 random(1);
    int fruitless = 0;
    for (std::uint64_t seed = 1; fruitless < most_fruitless && !work_.is_spent(); ++seed) {
      const double before = seconds_;
      improve(3, random);
      take(beam(seed == 1 ? 8 : 4, 0.05, seed));
      fruitless = seconds_ < before * (1 - 1e-9) ? 0 : fruitless + 1;
    }
  }
  void improve(std::size_t count, std::mt19937_64& random) {
    std::vector<Wave> waves = waves_;
    for (bool goes_on = waves.size() > count; goes_on && !work_.is_spent();) {
      // Waves of independent MetaOps may stand in any order.
      if (independent_) std::ranges::shuffle(waves, random);
      goes_on = improve_windows(problem_, waves, count, {.buckets = 48, .width = 4, .lengths = 24}, work_);
      take(waves);
    }
  }

  const Problem& problem_;
  Work& work_;
  bool independent_ = false;
  std::vector<Wave> waves_;
  double seconds_ = 0;
  std::vector<std::vector<Wave>> history_;
};

}  // namespace detail

/// A plan of waves, a bound of all schedules, and whether the plan is the best one of waves. Never slower than
/// Spindle's greedy waves. The answer depends on the problem and the limits alone.
/// @param problem  a valid one (problem_of)
/// @param others   if given, gets the last plans that were the best ones for a while, the plan itself last
inline Plan best_plan(const Problem& problem, const Limits& limits = {},
                      std::vector<std::vector<Wave>>* others = nullptr) {
  Work work = limits.work(problem);
  detail::Search search(problem, work);
  Plan out;
  out.proven = search.run();
  if (others != nullptr) {
    const auto& all = search.history();
    others->insert(others->end(), all.end() - std::min<std::ptrdiff_t>(8, std::ssize(all)), all.end());
  }
  out.waves = std::move(search.waves());
  out.seconds = step_seconds(problem, out.waves);
  out.bound = std::min(Relaxation(problem).bound(operators_of(problem)), out.seconds);
  out.proven = out.proven || out.bound >= out.seconds * (1 - 1e-12);
  return out;
}

}  // namespace galvatron::spindle
