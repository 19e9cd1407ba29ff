// Rotary position embedding (Su et al. 2021), one pair at a time.
#pragma once

#include <cmath>

#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::kernels {

/// The radians by which pair j of a head of `head_dim` turns from one position to the next: theta^(-2j / head_dim).
GALVATRON_HD inline double rotary_frequency(double theta, long long j, long long head_dim) {
  return std::exp(-2.0 * static_cast<double>(j) / static_cast<double>(head_dim) * std::log(theta));
}

struct Rotated {
  float first;
  float second;
};

/// Elements j and j + head_dim/2 of a head, turned by the angle of this cosine and sine.
GALVATRON_HD GALVATRON_INLINE Rotated rotate(float first, float second, float cosine, float sine) {
  return {first * cosine - second * sine, second * cosine + first * sine};
}

/// The cosine and the sine of an angle.
struct Turn {
  float cosine;
  float sine;
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
  switch (static_cast<long long>(nearest) & 3) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

}  // namespace galvatron::device::kernels
