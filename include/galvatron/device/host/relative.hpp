// Biases of attention by the distance of key and query, from a table of buckets.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/device/kernels/relative.hpp>

namespace galvatron::device::host {

namespace detail {

/// Calls f(place among the distances, row of the table).
template <class F>
void for_each_distance(const RelativePositions& relative, const F& f) {
  for (std::int64_t i = 0; i < relative.distances(); ++i)
    f(i, kernels::relative_bucket(i + 1 - relative.tokens, relative.buckets, RelativePositions::far, relative.causal));
}

}  // namespace detail

/// bias (heads, distances) from the table (buckets, heads).
template <class T>
void relative_bias_forward(const RelativePositions& relative, std::int64_t heads, const T* table, float* bias) {
  detail::for_each_distance(relative, [&](std::int64_t i, std::int64_t bucket) {
    for (std::int64_t a = 0; a < heads; ++a)
      bias[a * relative.distances() + i] = kernels::get(table[bucket * heads + a]);
  });
}

/// dtable (buckets, heads) += the sums of dbias (heads, distances) over the distances of a bucket.
inline void relative_bias_backward(const RelativePositions& relative, std::int64_t heads, const float* dbias,
                                   float* dtable) {
  detail::for_each_distance(relative, [&](std::int64_t i, std::int64_t bucket) {
    for (std::int64_t a = 0; a < heads; ++a) dtable[bucket * heads + a] += dbias[a * relative.distances() + i];
  });
}

}  // namespace galvatron::device::host
