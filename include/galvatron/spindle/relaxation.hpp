// Relaxation: the least seconds of MetaOps whose numbers of devices may change at any moment.
//
// A MetaOp that shares its time between neighbouring counts of its curve takes, for r operators, any point of the lower
// convex border of {(seconds, device-seconds)} = {(r T(v), r v T(v))}. MetaOps of a path follow each other. So with
//
//     A_p(C) = least device-seconds of the MetaOps of path p within C seconds   (a continuous knapsack, convex in C)
//
// no schedule takes less than the least C with sum_p A_p(C) <= N C. Independent MetaOps are paths of one: C is then
// Spindle's continuous optimum, with the speed-up T(1)/T(n) interpolated linearly. With precedence every MetaOp is on
// one path, and the edges between paths are left out, so C stays a bound.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/spindle/curve.hpp>
#include <galvatron/spindle/problem.hpp>

namespace galvatron::spindle {

/// The places of a curve's counts that are on the lower convex border of (seconds, device-seconds), devices ascending.
inline std::vector<std::size_t> convex_counts(const Curve& curve) {
  std::vector<std::size_t> out;
  const auto area = [&](std::size_t i) { return curve.devices[i] * curve.seconds[i]; };
  const auto slope = [&](std::size_t i, std::size_t j) {  // device-seconds for each second that is saved
    return (area(j) - area(i)) / (curve.seconds[i] - curve.seconds[j]);
  };
  for (std::size_t i = 0; i < curve.size(); ++i) {
    // A count that takes no more device-seconds than the slower ones replaces them.
    while (!out.empty() && area(i) <= area(out.back())) out.pop_back();
    while (out.size() >= 2 && slope(out.back(), i) <= slope(out[out.size() - 2], out.back())) out.pop_back();
    out.push_back(i);
  }
  return out;
}

class Relaxation {
 public:
  /// The bound at some numbers of remaining operators, and what one operator less of each MetaOp takes from it.
  struct Answer {
    double seconds = 0;
    std::vector<double> prices;  ///< of an operator of each MetaOp, seconds
    std::vector<double> delays;  ///< of each path: devices that its seconds are worth
  };

  explicit Relaxation(const Problem& problem) : devices_(problem.devices) {
    cover(problem);
    for (const MetaOp& metaop : problem.metaops) {
      const Curve& curve = metaop.curve;
      Metaop& own = metaops_.emplace_back();
      for (const std::size_t i : convex_counts(curve)) own.points.push_back({curve.devices[i], curve.seconds[i]});
    }
    for (Path& path : paths_) {
      for (const int m : path.metaops) {
        const std::vector<Point>& points = metaops_[static_cast<std::size_t>(m)].points;
        for (std::size_t i = 1; i < points.size(); ++i)
          path.pieces.push_back(
              {m, points[i - 1].seconds - points[i].seconds, points[i].area() - points[i - 1].area()});
      }
      std::ranges::stable_sort(path.pieces, {}, [](const Piece& piece) { return piece.slope(); });
    }
  }

  /// Least seconds of so many operators of each MetaOp.
  /// @param from  that are no more, from which the computation starts
  [[nodiscard]] double bound(std::span<const int> remaining, double from = 0) const {
    return solve(remaining, from, nullptr);
  }
  [[nodiscard]] Answer answer(std::span<const int> remaining) const {
    Answer out;
    out.delays.assign(paths_.size(), 0);
    out.seconds = solve(remaining, 0, out.delays.data());
    double worth = devices_;
    for (const double delay : out.delays) worth += delay;
    out.prices.resize(metaops_.size());
    for (std::size_t p = 0; p < paths_.size(); ++p)
      for (const int m : paths_[p].metaops)
        out.prices[static_cast<std::size_t>(m)] = metaops_[static_cast<std::size_t>(m)].least(out.delays[p]) / worth;
    return out;
  }
  [[nodiscard]] const std::vector<int>& path_of() const { return path_of_; }
  [[nodiscard]] std::size_t paths() const { return paths_.size(); }

 private:
  struct Point {
    int devices;
    double seconds;
    [[nodiscard]] double area() const { return devices * seconds; }
  };
  struct Metaop {
    std::vector<Point> points;
    // Least of (devices + delay) * seconds.
    [[nodiscard]] double least(double delay) const {
      double out = std::numeric_limits<double>::infinity();
      for (const Point& point : points) out = std::min(out, (point.devices + delay) * point.seconds);
      return out;
    }
  };
  // Between two neighbouring points of a MetaOp, for one operator.
  struct Piece {
    int metaop;
    double saved;  // seconds
    double paid;   // device-seconds
    [[nodiscard]] double slope() const { return paid / saved; }
  };
  struct Path {
    std::vector<int> metaops;
    std::vector<Piece> pieces;  // slope ascends
  };
  struct Share {
    double area = 0;   // device-seconds
    double slope = 0;  // how they fall with C
  };

  // Every MetaOp joins the path that ends at one of its predecessors, the one whose path is longest, or opens one.
  void cover(const Problem& problem) {
    std::vector<std::size_t> order(problem.count());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return problem.metaops[i].level; });
    path_of_.assign(problem.count(), -1);
    std::vector<double> lengths;
    for (const std::size_t i : order) {
      const MetaOp& metaop = problem.metaops[i];
      int best = -1;
      for (const int before : metaop.after) {
        const int path = path_of_[static_cast<std::size_t>(before)];
        if (paths_[static_cast<std::size_t>(path)].metaops.back() != before) continue;
        if (best < 0 || lengths[static_cast<std::size_t>(path)] > lengths[static_cast<std::size_t>(best)]) best = path;
      }
      if (best < 0) {
        best = static_cast<int>(paths_.size());
        paths_.emplace_back();
        lengths.push_back(0);
      }
      path_of_[i] = best;
      paths_[static_cast<std::size_t>(best)].metaops.push_back(static_cast<int>(i));
      lengths[static_cast<std::size_t>(best)] += metaop.operators * metaop.curve.fastest();
    }
  }

  // Sum of A_p(C) is above N C to the left of the answer, convex and falls: Newton's steps from the left stay left of
  // it.
  double solve(std::span<const int> remaining, double from, double* delays) const {
    double least = 0;
    double area = 0;
    for (const Path& path : paths_) {
      double fastest = 0;
      for (const int m : path.metaops) {
        const auto at = static_cast<std::size_t>(m);
        const std::vector<Point>& points = metaops_[at].points;
        fastest += remaining[at] * points.back().seconds;
        area += remaining[at] * points.front().area();
      }
      least = std::max(least, fastest);
    }
    double seconds = std::max({from, least, area / devices_});
    for (int turn = 0; turn < 200; ++turn) {
      double total = 0;
      double slope = devices_;
      for (std::size_t p = 0; p < paths_.size(); ++p) {
        const Share share = share_of(paths_[p], remaining, seconds);
        total += share.area;
        slope += share.slope;
        if (delays != nullptr) delays[p] = share.slope;
      }
      const double step = (total - devices_ * seconds) / slope;
      if (!(step > 1e-15 * seconds)) break;
      seconds += step;
    }
    return seconds;
  }

  [[nodiscard]] Share share_of(const Path& path, std::span<const int> remaining, double seconds) const {
    Share out;
    double length = 0;
    for (const int m : path.metaops) {
      const Point& slowest = metaops_[static_cast<std::size_t>(m)].points.front();
      const double operators = remaining[static_cast<std::size_t>(m)];
      length += operators * slowest.seconds;
      out.area += operators * slowest.area();
    }
    for (const Piece& piece : path.pieces) {
      if (length <= seconds) break;
      const double operators = remaining[static_cast<std::size_t>(piece.metaop)];
      if (operators == 0) continue;
      const double saved = std::min(operators * piece.saved, length - seconds);
      out.slope = piece.slope();
      out.area += saved * out.slope;
      length -= saved;
    }
    return out;
  }

  int devices_;
  std::vector<Metaop> metaops_;
  std::vector<Path> paths_;
  std::vector<int> path_of_;
};

}  // namespace galvatron::spindle
