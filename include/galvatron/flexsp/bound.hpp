// A lower bound for the seconds of a batch, over all plans: any number of micro-batches, any assignment, any groups.
//
// Fix the number M of micro-batches, of which the first is the slowest, and let its seconds C_1 lie in [l_1, u_1] and
// those of the others in [l_2, u_2]. N devices of micro-batch m work at most N (C_m - b) device-seconds, b the least
// fixed seconds of a group. A document i in a group of option o has the area d_o f_o(i), and may be there only if
// fixed_o + f_o(i) <= u_m and its tokens fit. A group that holds cap_o tokens and is full waits for the slowest: of its
// d_o (C_m - b) device-seconds, document i occupies the share tokens_i / cap_o at least. So for any 0 <= theta <= 1
//
//     A_m(i) = min over o of theta_mo d_o f_o(i) + (1 - theta_mo) d_o (l_m - b) tokens_i / cap_o
//
// is what document i takes at least of micro-batch m's device-seconds, whole or in fractions, and with a multiplier
// lambda_m >= 0 for N (C_m - b) >= sum of A_m(i), and rho_m >= 0 for the tokens that N devices hold,
//
//     sum of C_m  >=  sum over m of (lambda_m b - rho_m + min over C_m in [l_m, u_m] of (1 - lambda_m) C_m)
//                     + sum over i of min over m of lambda_m A_m(i) / N + rho_m tokens_i / (N cap)
//
// Multipliers are raised by subgradient steps. The ranges of C_1 are split where the bound is least (best first).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include <galvatron/flexsp/instance.hpp>

namespace galvatron::flexsp {

/// The least seconds of any plan for the documents of an instance.
class Bound {
 public:
  explicit Bound(const Instance& instance) : instance_(instance) {
    least_fixed_ = instance.least_fixed();
    least_seconds_ = instance.least_seconds();
    soonest_ = least_seconds_;
    // Documents of about the same length count as the shortest of them, which takes the least: so do 0.25 % of the
    // tokens of a document, or of the mean one.
    const double mean = static_cast<double>(instance.all_tokens()) / std::max(1, instance.documents());
    double longest = 0;  // of the last class
    for (int i = 0; i < instance.documents(); ++i) {
      const auto tokens = static_cast<double>(instance.tokens(i));
      if (classes_.empty() || longest - tokens > alike * std::max(longest, mean)) {
        classes_.push_back({i, 0});
        longest = tokens;
      }
      classes_.back().document = i;
      ++classes_.back().count;
      double least = infinite;
      double soonest = infinite;
      for (int o = 0; o < options(); ++o) {
        if (instance.tokens(i) > instance.capacity(o)) continue;
        least = std::min(least, instance.area(o, i));
        soonest = std::min(soonest, instance.fixed(o) + instance.cost(o, i));
      }
      area_ += least;
      soonest_ = std::max(soonest_, soonest);
    }
    least_parts_ = std::max(
        1, static_cast<int>(std::ceil(
               static_cast<double>(instance.all_tokens()) / (instance.device_capacity() * instance.devices()) - 1e-9)));
  }

  /// Micro-batches that the tokens need.
  [[nodiscard]] int least_parts() const { return least_parts_; }
  /// No micro-batch with the longest document ends before.
  [[nodiscard]] double soonest() const { return soonest_; }
  /// What `parts` micro-batches take at least: by the area of all documents, and by the slowest document.
  [[nodiscard]] double simple(int parts) const {
    const double by_area = parts * least_fixed_ + area_ / instance_.devices();
    return std::max(by_area, soonest_ + (parts - 1) * least_seconds_);
  }

  /// The bound over all numbers of micro-batches. @param known  seconds of a plan: no more is to be proven
  /// @param ranges  to be evaluated  @param steps  of the multipliers in each
  /// @param work  of all steps together: a document's length in an option is 1
  [[nodiscard]] double operator()(double known, int ranges, int steps, std::int64_t work) const {
    const auto of_step = static_cast<std::int64_t>(classes_.size() * kinds) * options();
    ranges = static_cast<int>(std::min<std::int64_t>(ranges, std::max<std::int64_t>(4, work / (of_step * steps))));
    std::priority_queue<Range> open;
    double least = known;
    for (int parts = least_parts_; simple(parts) < known; ++parts) {
      if (parts > least_parts_ + most_parts) {  // more of them take no less
        least = simple(parts);
        break;
      }
      const double high = known - (parts - 1) * least_seconds_;
      const double low = std::max(soonest_, simple(parts) / parts);
      if (low <= high) open.push({simple(parts), parts, low, high, Multipliers(options())});
    }
    while (!open.empty() && ranges > 0) {
      const Range range = open.top();
      open.pop();
      if (range.bound >= known * (1 - 1e-9)) return std::min(least, range.bound);
      if (range.high - range.low < 1e-4 * known) {
        least = std::min(least, range.bound);
        break;
      }
      const double middle = range.low + (range.high - range.low) / (range.high > 1.5 * range.low ? 4 : 2);
      for (const auto& [low, high] : {std::array{range.low, middle}, std::array{middle, range.high}}) {
        --ranges;
        Range part = range;
        part.low = low;
        part.high = high;
        raise(part, known, steps);
        if (part.bound < known) open.push(std::move(part));
      }
    }
    return open.empty() ? least : std::min(least, open.top().bound);
  }

 private:
  static constexpr double infinite = std::numeric_limits<double>::infinity();
  static constexpr int most_parts = 24;
  static constexpr double alike = 0.0025;
  struct Class {   // documents of about the same length
    int document;  // the shortest
    int count;
  };
  [[nodiscard]] int options() const { return static_cast<int>(instance_.options()); }

  // Of the slowest micro-batch and of the others.
  static constexpr std::size_t kinds = 2;
  template <class T>
  using OfKinds = std::array<T, kinds>;
  struct Multipliers {
    explicit Multipliers(int options) : theta(kinds * static_cast<std::size_t>(options), 1) {}
    std::vector<double> theta;  // (kinds, options)
    OfKinds<double> lambda{1, 1};
    OfKinds<double> rho{0, 0};
  };
  struct Range {
    double bound;
    int parts;
    double low;
    double high;
    Multipliers at;  // where the bound was the highest
    bool operator<(const Range& other) const { return bound > other.bound; }
  };

  // Raises the bound of a range by subgradient steps on its multipliers.
  void raise(Range& range, double known, int steps) const {
    const double n = instance_.devices();
    const double b = least_fixed_;
    const double held = n * instance_.device_capacity();
    const int others = range.parts - 1;
    const OfKinds<int> counts{1, others};
    // C_1 + C_2 + (M - 2) s <= known, and where there are two, C_1 + C_2 is at least the bound so far.
    const OfKinds<double> lows{range.low,
                               others == 1 ? std::max(least_seconds_, range.bound - range.high) : least_seconds_};
    const OfKinds<double> highs{range.high, std::min(range.high, known - range.low - (others - 1) * least_seconds_)};
    if (others > 0 && highs[1] < lows[1]) {
      range.bound = known;
      return;
    }
    const std::size_t used = others > 0 ? 2 : 1;
    const auto count = static_cast<std::size_t>(options());
    range.bound = std::max(range.bound, range.low + others * lows[1]);
    // Of each class, kind and option what it takes: seconds of N devices by area, and by the share of a full group.
    const std::size_t columns = used * count;
    table_.assign(classes_.size() * 3 * columns, 0);
    double* area_of = table_.data();
    for (const Class& one : classes_) {
      double* const share_of = area_of + columns;
      double* const unfit = share_of + columns;
      bool fits = false;
      for (std::size_t k = 0; k < used; ++k)
        for (std::size_t o = 0; o < count; ++o) {
          const int option = static_cast<int>(o);
          const std::size_t j = k * count + o;
          if (!instance_.fits(option, one.document, highs[k])) {
            unfit[j] = infinite;
            continue;
          }
          fits = true;
          area_of[j] = instance_.area(option, one.document) / n;
          share_of[j] = instance_.degree(option) * (lows[k] - b) * static_cast<double>(instance_.tokens(one.document)) /
                        static_cast<double>(instance_.capacity(option)) / n;
        }
      area_of = unfit + columns;
      if (!fits) {
        range.bound = known;
        return;
      }
    }
    Multipliers now = range.at;
    std::vector<double> theta_slope(now.theta.size());
    double length = 1;
    for (int turn = 0; turn < steps; ++turn) {
      double bound = 0;
      OfKinds<double> area{};
      OfKinds<double> tokens{};
      std::ranges::fill(theta_slope, 0);
      of_area_.resize(columns);
      of_share_.resize(columns);
      of_tokens_.resize(columns);
      values_.resize(columns);
      for (std::size_t j = 0; j < columns; ++j) {
        of_area_[j] = now.lambda[j / count] * now.theta[j];
        of_share_[j] = now.lambda[j / count] * (1 - now.theta[j]);
        of_tokens_[j] = now.rho[j / count];
      }
      const double* areas = table_.data();
      for (const Class& one : classes_) {
        const double* const shares = areas + columns;
        const double* const unfit = shares + columns;
        const double share_of_tokens = static_cast<double>(instance_.tokens(one.document)) / held;
        double* const values = values_.data();
        for (std::size_t j = 0; j < columns; ++j)
          values[j] = of_area_[j] * areas[j] + of_share_[j] * shares[j] + of_tokens_[j] * share_of_tokens + unfit[j];
        const auto at = static_cast<std::size_t>(std::min_element(values, values + columns) - values);
        const double least = values[at];
        const std::size_t k = at / count;
        bound += least * one.count;
        tokens[k] += share_of_tokens * one.count;
        area[k] += (now.theta[at] * areas[at] + (1 - now.theta[at]) * shares[at]) * one.count;
        theta_slope[at] += now.lambda[k] * (areas[at] - shares[at]) * one.count;
        areas = unfit + columns;
      }
      OfKinds<double> lambda_slope{};
      OfKinds<double> rho_slope{};
      for (std::size_t k = 0; k < used; ++k) {
        const double end = now.lambda[k] > 1 ? highs[k] : lows[k];
        bound += counts[k] * (now.lambda[k] * b + (1 - now.lambda[k]) * end - now.rho[k]);
        lambda_slope[k] = area[k] + counts[k] * (b - end);
        rho_slope[k] = tokens[k] - counts[k];
      }
      if (bound > range.bound) {
        range.bound = bound;
        range.at = now;
        if (bound >= known) return;
      }
      // Steps towards the known seconds (Polyak), ever shorter. rho is in seconds, of which `scale` are one step.
      const double scale = rho_scale * known;
      double norm = 0;
      for (const double one : theta_slope) norm += one * one;
      for (std::size_t k = 0; k < used; ++k)
        norm += lambda_slope[k] * lambda_slope[k] + rho_slope[k] * rho_slope[k] * scale * scale;
      if (norm <= 0) return;
      const double rate = length * std::max(known - bound, 1e-3 * known) / norm;
      for (std::size_t j = 0; j < theta_slope.size(); ++j)
        now.theta[j] = std::clamp(now.theta[j] + rate * theta_slope[j], 0.0, 1.0);
      for (std::size_t k = 0; k < used; ++k) {
        now.lambda[k] = std::max(0.0, now.lambda[k] + rate * lambda_slope[k]);
        now.rho[k] = std::max(0.0, now.rho[k] + rate * scale * scale * rho_slope[k]);
      }
      length *= 0.97;
    }
  }
  static constexpr double rho_scale = 0.2;

  const Instance& instance_;
  std::vector<Class> classes_;
  double least_fixed_ = 0;    // of a group
  double least_seconds_ = 0;  // of a micro-batch
  double area_ = 0;
  double soonest_ = 0;
  int least_parts_ = 1;
  // Of one range: (classes, 3, kinds, options) areas, shares, and infinity where a class does not fit.
  mutable std::vector<double> table_;
  // Of one step, (kinds, options): the factors of areas, shares and tokens, and what a class takes.
  mutable std::vector<double> of_area_, of_share_, of_tokens_, values_;
};

}  // namespace galvatron::flexsp
