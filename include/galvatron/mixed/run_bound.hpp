// What a pipeline over groups of devices takes at least, when all that is known of each run of its stages is the least
// that a layer of every type and that so many blocks take there.
//
// A stage has whole blocks, one at least, and n of them take at least T_i(n) in the memory of run i: n times the lower
// hull of its choices, (bytes that are kept, seconds), at an n-th of that memory. If the slowest stage takes t, a stage
// of run i has at most the n with T_i(n) <= t (the first one and the last one fewer, for the embedding and the head).
// Of all ways to give the stages so many, that one fills the pipeline least which gives most to the runs whose blocks
// fill least. The bound is the least of all t, which are some T_i(n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/search/fronts.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// A run of stages on equal devices.
struct RunTerms {
  int stages = 1;
  std::span<const Terms> least;  ///< of every type of layer, each number by itself
  /// Seconds of a micro-batch that 0, 1, 2, ... blocks take at least on a stage, with what they keep in its memory:
  /// block_seconds().
  std::span<const double> blocks;
};

/// RunTerms::blocks of stages with the types of `own`, its budget and what is taken of it: until no more blocks fit, of
/// at most all that `layers` has between the embedding and the head.
/// @param slots  the least of any of the stages
inline std::vector<double> block_seconds(const Problem& own, std::span<const int> layers, const Slots& slots) {
  std::vector<HullPoint> points;
  std::int64_t workspace = unlimited;
  std::vector<int> types(layers.begin() + 1, layers.end() - 1);
  sort_unique(types);
  for (const int type : types)
    for (const Choice& c : nth(own.types, type)) {
      points.push_back({static_cast<double>(slots.kept(c)), c.seconds()});
      workspace = std::min(workspace, workspace_of(c));
    }
  points = lower_hull(std::move(points));
  std::vector<double> out{0};
  const double memory = static_cast<double>(own.budget - own.fixed - workspace) * (1 + 1e-12);
  std::size_t at = points.size();  // the points before it need less than a block has
  for (std::size_t n = 1; n + 2 <= layers.size(); ++n) {
    const double each = memory / static_cast<double>(n);
    while (at > 0 && points[at - 1].bytes > each) --at;
    if (at == 0) break;
    double seconds = points[at - 1].seconds;
    if (at < points.size()) seconds -= slope(points[at - 1], points[at]) * (each - points[at - 1].bytes);
    out.push_back(static_cast<double>(n) * seconds);
  }
  return out;
}

namespace detail {

class BlockBound {
 public:
  BlockBound(const Objective& objective, std::span<const RunTerms> runs, std::span<const int> layers)
      : objective_(objective),
        runs_(runs),
        embedding_(nth(runs.front().least, layers.front())),
        head_(nth(runs.back().least, layers.back())),
        count_(static_cast<int>(layers.size()) - 2),
        order_(runs.size()) {
    for (const RunTerms& run : runs) {
      Terms& block = blocks_.emplace_back(Terms{infinite, infinite, infinite, 0, 0});
      for (const int type : layers.subspan(1, layers.size() - 2)) block = min(block, nth(run.least, type));
    }
    // The largest of any stage is no less than the mean.
    const double least = std::ranges::min(blocks_, {}, &Terms::per_iteration).per_iteration;
    per_iteration_ = (embedding_.per_iteration + count_ * least + head_.per_iteration) / objective.stages;
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::sort(order_, {}, [this](std::size_t i) { return blocks_[i].fill; });
  }

  [[nodiscard]] double seconds() const {
    double least = infinite;
    // The slowest stage has blocks alone, or an end of the model beside them.
    const auto try_slowest = [&](std::size_t i, double besides) {
      const auto& blocks = runs_[i].blocks;
      // With few blocks on the slowest stage some have no place; with more they take longer.
      const auto lacks_place = [&](double seconds) { return with(besides + seconds) == infinite; };
      for (auto at = std::partition_point(blocks.begin() + 1, blocks.end(), lacks_place); at != blocks.end(); ++at) {
        if (objective_({besides + *at, 0, per_iteration_}) >= least) break;
        least = std::min(least, with(besides + *at));
      }
    };
    for (std::size_t i = 0; i < runs_.size(); ++i) try_slowest(i, 0);
    try_slowest(0, embedding_.time);
    try_slowest(runs_.size() - 1, head_.time);
    return least / rounding;
  }

 private:
  static constexpr double rounding = 1 + 1e-9;  // so that blocks fit in the seconds that they take

  // Blocks of run i in so many seconds: the last number that takes no more.
  [[nodiscard]] double fit(double seconds, std::size_t i) const {
    const auto& blocks = runs_[i].blocks;
    return static_cast<double>(std::ranges::upper_bound(blocks, std::max(seconds, 0.0) * rounding) - blocks.begin() -
                               1);
  }
  // Of pipelines whose slowest stage takes that.
  [[nodiscard]] double with(double slowest) const {
    double left = count_;
    double fill = embedding_.fill + head_.fill;
    for (std::size_t i = 0; i < runs_.size(); ++i) {  // one block a stage
      left -= runs_[i].stages;
      fill += runs_[i].stages * blocks_[i].fill;
    }
    for (const std::size_t i : order_) {
      double most = runs_[i].stages * fit(slowest, i);
      if (i == 0) most += fit(slowest - embedding_.time, i) - fit(slowest, i);
      if (i + 1 == runs_.size()) most += fit(slowest - head_.time, i) - fit(slowest, i);
      if (most < runs_[i].stages) return infinite;
      const double more = std::min(left, most - runs_[i].stages);
      left -= more;
      fill += more * blocks_[i].fill;
    }
    return left > 0 ? infinite : objective_({slowest, fill, per_iteration_});
  }

  const Objective& objective_;
  std::span<const RunTerms> runs_;
  Terms embedding_;
  Terms head_;
  double per_iteration_ = 0;  // of the stage that has most, at least
  int count_;
  std::vector<Terms> blocks_;       // (runs) the least of any
  std::vector<std::size_t> order_;  // runs by what a block fills
};

}  // namespace detail

/// Seconds that no pipeline with these runs, two or more, is faster than.
/// @param layers  the type of every layer: the embedding, blocks, the head
inline double run_bound(const Objective& objective, std::span<const RunTerms> runs, std::span<const int> layers) {
  return detail::BlockBound(objective, runs, layers).seconds();
}

}  // namespace galvatron::search
