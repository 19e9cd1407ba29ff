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
  struct Point {
    double bytes = 0;
    double seconds = 0;
  };

  [[nodiscard]] std::vector<Point> points(const LayerType& type, const Slots& slots) const {
    std::vector<Point> out;
    for (const Choice& c : type)
      out.push_back({static_cast<double>(slots.kept(c)), c.seconds() + once_share_ * c.once()});
    std::sort(out.begin(), out.end(), [](const Point& a, const Point& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds;
    });
    std::vector<Point> hull;
    for (const Point& point : out) {
      if (!hull.empty() && point.seconds >= hull.back().seconds) continue;
      while (hull.size() >= 2) {
        const Point& a = hull[hull.size() - 2];
        const Point& b = hull.back();
        if ((b.seconds - a.seconds) * (point.bytes - a.bytes) < (point.seconds - a.seconds) * (b.bytes - a.bytes))
          break;
        hull.pop_back();
      }
      hull.push_back(point);
    }
    return hull;
  }

  [[nodiscard]] Table make_table(const Slots& slots) const {
    std::vector<std::vector<Point>> hulls;
    std::vector<double> prices{0};
    for (const LayerType& type : p_.types) {
      hulls.push_back(points(type, slots));
      const auto& hull = hulls.back();
      for (std::size_t k = 1; k < hull.size(); ++k)
        prices.push_back((hull[k - 1].seconds - hull[k].seconds) / (hull[k].bytes - hull[k - 1].bytes));
    }
    std::sort(prices.begin(), prices.end());
    prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
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
    out.bytes = sums([](const std::vector<Point>& hull) { return hull.front().bytes; });
    for (const double price : prices)
      out.prices.push_back({price, sums([price](const std::vector<Point>& hull) {
                              double least = infinite;
                              for (const Point& point : hull)
                                least = std::min(least, point.seconds + price * point.bytes);
                              return least;
                            })});
    return out;
  }

  void find_room() {
    std::int64_t activation = std::numeric_limits<std::int64_t>::max();
    std::int64_t workspace = activation;
    std::vector<char> movable(p_.types.size(), 0);
    for (int layer = p_.leading; layer < p_.count() - p_.trailing; ++layer)
      movable[static_cast<std::size_t>(p_.layers[static_cast<std::size_t>(layer)])] = 1;
    for (std::size_t i = 0; i < p_.types.size(); ++i)
      for (const Choice& c : p_.types[i]) {
        activation = std::min({activation, c.input, c.activation});
        if (movable[i] != 0)
          workspace = std::min(workspace, std::max(c.forward_workspace, c.activation + c.backward_workspace));
      }
    double receive = p_.stages() == 1 ? 0 : std::numeric_limits<double>::max();
    for (const Moves& moves : p_.moves)
      for (const auto* seconds : {&moves.input, &moves.output})
        for (const double one : *seconds) receive = std::min(receive, one);
    for (int stage = 0; stage < p_.stages(); ++stage) {
      const int chunk_ends = 2 * p_.chunks - (stage == 0 ? 1 : 0) - (stage + 1 == p_.stages() ? 1 : 0);
      room_.push_back(static_cast<double>(p_.budget - p_.fixed) - static_cast<double>(workspace) -
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
