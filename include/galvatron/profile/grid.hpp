// Grids of the host profiler: which points are measured, and how those that would take too long are filled in.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/cluster/log_grid.hpp>
#include <galvatron/rank/stopwatch.hpp>

namespace galvatron::train::detail {

/// Seconds on a grid under construction; NaN where nothing was measured.
template <int D>
struct MeasuredGrid {
  typename LogGrid<D>::Axes axes;
  std::vector<double> seconds;

  explicit MeasuredGrid(typename LogGrid<D>::Axes grid_axes) : axes(std::move(grid_axes)) {
    std::size_t points = 1;
    for (const auto& axis : axes) points *= axis.size();
    seconds.assign(points, std::numeric_limits<double>::quiet_NaN());
  }
  [[nodiscard]] std::size_t stride(int d) const {
    std::size_t stride = 1;
    for (int i = D - 1; i > d; --i) stride *= axes[static_cast<std::size_t>(i)].size();
    return stride;
  }
  [[nodiscard]] std::size_t index(std::size_t point, int d) const {
    return point / stride(d) % axes[static_cast<std::size_t>(d)].size();
  }
  [[nodiscard]] std::array<std::int64_t, D> extents(std::size_t point) const {
    std::array<std::int64_t, D> out{};
    for (int d = 0; d < D; ++d) out[static_cast<std::size_t>(d)] = axes[static_cast<std::size_t>(d)][index(point, d)];
    return out;
  }

  /// Points without a value follow their lower neighbours by extent^growth; the smallest point must have one. Then
  /// falling values are evened out along every axis.
  [[nodiscard]] LogGrid<D> finish(const std::array<double, D>& growth) const {
    std::vector<double> logs(seconds.size());
    for (std::size_t point = 0; point < seconds.size(); ++point) {
      if (seconds[point] > 0) {
        logs[point] = std::log(seconds[point]);
        continue;
      }
      double sum = 0;
      int neighbours = 0;
      for (int d = 0; d < D; ++d) {
        const auto axis = static_cast<std::size_t>(d);
        const std::size_t i = index(point, d);
        if (i == 0) continue;
        sum += logs[point - stride(d)] +
               growth[axis] * std::log(static_cast<double>(axes[axis][i]) / static_cast<double>(axes[axis][i - 1]));
        ++neighbours;
      }
      logs[point] = neighbours > 0 ? sum / neighbours : std::log(1e-7);
    }
    for (int sweep = 0; sweep < 4; ++sweep)
      for (int d = 0; d < D; ++d)
        for (std::size_t point = 0; point < logs.size(); ++point)
          if (index(point, d) == 0) make_rise(&logs[point], axes[static_cast<std::size_t>(d)].size(), stride(d));
    std::vector<double> out(logs.size());
    for (std::size_t i = 0; i < logs.size(); ++i) out[i] = std::exp(logs[i]);
    return LogGrid<D>(axes, std::move(out));
  }
};

}  // namespace galvatron::train::detail
