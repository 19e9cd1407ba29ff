// Ratios for a program that is given: how much of every sharded dimension each device gets.
//
// Without replicated work the price of a program is W u + M v + constants (prices.hpp), and all B with
// sum_j min(u F_j, v) >= 1 are possible. The corners of that set are the ratios that are proportional to min(F_j, f),
// one for the speed f of each kind of device: the best ratios of any program are among them. With stages it takes
//
//     sum_i [ c_i + M_i max_j B_j + max_j (r_i + s_i B_j) / F_j ]                          (HAP, section 4.4)
//
// a linear program. Its dual is solved exactly without a solver for linear programs, see StageRatios.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <galvatron/hap/prices.hpp>

namespace galvatron::hap {

/// The ratios among which those of least cost are, if no stage has replicated work beside sharded: one vector for each
/// distinct speed, from proportional to even.
inline std::vector<Ratios> corner_ratios(const std::vector<double>& flops) {
  std::vector<double> speeds = flops;
  std::ranges::sort(speeds, std::greater());
  speeds.erase(std::ranges::unique(speeds).begin(), speeds.end());
  std::vector<Ratios> out;
  for (const double speed : speeds) {
    std::vector<double> capped;
    for (const double f : flops) capped.push_back(std::min(f, speed));
    out.push_back(proportional_ratios(capped));
  }
  return out;
}

/// One collective and the computation up to the next one.
struct Stage {
  int segment = 0;              ///< with ratios of its own
  double seconds = 0;           ///< of the collective, whatever the ratios
  double ratio_seconds = 0;     ///< of it, times the largest ratio
  double replicated_flops = 0;  ///< on every device
  double sharded_flops = 0;     ///< of which device j computes B_j
};

/// Seconds of a stage.
inline double seconds_of(const Stage& stage, const std::vector<double>& flops, const Ratios& ratios) {
  double slowest = 0;
  double largest = 0;
  for (std::size_t j = 0; j < flops.size(); ++j) {
    slowest = std::max(slowest, (stage.replicated_flops + stage.sharded_flops * ratios[j]) / flops[j]);
    largest = std::max(largest, ratios[j]);
  }
  return stage.seconds + stage.ratio_seconds * largest + slowest;
}

namespace detail {

/// The best ratios of the stages of one segment.
///
/// Let rho_i = r_i / s_i. Stage i takes s_i t_i with B_j <= t_i F_j - rho_i for all j: its line over the speeds lies
/// above the ratios, and so does the horizontal line B_j <= v. The dual problem gives every line
/// multipliers y_ij, whose sum on each device is at least `price`:
///
///     max  sum_ij rho_i y_ij + price    with  sum_j F_j y_ij = s_i,  sum_j y_vj = M,  sum_i y_ij + y_vj >= price
///
/// At a given price the best multipliers are found greedily: those of the horizontal line go to the fastest devices,
/// then those of the lines in the order of rho, and what is left goes to the slowest. The optimum over the price is
/// that of a concave function of one number with linear pieces, whose tangents follow from these multipliers. The
/// ratios are the tight lines of the two pieces that meet there.
class StageRatios {
 public:
  StageRatios(const std::vector<double>& flops, const std::vector<Stage>& stages) : flops_(flops) {
    const double most = *std::ranges::max_element(flops);
    std::map<double, double> counts;
    for (const double f : flops) counts[f / most] += 1;
    for (const auto& [speed, count] : counts) kinds_.push_back({speed, count});
    std::map<double, double> merged;
    double horizontal = 0;
    for (const Stage& stage : stages) {
      horizontal += stage.ratio_seconds;
      if (stage.sharded_flops > 0) merged[stage.replicated_flops / stage.sharded_flops] += stage.sharded_flops / most;
    }
    lines_.push_back({0, horizontal, true});
    for (const auto& [rho, seconds] : merged) lines_.push_back({rho, seconds, false});
  }

  [[nodiscard]] Ratios solve() const {
    double work = 0;
    for (std::size_t i = 1; i < lines_.size(); ++i) work += lines_[i].amount;
    if (work <= 0 && lines_[0].amount <= 0) return proportional_ratios(flops_);
    const Piece wall = piece_at(highest_price(work));
    if (wall.sum <= 1) return of_kinds(raised(wall));
    Piece low = piece_at(0);
    Piece high = wall;
    for (int turn = 0; turn < most_turns; ++turn) {
      // Where the tangents meet.
      const double gap = (high.value - low.value - (1 - low.sum) * (high.price - low.price)) / (low.sum - high.sum);
      const double price = std::clamp(high.price - gap, low.price, high.price);
      const double met = low.value + (1 - low.sum) * (price - low.price);
      if (price <= low.price || price >= high.price) break;
      Piece middle = piece_at(price);
      if (middle.value >= met * (1 - 1e-15)) break;
      (middle.sum <= 1 ? low : high) = std::move(middle);
    }
    const double share = high.sum > low.sum ? (1 - low.sum) / (high.sum - low.sum) : 0;
    std::vector<double> out(kinds_.size());
    for (std::size_t k = 0; k < out.size(); ++k)
      out[k] = low.ratios[k] + std::clamp(share, 0.0, 1.0) * (high.ratios[k] - low.ratios[k]);
    return of_kinds(out);
  }

 private:
  struct Kind {
    double speed;  // of the fastest
    double count;  // of devices
  };
  struct Line {
    double rho;
    double amount;  // s_i, or M
    bool horizontal;
  };
  // The dual at a price.
  struct Piece {
    double price = 0;
    double value = 0;
    std::vector<std::size_t> tight;  // by kind: the line that goes on to the next faster one
    std::vector<double> ratios;      // by kind: the primal, where the slowest devices have nothing
    double sum = 0;                  // of the ratios of all devices
  };
  static constexpr int most_turns = 1000;

  // Beyond it the multipliers of the lines do not suffice for all devices.
  [[nodiscard]] double highest_price(double work) const {
    double out = std::numeric_limits<double>::infinity();
    double slower = 0;
    double faster = static_cast<double>(flops_.size());
    for (const Kind& kind : kinds_) {
      out = std::min(out, (work + kind.speed * lines_[0].amount) / (kind.speed * faster + slower));
      slower += kind.speed * kind.count;
      faster -= kind.count;
    }
    return out;
  }

  [[nodiscard]] Piece piece_at(double price) const {
    Piece out;
    out.price = price;
    out.tight.resize(kinds_.size());
    std::size_t line = 0;
    double left = lines_[0].amount;
    for (std::size_t k = kinds_.size(); k-- > 0;) {
      double need = price * kinds_[k].count;
      const auto use = [&] {
        const double most = lines_[line].horizontal ? left : left / kinds_[k].speed;
        const double used = std::min(most, need);
        out.value += lines_[line].rho * used;
        need = used < most ? 0 : need - used;
        left = used < most ? left - (lines_[line].horizontal ? used : used * kinds_[k].speed) : 0;
      };
      while (left <= 0 && line + 1 < lines_.size()) left = lines_[++line].amount;
      out.tight[k] = line;
      use();
      while (need > 0 && line + 1 < lines_.size()) {
        left = lines_[++line].amount;
        use();
      }
    }
    out.value += price + lines_[line].rho * left / kinds_.front().speed;
    for (std::size_t i = line + 1; i < lines_.size(); ++i)
      out.value += lines_[i].rho * lines_[i].amount / kinds_.front().speed;
    out.ratios = ratios_from(0, out.tight);
    out.sum = sum_of(out.ratios);
    return out;
  }

  // The ratios of each kind, from that of the slowest along the lines.
  [[nodiscard]] std::vector<double> ratios_from(double slowest, const std::vector<std::size_t>& tight) const {
    std::vector<double> out{slowest};
    for (std::size_t k = 0; k + 1 < kinds_.size(); ++k) {
      const Line& line = lines_[tight[k]];
      out.push_back(line.horizontal ? out[k]
                                    : (out[k] + line.rho) * (kinds_[k + 1].speed / kinds_[k].speed) - line.rho);
    }
    return out;
  }
  [[nodiscard]] double sum_of(const std::vector<double>& ratios) const {
    double sum = 0;
    for (std::size_t k = 0; k < ratios.size(); ++k) sum += ratios[k] * kinds_[k].count;
    return sum;
  }
  // With so much for the slowest that all is given: the sum is linear in it.
  [[nodiscard]] std::vector<double> raised(const Piece& wall) const {
    const double slope = sum_of(ratios_from(1, wall.tight)) - wall.sum;
    return ratios_from((1 - wall.sum) / slope, wall.tight);
  }
  [[nodiscard]] Ratios of_kinds(const std::vector<double>& ratios) const {
    const double most = *std::ranges::max_element(flops_);
    const double sum = sum_of(ratios);  // 1 but for rounding
    Ratios out;
    for (const double f : flops_) {
      const auto at = std::ranges::lower_bound(kinds_, f / most, std::less(), &Kind::speed);
      out.push_back(std::max(0.0, ratios[static_cast<std::size_t>(at - kinds_.begin())]) / sum);
    }
    return out;
  }

  const std::vector<double>& flops_;
  std::vector<Kind> kinds_;  // in ascending order of speed
  std::vector<Line> lines_;  // the horizontal one, then in ascending order of rho
};

}  // namespace detail

/// The best ratios of each segment. They need not be unique.
inline std::vector<Ratios> optimal_ratios(const std::vector<double>& flops, const std::vector<Stage>& stages,
                                          int segments = 1) {
  std::vector<Ratios> out;
  for (int segment = 0; segment < segments; ++segment) {
    std::vector<Stage> own;
    for (const Stage& stage : stages)
      if (stage.segment == segment) own.push_back(stage);
    out.push_back(detail::StageRatios(flops, own).solve());
  }
  return out;
}

}  // namespace galvatron::hap
