// RangeBound: the least seconds in which a stage can do a range of layers, before any strategy is chosen.
//
// For any price q >= 0 of a byte (Lagrange), layers a to b - 1 in the bytes M of a stage take at least
//
//     sum over the layers of min over choices (seconds + q bytes) - q M
//
// Sums over all layers before each one are known for a few prices, the slopes of the choices' convex hulls, so that a
// range costs a subtraction for each price. M depends on the largest workspace of the stage, and workspaces are divided
// into classes: in the class [w, w'] choices beyond w' are not there, and w is taken of the memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/search/fronts.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/tuning.hpp>

namespace galvatron::search {

/// What the largest workspace of every stage is at least: the ends have their stages, and some of the other layers is
/// in any.
constexpr std::vector<std::int64_t> least_workspaces(const Problem& p) {
  std::vector<std::int64_t> of_type;
  for (const LayerType& type : p.types) {
    of_type.push_back(unlimited);
    for (const Choice& c : type) of_type.back() = std::min(of_type.back(), workspace_of(c));
  }
  const auto of_layer = [&](int layer) { return nth(of_type, nth(p.layers, layer)); };
  std::int64_t least = unlimited;
  for (int layer = p.leading; layer < p.count() - p.trailing; ++layer) least = std::min(least, of_layer(layer));
  std::vector<std::int64_t> out(static_cast<std::size_t>(p.stages()), least);
  for (int layer = 0; layer < p.count(); ++layer) {
    if (layer < p.leading || p.stages() == 1) out.front() = std::max(out.front(), of_layer(layer));
    if (layer >= p.count() - p.trailing) out.back() = std::max(out.back(), of_layer(layer));
  }
  return out;
}

/// The bound of a range of layers, asked for many numbers of bytes: of the lines (sum at a price) - price * bytes,
/// those that are the largest for some bytes, by ascending price. The more bytes there are, the lower is that price.
class PiecewiseLinear {
 public:
  constexpr PiecewiseLinear() = default;
  /// @param least  bytes that the layers keep at least
  explicit constexpr PiecewiseLinear(double least) : least_(least) {}

  /// The next line; prices ascend. False when neither it nor a later one is the largest where the layers fit.
  constexpr bool add(double price, double sum) {
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
  [[nodiscard]] constexpr double seconds(double bytes, std::size_t& at) const {
    if (least_ > bytes) return infinite;
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

/// Layers [begin, end) of a stage, and what it has beside them.
struct StageRange {
  int begin = 0;
  int end = 0;
  double seconds = 0;
  double bytes = 0;            ///< kept
  std::int64_t workspace = 0;  ///< the largest
};

/// What a hull in any number of slots needs of a choice.
struct HullChoice {
  double seconds = 0;
  std::int64_t states = 0;
  std::int64_t stash = 0;
  std::int64_t deferred = 0;
  std::int64_t workspace = 0;

  friend constexpr auto operator<=>(const HullChoice&, const HullChoice&) = default;
  /// With one that is no slower at hand, `b` is on no hull.
  friend constexpr bool dominates(const HullChoice& a, const HullChoice& b) {
    return a.states <= b.states && a.stash <= b.stash && a.deferred <= b.deferred && a.workspace <= b.workspace;
  }
};

class RangeBound {
 public:
  /// @param share              of the per-iteration cost that counts as seconds of a micro-batch
  /// @param workspace_classes  more of them make the bound of a stage nearer
  template <class Executor = Team>
  constexpr RangeBound(const Problem& problem, double share, int workspace_classes = 1, Executor* executor = nullptr)
      : p_(problem) {
    for (auto at = p_.slots.begin(); at != p_.slots.end(); at += p_.chunks) {  // a stage's
      const auto same = std::ranges::find(slots_, std::vector(at, at + p_.chunks));
      table_of_.push_back(static_cast<std::size_t>(same - slots_.begin()));
      if (same == slots_.end()) slots_.emplace_back(at, at + p_.chunks);
    }
    for (int layer = 0; layer < p_.count(); ++layer) {
      const int kind = nth(p_.layers, layer) * p_.chunks + p_.chunk_of(layer);
      if (layer == 0 || kind != rows_.back().first) rows_.emplace_back(kind, 0);
      places_.push_back({rows_.size() - 1, static_cast<double>(rows_.back().second++)});
    }
    places_.push_back({rows_.size(), 0});
    std::vector<std::int64_t> sizes;  // of workspaces, ascending; none where they are not told apart
    for (const LayerType& type : p_.types) {
      std::vector<HullChoice>& all = types_.emplace_back();
      for (const Choice& c : type) {
        const std::int64_t workspace = workspace_classes > 1 ? workspace_of(c) : 0;
        all.push_back({p_.objective.terms_of(c).time_with(share), c.states, c.stash, c.deferred, workspace});
        if (workspace_classes > 1) sizes.push_back(workspace);
      }
      std::sort(all.begin(), all.end());
      keep_non_dominated(all);
    }
    sort_unique(sizes);
    if (sizes.empty()) classes_.resize(1);
    const auto count = static_cast<std::size_t>(workspace_classes);
    for (std::size_t k = 0, from = 0; k < count; ++k) {
      const std::size_t to = (k + 1) * sizes.size() / count;
      if (from < to) classes_.push_back({sizes[from], sizes[to - 1], {}});
      from = to;
    }
    search::share(executor, p_.types.size() * slots_.size(), classes_.size(), [&](std::size_t i) {
      for (const std::vector<Slots>& slots : slots_) classes_[i].tables.push_back(make_table(slots, classes_[i].most));
    });
    find_besides();
  }

  /// Of layers [begin, end) on a stage, whatever its workspace, without what the stage receives.
  [[nodiscard]] constexpr PiecewiseLinear bound(int stage, int begin, int end) const {
    const Table& t = table(classes_.back(), stage);
    PiecewiseLinear out(sum(t.bytes, begin, end));
    for (const Priced& q : t.prices)
      if (!out.add(q.price, sum(q.seconds, begin, end))) break;
    return out;
  }
  /// Bytes that these layers keep at least.
  [[nodiscard]] constexpr double least_bytes(int stage, int begin, int end) const {
    return sum(table(classes_.back(), stage).bytes, begin, end);
  }
  /// Bytes that a stage needs at least.
  [[nodiscard]] constexpr double least_peak(int stage, const StageRange& range) const {
    return nth(taken_, stage) + range.bytes + least_bytes(stage, range.begin, range.end) +
           static_cast<double>(std::max(least_workspace(stage), range.workspace));
  }
  /// Seconds of stages with a class of workspaces and so many bytes for what the layers keep.
  [[nodiscard]] constexpr double seconds_within(std::size_t i, int stage, int begin, int end, double bytes) const {
    const Table& t = table(classes_[i], stage);
    if (sum(t.bytes, begin, end) > bytes || sum(t.missing, begin, end) > 0) return infinite;
    double most = 0;
    for (const Priced& q : t.prices) most = std::max(most, sum(q.seconds, begin, end) - q.price * bytes);
    return most;
  }

  /// Seconds of a stage with all its memory; infinite when the layers cannot fit.
  [[nodiscard]] constexpr double seconds(int stage, const StageRange& range) const {
    double least = infinite;
    for (std::size_t i = 0; i < classes_.size(); ++i) least = std::min(least, seconds_in_class(i, stage, range));
    return least;
  }
  /// The same of stages whose largest workspace is in a class.
  [[nodiscard]] constexpr double seconds_in_class(std::size_t i, int stage, const StageRange& range) const {
    const WorkspaceClass& one = classes_[i];
    const std::int64_t workspace = std::max(least_workspace(stage), range.workspace);
    if (one.most < workspace) return infinite;
    const auto bytes =
        static_cast<double>(p_.budget - std::max(one.least, workspace)) - nth(taken_, stage) - range.bytes;
    return seconds_within(i, stage, range.begin, range.end, bytes) + nth(receive_, stage) + range.seconds;
  }

  [[nodiscard]] constexpr std::size_t classes() const { return classes_.size(); }
  /// The workspaces of a class, ascending with its number.
  [[nodiscard]] constexpr std::pair<std::int64_t, std::int64_t> workspaces(std::size_t i) const {
    return {classes_[i].least, classes_[i].most};
  }
  /// The largest workspace of a stage, at least.
  [[nodiscard]] constexpr std::int64_t least_workspace(int stage) const { return nth(workspace_, stage); }

 private:
  // A layer, or the end of all: how far it is behind the first of those like it.
  struct Place {
    std::size_t row = 0;
    double offset = 0;
  };
  // Layers one after the other that are equal.
  struct Row {
    double before = 0;  // the sum over the layers before its first one
    double each = 0;    // of its layers
  };
  using Sums = std::vector<Row>;  // the last has no layers
  // Over layers [begin, end).
  [[nodiscard]] constexpr double sum(const Sums& rows, int begin, int end) const {
    const auto before = [&](const Place& at) { return rows[at.row].before + at.offset * rows[at.row].each; };
    return before(nth(places_, end)) - before(nth(places_, begin));
  }
  struct Priced {
    double price = 0;
    Sums seconds;
  };
  struct Table {
    Sums bytes;    // the least
    Sums missing;  // layers without a choice
    std::vector<Priced> prices;
  };
  // Stages whose largest workspace is one of these.
  struct WorkspaceClass {
    std::int64_t least = 0;
    std::int64_t most = unlimited;
    std::vector<Table> tables;  // of slots_
  };

  [[nodiscard]] constexpr const Table& table(const WorkspaceClass& one, int stage) const {
    return one.tables[nth(table_of_, stage)];
  }

  [[nodiscard]] constexpr Table make_table(const std::vector<Slots>& slots, std::int64_t most_workspace) const {
    std::vector<std::vector<HullPoint>> hulls;
    std::vector<double> prices{0};
    for (const std::vector<HullChoice>& type : types_)
      for (const Slots& of_chunk : slots) {
        std::vector<HullPoint> points;
        for (const HullChoice& c : type)
          if (c.workspace <= most_workspace) points.push_back({static_cast<double>(of_chunk.kept(c)), c.seconds});
        hulls.push_back(lower_hull(std::move(points)));
        add_slopes(hulls.back(), prices);
      }
    sort_unique(prices);
    prices = some_of(prices, tuning::prices);  // any are valid
    const auto sums = [&](const auto& of_hull) {
      std::vector<double> of_kind;
      for (const auto& hull : hulls) of_kind.push_back(of_hull(hull));
      Sums out;
      double before = 0;
      for (const auto& [kind, layers] : rows_) {
        out.push_back({before, nth(of_kind, kind)});
        before += layers * out.back().each;
      }
      out.push_back({before, 0});
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

  constexpr void find_besides() {
    // What a stage receives, sends and lets pass through.
    const auto least_of = [this](const auto& bytes) {
      std::int64_t least = unlimited;
      for (const LayerType& type : p_.types)
        for (const Choice& c : type) least = std::min<std::int64_t>(least, bytes(c));
      return static_cast<double>(least);
    };
    const double input = p_.buffers * least_of([](const Choice& c) { return c.input; });
    const double activation = p_.buffers * least_of([](const Choice& c) { return c.activation; });
    workspace_ = least_workspaces(p_);
    // What a border takes, one way.
    const auto least_move = [this](std::vector<double> Moves::* border) {
      double least = infinite;
      for (const Moves& moves : p_.moves)
        for (const double seconds : moves.*border) least = std::min(least, seconds);
      return least;
    };
    const double receive = p_.stages() == 1 ? 0 : std::min(least_move(&Moves::input), least_move(&Moves::output));
    for (int stage = 0; stage < p_.stages(); ++stage) {
      const int chunk_ends = 2 * p_.chunks - (stage == 0 ? 1 : 0) - (stage + 1 == p_.stages() ? 1 : 0);
      const double begins = least_of([&](const Choice& c) {
        return (stage > 0 ? p_.buffers * c.input : 0) + p_.slots_of(stage, 0).flight * c.pass_through;
      });
      taken_.push_back(static_cast<double>(p_.fixed) + begins + (p_.chunks - 1) * (input + activation) +
                       (stage + 1 < p_.stages() ? activation : 0));
      receive_.push_back(chunk_ends * receive);
      if (stage == p_.across_before) receive_.back() += least_move(&Moves::input_across) - receive;
      if (stage == p_.across_after) receive_.back() += least_move(&Moves::output_across) - receive;
    }
  }

  const Problem& p_;
  std::vector<Place> places_;              // (layers + 1)
  std::vector<std::pair<int, int>> rows_;  // of equal layers one after the other: type and chunk, layers
  std::vector<std::vector<Slots>> slots_;  // of chunks, that differ
  std::vector<std::size_t> table_of_;      // (stages) which of them
  std::vector<std::vector<HullChoice>> types_;
  std::vector<WorkspaceClass> classes_;  // ascending; the last has all choices
  std::vector<std::int64_t> workspace_;  // (stages) at least
  std::vector<double> taken_;            // (stages) bytes besides workspaces and what layers keep, at least
  std::vector<double> receive_;          // (stages) seconds to get tensors from neighbours, at least
};

}  // namespace galvatron::search
