// A lower bound for the seconds of a batch, over all plans: any number of micro-batches, any assignment, any groups.
//
// Fix the number M of micro-batches, in descending order of their seconds, and let these lie in ranges, C_m in
// [l_m, u_m]. N devices of micro-batch m work at most N (C_m - b) device-seconds, b the least
// fixed seconds of a group. A document i in a group of option o has the area d_o f_o(i), and may be there only if
// fixed_o + f_o(i) <= u_m and its tokens fit. A group that holds cap_o tokens and is full waits for the slowest: of its
// d_o (C_m - b) device-seconds, document i occupies the share tokens_i / cap_o at least. And a group of its own is what
// any one document occupies at least if it is charged for all of it, and no other for any. So for any shares theta of
// these ways, which add up to 1, phi for one of the longest documents,
//
//     A_m(i) = min over o of theta_mo d_o f_o(i) + d_o (l_m - b) (theta'_mo tokens_i / cap_o + phi_moi)
//
// is what document i takes at least of micro-batch m's device-seconds, whole or in fractions, and with a multiplier
// lambda_m >= 0 for N (C_m - b) >= sum of A_m(i), and rho_m >= 0 for the tokens that N devices hold,
//
//     sum of C_m  >=  sum over m of (lambda_m b - rho_m + min over C_m in [l_m, u_m] of (1 - lambda_m) C_m)
//                     + sum over i of min over m of lambda_m A_m(i) / N + rho_m tokens_i / (N cap)
//
// Multipliers are raised by subgradient steps. Ranges are split where the bound is least (best first): micro-batches
// share a range until the slowest of them gets one of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
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
    for (int o = 0; o < options(); ++o)
      for (const Class& one : classes_) areas_.push_back(instance.area(o, one.document) / instance.devices());
    for (const Class& one : classes_) tokens_.push_back(static_cast<double>(instance.tokens(one.document)));
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
    std::priority_queue<Box> open;
    double least = known;
    for (int parts = least_parts_; simple(parts) < known; ++parts) {
      if (parts > least_parts_ + most_parts) {  // more of them take no less
        least = simple(parts);
        break;
      }
      Box box{simple(parts), {{1, std::max(soonest_, simple(parts) / parts), known}}, {}};
      if (parts > 1) box.kinds.push_back({parts - 1, least_seconds_, known});
      box.at = Multipliers(box.kinds.size(), count());
      if (narrow(box, known)) open.push(std::move(box));
    }
    while (!open.empty() && ranges > 0 && work > 0) {
      const Box box = open.top();
      if (box.bound >= known * (1 - 1e-9)) break;
      const std::size_t k = widest(box);
      const Kind whole = box.kinds[k];
      if (whole.high - whole.low < 1e-4 * known) break;
      open.pop();
      const double middle = whole.low + (whole.high - whole.low) / (whole.high > 1.5 * whole.low ? 4 : 2);
      for (const bool above : {false, true}) {
        --ranges;
        Box part = box;
        if (!above) {
          part.kinds[k].high = middle;
        } else if (whole.count == 1) {
          part.kinds[k].low = middle;
        } else {  // the slowest of them
          --part.kinds[k].count;
          part.kinds.insert(part.kinds.begin() + static_cast<std::ptrdiff_t>(k), {1, middle, whole.high});
          part.at.repeat(k, count());
        }
        if (!narrow(part, known)) continue;
        raise(part, known, steps, work);
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
  [[nodiscard]] std::size_t count() const { return instance_.options(); }

  // Micro-batches whose seconds lie in one range.
  struct Kind {
    int count = 1;
    double low = 0;
    double high = 0;
  };
  // The ways in which documents are charged for their part of a group, beside their device-seconds: by their tokens,
  // and one of the longest, in the order of their classes, for all of it.
  static constexpr std::size_t most_alone = 24;
  static constexpr std::size_t charges = 1 + most_alone;

  // Of every kind.
  struct Multipliers {
    Multipliers() = default;
    Multipliers(std::size_t kinds, std::size_t options)
        : theta(kinds * options * charges, 0), lambda(kinds, 1), rho(kinds, 0) {}
    void repeat(std::size_t k, std::size_t options) {
      const auto from = theta.begin() + static_cast<std::ptrdiff_t>(k * options * charges);
      const std::vector<double> own(from, from + static_cast<std::ptrdiff_t>(options * charges));
      theta.insert(from, own.begin(), own.end());
      lambda.insert(lambda.begin() + static_cast<std::ptrdiff_t>(k), lambda[k]);
      rho.insert(rho.begin() + static_cast<std::ptrdiff_t>(k), rho[k]);
    }
    std::vector<double> theta;  // (kinds, options, charges) shares; the rest is by device-seconds
    std::vector<double> lambda;
    std::vector<double> rho;  // of the known seconds

    // All, one after the other.
    [[nodiscard]] std::size_t size() const { return theta.size() + 2 * lambda.size(); }
    [[nodiscard]] double& at(std::size_t i) {
      if (i < theta.size()) return theta[i];
      i -= theta.size();
      return i < lambda.size() ? lambda[i] : rho[i - lambda.size()];
    }
  };
  // Kinds of micro-batches, the slowest first.
  struct Box {
    double bound;
    std::vector<Kind> kinds;
    Multipliers at;  // where the bound was the highest
    bool operator<(const Box& other) const { return bound > other.bound; }
  };

  static std::size_t widest(const Box& box) {
    std::size_t out = 0;
    for (std::size_t k = 1; k < box.kinds.size(); ++k)
      if (box.kinds[k].high - box.kinds[k].low > box.kinds[out].high - box.kinds[out].low) out = k;
    return out;
  }
  // Narrows ranges to what the others leave of the known seconds, and to their order. False when nothing is left.
  static bool narrow(Box& box, double known) {
    std::vector<Kind>& kinds = box.kinds;
    for (std::size_t k = kinds.size() - 1; k > 0; --k) kinds[k - 1].low = std::max(kinds[k - 1].low, kinds[k].low);
    double all = 0;
    for (const Kind& kind : kinds) all += kind.count * kind.low;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      kinds[k].high = std::min(kinds[k].high, known - (all - kinds[k].low));
      if (k > 0) kinds[k].high = std::min(kinds[k].high, kinds[k - 1].high);
      if (kinds[k].high < kinds[k].low) return false;
    }
    if (kinds.size() == 2 && kinds[1].count == 1) kinds[1].low = std::max(kinds[1].low, box.bound - kinds[0].high);
    box.bound = std::max(box.bound, all);
    return kinds.back().high >= kinds.back().low;
  }

  // Of a kind of micro-batch and an option.
  struct Column {
    std::size_t first = 0;  // class that fits
    double full = 0;        // seconds of N devices that a group has at least
    double token = 0;       // of them, those of a token where all are charged by tokens
  };

  void find_columns(const Box& box) const {
    columns_.clear();
    for (const Kind& kind : box.kinds)
      for (int o = 0; o < options(); ++o) {
        Column& column = columns_.emplace_back();
        column.first = static_cast<std::size_t>(
            std::ranges::partition_point(
                classes_, [&](const Class& one) { return !instance_.fits(o, one.document, kind.high); }) -
            classes_.begin());
        column.full = instance_.degree(o) * (kind.low - least_fixed_) / instance_.devices();
        column.token = column.full / static_cast<double>(instance_.capacity(o));
      }
  }

  // Raises the bound of a box by subgradient steps on its multipliers.
  void raise(Box& box, double known, int steps, std::int64_t& work) const {
    const double b = least_fixed_;
    const double held = instance_.devices() * instance_.device_capacity();
    const std::size_t kinds = box.kinds.size();
    const std::size_t options = count();
    const std::size_t size = classes_.size();
    const std::size_t alone = std::min(most_alone, size);
    find_columns(box);
    Multipliers now = box.at;
    std::vector<double> area(columns_.size()), tokens(columns_.size());  // what classes take of each
    double length = first_step;
    const double shorter = std::pow(last_step / first_step, 1.0 / steps);
    std::vector<double> slope(now.size());     // in the order of Multipliers::at
    std::vector<double> mean(slope.size());    // of slopes, the latest counting most
    std::vector<double> square(slope.size());  // of their squares
    double mean_weight = 1;
    double square_weight = 1;
    for (int turn = 0; turn < steps; ++turn) {
      work -= static_cast<std::int64_t>(columns_.size() * (size + 4 * charges));
      least_.assign(size, infinite);
      at_.assign(size, 0);
      for (std::size_t j = 0; j < columns_.size(); ++j) {
        const Column& column = columns_[j];
        const std::size_t k = j / options;
        const double* const theta = &now.theta[j * charges];
        double by_area = now.lambda[k];
        for (std::size_t f = 0; f < charges; ++f) by_area -= now.lambda[k] * theta[f];
        const double by_tokens = now.lambda[k] * theta[0] * column.token + now.rho[k] * known / held;
        const double* const areas = areas_.data() + j % options * size;
        const auto number = static_cast<double>(j);
        for (std::size_t c = column.first; c < alone; ++c) {
          const double value = by_area * areas[c] + by_tokens * tokens_[c] + now.lambda[k] * theta[1 + c] * column.full;
          at_[c] = value < least_[c] ? number : at_[c];
          least_[c] = value < least_[c] ? value : least_[c];
        }
        for (std::size_t c = std::max(column.first, alone); c < size; ++c) {
          const double value = by_area * areas[c] + by_tokens * tokens_[c];
          at_[c] = value < least_[c] ? number : at_[c];
          least_[c] = value < least_[c] ? value : least_[c];
        }
      }
      if (least_.front() == infinite) {  // the longest fits nowhere
        box.bound = known;
        return;
      }
      double bound = 0;
      std::ranges::fill(area, 0);
      std::ranges::fill(tokens, 0);
      for (std::size_t c = 0; c < size; ++c) {
        const auto j = static_cast<std::size_t>(at_[c]);
        const double times = classes_[c].count;
        bound += least_[c] * times;
        area[j] += areas_[j % options * size + c] * times;
        tokens[j] += tokens_[c] * times;
      }
      double* const lambda_slope = &slope[now.theta.size()];
      double* const rho_slope = lambda_slope + kinds;
      for (std::size_t k = 0; k < kinds; ++k) {
        const Kind& kind = box.kinds[k];
        const double end = now.lambda[k] > 1 ? kind.high : kind.low;
        bound += kind.count * (now.lambda[k] * b + (1 - now.lambda[k]) * end - now.rho[k] * known);
        lambda_slope[k] = kind.count * (b - end);
        rho_slope[k] = -kind.count * known;
        for (std::size_t j = k * options; j < (k + 1) * options; ++j) {
          rho_slope[k] += tokens[j] * known / held;
          lambda_slope[k] += area[j];
          for (std::size_t f = 0; f < charges; ++f) {
            double& own = slope[j * charges + f];
            own = 0;
            const bool is_alone = f > 0;
            if (is_alone && (f > alone || classes_[f - 1].count > 1)) continue;
            const double charged = !is_alone                              ? columns_[j].token * tokens[j]
                                   : at_[f - 1] == static_cast<double>(j) ? columns_[j].full
                                                                          : 0;
            lambda_slope[k] += now.theta[j * charges + f] * (charged - area[j]);
            own = now.lambda[k] * (charged - area[j]);
            if (own < 0 && now.theta[j * charges + f] <= 0) own = 0;  // it stays where it is
          }
        }
      }
      if (bound > box.bound) {
        box.bound = bound;
        box.at = now;
        if (bound >= known) return;
      }
      // Steps by the mean of the last slopes over the root of their mean square (Adam, Kingma and Ba 2015), ever
      // shorter.
      mean_weight *= keeps_mean;
      square_weight *= keeps_square;
      for (std::size_t i = 0; i < slope.size(); ++i) {
        mean[i] = keeps_mean * mean[i] + (1 - keeps_mean) * slope[i];
        square[i] = keeps_square * square[i] + (1 - keeps_square) * slope[i] * slope[i];
        const double root = std::sqrt(square[i] / (1 - square_weight));
        if (root > 0) now.at(i) = std::max(0.0, now.at(i) + length * mean[i] / (1 - mean_weight) / root);
      }
      for (std::size_t j = 0; j < columns_.size(); ++j) {
        const std::span theta(&now.theta[j * charges], charges);
        const double all = std::accumulate(theta.begin(), theta.end(), 0.0);
        if (all > 1)
          for (double& one : theta) one /= all;
      }
      length *= shorter;
    }
  }
  static constexpr double first_step = 0.15;
  static constexpr double last_step = 0.004;
  static constexpr double keeps_mean = 0.7;
  static constexpr double keeps_square = 0.95;

  const Instance& instance_;
  std::vector<Class> classes_;
  std::vector<double> areas_;   // (options, classes) seconds of N devices
  std::vector<double> tokens_;  // (classes)
  double least_fixed_ = 0;      // of a group
  double least_seconds_ = 0;    // of a micro-batch
  double area_ = 0;
  double soonest_ = 0;
  int least_parts_ = 1;
  mutable std::vector<Column> columns_;  // of one box, (kinds, options)
  // Of one step, (classes): the least that a class takes, and the column.
  mutable std::vector<double> least_, at_;
};

}  // namespace galvatron::flexsp
