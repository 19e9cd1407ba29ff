// Segments: the least seconds in which a stage can do a run of layers, before any strategy is chosen.
//
// For any price q >= 0 of a byte, layers a to b - 1 in the bytes M of a stage take at least
//
//     sum over the layers of min over choices (seconds + q bytes) - q M
//
// and the best price makes that the relaxation with fractional layers. Sums over all layers before each one are known
// for a few prices, the slopes of the choices' lower hulls, so that a segment costs a subtraction for each price.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/search/hull.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

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

  /// @param once_share         seconds per micro-batch that one second once an iteration counts for; 0 leaves it out
  /// @param workspace_classes  a stage with large workspaces has less room for what its layers keep, one with small
  ///                           ones fewer choices: with more classes of workspaces the seconds of a stage are nearer
  /// @param executor           shares the work
  template <class Executor = Team>
  explicit Segments(const Problem& problem, double once_share, int workspace_classes = 1, Executor* executor = nullptr)
      : p_(problem) {
    for (int stage = 0; stage < p_.stages(); ++stage) {
      const Slots slots = p_.least_slots(stage);
      const auto same = std::find(slots_.begin(), slots_.end(), slots);
      table_of_.push_back(static_cast<std::size_t>(same - slots_.begin()));
      if (same == slots_.end()) slots_.push_back(slots);
    }
    find_places();
    find_classes(workspace_classes);
    std::size_t choices = 0;
    for (const LayerType& type : p_.types) choices += type.size();
    share(executor, choices * slots_.size(), classes_.size(), [&](std::size_t i) {
      WorkspaceClass& one = classes_[i];
      std::vector<HullChoices> types;
      for (const LayerType& type : p_.types) {
        HullChoices& all = types.emplace_back();
        for (const Choice& c : type)
          if (workspace_of(c) <= one.most) all.add(c, c.seconds() + once_share * c.once());
        all.drop_superfluous();
      }
      one.tables.resize(slots_.size());
      share(executor, choices * slots_.size(), slots_.size(),
            [&](std::size_t k) { one.tables[k] = make_table(types, slots_[k]); });
    });
    find_room();
  }

  [[nodiscard]] Run run(int stage, int begin, int end) const {
    const Table& t = table(classes_.back(), stage);
    const Place a = place(begin);
    const Place b = place(end);
    Run out(t.bytes.before(b) - t.bytes.before(a));
    for (const Priced& q : t.prices)
      if (!out.add(q.price, q.seconds.before(b) - q.seconds.before(a))) break;
    return out;
  }

  /// What a stage has beside the layers that are asked for.
  struct Besides {
    double seconds = 0;
    double bytes = 0;            ///< kept
    std::int64_t workspace = 0;  ///< the largest
  };
  /// Seconds of layers [begin, end) on a stage with all its memory; infinite when they cannot fit.
  [[nodiscard]] double seconds(int stage, int begin, int end, const Besides& besides) const {
    const auto i = static_cast<std::size_t>(stage);
    const std::int64_t workspace = std::max(workspace_[i], besides.workspace);
    double least = infinite;
    for (const WorkspaceClass& one : classes_) {
      if (one.most < workspace) continue;
      const auto more = static_cast<double>(std::max(one.least, workspace) - workspace_[i]);
      least = std::min(least, seconds(table(one, stage), begin, end, room_[i] - more - besides.bytes));
    }
    return least + moves_[i] + besides.seconds;
  }
  [[nodiscard]] double seconds(int stage, int begin, int end) const { return seconds(stage, begin, end, Besides{}); }
  /// The same with `bytes` for what these layers keep, and without what the stage receives.
  [[nodiscard]] double seconds_within(int stage, int begin, int end, double bytes) const {
    return seconds(table(classes_.back(), stage), begin, end, bytes);
  }

 private:
  // A layer, or the end of all: how far it is behind the first of those like it.
  struct Place {
    std::size_t row = 0;
    double offset = 0;
  };
  // Sums of a figure of layers over those before each one.
  class Sums {
   public:
    void add_row(double first, double each) { rows_.push_back({first, each}); }
    [[nodiscard]] double before(const Place& at) const { return rows_[at.row].first + at.offset * rows_[at.row].each; }

   private:
    struct Row {
      double first = 0;  // before its first layer
      double each = 0;   // of its layers
    };
    std::vector<Row> rows_;  // of equal layers one after the other; the last has none
  };
  struct Priced {
    double price = 0;
    Sums seconds;
  };
  struct Table {
    Sums bytes;    // the least
    Sums missing;  // layers without a choice
    std::vector<Priced> prices;
  };
  // Stages whose largest workspace is in a range.
  struct WorkspaceClass {
    std::int64_t least = 0;
    std::int64_t most = 0;
    std::vector<Table> tables;  // of slots_
  };

  [[nodiscard]] const Table& table(const WorkspaceClass& one, int stage) const {
    return one.tables[table_of_[static_cast<std::size_t>(stage)]];
  }

  [[nodiscard]] double seconds(const Table& t, int begin, int end, double bytes) const {
    const Place a = place(begin);
    const Place b = place(end);
    if (t.bytes.before(b) - t.bytes.before(a) > bytes || t.missing.before(b) > t.missing.before(a)) return infinite;
    double most = 0;
    for (const Priced& q : t.prices) most = std::max(most, q.seconds.before(b) - q.seconds.before(a) - q.price * bytes);
    return most;
  }

  [[nodiscard]] const Place& place(int layer) const { return places_[static_cast<std::size_t>(layer)]; }
  void find_places() {
    for (std::size_t i = 0; i < p_.layers.size(); ++i) {
      const bool same = i > 0 && p_.layers[i] == p_.layers[i - 1];
      if (!same) types_of_rows_.push_back(p_.layers[i]);
      places_.push_back({types_of_rows_.size() - 1, same ? places_.back().offset + 1 : 0});
    }
    places_.push_back({types_of_rows_.size(), 0});
  }

  // Ranges with equally many of the sizes that there are.
  void find_classes(int count) {
    std::vector<std::int64_t> sizes;
    if (count > 1)
      for (const LayerType& type : p_.types)
        for (const Choice& c : type) sizes.push_back(workspace_of(c));
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    classes_.emplace_back();
    for (std::size_t k = 1; k < static_cast<std::size_t>(count); ++k) {
      const std::size_t first = k * sizes.size() / static_cast<std::size_t>(count);
      if (first == (k - 1) * sizes.size() / static_cast<std::size_t>(count)) continue;
      classes_.back().most = sizes[first] - 1;
      classes_.push_back({sizes[first], 0, {}});
    }
    classes_.back().most = std::numeric_limits<std::int64_t>::max();
  }

  [[nodiscard]] Table make_table(const std::vector<HullChoices>& types, const Slots& slots) const {
    std::vector<std::vector<HullPoint>> hulls;
    std::vector<double> prices{0};
    for (const HullChoices& type : types) {
      hulls.push_back(type.hull(slots));
      add_slopes(hulls.back(), prices);
    }
    sort_prices(prices);
    if (prices.size() > most_prices) {  // any prices are valid
      std::vector<double> some;
      for (std::size_t k = 0; k < most_prices; ++k) some.push_back(prices[k * (prices.size() - 1) / (most_prices - 1)]);
      prices = std::move(some);
    }
    const auto sums = [&](const auto& of_hull) {
      std::vector<double> of_type;
      for (const auto& hull : hulls) of_type.push_back(of_hull(hull));
      Sums out;
      double before = 0;
      for (std::size_t row = 0, at = 0; row < types_of_rows_.size(); ++row) {
        const double each = of_type[static_cast<std::size_t>(types_of_rows_[row])];
        out.add_row(before, each);
        const std::size_t begin = at;
        while (places_[at].row == row) ++at;
        before += static_cast<double>(at - begin) * each;
      }
      out.add_row(before, 0);
      return out;
    };
    using Hull = std::vector<HullPoint>;
    Table out;
    out.missing = sums([](const Hull& hull) { return hull.empty() ? 1 : 0; });
    out.bytes = sums([](const Hull& hull) { return hull.empty() ? 0 : hull.front().bytes; });
    for (const double price : prices)
      out.prices.push_back({price, sums([=](const Hull& hull) { return hull.empty() ? 0 : cheapest(hull, price); })});
    return out;
  }

  void find_room() {
    std::int64_t activation = std::numeric_limits<std::int64_t>::max();
    for (const LayerType& type : p_.types)
      for (const Choice& c : type) activation = std::min({activation, c.input, c.activation});
    workspace_ = least_workspaces(p_);
    double receive = p_.stages() == 1 ? 0 : std::numeric_limits<double>::max();
    for (const Moves& moves : p_.moves)
      for (const auto* seconds : {&moves.input, &moves.output})
        for (const double one : *seconds) receive = std::min(receive, one);
    for (int stage = 0; stage < p_.stages(); ++stage) {
      const int chunk_ends = 2 * p_.chunks - (stage == 0 ? 1 : 0) - (stage + 1 == p_.stages() ? 1 : 0);
      room_.push_back(static_cast<double>(p_.budget - p_.fixed - workspace_[static_cast<std::size_t>(stage)]) -
                      static_cast<double>(chunk_ends) * static_cast<double>(activation));
      moves_.push_back(chunk_ends * receive);
    }
  }

  static constexpr std::size_t most_prices = 24;

  const Problem& p_;
  std::vector<Place> places_;            // (layers + 1)
  std::vector<int> types_of_rows_;       // of equal layers one after the other
  std::vector<Slots> slots_;             // that differ
  std::vector<std::size_t> table_of_;    // (stages) which of them
  std::vector<WorkspaceClass> classes_;  // ascending; the last has all choices
  std::vector<std::int64_t> workspace_;  // (stages) at least
  std::vector<double> room_;             // (stages) bytes for what layers keep, with the least workspace
  std::vector<double> moves_;            // (stages) seconds to get tensors from neighbours, at least
};

}  // namespace galvatron::search
