// Programs and ratios that fit into the memory of every device.
//
// A program holds `a` bytes on every device and B_j b bytes more on device j: tensors until their backward pass, and
// parameters with their gradients and moments. So B_j <= (L_j - a) / b. HAP knows no memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/hap/dynamic_program.hpp>
#include <galvatron/hap/instance.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/prices.hpp>
#include <galvatron/hap/ratios.hpp>

namespace galvatron::hap {

/// Whether a program of these terms fits at these ratios. Devices without memory given hold everything.
inline bool fits(const Devices& devices, const Terms& terms, const Ratios& ratios) {
  for (std::size_t j = 0; j < devices.memory.size(); ++j)
    if (terms.whole_bytes + terms.sharded_bytes * ratios[j] > devices.memory[j] * (1 + 1e-12)) return false;
  return true;
}

namespace detail {

/// The best ratios of one program, min W u + M v with B_j <= min(u F_j, v, c_j), where c_j is what its memory allows.
/// The corners (u, v) of that set are where two of the three limits of a device are equal.
class RatiosInMemory {
 public:
  explicit RatiosInMemory(const Devices& devices) : devices_(devices) {
    std::map<std::pair<double, double>, double> counts;
    for (std::size_t j = 0; j < devices.count(); ++j) counts[{devices.flops[j], devices.memory[j]}] += 1;
    for (const auto& [kind, count] : counts) kinds_.push_back({kind.first, kind.second, count, 0});
  }

  /// Nothing where no ratios fit.
  [[nodiscard]] std::optional<Ratios> operator()(const Terms& terms) {
    for (Kind& kind : kinds_) {
      const double left = kind.memory - terms.whole_bytes;
      if (left < 0) return std::nullopt;
      kind.most = terms.sharded_bytes > 0 ? left / terms.sharded_bytes : 1;
    }
    best_ = std::numeric_limits<double>::infinity();
    for (const Kind& own : kinds_) {
      const double capped =
          fill([&](const Kind& k) { return std::min(k.speed, own.speed); }, [](const Kind& k) { return k.most; });
      offer(terms, capped, capped * own.speed);
      const double held =
          fill([](const Kind& k) { return k.speed; }, [&](const Kind& k) { return std::min(k.most, own.most); });
      offer(terms, held, own.most);
      const double work = own.most / own.speed;
      const double level =
          fill([](const Kind&) { return 1.0; }, [&](const Kind& k) { return std::min(k.speed * work, k.most); });
      offer(terms, work, level);
    }
    if (best_ == std::numeric_limits<double>::infinity()) return std::nullopt;
    Ratios out;
    for (std::size_t j = 0; j < devices_.count(); ++j) {
      const auto kind = std::ranges::find_if(
          kinds_, [&](const Kind& k) { return k.speed == devices_.flops[j] && k.memory == devices_.memory[j]; });
      out.push_back(std::min({work_ * kind->speed, level_, kind->most}));
    }
    const double sum = std::accumulate(out.begin(), out.end(), 0.0);  // 1 but for rounding
    for (double& ratio : out) ratio /= sum;
    return out;
  }

 private:
  struct Kind {
    double speed;
    double memory;
    double count;
    double most;  // c_j
  };

  // The least x with sum of min(x rate, limit) >= 1 over all devices; infinite where there is none.
  template <class Rate, class Limit>
  [[nodiscard]] double fill(const Rate& rate, const Limit& limit) const {
    std::vector<std::pair<double, const Kind*>> ends;  // where each is full
    double slope = 0;
    double full = 0;
    for (const Kind& kind : kinds_) {
      ends.emplace_back(limit(kind) / rate(kind), &kind);
      slope += kind.count * rate(kind);
    }
    std::ranges::sort(ends);
    for (const auto& [end, kind] : ends) {
      if (full + slope * end >= 1) break;
      full += kind->count * limit(*kind);
      slope -= kind->count * rate(*kind);
      if (kind == ends.back().second) return full >= 1 - 1e-12 ? end : std::numeric_limits<double>::infinity();
    }
    return (1 - full) / slope;
  }
  void offer(const Terms& terms, double work, double level) {
    double sum = 0;
    for (const Kind& kind : kinds_) sum += kind.count * std::min({work * kind.speed, level, kind.most});
    const double seconds = terms.sharded_flops * work + terms.ratio_seconds * level;
    if (!(sum >= 1 - 1e-9) || seconds >= best_) return;
    best_ = seconds;
    work_ = work;
    level_ = level;
  }

  const Devices& devices_;
  std::vector<Kind> kinds_;
  double best_ = 0;
  double work_ = 0;   // u
  double level_ = 0;  // v
};

/// The search behind best_in_memory. All devices together hold m a + b bytes, whatever the ratios: with a price for
/// them (Lagrange) the best programs at the corners bound all programs that fit, and some of them fit. What is between
/// the two is searched with labels (W, M, K, a, b).
class MemorySearch {
 public:
  MemorySearch(const Instance& instance, SearchLimits limits)
      : instance_(instance),
        devices_(instance.prices().devices()),
        limits_(limits),
        ratios_in_memory_(devices_),
        corners_(corner_ratios(devices_.flops)),
        total_(std::accumulate(devices_.memory.begin(), devices_.memory.end(), 0.0)) {}

  std::optional<Answer> operator()() {
    price_memory();
    if (!best_ || bound_ < best_->seconds * (1 - 1e-9)) search_labels();
    if (best_) best_->bound = std::min(bound_, best_->seconds);
    return best_;
  }

 private:
  using Search = DynamicProgram<5>;
  static constexpr int doublings = 80;
  static constexpr int halvings = 30;
  static constexpr std::size_t most_labels = 300'000;  // of all operations: some seconds
  static constexpr double rounding = 1e-12;            // of a difference of large numbers

  [[nodiscard]] double count() const { return static_cast<double>(devices_.count()); }
  [[nodiscard]] double total_of(const Terms& terms) const { return count() * terms.whole_bytes + terms.sharded_bytes; }
  [[nodiscard]] RatioPoint point(const Ratios& corner, double price) const {
    RatioPoint out = point_of(devices_, corner);
    out.whole_byte = price * count();
    out.sharded_byte = price;
    return out;
  }
  void offer(const Program& program, const Terms& terms) {
    const auto ratios = ratios_in_memory_(terms);
    if (!ratios) return;
    const double seconds = point_of(devices_, *ratios).seconds(terms);
    if (!best_ || seconds < best_->seconds) best_ = Answer{*ratios, program, seconds, 0};
  }
  // Whether all the best programs at a price fit into all memory together.
  bool is_enough(double price) {
    double least = std::numeric_limits<double>::infinity();
    bool enough = true;
    for (const Ratios& corner : corners_) {
      double own = 0;
      const auto found =
          FixedRatios(instance_, corner, point(corner, price)).below(std::numeric_limits<double>::infinity(), {}, own);
      if (!found) return true;
      const Terms terms = value_or_throw(terms_of(instance_.prices(), found->program));
      offer(found->program, terms);
      enough = enough && fits_anyhow(terms);
      least = std::min(least, own);
    }
    const double own_bound = least - price * total_ * (1 + rounding);
    if (own_bound > bound_) {
      bound_ = own_bound;
      price_ = price;
    }
    return enough;
  }
  [[nodiscard]] bool fits_anyhow(const Terms& terms) {
    return total_of(terms) <= total_ && ratios_in_memory_(terms).has_value();
  }
  void price_memory() {
    is_enough(0);
    double high = bound_ / total_;
    double low = 0;
    for (int turn = 0; turn < doublings && !is_enough(high); ++turn, high *= 4) low = high;
    for (int turn = 0; turn < halvings; ++turn) {
      const double middle = (low + high) / 2;
      (is_enough(middle) ? high : low) = middle;
    }
  }

  static Terms terms_of_label(const Search::Price& p) {
    Terms out;
    out.sharded_flops = p[0];
    out.ratio_seconds = p[1];
    out.seconds = p[2];
    out.whole_bytes = p[3];
    out.sharded_bytes = p[4];
    return out;
  }
  void search_labels() {
    const double slowest = devices_.slowest();
    Search search(
        instance_,
        [&](const Terms& t) {
          return Search::Price{t.sharded_flops, t.ratio_seconds, t.seconds + t.replicated_flops / slowest,
                               t.whole_bytes, t.sharded_bytes};
        },
        [&](const Search::Price& price, std::size_t i, double) { return least_seconds(terms_of_label(price), i); });
    for (const Ratios& corner : corners_) {
      points_.push_back(point(corner, price_));
      rests_.push_back(instance_.rest_seconds(points_.back()));
    }
    RatioPoint bytes;
    bytes.whole_byte = count();
    bytes.sharded_byte = 1;
    const std::vector<double> rest_bytes = instance_.rest_seconds(bytes);
    const double least_memory = *std::ranges::min_element(devices_.memory);
    SearchLimits limits = limits_;
    limits.labels = std::min(limits.labels, std::max(most_labels / instance_.items().size(), std::size_t{1}));
    search.run(limits, [&](const Search::Price& price, std::size_t i, double) {
      const Terms terms = terms_of_label(price);
      if (terms.whole_bytes > least_memory || total_of(terms) + rest_bytes[i + 1] > total_) return true;
      return best_ && least_seconds(terms, i) >= best_->seconds * (1 - 1e-12);
    });
    for (const Search::Label& label : search.finals()) {
      const Terms terms = terms_of_label(label.price);
      const auto ratios = ratios_in_memory_(terms);
      if (!ratios) continue;
      const double seconds = point_of(devices_, *ratios).seconds(terms);
      if (!best_ || seconds < best_->seconds)
        best_ = Answer{*ratios, program_of(instance_, search.decisions(label)), seconds, 0};
    }
    const double most = best_ ? best_->seconds : std::numeric_limits<double>::infinity();
    bound_ = std::max(bound_, std::min(search.least_dropped(), most));
  }
  // Of complete programs that begin with a label and fit.
  [[nodiscard]] double least_seconds(const Terms& terms, std::size_t i) const {
    double out = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < points_.size(); ++c)
      out = std::min(out, points_[c].seconds(terms) + rests_[c][i + 1] - price_ * total_);
    return out;
  }

  const Instance& instance_;
  const Devices& devices_;
  SearchLimits limits_;
  RatiosInMemory ratios_in_memory_;
  std::vector<Ratios> corners_;
  double total_;
  double bound_ = 0;
  double price_ = 0;  // of a byte, that of the bound
  std::optional<Answer> best_;
  std::vector<RatioPoint> points_;
  std::vector<std::vector<double>> rests_;
};

}  // namespace detail

/// The best program and ratios, CostModel::operations, that fit into the devices' memory. Nothing where none do, or, if
/// the search was not complete, where none was found.
inline std::optional<Answer> best_in_memory(const Instance& instance,
                                            SearchLimits limits = {.states = 500, .labels = 5'000}) {
  auto best = best_program_and_ratios(instance);
  const Devices& devices = instance.prices().devices();
  if (!best || devices.memory.empty()) return best;
  if (fits(devices, value_or_throw(terms_of(instance.prices(), best->program)), best->ratios)) return best;
  return detail::MemorySearch(instance, limits)();
}

}  // namespace galvatron::hap
