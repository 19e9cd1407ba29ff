// What Hetu-Galvatron's profilers measured: a network, and one kind of layer with the two ends of its model. Plain
// values; compat/hetu/files.hpp reads them. Milliseconds, and MB of 2^20 bytes, as in those profiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>

namespace galvatron::cost::hetu {

/// intercept + slope * x.
struct Line {
  double slope = 0;
  double intercept = 0;
  [[nodiscard]] double at(double x) const { return intercept + slope * x; }
};

/// Milliseconds of a collective over the MB of its message: what was measured, a least-squares line elsewhere.
struct MessageTimes {
  std::map<double, double> measured;
  Line line;
  [[nodiscard]] double at(double megabytes) const {
    const auto exact = measured.find(megabytes);
    return exact == measured.end() ? line.at(megabytes) : exact->second;
  }
};

/// A network. Groups are named by their size.
struct Hardware {
  std::map<std::pair<int, bool>, double> bandwidth;  ///< GB/s of all-reduce; (group, ranks are consecutive)
  std::map<int, double> between_stages;              ///< GB/s of send and receive, by pipeline degree
  std::map<int, MessageTimes> all_reduce;            ///< by group
  std::map<int, MessageTimes> all_to_all;            ///< by group
  double overlap = 1;  ///< how much computation and communication slow each other down; at least 1
};

/// Embedding and head, or one of them: MB by tensor-parallel degree.
struct EndProfile {
  std::map<int, double> states;      ///< parameters, gradients and optimizer
  std::map<int, double> activation;  ///< of a sample
};

/// A model at one length of sequence. Forward milliseconds of b samples over q tensor- or sequence-parallel ranks are
/// `layer.at(b / q)`, those of embedding and head together `ends.at(b / q)`.
struct ModelProfile {
  Line layer;
  Line ends;
  double parameters = 0;             ///< MB of a layer in fp32
  std::map<int, double> activation;  ///< MB of a layer and a sample, by degree
  double checkpoint = 0;             ///< the same when the layer is recomputed
  EndProfile whole;                  ///< embedding and head on the one stage
  EndProfile first;                  ///< the embedding on the first of several
  EndProfile last;                   ///< the head on the last
};

namespace detail {

/// Coefficients c[0] + c[1] x + ... of the polynomial of least squares through `points` (x, y). The points have at
/// least `degree` + 1 different x. x is scaled by its largest, so that the normal equations stay well-conditioned.
inline std::vector<double> least_squares(std::span<const std::pair<double, double>> points, std::size_t degree) {
  long double scale = 0;
  for (const auto& [x, y] : points) scale = std::max(scale, std::fabs(static_cast<long double>(x)));
  const std::size_t n = degree + 1;
  std::vector<std::vector<long double>> a(n, std::vector<long double>(n + 1, 0));
  for (const auto& [x, y] : points) {
    std::vector<long double> power(2 * n, 1);
    for (std::size_t i = 1; i < power.size(); ++i) power[i] = power[i - 1] * (x / scale);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) a[i][j] += power[i + j];
      a[i][n] += power[i] * y;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {  // Gauss-Jordan with pivots
    std::size_t pivot = i;
    for (std::size_t k = i + 1; k < n; ++k)
      if (std::fabs(a[k][i]) > std::fabs(a[pivot][i])) pivot = k;
    std::swap(a[i], a[pivot]);
    for (std::size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const long double factor = a[k][i] / a[i][i];
      for (std::size_t j = i; j <= n; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  std::vector<double> out(n);
  long double unit = 1;
  for (std::size_t i = 0; i < n; ++i, unit *= scale) out[i] = static_cast<double>(a[i][n] / a[i][i] / unit);
  return out;
}

}  // namespace detail

/// The line of least squares through measured messages (MB, ms); through the origin with one point, zero with none.
inline MessageTimes message_times(std::map<double, double> measured) {
  MessageTimes out;
  const std::vector<std::pair<double, double>> points(measured.begin(), measured.end());
  if (points.size() >= 2) {
    const auto c = detail::least_squares(points, 1);
    out.line = {c[1], c[0]};
  } else if (points.size() == 1) {
    out.line = {points[0].second / points[0].first, 0};
  }
  out.measured = std::move(measured);
  return out;
}

/// One row of a profile of computation: forward milliseconds of a sample.
struct TimePoint {
  std::int64_t batch = 1;     ///< samples of the run
  std::int64_t sequence = 1;  ///< tokens of a sample
  double milliseconds = 0;
};

/// How times at the wanted batch come from the profile.
enum class TimeMode {
  batch,     ///< a line over the batch, at the wanted sequence; at least 8 points
  sequence,  ///< a parabola over the sequence (a line for the ends), at batch 1
  fixed,     ///< the one point of the sequence; the largest batch if there are several. "static" in Hetu
};

/// The line over b/q of one part of the model. Errors (usage): not enough points; `part` and `source` name them.
inline Result<Line> time_line(std::span<const TimePoint> profile, TimeMode mode, std::int64_t sequence, bool of_layer,
                              const std::string& source) {
  const std::string part = of_layer ? "layertype_0" : "layertype_other";
  if (mode == TimeMode::fixed) {
    const TimePoint* best = nullptr;
    for (const TimePoint& p : profile)
      if (p.sequence == sequence && (best == nullptr || p.batch > best->batch)) best = &p;
    if (best != nullptr) return Line{best->milliseconds, 0};
    return usage_error(text_of(source, ": no time of ", part, " at sequence length ", sequence,
                               "; profile it, or choose --time-mode sequence"));
  }
  const bool over_batch = mode == TimeMode::batch;
  std::vector<std::pair<double, double>> points;
  std::set<double> different;
  for (const TimePoint& p : profile) {
    if (over_batch ? p.sequence != sequence : p.batch != 1) continue;
    const auto x = static_cast<double>(over_batch ? p.batch : p.sequence);
    points.emplace_back(x, over_batch ? x * p.milliseconds : p.milliseconds);
    different.insert(x);
  }
  const std::size_t degree = !over_batch && of_layer ? 2 : 1;
  const std::size_t least = over_batch ? 8 : degree + 1;
  if (different.size() < least)
    return usage_error(text_of(
        source, ": ", points.size(),
        over_batch ? text_of(" batch sizes of ", part, " at sequence length ", sequence,
                             ", and a line over the batch needs at least 8")
                   : text_of(" sequence lengths of ", part, " at batch size 1, and at least ", least, " are needed"),
        "; profile more, or choose another --time-mode"));
  const auto c = detail::least_squares(points, degree);
  if (over_batch) return Line{c[1], c[0]};
  double slope = 0;
  for (std::size_t i = c.size(); i-- > 0;) slope = slope * static_cast<double>(sequence) + c[i];
  return Line{slope, 0};
}

}  // namespace galvatron::cost::hetu
