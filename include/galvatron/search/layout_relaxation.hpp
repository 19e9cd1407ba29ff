// LayoutRelaxation: the least seconds of the layers of a stage, changes of layout included.
//
// For a price q >= 0 of a byte (Lagrange), a dynamic program from the last layer to the first, whose state is a layout,
// gives the least of
//
//     sum over the layers of (seconds + q bytes) + the re-layouts before and between them
//
// which, less q M, bounds what they take in M bytes, and the assignment that has it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/fronts.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/range_bound.hpp>

namespace galvatron::search {

/// A stage that a search is for.
struct StageRole {
  int stage = 0;
  int begin = 0;                     ///< first layer
  int shortest = 1;                  ///< layers
  int longest = 1;                   ///< layers
  int tag = -1;                      ///< of the first layer of the first stage and of the last of the last; -1: any
  std::int64_t least_workspace = 0;  ///< it counts as at least that
  std::int64_t most_workspace = unlimited;  ///< no choice has more
};

/// Of the layers that a stage has in any case; those that it may have behind them take nothing.
class LayoutRelaxation {
 public:
  /// @param role   its tag and workspaces limit the choices
  /// @param share  of the per-iteration cost that counts as seconds of a micro-batch
  constexpr LayoutRelaxation(const Problem& problem, const StageRole& role, double share)
      : p_(problem),
        role_(role),
        share_(share),
        layouts_(static_cast<std::size_t>(problem.layouts)),
        room_(static_cast<double>(problem.budget - problem.fixed - role.least_workspace)) {
    prices_.push_back(0);
    for (int k = 0; k < role.shortest; ++k) kind_of_.push_back(kind_number(role.begin + k));
    sort_unique(prices_);
    bytes_.assign(kind_of_.size() + 1, 0);
    for (std::size_t layer = kind_of_.size(); layer-- > 0;) bytes_[layer] = bytes_[layer + 1] + kind(layer).bytes;
  }

  /// Of a problem with one stage: an assignment that fits, from those that are the cheapest at a price. Of the two
  /// between which they begin to fit, the one has the layers before some place and the other those behind it. Nothing
  /// where none fits.
  [[nodiscard]] constexpr std::optional<Solution> rounded() const {
    std::optional<Solution> best;
    if (bytes_.front() > room_) return best;
    const auto offer = [&](Assignment plan) {
      Solution solution = evaluated(p_, std::move(plan));
      const bool fits = solution.cost.peak <= p_.budget;
      if (fits && (!best || solution.cost.seconds < best->cost.seconds)) best = std::move(solution);
      return fits;
    };
    // Between two prices a choice is the cheapest, at one of them two choices are.
    const auto between = [&](std::size_t k) {
      return cheapest_at(k + 1 < prices_.size() ? (prices_[k] + prices_[k + 1]) / 2 : 2 * prices_[k]);
    };
    const std::size_t first =
        first_where(std::size_t{0}, prices_.size() - 1, [&](std::size_t k) { return offer(between(k)); });
    const Assignment small = between(first);
    if (!offer(small) || first == 0) return best;
    const Assignment large = between(first - 1);
    for (const auto& [front, back] : {std::pair(&small, &large), std::pair(&large, &small)}) {
      Assignment mixed = *back;
      for (std::size_t layer = 0; layer < mixed.choice.size(); ++layer) {
        mixed.choice[layer] = front->choice[layer];
        if (front->choice[layer] != back->choice[layer]) offer(mixed);
      }
    }
    return best;
  }

  /// Seconds that a byte of memory is worth: the price whose bound of all layers is the highest.
  [[nodiscard]] constexpr double price() const {
    return prices_[best_price(
        [&](std::size_t k) { return least_at(prices_[k], [](auto...) {}).first - prices_[k] * room_; })];
  }
  /// Prepares the bounds below.
  constexpr void bound_layers() {
    if (bytes_.front() > room_) {
      least_ = infinite;
      return;
    }
    // At the prices that were tried.
    std::vector<double> bounds(prices_.size());
    std::vector<std::vector<double>> sums(prices_.size());
    const auto bound = [&](std::size_t k) {
      if (sums[k].empty()) {
        sums[k].assign(bytes_.size() * layouts_, 0.0);
        const auto note = [&](std::size_t at, double sum, std::size_t) { sums[k][at] = sum; };
        bounds[k] = least_at(prices_[k], note).first - prices_[k] * room_;
      }
      return bounds[k];
    };
    // Of all prices those near the best, and ever fewer of those far away.
    const std::size_t best = best_price(bound);
    std::vector<std::size_t> chosen;
    for (std::size_t k = 0; k < prices_.size(); ++k) {
      const std::size_t far = k > best ? k - best : best - k;
      if (k == 0 || far <= 3 || (far & (far - 1)) == 0) chosen.push_back(k);
    }
    sums_.assign(bytes_.size() * layouts_ * chosen.size(), 0.0);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      least_ = std::max(least_, bound(chosen[i]));
      chosen_.push_back(prices_[chosen[i]]);
      for (std::size_t at = 0; at < bytes_.size() * layouts_; ++at) sums_[at * chosen.size() + i] = sums[chosen[i]][at];
    }
  }
  /// All layers take at least that; infinite when they cannot fit.
  [[nodiscard]] constexpr double seconds() const { return least_; }
  /// The layers from `layer` on, after one in this layout.
  [[nodiscard]] constexpr PiecewiseLinear after(int layer, int layout) const {
    return run(number_of(layer), number_of(layer), layout, [](double) { return 0.0; });
  }
  /// The same when `layer` has a choice of this layout, what changes the layout before it left out.
  [[nodiscard]] constexpr PiecewiseLinear within(int layer, int layout) const {
    const std::size_t k = number_of(layer);
    if (k == kind_of_.size()) return after(layer, layout);
    const Layout& own = nth(kind(k).layouts, layout);
    return run(k, k + 1, layout, [&](double price) { return cheapest(own.hull, price); });
  }

 private:
  // The choices of one layout.
  struct Layout {
    std::vector<HullPoint> hull;            // empty: none
    std::int64_t pass_through = unlimited;  // bytes, where the layout begins
  };
  // Layers with the same choices.
  struct Kind {
    int type = 0;
    int tag = -1;
    Slots slots;
    std::vector<Layout> layouts;
    double bytes = infinite;  // that a layer keeps at least
  };

  [[nodiscard]] constexpr const Kind& kind(std::size_t number) const { return kinds_[kind_of_[number]]; }
  // Of a layer: its place among those that the stage has in any case, or the end of them.
  [[nodiscard]] constexpr std::size_t number_of(int layer) const {
    return std::min(static_cast<std::size_t>(layer - role_.begin), kind_of_.size());
  }
  [[nodiscard]] constexpr HullPoint point_of(const Choice& c, const Slots& slots) const {
    return {static_cast<double>(slots.kept(c)), p_.objective.terms_of(c).time_with(share_)};
  }
  [[nodiscard]] constexpr bool is_open(const Choice& c, int tag) const {
    return (tag < 0 || c.tag == tag) && workspace_of(c) <= role_.most_workspace;
  }

  constexpr std::size_t kind_number(int layer) {
    const int type = nth(p_.layers, layer);
    const int tag = layer == 0 || layer + 1 == p_.count() ? role_.tag : -1;
    const Slots slots = p_.slots_at(role_.stage, layer);
    const auto same = std::find_if(kinds_.begin(), kinds_.end(),
                                   [&](const Kind& k) { return k.type == type && k.tag == tag && k.slots == slots; });
    if (same != kinds_.end()) return static_cast<std::size_t>(same - kinds_.begin());
    Kind& out = kinds_.emplace_back(Kind{type, tag, slots, std::vector<Layout>(layouts_)});
    for (const Choice& c : nth(p_.types, type)) {
      if (!is_open(c, tag)) continue;
      Layout& layout = nth(out.layouts, c.layout);
      layout.pass_through = std::min(layout.pass_through, slots.flight * c.pass_through);
      layout.hull.push_back(point_of(c, slots));
      out.bytes = std::min(out.bytes, layout.hull.back().bytes);
    }
    for (Layout& layout : out.layouts) {
      layout.hull = lower_hull(std::move(layout.hull));
      add_slopes(layout.hull, prices_);
    }
    return kinds_.size() - 1;
  }

  // The number of the price with the highest bound, which is concave in the price.
  template <class Bound>
  [[nodiscard]] constexpr std::size_t best_price(const Bound& bound) const {
    return first_where(std::size_t{0}, prices_.size() - 1, [&](std::size_t k) { return bound(k) >= bound(k + 1); });
  }
  // The least of all layers at a price and the first layer's layout, and for the layers from each one on, after one in
  // each layout: note(layer * layouts_ + layout before, sum, layout).
  template <class Note>
  [[nodiscard]] constexpr std::pair<double, std::size_t> least_at(double price, const Note& note) const {
    std::vector<double> of_kinds;  // (kinds, layouts) the cheapest choice of a layer
    for (const Kind& one : kinds_)
      for (const Layout& layout : one.layouts) of_kinds.push_back(cheapest(layout.hull, price));
    std::vector<double> after(layouts_, 0.0);
    std::vector<std::size_t> open;  // layouts that some layer has
    for (std::size_t to = 0; to < layouts_; ++to)
      if (std::ranges::any_of(kinds_, [&](const Kind& one) { return !one.layouts[to].hull.empty(); }))
        open.push_back(to);
    // The sum with the next layer in each of them, from the least: equal layers hardly change the order.
    std::vector<std::pair<double, std::size_t>> ways;
    for (const std::size_t to : open) ways.emplace_back(0.0, to);
    for (std::size_t layer = kind_of_.size(); layer-- > 0;) {
      const double* own = &of_kinds[kind_of_[layer] * layouts_];
      for (auto& [sum, to] : ways) sum = own[to] + after[to];
      sort_nearly_sorted(ways);
      if (layer == 0) break;
      const double* before = &of_kinds[kind_of_[layer - 1] * layouts_];
      const int at = role_.begin + static_cast<int>(layer);
      const bool new_chunk = p_.chunk_of(at) != p_.chunk_of(at - 1);  // other stages between
      const double* one_way = p_.moves_of(at).relayout.data();
      for (const std::size_t from : open) {
        if (before[from] == infinite) continue;
        std::pair<double, std::size_t> least{new_chunk ? infinite : own[from] + after[from], from};
        for (const auto& [sum, to] : ways) {
          if (sum >= least.first) break;
          if (to == from && !new_chunk) continue;
          const double seconds = new_chunk ? p_.receive_gradient(role_.stage, at - 1, static_cast<int>(from)) +
                                                 p_.receive_input(role_.stage, at, static_cast<int>(to))
                                           : one_way[from * layouts_ + to] + one_way[to * layouts_ + from];
          const double move = seconds + price * static_cast<double>(kind(layer).layouts[to].pass_through);
          if (const std::pair way(sum + move, to); is_before(way, least)) least = way;
        }
        after[from] = least.first;
        note(layer * layouts_ + from, least.first, least.second);
      }
    }
    return ways.empty() ? std::pair(infinite, std::size_t{0}) : ways.front();
  }

  // As pairs are compared, without the three-way comparisons of operator<=>.
  static constexpr bool is_before(const std::pair<double, std::size_t>& a, const std::pair<double, std::size_t>& b) {
    return a.first < b.first || (a.first == b.first && a.second < b.second);
  }
  static constexpr void sort_nearly_sorted(std::vector<std::pair<double, std::size_t>>& ways) {
    for (std::size_t i = 1; i < ways.size(); ++i)
      for (std::size_t k = i; k > 0 && is_before(ways[k], ways[k - 1]); --k) std::swap(ways[k], ways[k - 1]);
  }

  // The assignment that is the cheapest at a price.
  [[nodiscard]] constexpr Assignment cheapest_at(double price) const {
    std::vector<std::size_t> next(kind_of_.size() * layouts_, 0);  // layout of a layer, by the one before
    const auto note = [&](std::size_t at, double, std::size_t to) { next[at] = to; };
    std::size_t layout = least_at(price, note).second;
    Assignment out{{0, p_.count()}, std::vector<int>(kind_of_.size())};
    for (std::size_t layer = 0; layer < kind_of_.size(); ++layer) {
      if (layer > 0) layout = next[layer * layouts_ + layout];
      const Kind& own = kind(layer);
      const LayerType& type = nth(p_.types, own.type);
      double least = infinite;
      for (std::size_t i = 0; i < type.size(); ++i) {
        if (type[i].layout != static_cast<int>(layout) || !is_open(type[i], own.tag)) continue;
        const double all = point_of(type[i], own.slots).at(price);
        if (all >= least) continue;
        least = all;
        out.choice[layer] = static_cast<int>(i);
      }
    }
    return out;
  }

  // Of the layers from `begin` on: those from `open` on, after one in this layout, and more at each price.
  template <class More>
  [[nodiscard]] constexpr PiecewiseLinear run(std::size_t begin, std::size_t open, int layout, const More& more) const {
    PiecewiseLinear out(bytes_[begin]);
    const double* sums = &sums_[(open * layouts_ + static_cast<std::size_t>(layout)) * chosen_.size()];
    for (std::size_t k = 0; k < chosen_.size(); ++k)
      if (!out.add(chosen_[k], sums[k] + more(chosen_[k]))) break;
    return out;
  }

  const Problem& p_;
  StageRole role_;
  double share_;
  std::size_t layouts_;
  double room_;  // bytes for what the layers keep
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_of_;  // every layer of the stage
  std::vector<double> bytes_;         // (layers + 1) that the layers from each one on keep at least
  std::vector<double> prices_;        // of a byte, at which a choice becomes cheaper than another; ascending
  std::vector<double> chosen_;        // of them, for bounds
  std::vector<double> sums_;          // (layers + 1, layouts, chosen prices)
  double least_ = 0;
};

}  // namespace galvatron::search
