// Relaxation: what bounds on a problem are made of, whatever the ends are and wherever stages begin.
//
// With T_i, F_i and U_i the terms of stage i and shares f, s >= 0 for which alone (fill_drain P f + steady s) = 1, an
// iteration takes at least
//
//     alone (fill_drain sum (F_i + f U_i) + steady max (T_i + s U_i))
//
// because no stage has more than the largest U. Three surrogates are used, numbered by k: U by itself beside the sum
// (f = s = 0), all of it in the slowest stage (f = 0), and alike in both (f = s). docs/decisions/search.md says why.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include <galvatron/search/choices.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/range_bound.hpp>

namespace galvatron::search {

/// Sums over the layers before each one of the least of each term, on any kind of device.
struct LayerSums {
  std::vector<Terms> before{{}};  ///< (layers + 1)

  /// @param share  of the per-iteration cost that counts in time and fill
  explicit constexpr LayerSums(const Problem& p, double share = 0) {
    constexpr double none = std::numeric_limits<double>::max();
    std::vector<Terms> least(p.of_kind(0).types.size(), {none, none, none, none, ~std::uint64_t{0}});
    for (int kind = 0; kind < p.device_kinds(); ++kind)
      for (std::size_t i = 0; i < least.size(); ++i)
        for (const Choice& c : p.of_kind(kind).types[i]) {
          Terms terms = p.objective.terms_of(c);
          terms.time += share * terms.per_iteration;
          terms.fill += share * terms.per_iteration;
          least[i] = min(least[i], terms);
        }
    for (const int type : p.layers) before.push_back(before.back() + nth(least, type));
  }
  /// No assignment is faster: some stage has at least the mean of all.
  [[nodiscard]] constexpr double seconds(const Problem& p) const {
    Terms all = before.back();
    all.time /= p.stages();
    all.per_iteration /= p.stages();
    return p.objective(all);
  }
  /// No assignment with these ends is faster.
  [[nodiscard]] constexpr double with_ends(const Problem& p, const TiedEnds& ends) const {
    if (ends.tag < 0) return seconds(p);
    const Terms a = p.objective.terms_of(ends.first);
    const Terms b = p.objective.terms_of(ends.last);
    const auto sum = [&](double Terms::* term) {
      return before.rbegin()[1].*term - before[1].*term + a.*term + b.*term;
    };
    const auto largest = [&](double Terms::* term) { return std::max({sum(term) / p.stages(), a.*term, b.*term}); };
    return p.objective({largest(&Terms::time), sum(&Terms::fill), largest(&Terms::per_iteration), sum(&Terms::link)});
  }
};

/// A number for each surrogate objective.
using Surrogate = std::array<double, 3>;

/// What is known of any assignment with less than some seconds.
struct StageLimit {
  double seconds = infinite;                     ///< the limit on the assignment
  Surrogate most{infinite, infinite, infinite};  ///< no stage has more of T + share * U
  Surrogate fills{};                             ///< F + share * U of all stages, at least
  Surrogate slowest{};                           ///< the slowest stage has at least that
};

class Relaxation {
 public:
  /// @param workspace_classes  of the range bounds: see RangeBound
  template <class Executor = Team>
  explicit constexpr Relaxation(const Problem& problem, int workspace_classes = 1, Executor* executor = nullptr)
      : problem_(problem) {
    const auto add = [&](double fill_share, double share) {
      One& one = all_.emplace_back(One{fill_share, share, {}, LayerSums(problem, fill_share)});
      for (int kind = 0; kind < problem.device_kinds(); ++kind)
        one.ranges.emplace_back(problem.of_kind(kind), share, workspace_classes, executor);
    };
    const Objective& o = problem.objective;
    add(0, 0);
    if (problem.stages() > 1 && o.weights.steady > 0) add(0, 1 / (o.alone * o.weights.steady));
    // With one stage per-iteration cost is time anyway. Where stages share cores, their sum alone is a bound as well,
    // and not more than a part of the cost may be counted there.
    if (problem.stages() > 1 && !o.shared) add(o.share_of_iteration(), o.share_of_iteration());
  }

  [[nodiscard]] constexpr const LayerSums& sums() const { return all_.front().sums; }
  /// The largest per-iteration cost of any assignment, at least.
  [[nodiscard]] constexpr double per_iteration() const {
    return sums().before.back().per_iteration / problem_.stages();
  }

  /// Of surrogates; the others of a Surrogate are not used.
  [[nodiscard]] constexpr std::size_t size() const { return all_.size(); }
  [[nodiscard]] constexpr double share(std::size_t k) const { return all_[k].share; }
  /// Of T + share * U, on a stage's devices.
  [[nodiscard]] constexpr const RangeBound& ranges(std::size_t k, int stage) const {
    return nth(all_[k].ranges, problem_.device_kind(stage));
  }
  /// Fill is counted like the slowest stage.
  [[nodiscard]] constexpr bool counts_alike(std::size_t k) const { return all_[k].fill_share == all_[k].share; }
  /// Least sum of F + its share of U over layers [begin, end).
  [[nodiscard]] constexpr double fills(std::size_t k, int begin, int end) const {
    const std::vector<Terms>& before = all_[k].sums.before;
    return nth(before, end).fill - nth(before, begin).fill;
  }
  /// Least H of the layers but [begin, end).
  [[nodiscard]] constexpr double link_beside(int begin, int end) const {
    return sums().before.back().link - (nth(sums().before, end).link - nth(sums().before, begin).link);
  }

  /// No assignment is faster that has these sums and this slowest stage in a surrogate.
  [[nodiscard]] constexpr double seconds(std::size_t k, double fills, double slowest) const {
    const Terms& all = sums().before.back();
    return problem_.objective({slowest, fills, k == 0 ? per_iteration() : 0, all.link, all.kinds});
  }
  /// The same from both, where no term is less than in `least`. What surrogate k counts at `stages` stages is no more
  /// than so often the largest per-iteration cost. (A larger one would leave less of the surrogate's sums, together
  /// never less.)
  [[nodiscard]] constexpr double seconds(std::size_t k, Terms least, double stages, double surrogate_fills,
                                         double surrogate_slowest) const {
    least.fill = std::max(least.fill, surrogate_fills - all_[k].fill_share * stages * least.per_iteration);
    least.time = std::max(least.time, surrogate_slowest - all_[k].share * least.per_iteration);
    return problem_.objective(least);
  }
  /// The most T + share * U of a stage in an assignment that takes `limit`, of which all stages fill `fills` at least.
  [[nodiscard]] constexpr double most_slowest(std::size_t k, double limit, double fills) const {
    const Objective& o = problem_.objective;
    constexpr double rounding = 1 + 1e-9;
    if (o.stages == 1) return limit * o.share_of_iteration() * rounding;
    if (o.weights.steady <= 0) return infinite;
    return ((limit - (k == 0 ? per_iteration() : 0)) / o.alone - o.weights.fill_drain * fills) / o.weights.steady *
           rounding;
  }

 private:
  struct One {
    double fill_share = 0;
    double share = 0;
    std::vector<RangeBound> ranges;  // of each kind of device
    LayerSums sums;                  // with fill_share
  };

  const Problem& problem_;
  std::vector<One> all_;
};

}  // namespace galvatron::search
