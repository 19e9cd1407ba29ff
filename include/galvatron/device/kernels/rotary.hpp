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

}  // namespace galvatron::device::kernels
