// Lower bounds: what no assignment of a problem can be faster than.
//
// The memory limits and the maximum over stages are relaxed with multipliers (Lagrange). For stage weights w_i >= 1
// with sum P + m - 1 and memory prices q_i >= 0, every assignment that fits its budget M satisfies
//
//     seconds / alone >= sum_i w_i C_i >= sum_i [ w_i C_i + q_i (memory_i - M) ]
//
// where C_i adds, over the layers of stage i, seconds per micro-batch + once / (alone (P + m - 1)). (For any schedule:
// w_i >= ramp with sum P ramp + turns, and ramp times the seconds that the schedule defers is taken off w_i C_i; see
// cost::pipeline_weights.) The right side is a
// sum over layers, so a layer whose choice and stage are open contributes at least its cheapest: its price. Any weights
// are valid; good ones come from the relaxed problem with fractional layers, where a stage of n layers takes
// n h(M / n) seconds, h the lower convex hull of the choices' (memory, seconds).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/search/hull.hpp>
#include <galvatron/search/label.hpp>
#include <galvatron/search/memory_bounds.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

class Bounds {
 public:
  explicit Bounds(const Problem& problem) : p_(problem), memory_(problem) {
    const Objective& o = p_.objective;
    ramp_weight_ = o.weights.fill_drain;
    turns_ = p_.stages() * ramp_weight_ + o.weights.steady;
    alone_ = p_.stages() == 1 ? o(1, 1, 0) / o.microbatches : o.alone;
    once_share_ = 1 / (alone_ * turns_);
    least_of_types();
    weigh_stages();
    price_layers();
  }

  /// Seconds per micro-batch that one second once an iteration counts for.
  [[nodiscard]] double once_share() const { return once_share_; }
  /// False when no assignment can fit the budget.
  [[nodiscard]] bool may_fit() const { return may_fit_; }
  /// Of the bytes alone.
  [[nodiscard]] const MemoryBounds& memory() const { return memory_; }
  /// Of the whole problem.
  [[nodiscard]] double seconds() const {
    return std::max(open_.back() * alone_ + credit_.back(),
                    p_.objective(ramp_.back(), time_.back() / p_.stages(), once_.back() / p_.stages()));
  }
  /// What a choice adds to the relaxed bound on a stage: seconds, and bytes at their price.
  [[nodiscard]] double priced(int stage, const Choice& c) const { return cost_in(stage, c); }
  /// Least sums over the layers before each one, (layers + 1): seconds of the ramps, seconds once an iteration.
  [[nodiscard]] const std::vector<double>& ramps() const { return ramp_; }
  [[nodiscard]] const std::vector<double>& onces() const { return once_; }

  /// Of any assignment in which stage `stage` begins with layer `begin`, and its layers up to before `end` are those of
  /// this label.
  [[nodiscard]] double with_stage(int stage, int begin, int end, const Label& label) const {
    const auto a = static_cast<std::size_t>(begin);
    const auto b = static_cast<std::size_t>(end);
    const bool last = stage + 1 == p_.stages();
    const double sum = label.ramp + ramp_.back() - (ramp_[b] - ramp_[a]);
    const double slowest = std::max(label.time + (last ? time_.back() - time_[b] : 0.0),
                                    (label.time + time_.back() - (time_[b] - time_[a])) / p_.stages());
    return std::max(
        relaxed_with_stage(stage, begin, end, finished(stage, label.time, label.ramp, label.once), label.top),
        p_.objective(sum, slowest, std::max(label.once, once_.back() / p_.stages())));
  }
  /// The same from what the layers contribute to the bound alone.
  [[nodiscard]] double relaxed_with_stage(int stage, int begin, int end, double contribution, std::int64_t top) const {
    const auto i = static_cast<std::size_t>(stage);
    const double open = open_.back() - (open_[static_cast<std::size_t>(end)] - open_[static_cast<std::size_t>(begin)]);
    const double own =
        contribution + price_[i] * (static_cast<double>(top) + ending_[i] - static_cast<double>(p_.budget));
    return alone_ * (open + own) + credit_.back() - (credit_[i + 1] - credit_[i]);
  }

  /// Of any assignment of one stage whose sum of time + once_share() * once is `cost`.
  [[nodiscard]] double single_stage(double cost) const { return cost * alone_ * turns_; }

  /// The part of the bound that a finished stage contributes.
  [[nodiscard]] double finished(int stage, double time, double ramp, double once) const {
    const double w = weight_[static_cast<std::size_t>(stage)];
    return (w - ramp_weight_) * time + ramp_weight_ * ramp + w * once_share_ * once;
  }
  /// Of any assignment whose stages before `stage` are finished: their contributions, sums and maxima are known, and
  /// `begin` is the first layer of the others.
  [[nodiscard]] double with_stages(int stage, int begin, double contributions, double sum, double slowest,
                                   double once) const {
    const auto a = static_cast<std::size_t>(begin);
    const double relaxed =
        alone_ * (contributions + open_.back() - open_[a]) + credit_.back() - credit_[static_cast<std::size_t>(stage)];
    const double rest = time_.back() - time_[a];
    const int left = p_.stages() - stage;
    return std::max(relaxed, p_.objective(sum + ramp_.back() - ramp_[a],
                                          left > 0 ? std::max(slowest, rest / left) : slowest, once));
  }
  /// Of any assignment with these choices in the first and the last layer.
  [[nodiscard]] double with_ends(const Choice& first, const Choice& last) const {
    const std::size_t end = time_.size() - 1;
    const double inner = time_[end - 1] - time_[1];
    const double all = inner + first.seconds() + last.seconds();
    const double sum = ramp_[end - 1] - ramp_[1] + p_.objective.ramp_of(first) + p_.objective.ramp_of(last);
    const double slowest = std::max({all / p_.stages(), first.seconds(), last.seconds()});
    const double once =
        std::max({(once_[end - 1] - once_[1] + first.once() + last.once()) / p_.stages(), first.once(), last.once()});
    const double relaxed =
        alone_ * (open_[end - 1] - open_[1] + cost_in(0, first) + cost_in(p_.stages() - 1, last)) + credit_.back();
    return std::max(relaxed, p_.objective(sum, slowest, once));
  }

 private:
  [[nodiscard]] double seconds_of(const Choice& c) const { return c.seconds() + once_share_ * c.once(); }
  [[nodiscard]] double memory_in(int stage, const Choice& c) const {
    return static_cast<double>(p_.least_slots(stage).kept(c));
  }
  [[nodiscard]] double cost_in(int stage, const Choice& c) const {
    const auto i = static_cast<std::size_t>(stage);
    return weight_[i] * seconds_of(c) - ramp_weight_ * p_.objective.weights.deferred * c.weights +
           price_[i] * memory_in(stage, c);
  }
  [[nodiscard]] const LayerType& type_of(int layer) const {
    return p_.types[static_cast<std::size_t>(p_.layers[static_cast<std::size_t>(layer)])];
  }
  [[nodiscard]] bool is_movable(int layer) const { return layer >= p_.leading && layer < p_.count() - p_.trailing; }

  void least_of_types() {
    struct Least {
      double time = std::numeric_limits<double>::max();
      double ramp = std::numeric_limits<double>::max();
      double once = std::numeric_limits<double>::max();
    };
    std::vector<Least> least(p_.types.size());
    for (std::size_t i = 0; i < least.size(); ++i)
      for (const Choice& c : p_.types[i]) {
        least[i].time = std::min(least[i].time, c.seconds());
        least[i].ramp = std::min(least[i].ramp, p_.objective.ramp_of(c));
        least[i].once = std::min(least[i].once, c.once());
        least_activation_ = std::min({least_activation_, c.input, c.activation});
      }
    time_.assign(1, 0.0);
    ramp_.assign(1, 0.0);
    once_.assign(1, 0.0);
    for (const int type : p_.layers) {
      const Least& l = least[static_cast<std::size_t>(type)];
      time_.push_back(time_.back() + l.time);
      ramp_.push_back(ramp_.back() + l.ramp);
      once_.push_back(once_.back() + l.once);
    }
    for (int layer = 0; layer < p_.count(); ++layer)
      if (is_movable(layer)) movable_types_.push_back(p_.layers[static_cast<std::size_t>(layer)]);
    std::sort(movable_types_.begin(), movable_types_.end());
    movable_types_.erase(std::unique(movable_types_.begin(), movable_types_.end()), movable_types_.end());
  }

  [[nodiscard]] double end_seconds(int stage) const {
    double out = 0;
    if (stage == 0) out += time_[static_cast<std::size_t>(p_.leading)];
    if (stage + 1 == p_.stages()) out += time_.back() - time_[static_cast<std::size_t>(p_.count() - p_.trailing)];
    return out;
  }

  // A stage of fractional layers: how many fit into some seconds.
  struct Fluid {
    std::vector<HullPoint> hull;
    double room = 0;
    double ends = 0;

    struct Fill {
      double layers = 0;
      double slope = 0;        // seconds of one more layer
      std::size_t vertex = 0;  // of the hull: the layers are between this one and the next
    };
    [[nodiscard]] Fill fill(double seconds) const {
      double time = ends;
      double layers = 0;
      for (std::size_t k = 0; k < hull.size(); ++k) {
        const HullPoint& to = hull[k];
        const double next_layers = to.bytes > 0 ? std::max(room, 0.0) / to.bytes : 1e18;
        // On the line between two vertices the layers change from one to the other while the room stays full.
        const double slope =
            k == 0 ? to.seconds
                   : (to.seconds * hull[k - 1].bytes - hull[k - 1].seconds * to.bytes) / (hull[k - 1].bytes - to.bytes);
        const double next_time = time + slope * (next_layers - layers);
        if (next_time >= seconds)
          return {slope > 0 ? layers + std::max(0.0, seconds - time) / slope : next_layers, std::max(slope, 1e-300),
                  k == 0 ? hull.size() : k - 1};
        time = next_time;
        layers = next_layers;
      }
      return {layers, std::numeric_limits<double>::infinity(), hull.size() - 1};
    }
  };

  void weigh_stages() {
    const auto stages = static_cast<std::size_t>(p_.stages());
    weight_.assign(stages, turns_ / static_cast<double>(stages));
    price_.assign(stages, 0.0);
    ending_.assign(stages, 0.0);
    for (std::size_t i = 0; i + 1 < stages; ++i) ending_[i] = static_cast<double>(least_activation_);
    if (p_.movable() < 1) return;
    HullChoices movable;
    for (const int type : movable_types_)
      for (const Choice& c : p_.types[static_cast<std::size_t>(type)]) movable.add(c, seconds_of(c));
    movable.drop_superfluous();
    const auto hull = [&](int stage) {  // fastest first
      std::vector<HullPoint> out = movable.hull(p_.least_slots(stage));
      std::reverse(out.begin(), out.end());
      return out;
    };
    std::vector<Fluid> fluid;
    for (int i = 0; i < p_.stages(); ++i) {
      const bool like_last = i > 1 && i + 1 < p_.stages() && p_.least_slots(i) == p_.least_slots(i - 1);
      const auto room = [&] { return static_cast<double>(p_.budget - memory_.besides(i)); };
      fluid.push_back(like_last ? fluid.back() : Fluid{hull(i), room(), end_seconds(i)});
    }
    const auto layers = [&](double seconds) {
      double sum = 0;
      for (const Fluid& f : fluid) sum += f.fill(seconds).layers;
      return sum;
    };
    const double needed = p_.movable();
    if (!memory_.may_fit(p_.budget) || layers(std::numeric_limits<double>::max()) < needed * (1 - 1e-9)) {
      may_fit_ = false;
      return;
    }
    double low = 0;
    double high = time_.back() + 1e-9;
    while (layers(high) < needed && high < 1e300) high *= 2;
    for (int round = 0; round < 60; ++round) {
      const double middle = (low + high) / 2;
      (layers(middle) < needed ? low : high) = middle;
    }
    std::vector<Fluid::Fill> fills;
    for (const Fluid& f : fluid) fills.push_back(f.fill(high));
    // w_i * slope_i is the same for all stages where that leaves w_i >= ramp.
    const auto total = [&](double level) {
      double sum = 0;
      for (const auto& f : fills) sum += std::max(ramp_weight_, level / f.slope);
      return sum;
    };
    double least = 0;
    double most = 1;
    while (total(most) < turns_ && most < 1e300) most *= 2;
    for (int round = 0; round < 100; ++round) {
      const double middle = (least + most) / 2;
      (total(middle) <= turns_ ? least : most) = middle;
    }
    for (std::size_t i = 0; i < stages; ++i) {
      weight_[i] = std::max(ramp_weight_, least / fills[i].slope);
      const std::vector<HullPoint>& h = fluid[i].hull;
      if (fills[i].vertex >= h.size() || h.size() < 2) continue;  // memory is no limit
      const std::size_t k = std::min(fills[i].vertex, h.size() - 2);
      price_[i] = weight_[i] * (h[k + 1].seconds - h[k].seconds) / (h[k].bytes - h[k + 1].bytes);
    }
  }

  void price_layers() {
    const int last = p_.stages() - 1;
    std::vector<double> price(p_.types.size(), std::numeric_limits<double>::max());
    for (const int type : movable_types_)
      for (int i = 0; i <= last; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i > 1 && i < last && weight_[at] == weight_[at - 1] && price_[at] == price_[at - 1] &&
            p_.least_slots(i) == p_.least_slots(i - 1))
          continue;
        for (const Choice& c : p_.types[static_cast<std::size_t>(type)])
          price[static_cast<std::size_t>(type)] = std::min(price[static_cast<std::size_t>(type)], cost_in(i, c));
      }
    open_.assign(1, 0.0);
    for (int layer = 0; layer < p_.count(); ++layer) {
      double least = price[static_cast<std::size_t>(p_.layers[static_cast<std::size_t>(layer)])];
      if (!is_movable(layer)) {
        least = std::numeric_limits<double>::max();
        for (const Choice& c : type_of(layer)) least = std::min(least, cost_in(layer < p_.leading ? 0 : last, c));
      }
      open_.push_back(open_.back() + least);
    }
    credit_.assign(1, 0.0);
    for (int i = 0; i <= last; ++i) {
      const auto at = static_cast<std::size_t>(i);
      double rest =
          static_cast<double>(p_.fixed + memory_.workspaces()[at]) + ending_[at] - static_cast<double>(p_.budget);
      if (i > 0) rest += static_cast<double>(least_activation_);
      credit_.push_back(credit_.back() + alone_ * price_[at] * rest);
    }
  }

  const Problem& p_;
  MemoryBounds memory_;
  double ramp_weight_ = 1;
  double turns_ = 1;
  double alone_ = 1;
  double once_share_ = 0;
  bool may_fit_ = true;
  std::int64_t least_activation_ = std::numeric_limits<std::int64_t>::max();
  std::vector<int> movable_types_;
  std::vector<double> time_;  // (layers + 1) sums of the least seconds of the layers before
  std::vector<double> ramp_;
  std::vector<double> once_;
  std::vector<double> weight_;  // (stages) w
  std::vector<double> price_;   // (stages) q, seconds a byte
  std::vector<double> ending_;  // (stages) least bytes for the last activation
  std::vector<double> open_;    // (layers + 1) sums of the prices of the layers before
  std::vector<double> credit_;  // (stages + 1) sums of alone q (least of what else is kept, and workspace, - M)
};

}  // namespace galvatron::search
