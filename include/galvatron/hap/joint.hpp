// The best program at given ratios, the best program and ratios together, and HAP's alternation of the two.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/hap/completion.hpp>
#include <galvatron/hap/dynamic_program.hpp>
#include <galvatron/hap/instance.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/program.hpp>
#include <galvatron/hap/ratios.hpp>

namespace galvatron::hap {

/// A program with its ratios.
struct Answer {
  Ratios ratios;
  Program program;
  double seconds = 0;
  double bound = 0;  ///< no program of the search takes less
};

namespace detail {

/// Searches at ratios that are given, by what every operation takes.
class FixedRatios {
 public:
  FixedRatios(const Instance& instance, const Ratios& ratios)
      : FixedRatios(instance, ratios, point_of(instance.prices().devices(), ratios)) {}
  /// With prices of a point of its own.
  FixedRatios(const Instance& instance, const Ratios& ratios, const RatioPoint& point)
      : instance_(instance), ratios_(ratios), point_(point), completion_(instance, point) {}

  /// The best program that takes less than `below`; what is known of all others goes to `bound`.
  [[nodiscard]] std::optional<Answer> below(double below, SearchLimits limits, double& bound) const {
    using Search = DynamicProgram<1>;
    Search search(
        instance_, [&](const Terms& terms) { return Search::Price{point_.seconds(terms)}; },
        [&](const Search::Price& price, std::size_t i, double completing) {
          return price[0] + completing + completion_.seconds_of_sources(i + 1);
        },
        [&](int tensor, std::size_t i, Layout a, Layout b) { return completion_.seconds(tensor, i, a, b); });
    double most = below;
    std::vector<Decision> best;
    const auto keep_best = [&] {
      bool better = false;
      for (const Search::Label& label : search.finals())
        if (label.price[0] < most) {
          most = label.price[0];
          best = search.decisions(label);
          better = true;
        }
      return better;
    };
    const auto pruned = [&](const Search::Price& price, std::size_t i, double completing) {
      return price[0] + completing + completion_.seconds_of_sources(i + 1) >= most * (1 + slack);
    };
    // Narrow searches first: the better the best program that is known, the fewer states are worth keeping.
    for (std::size_t states = narrowest;; states *= widening) {
      const bool last = states >= limits.states;
      search.run(last ? limits : SearchLimits{states, limits.labels}, pruned);
      keep_best();
      bound = search.least_dropped();
      if (bound >= most) break;
      if (last || states > narrowest)
        improve(best, [&](std::vector<std::optional<Decision>> held) {
          search.run({.states = narrowest * widening}, pruned, std::move(held));
          return keep_best();
        });
      if (last) break;
    }
    std::optional<Answer> out;
    if (!best.empty()) out = Answer{ratios_, program_of(instance_, best), most, 0};
    bound = std::min(bound, most);
    if (out) out->bound = bound;
    return out;
  }

 private:
  // Searches anew around one operation after the other, with all other decisions held, as long as that helps.
  template <class SearchAround>
  void improve(const std::vector<Decision>& best, const SearchAround& search_around) const {
    for (bool better = !best.empty(); better;) {
      better = false;
      for (std::size_t centre = 0; centre < best.size(); ++centre) {
        std::vector<std::optional<Decision>> held(best.begin(), best.end());
        release(held, centre, nearby);
        better = search_around(std::move(held)) || better;
      }
    }
  }
  // The operations that share a tensor with this one, and those that do with them, and so on.
  void release(std::vector<std::optional<Decision>>& held, std::size_t item, int steps) const {
    held[item].reset();
    if (steps == 0) return;
    const Node& node = *instance_.items()[item].node;
    std::vector<int> tensors = node.inputs;
    tensors.push_back(node.output);
    for (const int tensor : tensors) {
      for (const Instance::Use& use : instance_.uses(tensor)) release(held, use.item, steps - 1);
      if (!instance_.is_source(tensor) && tensor != node.output)
        for (std::size_t i = 0; i < item; ++i)
          if (instance_.items()[i].node->output == tensor) release(held, i, steps - 1);
    }
  }

  static constexpr int nearby = 2;
  static constexpr std::size_t narrowest = 64;
  static constexpr std::size_t widening = 16;
  static constexpr double slack = 1e-12;  // sums in another order

  const Instance& instance_;
  const Ratios& ratios_;
  RatioPoint point_;
  Completion completion_;
};

}  // namespace detail

/// The best program at these ratios, CostModel::operations. Nothing where the loss is never a partial sum.
inline std::optional<Answer> best_program(const Instance& instance, const Ratios& ratios, SearchLimits limits = {}) {
  double bound = 0;
  return detail::FixedRatios(instance, ratios).below(std::numeric_limits<double>::infinity(), limits, bound);
}

/// The best ratios of a program, CostModel::operations: one of the corners.
inline Answer with_best_ratios(const Prices& prices, Program program) {
  const Terms terms = value_or_throw(terms_of(prices, program));
  Answer out;
  out.program = std::move(program);
  out.seconds = std::numeric_limits<double>::infinity();
  for (Ratios& ratios : corner_ratios(prices.devices().flops)) {
    const double seconds = point_of(prices.devices(), ratios).seconds(terms);
    if (seconds >= out.seconds) continue;
    out.seconds = seconds;
    out.ratios = std::move(ratios);
  }
  return out;
}

/// The best program and ratios together, CostModel::operations. For every program some corner has its best ratios
/// (ratios.hpp), so the best pair is the best of the best programs at each corner. Nothing where the loss is never a
/// partial sum.
inline std::optional<Answer> best_program_and_ratios(const Instance& instance, SearchLimits limits = {}) {
  std::optional<Answer> best;
  double bound = std::numeric_limits<double>::infinity();
  for (const Ratios& ratios : corner_ratios(instance.prices().devices().flops)) {
    double own = 0;
    const double most = best ? best->seconds : std::numeric_limits<double>::infinity();
    auto found = detail::FixedRatios(instance, ratios).below(most, limits, own);
    bound = std::min(bound, own);
    if (found) best = std::move(found);
  }
  if (best) best->bound = bound;
  return best;
}

/// HAP's alternation: the best program at proportional ratios, the best ratios of that program, and so on until nothing
/// improves. A local search.
inline std::optional<Answer> alternate(const Instance& instance, SearchLimits limits = {}) {
  auto best = best_program(instance, proportional_ratios(instance.prices().devices().flops), limits);
  while (best) {
    Answer next = with_best_ratios(instance.prices(), best->program);
    if (const auto found = best_program(instance, next.ratios, limits); found && found->seconds < next.seconds)
      next = *found;
    if (!(next.seconds < best->seconds * (1 - 1e-12))) break;
    next.bound = 0;
    best = std::move(next);
  }
  return best;
}

}  // namespace galvatron::hap
