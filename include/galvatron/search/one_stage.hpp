// OneStage: the exact search of a problem with one stage.
//
// All assignments are divided by the choice of tied ends and by a guess of the largest workspace. A part whose bound is
// no better than the best assignment known is never opened; the others are searched by the recurrence over layers,
// likeliest first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/routes.hpp>
#include <galvatron/search/stage_search.hpp>
#include <galvatron/search/ties.hpp>
#include <galvatron/search/weighings.hpp>
#include <galvatron/search/workspace_bound.hpp>

namespace galvatron::search {

template <class Executor>
class OneStage {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  OneStage(const Problem& problem, const Bounds& bounds, const Weighings& weighings, const Limits& limits,
           Executor* executor)
      : p_(problem), bounds_(bounds), weighings_(weighings), limits_(limits), executor_(executor) {}

  /// The fastest assignment with less than `upper` seconds that fits the budget; nothing when there is none.
  [[nodiscard]] std::optional<Solution> fastest(double upper) {
    std::optional<Solution> best;
    wanted_ = upper;
    upper *= 1 + 1e-9;  // room for rounding in the bounds
    const std::vector<Part> parts = parts_below(upper);
    for (std::size_t i = 0; i < std::min(parts.size(), rounded_parts) && parts[i].guess.bound < upper; ++i)
      if (auto solution = Routes(p_, role_of(parts[i]), bounds_.once_share()).rounded())
        offer(std::move(*solution), upper, best);
    for (std::size_t first = 0; first < parts.size() && parts[first].guess.bound < upper;) {
      if (limits_.interrupted()) {
        open_ = std::min(open_, parts[first].guess.bound);
        break;
      }
      // Two parts are pruned by the same plan. A thread with nothing to do begins with the second at once; what it
      // finds is dropped where the first one finds a better plan. The likeliest part of all often does.
      std::optional<StageTable<Executor>> tables[2];
      double with_routes[2] = {0, 0};  // bounds
      const std::int64_t left = limits_.work - std::min(limits_.work, work_);
      const auto search = [&](std::size_t i) {
        if (first + i == parts.size() || parts[first + i].guess.bound >= upper) return;
        Limits limits = limits_;
        // The likeliest parts get the most.
        if (limits.work < std::numeric_limits<std::int64_t>::max()) limits.work = left >> (i + 1);
        const StageRole role = role_of(parts[first + i]);
        std::optional<Routes> routes(std::in_place, p_, role, bounds_.once_share());
        routes->bound_layers();
        with_routes[i] = bounds_.single_stage(routes->seconds());
        if (with_routes[i] == infinite) routes.reset();
        tables[i].emplace(p_, bounds_, weighings_, role, limits, p_.budget, StageLimit{.seconds = upper}, executor_,
                          routes ? &*routes : nullptr);
      };
      if (executor_ != nullptr && executor_->has_time() && (first > 0 || !limits_.seeks_proof()))
        executor_->each(2, search);
      else
        search(0);
      if (!take(*tables[0], std::max(parts[first].guess.bound, with_routes[0]), upper, best)) {
        if (!tables[1]) search(1);
        if (tables[1]) take(*tables[1], std::max(parts[first + 1].guess.bound, with_routes[1]), upper, best);
        ++first;
      }
      ++first;
    }
    return best;
  }

  /// No assignment that the search may have missed is faster; infinite when it was exact.
  [[nodiscard]] double open() const { return open_; }
  /// Labels made.
  [[nodiscard]] std::int64_t work() const { return work_; }

 private:
  // The likeliest parts, of which assignments are rounded: a good one spares most of the search.
  static constexpr std::size_t rounded_parts = 4;

  struct Part {
    int tag = -1;
    WorkspaceBound::Guess guess;  // its bound is one of the objective
  };

  [[nodiscard]] StageRole role_of(const Part& part) const {
    StageRole role;
    role.shortest = role.longest = p_.count();
    role.tag = part.tag;
    role.least_workspace = part.guess.least;
    role.most_workspace = part.guess.most;
    return role;
  }

  // What the search of a part with this bound found; true when it is better than `best`, and `upper` then less.
  bool take(const StageTable<Executor>& table, double bound, double& upper, std::optional<Solution>& best) {
    work_ += table.work();
    if (table.thinned()) open_ = std::min(open_, bound);
    bool better = false;
    for (const StageOption& option : table.options(p_.count())) {
      Solution solution{{{0, p_.count()}, table.choices(p_.count(), option)}, {}};
      solution.cost = evaluate(p_, solution.plan);
      better |= offer(std::move(solution), upper, best);
    }
    return better;
  }
  bool offer(Solution&& solution, double& upper, std::optional<Solution>& best) const {
    if (solution.cost.seconds >= (best ? best->cost.seconds : wanted_)) return false;
    upper = std::min(upper, solution.cost.seconds * (1 + 1e-9));
    best = std::move(solution);
    return true;
  }

  // Those whose bound is less than `upper`, least first.
  [[nodiscard]] std::vector<Part> parts_below(double upper) const {
    const std::vector<Tie> ties = ties_of(p_, bounds_, false);
    const WorkspaceBound bound(p_, bounds_.once_share(), ties, upper / bounds_.single_stage(1));
    std::vector<Part> out;
    for (std::size_t i = 0; i < ties.size(); ++i) {
      const std::size_t before = out.size();
      for (WorkspaceBound::Guess guess : bound.guesses(i)) {
        guess.bound = std::max(ties[i].bound, bounds_.single_stage(guess.bound));
        if (guess.bound >= upper) continue;
        // Workspaces that are no great part of the memory are not worth searches of their own.
        if (out.size() > before && (!limits_.seeks_proof() || guess.most - out.back().guess.least <= p_.budget / 64))
          out.back().guess = out.back().guess.with(guess);
        else
          out.push_back({ties[i].tag, guess});
      }
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Part& a, const Part& b) { return a.guess.bound < b.guess.bound; });
    return out;
  }

  const Problem& p_;
  const Bounds& bounds_;
  const Weighings& weighings_;
  Limits limits_;
  Executor* executor_;
  double wanted_ = infinite;
  double open_ = infinite;
  std::int64_t work_ = 0;
};

}  // namespace galvatron::search
