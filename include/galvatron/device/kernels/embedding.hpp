// Which row of a table tokens and distances read, and rotary position embedding (Su et al. 2021), a pair at a time.
#pragma once

#include <cmath>
#include <cstdint>

#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// The row of `token` in a shard that holds tokens [first, first + count), or -1.
GALVATRON_HD GALVATRON_INLINE std::int64_t shard_row(std::int32_t token, std::int64_t first, std::int64_t count) {
  const std::int64_t row = token - first;
  return row >= 0 && row < count ? row : -1;
}

/// T5's bucket of the distance key - query (Raffel et al., 2020): half of the buckets of a direction for one distance
/// each, the others for runs that grow by a constant factor up to `far`. Two directions share the buckets: keys that
/// follow have the second half. With one, all keys that follow are as near as the query itself.
GALVATRON_HD inline std::int64_t relative_bucket(std::int64_t distance, std::int64_t buckets, std::int64_t far,
                                                 bool one_direction) {
  const std::int64_t n = one_direction ? buckets : buckets / 2;
  const std::int64_t first = !one_direction && distance > 0 ? n : 0;
  if (one_direction && distance > 0) distance = 0;
  const std::int64_t away = distance < 0 ? -distance : distance;
  const std::int64_t exact = n / 2;
  if (exact == 0) return first;
  if (away < exact || exact >= far) return first + (away < n ? away : n - 1);
  const double grown = std::log(static_cast<double>(away) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(far) / static_cast<double>(exact));
  const auto behind = exact + static_cast<std::int64_t>(grown * static_cast<double>(n - exact));
  return first + (behind < n ? behind : n - 1);
}

/// How fast rotary positions turn pairs: theta^(-2j / head_dim) radians from one position to the next. Where they are
/// scaled (RotaryScaling), pairs whose place is `high` or beyond turn `factor` times slower, those up to `low`, or
/// before it, do not, and those between in proportion. A pair's place is j, or with `turns` how often it turns; `high`
/// is the lower one then. What is turned is multiplied by `amplitude`. Where positions turn a part of a head, theta's
/// exponent is -j / turned, and pairs from `turned` on stay as they are.
struct RotaryFrequencies {
  double theta;
  double factor = 1;
  double low = 0, high = 1;
  double turns = 0;  ///< of a pair of one radian a position within those of the first training; 0: places are j
  float amplitude = 1;
  long long turned = 0;  ///< pairs; 0: all of a head

  GALVATRON_HD constexpr RotaryFrequencies(double base) : theta(base) {}
};

/// The radians by which pair j of a head of `head_dim` turns from one position to the next.
GALVATRON_HD inline double rotary_frequency(const RotaryFrequencies& f, long long j, long long head_dim) {
  if (f.turned > 0 && j >= f.turned) return 0;
  const long long width = f.turned > 0 ? 2 * f.turned : head_dim;
  const double plain = std::exp(-2.0 * static_cast<double>(j) / static_cast<double>(width) * std::log(f.theta));
  if (f.factor == 1) return plain;
  const double place = f.turns > 0 ? f.turns * plain : static_cast<double>(j);
  const double share = (place - f.low) / (f.high - f.low);
  const double slow = share < 0 ? 0.0 : share > 1 ? 1.0 : share;
  return plain * (1 - slow + slow / f.factor);
}

/// Turns elements j and j + head_dim/2 of a head by the angle of this cosine and sine.
GALVATRON_HD GALVATRON_INLINE void rotate(float& first, float& second, float cosine, float sine) {
  const float turned = first * cosine - second * sine;
  second = second * cosine + first * sine;
  first = turned;
}

struct Turn {
  float cosine, sine;
};

/// Of an angle in turns of 2 pi, to 1.2e-7, whatever the turns: only what is left of them after the nearest quarter,
/// an eighth at most, goes into the polynomials, those of the least greatest error in x^2 (4e-9 and 1e-10).
GALVATRON_HD inline Turn turn(double turns) {
  const double quarters = 4.0 * turns;
  const double nearest = std::rint(quarters);
  const auto x = static_cast<float>((quarters - nearest) * 1.57079632679489662);
  const float z = x * x;
  const float s = x + x * z * (-1.666665499e-1F + z * (8.332180398e-3F - z * 1.951752853e-4F));
  const float c = 1.0F - (0.5F * z - z * z * (4.166664711e-2F + z * (-1.388737730e-3F + z * 2.443941071e-5F)));
  const auto quarter = static_cast<long long>(nearest) & 3;
  const float cosine = quarter % 2 == 0 ? c : s;
  const float sine = quarter % 2 == 0 ? s : c;
  return {quarter == 1 || quarter == 2 ? -cosine : cosine, quarter >= 2 ? -sine : sine};
}

}  // namespace galvatron::device::kernels
