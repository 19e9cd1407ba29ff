// Curve: how long one operator takes on each number of devices that it may have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron::spindle {

inline constexpr int most_devices = 1 << 20;

/// Seconds of one operator on each valid number of devices. Devices ascend and seconds descend: a number of devices
/// that is no faster than a smaller one is left out.
struct Curve {
  std::vector<int> devices;
  std::vector<double> seconds;

  [[nodiscard]] std::size_t size() const { return devices.size(); }
  /// The place of `count`, or size() where it is no valid number.
  [[nodiscard]] std::size_t find(int count) const {
    const auto at = std::ranges::lower_bound(devices, count);
    return at != devices.end() && *at == count ? static_cast<std::size_t>(at - devices.begin()) : size();
  }
  [[nodiscard]] double fastest() const { return seconds.back(); }

  /// A valid number of devices larger than those so far; dropped unless it is faster.
  void add(int count, double seconds_of_operator) {
    if (!seconds.empty() && !(seconds_of_operator < seconds.back())) return;
    devices.push_back(count);
    seconds.push_back(seconds_of_operator);
  }
};

/// The curve of the fastest of several ways to run an operator (strategies inside a MetaOp), and which one each number
/// of devices takes.
struct FastestCurve {
  Curve curve;
  std::vector<int> choices;  ///< of the ways, for each count of the curve
};

inline FastestCurve fastest_of(const std::vector<Curve>& ways) {
  struct Option {
    int devices;
    double seconds;
    int way;
  };
  std::vector<Option> options;
  for (std::size_t w = 0; w < ways.size(); ++w)
    for (std::size_t i = 0; i < ways[w].size(); ++i)
      options.push_back({ways[w].devices[i], ways[w].seconds[i], static_cast<int>(w)});
  std::ranges::sort(options, {}, [](const Option& o) { return std::tuple(o.devices, o.seconds, o.way); });
  FastestCurve out;
  for (const Option& option : options) {
    out.curve.add(option.devices, option.seconds);
    if (out.curve.size() > out.choices.size()) out.choices.push_back(option.way);
  }
  return out;
}

/// Numbers of devices that have equal shares of a batch: degree * d for the divisors d of the batch, up to `devices`.
/// @param degree  devices inside a data-parallel rank (tensor and sequence degrees)
inline std::vector<int> valid_counts(std::int64_t batch, int devices, int degree = 1) {
  std::vector<int> out;
  for (std::int64_t d = 1; d <= batch && d * degree <= devices; ++d)
    if (batch % d == 0) out.push_back(static_cast<int>(d * degree));
  return out;
}

/// T(n) = fixed + per_sample * batch / n on the valid counts: the form that Spindle's released planner fits.
inline Curve linear_curve(std::int64_t batch, double fixed, double per_sample, int devices) {
  Curve out;
  for (const int n : valid_counts(batch, devices)) {
    const std::int64_t samples = batch / n;  // of a device
    out.add(n, fixed + per_sample * static_cast<double>(samples));
  }
  return out;
}

/// A curve through measured points (devices, seconds): between two of them T(n) = a + b / n, Spindle's equation with
/// work that shrinks with n and work that does not; outside them the nearest piece goes on, never below 0.
/// Errors (usage): no points, devices that do not ascend, seconds below 0; a single point that is not the only count.
/// @param counts  ascending valid numbers of devices, at least one
inline Result<Curve> piecewise_curve(const std::vector<std::pair<int, double>>& points,
                                     const std::vector<int>& counts) {
  if (points.empty()) return usage_error("a scaling curve needs a measured point");
  for (std::size_t i = 0; i < points.size(); ++i)
    if (points[i].first < 1 || !(points[i].second >= 0) || (i > 0 && points[i].first <= points[i - 1].first))
      return usage_error("points of a scaling curve: devices must ascend from 1 and seconds be at least 0");
  if (points.size() == 1 && (counts.size() != 1 || counts.front() != points.front().first))
    return usage_error(text_of("one point, on ", points.front().first,
                               " devices, says nothing of other numbers of devices; measure a second one"));
  Curve out;
  std::size_t piece = 0;
  for (const int n : counts) {
    while (piece + 2 < points.size() && points[piece + 1].first <= n) ++piece;
    double seconds = points[piece].second;
    if (piece + 1 < points.size()) {
      const double left = 1.0 / points[piece].first;
      const double slope = (seconds - points[piece + 1].second) / (left - 1.0 / points[piece + 1].first);
      seconds = std::max(0.0, seconds + slope * (1.0 / n - left));
    }
    out.add(n, seconds);
  }
  return out;
}

}  // namespace galvatron::spindle
