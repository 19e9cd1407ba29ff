// Biases of attention by the distance of key and query, from a table of buckets.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::cuda {

/// kernels::relative_bucket of the distances of a sequence. Those of near ones come from the host, whose logarithms may
/// round to another side of a bucket's bound than the GPU's; far ones need no logarithm.
class Buckets {
 public:
  explicit Buckets(const RelativePositions& relative)
      : tokens_(relative.tokens), count_(relative.buckets), one_direction_(relative.causal || relative.buckets < 2) {
    const auto bucket_of = [&](std::int64_t away) {
      return kernels::relative_bucket(-away, count_, RelativePositions::far, one_direction_);
    };
    for (std::int64_t away = 0; away < near; ++away) near_[away] = static_cast<std::int32_t>(bucket_of(away));
    last_ = bucket_of(std::max(near, count_));
    one_each_ = bucket_of(near) == near;
  }

  /// Distances [first, last) of the list, which has all from 1 - tokens on.
  struct Range {
    std::int64_t first;
    std::int64_t last;
  };

  [[nodiscard]] GALVATRON_KERNEL std::int64_t distances() const { return 2 * tokens_ - 1; }
  /// Of the distance at place i of the list.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t at(std::int64_t i) const {
    const std::int64_t distance = i + 1 - tokens_;
    if (distance <= 0) return before(-distance);
    return one_direction_ ? before(0) : count_ / 2 + before(distance);
  }
  /// All distances of a bucket.
  [[nodiscard]] GALVATRON_KERNEL Range of(std::int64_t bucket) const {
    const std::int64_t self = tokens_ - 1;  // the place of distance 0
    if (one_direction_ || bucket < count_ / 2) {
      const std::int64_t nearest = first_of(bucket);
      const std::int64_t last = one_direction_ && bucket == before(0) ? distances() : self - nearest + 1;
      return {self - first_of(bucket + 1) + 1, last};
    }
    const std::int64_t nearest = first_of(bucket - count_ / 2);
    return {self + (nearest > 0 ? nearest : 1), self + first_of(bucket - count_ / 2 + 1)};
  }

 private:
  static constexpr std::int64_t near = RelativePositions::far;

  /// The bucket of a key so far before the query.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t before(std::int64_t away) const {
    if (away < near) return near_[away];
    return one_each_ && away < last_ ? away : last_;
  }
  /// The nearest key before the query in this bucket or a later one; `tokens` when there is none.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t first_of(std::int64_t bucket) const {
    std::int64_t low = 0;
    std::int64_t high = tokens_;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (before(middle) < bucket)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  std::int64_t tokens_;
  std::int64_t count_;
  std::int64_t last_;  ///< of the buckets of a direction
  bool one_direction_;
  bool one_each_;  ///< near distances have buckets of their own, and so have others up to the last
  std::int32_t near_[near];
};

/// A thread takes a distance, for all heads.
template <class T>
struct SpreadBiases {
  Buckets buckets;
  std::int64_t heads;
  const T* table;
  float* bias;

  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const T* row = table + buckets.at(i) * heads;
    for (std::int64_t a = 0; a < heads; ++a) bias[a * buckets.distances() + i] = kernels::get(row[a]);
  }
};

/// A block adds up one element of the table.
struct GatherBiases {
  static constexpr int most_threads = 128;
  Buckets buckets;
  std::int64_t elements;  ///< of the table
  std::int64_t heads;
  const float* dbias;
  float* dtable;

  GALVATRON_KERNEL void operator()(auto& block) const {
    for (std::int64_t element = block.index(); element < elements; element += block.blocks()) {
      const Buckets::Range range = buckets.of(element / heads);
      const float* row = dbias + element % heads * buckets.distances();
      float sum = 0;
      for (std::int64_t i = range.first + block.thread(); i < range.last; i += block.threads()) sum += row[i];
      sum = block_sum(block, sum);
      if (block.thread() == 0) dtable[element] += sum;
    }
  }
};

/// bias (heads, distances), float, from the table (buckets, heads).
template <class T>
void relative_bias_forward(auto& launcher, const RelativePositions& relative, std::int64_t heads, const T* table,
                           float* bias) {
  for_each(launcher, relative.tokens > 0 ? relative.distances() : 0,
           SpreadBiases<T>{Buckets(relative), heads, table, bias});
}

/// dtable (buckets, heads) += the sums of dbias (heads, distances) over the distances of a bucket.
void relative_bias_backward(auto& launcher, const RelativePositions& relative, std::int64_t heads, const float* dbias,
                            float* dtable) {
  const std::int64_t elements = relative.buckets * heads;
  if (elements == 0 || relative.tokens == 0) return;
  launcher.launch(over_rows(elements, relative.distances(), GatherBiases::most_threads),
                  GatherBiases{Buckets(relative), elements, heads, dbias, dtable});
}

}  // namespace galvatron::device::cuda
