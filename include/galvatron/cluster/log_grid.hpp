// Measured seconds on a grid of extents, read between the points in logarithms.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace galvatron {

/// Seconds over D extents (a GEMM's m, n, k; a message's bytes). Between grid points log(seconds) is multilinear in the
/// logarithms of the extents, so that a power law is met exactly; at a grid point it is the value given. Below the
/// first point of an axis the value stays; beyond the last it grows with a power that the caller names. The result is
/// positive and never falls when an extent grows: where the measured values do, the largest of the smaller extents
/// counts.
template <int D>
class LogGrid {
 public:
  using Axis = std::vector<std::int64_t>;
  using Axes = std::array<Axis, D>;

  LogGrid() = default;
  /// `seconds` in row-major order of the axes, the last axis fastest. Requires problem(axes, seconds).empty().
  LogGrid(Axes axes, std::vector<double> seconds) : axes_(std::move(axes)), seconds_(std::move(seconds)) {
    for (int d = 0; d < D; ++d) {
      logs_[d].resize(axes_[d].size());
      for (std::size_t i = 0; i < axes_[d].size(); ++i) logs_[d][i] = std::log(static_cast<double>(axes_[d][i]));
    }
    std::size_t stride = 1;
    for (int d = D - 1; d >= 0; stride *= axes_[d].size(), --d) strides_[d] = stride;
    values_ = seconds_;
    for (int d = 0; d < D; ++d)
      for (std::size_t i = 0; i < values_.size(); ++i)
        if (i / strides_[d] % axes_[d].size() != 0) values_[i] = std::max(values_[i], values_[i - strides_[d]]);
    for (double& value : values_) value = std::log(value);
  }

  /// What is wrong with a grid, in words; empty when nothing is.
  static std::string problem(const Axes& axes, const std::vector<double>& seconds) {
    std::size_t points = 1;
    for (const Axis& axis : axes) {
      if (axis.empty() || axis.size() > 256)
        return "an axis has " + std::to_string(axis.size()) + " points; it needs 1 to 256";
      for (std::size_t i = 0; i < axis.size(); ++i) {
        if (axis[i] < 1) return "an axis holds " + std::to_string(axis[i]) + "; extents are at least 1";
        if (i > 0 && axis[i] <= axis[i - 1])
          return "an axis holds " + std::to_string(axis[i]) + " after " + std::to_string(axis[i - 1]) +
                 "; extents must rise";
      }
      points *= axis.size();
    }
    if (points != seconds.size())
      return "the axes span " + std::to_string(points) + " points and there are " + std::to_string(seconds.size()) +
             " values; give one value a point";
    for (const double value : seconds)
      if (!(value >= 1e-12 && value <= 1e6))
        return "a time of " + std::to_string(value) + " s; times lie between 1e-12 and 1e6 s";
    return {};
  }

  [[nodiscard]] constexpr const Axes& axes() const { return axes_; }
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }
  [[nodiscard]] bool empty() const { return seconds_.empty(); }
  friend bool operator==(const LogGrid& a, const LogGrid& b) { return a.axes_ == b.axes_ && a.seconds_ == b.seconds_; }

  /// Seconds at these extents; beyond the last point of axis d they grow as extent^growth[d].
  [[nodiscard]] constexpr double operator()(const std::array<double, D>& extents,
                                            const std::array<double, D>& growth) const {
    std::array<std::size_t, D> cell{};
    std::array<double, D> weight{};
    double beyond = 0;
    for (int d = 0; d < D; ++d) {
      const std::vector<double>& axis = logs_[d];
      const double x = std::log(std::max(extents[d], 1.0));
      if (x >= axis.back()) {
        cell[d] = axis.size() - 1;
        beyond += growth[d] * (x - axis.back());
      } else if (x > axis.front()) {
        cell[d] = static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin()) - 1;
        weight[d] = (x - axis[cell[d]]) / (axis[cell[d] + 1] - axis[cell[d]]);
      }
    }
    double sum = beyond;
    for (unsigned corner = 0; corner < (1U << D); ++corner) {
      double share = 1;
      std::size_t at = 0;
      for (int d = 0; d < D; ++d) {
        const bool upper = (corner >> d & 1U) != 0;
        share *= upper ? weight[d] : 1 - weight[d];
        at += (cell[d] + (upper ? 1 : 0)) * strides_[d];
      }
      if (share > 0) sum += share * values_[at];
    }
    return std::exp(sum);
  }

 private:
  Axes axes_;
  std::vector<double> seconds_;
  std::array<std::vector<double>, D> logs_;
  std::array<std::size_t, D> strides_{};
  std::vector<double> values_;  // log of seconds_ made monotone
};

}  // namespace galvatron
