// Segments: the least seconds in which a stage can do a run of layers, before any strategy is chosen.
//
// For any price q >= 0 of a byte, layers a to b - 1 in the bytes M of a stage take at least
//
//     sum over the layers of min over choices (seconds + q bytes) - q M
//
// and the best price makes that the relaxation with fractional layers. Sums over all layers before each one are kept
// for a few prices, the slopes of the choices' lower hulls, so that a segment costs a subtraction for each price.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// A choice as a relaxation sees it.
struct HullPoint {
  double bytes = 0;
  double seconds = 0;
};

/// The lower convex hull, from the fewest bytes to the fewest seconds.
inline std::vector<HullPoint> lower_hull(std::vector<HullPoint> points) {
  std::sort(points.begin(), points.end(), [](const HullPoint& a, const HullPoint& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds;
  });
  std::vector<HullPoint> hull;
  for (const HullPoint& point : points) {
    if (!hull.empty() && point.seconds >= hull.back().seconds) continue;
    while (hull.size() >= 2) {
      const HullPoint& a = hull[hull.size() - 2];
      const HullPoint& b = hull.back();
      if ((b.seconds - a.seconds) * (point.bytes - a.bytes) < (point.seconds - a.seconds) * (b.bytes - a.bytes)) break;
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return hull;
}
/// Seconds saved by a byte between neighbours of a hull.
inline double slope(const HullPoint& a, const HullPoint& b) { return (a.seconds - b.seconds) / (b.bytes - a.bytes); }
/// The least seconds + price * bytes.
inline double cheapest(const std::vector<HullPoint>& hull, double price) {
  double least = std::numeric_limits<double>::infinity();
  for (const HullPoint& point : hull) least = std::min(least, point.seconds + price * point.bytes);
  return least;
}

/// Adds the slopes of a hull: the prices of a byte at which its cheapest point changes.
inline void add_slopes(const std::vector<HullPoint>& hull, std::vector<double>& prices) {
  for (std::size_t k = 1; k < hull.size(); ++k) prices.push_back(slope(hull[k - 1], hull[k]));
}
/// Each price once, the lowest first.
inline void sort_prices(std::vector<double>& prices) {
  std::sort(prices.begin(), prices.end());
  prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
}

/// A run of layers on a stage: what it takes at least, asked for many numbers of bytes.
///
/// Of the lines (sum at a price) - price * bytes, those that are the largest for some bytes, by ascending price. The
/// more bytes there are, the lower is the price of the largest.
class Run {
 public:
  Run() = default;
  /// @param least  bytes that its layers keep at least
  explicit Run(double least) : least_(least) {}

  /// The next line; prices ascend. False when neither it nor a later one is the largest where the layers fit.
  bool add(double price, double sum) {
    const auto meet = [&](const Line& line) { return (sum - line.sum) / (price - line.price); };
    while (lines_.size() > 1 && meet(lines_.back()) >= lines_[lines_.size() - 2].until) lines_.pop_back();
    if (!lines_.empty()) {
      lines_.back().until = meet(lines_.back());
      if (lines_.back().until <= least_) return false;
    }
    lines_.push_back({price, sum});
    return true;
  }
  /// With `bytes` for what the layers keep; infinite when they cannot fit. `at` is the line to look at first, and
  /// then the one that was taken: similar questions in a row are quick.
  [[nodiscard]] double seconds(double bytes, std::size_t& at) const {
    if (least_ > bytes) return std::numeric_limits<double>::infinity();
    at = std::min(at, lines_.size() - 1);
    while (at + 1 < lines_.size() && bytes < lines_[at].until) ++at;
    while (at > 0 && bytes >= lines_[at - 1].until) --at;
    return std::max(0.0, lines_[at].sum - lines_[at].price * bytes);
  }

 private:
  struct Line {
    double price = 0;
    double sum = 0;
    double until = 0;  // bytes, downwards: with less the next line is larger
  };
  double least_ = 0;  // bytes
  std::vector<Line> lines_;
};

class Segments {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  /// @param once_share  seconds per micro-batch that one second once an iteration counts for; 0 leaves it out
  Segments(const Problem& problem, double once_share) : p_(problem), once_share_(once_share) {
    for (int stage = 0; stage < p_.stages(); ++stage) {
      const Slots slots = p_.least_slots(stage);
      const auto same = std::find_if(tables_.begin(), tables_.end(), [&](const Table& t) { return t.slots == slots; });
      table_of_.push_back(static_cast<std::size_t>(same - tables_.begin()));
      if (same == tables_.end()) tables_.push_back(make_table(slots));
    }
    find_room();
  }

  [[nodiscard]] Run run(int stage, int begin, int end) const {
    const Table& t = tables_[table_of_[static_cast<std::size_t>(stage)]];
    const auto a = static_cast<std::size_t>(begin);
    const auto b = static_cast<std::size_t>(end);
    Run out(t.bytes[b] - t.bytes[a]);
    for (const Priced& q : t.prices)
      if (!out.add(q.price, q.sum[b] - q.sum[a])) break;
    return out;
  }

  /// Seconds of layers [begin, end) on a stage with all its memory; infinite when they cannot fit.
  [[nodiscard]] double seconds(int stage, int begin, int end) const {
    const auto i = static_cast<std::size_t>(stage);
    return seconds(stage, begin, end, room_[i]) + moves_[i];
  }
  /// The same with `bytes` for what these layers keep.
  [[nodiscard]] double seconds(int stage, int begin, int end, double bytes) const {
    const Table& t = tables_[table_of_[static_cast<std::size_t>(stage)]];
    const auto a = static_cast<std::size_t>(begin);
    const auto b = static_cast<std::size_t>(end);
    if (t.bytes[b] - t.bytes[a] > bytes) return infinite;
    double most = 0;
    for (const Priced& q : t.prices) most = std::max(most, q.sum[b] - q.sum[a] - q.price * bytes);
    return most;
  }

 private:
  struct Priced {
    double price = 0;
    std::vector<double> sum;  // (layers + 1)
  };
  struct Table {
    Slots slots;
    std::vector<double> bytes;  // (layers + 1) sums of the least bytes
    std::vector<Priced> prices;
  };
  [[nodiscard]] std::vector<HullPoint> hull_of(const LayerType& type, const Slots& slots) const {
    std::vector<HullPoint> out;
    for (const Choice& c : type)
      out.push_back({static_cast<double>(slots.kept(c)), c.seconds() + once_share_ * c.once()});
    return lower_hull(std::move(out));
  }

  [[nodiscard]] Table make_table(const Slots& slots) const {
    std::vector<std::vector<HullPoint>> hulls;
    std::vector<double> prices{0};
    for (const LayerType& type : p_.types) {
      hulls.push_back(hull_of(type, slots));
      add_slopes(hulls.back(), prices);
    }
    sort_prices(prices);
    if (prices.size() > most_prices) {  // any prices are valid
      std::vector<double> some;
      for (std::size_t k = 0; k < most_prices; ++k) some.push_back(prices[k * (prices.size() - 1) / (most_prices - 1)]);
      prices = std::move(some);
    }
    Table out;
    out.slots = slots;
    const auto sums = [&](const auto& least) {
      std::vector<double> of_type;
      for (const auto& hull : hulls) of_type.push_back(least(hull));
      std::vector<double> sum{0};
      for (const int type : p_.layers) sum.push_back(sum.back() + of_type[static_cast<std::size_t>(type)]);
      return sum;
    };
    out.bytes = sums([](const std::vector<HullPoint>& hull) { return hull.front().bytes; });
    for (const double price : prices)
      out.prices.push_back(
          {price, sums([price](const std::vector<HullPoint>& hull) { return cheapest(hull, price); })});
    return out;
  }

  void find_room() {
    std::int64_t activation = std::numeric_limits<std::int64_t>::max();
    for (const LayerType& type : p_.types)
      for (const Choice& c : type) activation = std::min({activation, c.input, c.activation});
    const std::vector<std::int64_t> workspaces = least_workspaces(p_);
    double receive = p_.stages() == 1 ? 0 : std::numeric_limits<double>::max();
    for (const Moves& moves : p_.moves)
      for (const auto* seconds : {&moves.input, &moves.output})
        for (const double one : *seconds) receive = std::min(receive, one);
    for (int stage = 0; stage < p_.stages(); ++stage) {
      const int chunk_ends = 2 * p_.chunks - (stage == 0 ? 1 : 0) - (stage + 1 == p_.stages() ? 1 : 0);
      room_.push_back(static_cast<double>(p_.budget - p_.fixed - workspaces[static_cast<std::size_t>(stage)]) -
                      static_cast<double>(chunk_ends) * static_cast<double>(activation));
      moves_.push_back(chunk_ends * receive);
    }
  }

  static constexpr std::size_t most_prices = 24;

  const Problem& p_;
  double once_share_;
  std::vector<Table> tables_;
  std::vector<std::size_t> table_of_;
  std::vector<double> room_;   // (stages) bytes for what layers keep, at most
  std::vector<double> moves_;  // (stages) seconds to get tensors from neighbours, at least
};

}  // namespace galvatron::search
