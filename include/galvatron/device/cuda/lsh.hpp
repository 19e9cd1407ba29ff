// Hashing of rows; means of buckets, and what goes back from buckets to tokens. See Device of each name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/buckets.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/lsh.hpp>

namespace galvatron::device::cuda {

/// A block a row and hash: the row in shared memory.
template <class T>
struct RotateBySigns {
  static constexpr int most_threads = 256;
  kernels::CrossPolytope hashing;
  std::int64_t rows, width, padded;
  const T* x;
  const float* signs;
  float* v;

  GALVATRON_KERNEL void operator()(auto& block) const {
    auto* y = reinterpret_cast<float*>(block.shared());
    for (std::int64_t at = block.index(); at < rows * hashing.hashes; at += block.blocks()) {
      const T* from = x + at / hashing.hashes * width;
      const float* sign = signs + at % hashing.hashes * kernels::CrossPolytope::rounds * padded;
      for (std::int64_t i = block.thread(); i < padded; i += block.threads())
        y[i] = i < width ? kernels::get(from[i]) : 0.0F;
      for (int round = 0; round < kernels::CrossPolytope::rounds; ++round) {
        block.sync();
        for (std::int64_t i = block.thread(); i < padded; i += block.threads()) y[i] *= sign[round * padded + i];
        for (std::int64_t distance = 1; distance < padded; distance *= 2) {
          block.sync();
          for (std::int64_t i = block.thread(); i < padded / 2; i += block.threads()) {
            const std::int64_t low = 2 * i - (i & (distance - 1));
            kernels::butterfly(y[low], y[low + distance]);
          }
        }
      }
      block.sync();
      for (std::int64_t i = block.thread(); i < hashing.width; i += block.threads()) v[at * hashing.width + i] = y[i];
      block.sync();
    }
  }
};

struct HashRows {
  kernels::CrossPolytope hashing;
  const float* v;
  std::int32_t* codes;
  GALVATRON_KERNEL void operator()(std::int64_t i) const { codes[i] = hashing.code(v + i * hashing.width); }
};

/// Calls work(bucket, pack of its row) for all buckets that there are, each once; a block takes a bucket at a time.
template <class F>
struct ForBuckets {
  static constexpr int most_threads = 256;
  TokenBuckets b;
  std::int64_t packs;
  F work;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t buckets = b.bounds.data[b.experts];
    for (std::int64_t j = block.index(); j < buckets; j += block.blocks())
      for (std::int64_t i = block.thread(); i < packs; i += block.threads()) work(j, i);
  }
};

template <class T>
struct BucketSums {
  static constexpr int size = Pack<T>::size;
  static constexpr int at_once = 4;  ///< rows that a thread loads before it adds them
  TokenBuckets b;
  std::int64_t width;
  bool packed, mean;
  const float* weights;  ///< null: 1
  const T* x;
  T* sums;
  GALVATRON_KERNEL void operator()(std::int64_t j, std::int64_t i) const {
    const std::int64_t at = i * size;
    const std::int32_t begin = b.begins.data[j];
    const std::int32_t end = b.begins.data[j + 1];
    float sum[size] = {};
    for (std::int32_t first = begin; first < end; first += at_once) {
      Pack<T> packs[at_once];
      float factors[at_once];
      const auto row_of = [&](int m) {
        const bool is_member = first + m < end;
        const std::int32_t choice = is_member ? b.order.data[b.members.data[first + m]] : 0;
        factors[m] = !is_member || weights == nullptr ? 1.0F : weights[choice];
        return RestOfRow<T>{x + choice / b.active * width + at, is_member ? width - at : 0};
      };
      load_packs(packed, row_of, packs);
      for (int m = 0; m < at_once; ++m)
        for (int l = 0; l < size; ++l) sum[l] += factors[m] * packs[m].get(l);
    }
    const auto count = static_cast<float>(mean ? end - begin : 1);
    store_pack(Pack<T>::of([&](int l) { return sum[l] / count; }), sums + j * width, at, width, packed);
  }
};

/// The gain of a bucket's expert.
GALVATRON_KERNEL float gain_of(const TokenBuckets& b, const ResidualGain& gain, std::int64_t bucket) {
  if (gain.of_expert.data == nullptr) return gain.of_all;
  return gain.of_expert.data[first_where(0, b.experts, [&](std::int64_t e) { return b.bounds.data[e + 1] > bucket; })];
}

/// The bucket of a choice, -1 where it is dropped.
GALVATRON_KERNEL std::int64_t bucket_of(const TokenBuckets& b, const std::int32_t* places, std::int64_t choice) {
  return places[choice] < 0 ? -1 : b.bucket.data[places[choice]];
}

template <class T>
struct CombineBuckets {
  static constexpr int size = Pack<T>::size;
  TokenBuckets b;
  std::int64_t width;
  bool packed;
  ResidualGain gain;
  const std::int32_t* places;
  const float* weights;  ///< null: 1
  const T* e;
  const T* x;
  const T* c;
  T* y;
  GALVATRON_KERNEL void operator()(std::int64_t token, std::int64_t i) const {
    const std::int64_t at = i * size;
    float sum[size] = {};
    for (std::int64_t choice = token * b.active; choice < (token + 1) * b.active; ++choice) {
      const std::int64_t bucket = bucket_of(b, places, choice);
      if (bucket < 0) continue;
      const float weight = weights != nullptr ? weights[choice] : 1.0F;
      const float g = gain_of(b, gain, bucket);
      Pack<T> packs[3];  // of e, x and c
      const auto row_of = [&](int p) {
        const T* from = p == 0 ? e + bucket * width : p == 1 ? x + token * width : c + bucket * width;
        return RestOfRow<T>{from + at, p == 0 || g != 0 ? width - at : 0};
      };
      load_packs(packed, row_of, packs);
      for (int l = 0; l < size; ++l) sum[l] += weight * (packs[0].get(l) + g * (packs[1].get(l) - packs[2].get(l)));
    }
    store_pack(Pack<T>::of(sum), y + token * width, at, width, packed);
  }
};

template <class T>
struct CombineBucketsBackward {
  static constexpr int size = Pack<T>::size;
  TokenBuckets b;
  std::int64_t width;
  bool packed;
  ResidualGain gain;
  const std::int32_t* places;
  const float* weights;  ///< null: 1
  const T* dy;
  const T* dc;
  const T* s;
  T* dx;
  GALVATRON_KERNEL void operator()(std::int64_t token, std::int64_t i) const {
    const std::int64_t at = i * size;
    float sum[size] = {};
    for (std::int64_t choice = token * b.active; choice < (token + 1) * b.active; ++choice) {
      const std::int64_t bucket = bucket_of(b, places, choice);
      if (bucket < 0) continue;
      const auto count = static_cast<float>(b.begins.data[bucket + 1] - b.begins.data[bucket]);
      const float g = count > 1 ? gain_of(b, gain, bucket) : 0;  // a row alone is its mean: both terms are the same
      const float weight = g * (weights != nullptr ? weights[choice] : 1.0F);
      Pack<T> packs[3];  // of dy, dc and s
      const auto row_of = [&](int p) {
        return RestOfRow<T>{(p == 0 ? dy + token * width : (p == 1 ? dc : s) + bucket * width) + at, width - at};
      };
      load_packs(packed, row_of, packs);
      for (int l = 0; l < size; ++l)
        sum[l] += weight * packs[0].get(l) + (packs[1].get(l) - g * packs[2].get(l)) / count;
    }
    store_pack(Pack<T>::of(sum), dx + token * width, at, width, packed);
  }
};

/// A team a choice.
template <class T>
struct BucketWeightsBackward {
  static constexpr int most_threads = 512;
  static constexpr int kept = 2;  ///< packs of a row for a thread
  static constexpr int size = Pack<T>::size;
  Teams teams;
  TokenBuckets b;
  std::int64_t width;
  bool packed;
  ResidualGain gain;
  const std::int32_t* places;
  const T* e;
  const T* x;
  const T* c;
  const T* dy;
  float* d_weights;

  GALVATRON_KERNEL void operator()(auto& block) const {
    int turn = 0;
    for (std::int64_t choice = teams.first_row(block); choice < teams.rows; choice += teams.row_step(block)) {
      const std::int64_t bucket = bucket_of(b, places, choice);
      const std::int64_t token = choice / b.active;
      const float g = bucket < 0 ? 0.0F : gain_of(b, gain, bucket);
      float sum[1] = {};
      for (std::int64_t at = teams.rank(block) * size; bucket >= 0 && at < width; at += teams.threads * size) {
        Pack<T> packs[4];  // of dy, e, x and c
        const auto row_of = [&](int p) {
          const T* from = p == 0   ? dy + token * width
                          : p == 1 ? e + bucket * width
                          : p == 2 ? x + token * width
                                   : c + bucket * width;
          return RestOfRow<T>{from + at, p < 2 || g != 0 ? width - at : 0};
        };
        load_packs(packed, row_of, packs);
        for (int l = 0; l < size; ++l)
          sum[0] += packs[0].get(l) * (packs[1].get(l) + g * (packs[2].get(l) - packs[3].get(l)));
      }
      teams.sum(block, sum, turn);
      if (teams.rank(block) == 0) d_weights[choice] = sum[0];
    }
  }
};

/// A block an expert, and a warp a row of it.
template <class T>
struct GainBackward {
  static constexpr int most_threads = 512;
  static constexpr int size = Pack<T>::size;
  TokenBuckets b;
  std::int64_t width;
  bool packed;
  const float* weights;  ///< null: 1
  const T* x;
  const T* c;
  const T* dy;
  float* d_gains;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{b.rows, warp_threads};
    for (std::int64_t expert = block.index(); expert < b.experts; expert += block.blocks()) {
      double all = 0;
      for (std::int64_t row = b.offsets.data[expert] + warps.team(block); row < b.offsets.data[expert + 1];
           row += warps.teams(block)) {
        const std::int32_t choice = b.order.data[row];
        const std::int64_t token = choice / b.active * width;
        const std::int64_t bucket = b.bucket.data[row] * width;
        float of_row = 0;
        for (std::int64_t at = warps.rank(block) * size; at < width; at += warp_threads * size) {
          Pack<T> packs[3];  // of dy, x and c
          const auto row_of = [&](int p) {
            return RestOfRow<T>{(p == 0 ? dy + token : p == 1 ? x + token : c + bucket) + at, width - at};
          };
          load_packs(packed, row_of, packs);
          for (int l = 0; l < size; ++l) of_row += packs[0].get(l) * (packs[1].get(l) - packs[2].get(l));
        }
        all += static_cast<double>(weights != nullptr ? weights[choice] : 1.0F) * static_cast<double>(of_row);
      }
      all = block_sum(block, all);
      if (block.thread() == 0) d_gains[expert] += static_cast<float>(all);
    }
  }
};

/// A warp a row; two sums of a block, and then those of all.
template <class T>
struct BucketDistances {
  static constexpr int most_threads = 256;
  static constexpr int size = Pack<T>::size;
  TokenBuckets b;
  std::int64_t width;
  bool packed;
  const T* x;
  const T* c;
  double* of_blocks;  ///< (2, blocks)
  double* sums;       ///< (4): the squares, rows and buckets
  std::uint32_t* ticket;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{rows_of(b), warp_threads};
    double all[2] = {};
    for (std::int64_t row = warps.first_row(block); row < warps.rows; row += warps.row_step(block)) {
      const T* own = x + b.order.data[row] / b.active * width;
      const T* mean = c + b.bucket.data[row] * width;
      float of_row[2] = {};
      for (std::int64_t at = warps.rank(block) * size; at < width; at += warp_threads * size) {
        Pack<T> packs[2];
        load_packs(packed, [&](int p) { return RestOfRow<T>{(p == 0 ? own : mean) + at, width - at}; }, packs);
        for (int l = 0; l < size; ++l) {
          const float value = packs[0].get(l);
          const float away = value - packs[1].get(l);
          of_row[0] += away * away;
          of_row[1] += value * value;
        }
      }
      for (int i = 0; i < 2; ++i) all[i] += static_cast<double>(of_row[i]);
    }
    for (int i = 0; i < 2; ++i) {
      const double of_block = block_sum(block, all[i]);
      if (block.thread() == 0) of_blocks[i * block.blocks() + block.index()] = of_block;
    }
    if (!is_last_block(block, ticket, block.blocks())) return;
    for (int i = 0; i < 2; ++i) AddTotal{block.blocks(), of_blocks + i * block.blocks(), sums + i}(block);
    if (block.thread() == 0) {
      sums[2] += static_cast<double>(rows_of(b));
      sums[3] += static_cast<double>(b.bounds.data[b.experts]);
    }
  }
};

/// *sum += sign * seconds, by one thread.
struct AddTime {
  static constexpr int most_threads = warp_threads;
  double sign;
  double* sum;
  GALVATRON_KERNEL void operator()(auto& block) const {
    if (block.thread() == 0) *sum += sign * (1e-9 * static_cast<double>(block.nanoseconds()));
  }
};
inline void add_time(auto& launcher, double sign, double* sum) {
  launcher.launch({.blocks = 1, .threads = warp_threads}, AddTime{sign, sum});
}

/// Throws DeviceFailure for rows that do not fit the shared memory of a block.
template <class T>
void rotate_by_signs(auto& launcher, const kernels::CrossPolytope& hashing, std::int64_t rows, std::int64_t width,
                     const T* x, const float* signs, float* v) {
  constexpr std::int64_t most_bytes = 96 << 10;
  const std::int64_t padded = kernels::CrossPolytope::padded(width);
  const std::int64_t bytes = padded * static_cast<std::int64_t>(sizeof(float));
  if (bytes > most_bytes)
    throw DeviceFailure("rows of " + std::to_string(width) +
                        " elements are too wide for Hadamard transforms on a GPU; draw rotations instead");
  if (rows == 0) return;
  Geometry geometry = over_rows(rows * hashing.hashes, divide_up(padded, 2), RotateBySigns<T>::most_threads);
  geometry.blocks = std::min(geometry.blocks, 4 * most_blocks);
  geometry.shared_bytes = bytes;
  launcher.launch(geometry, RotateBySigns<T>{hashing, rows, width, padded, x, signs, v});
}

inline void hash_rows(auto& launcher, const kernels::CrossPolytope& hashing, std::int64_t rows, const float* v,
                      std::int32_t* codes) {
  for_each(launcher, rows * hashing.hashes, HashRows{hashing, v, codes});
}

template <class T>
void bucket_sums(auto& launcher, const TokenBuckets& b, std::int64_t width, bool mean, const float* weights, const T* x,
                 T* sums) {
  if (b.rows == 0) return;
  using Work = BucketSums<T>;
  const std::int64_t packs = divide_up(width, Work::size);
  Geometry geometry = over_rows(b.rows, packs, ForBuckets<Work>::most_threads);
  geometry.blocks = std::min(geometry.blocks, 4 * most_blocks);
  launcher.launch(geometry,
                  ForBuckets<Work>{b, packs, {b, width, is_packed<T>(width, x, sums), mean, weights, x, sums}});
}

/// Throws DeviceFailure when the sums of blocks exceed the scratch memory.
template <class T>
void bucket_distances(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, const TokenBuckets& b,
                      std::int64_t width, const T* x, const T* c, double* sums) {
  if (b.rows == 0) return;
  using Kernel = BucketDistances<T>;
  Geometry geometry = in_blocks(b.rows, warp_threads, Kernel::most_threads / warp_threads, 2048).geometry;
  geometry.blocks = partials_within(scratch, 2 * sizeof(double), geometry.blocks);
  launcher.launch(geometry, Kernel{b, width, is_packed<T>(width, x, c), x, c, reinterpret_cast<double*>(scratch.data),
                                   sums, tickets});
}

template <class T>
void combine_buckets(auto& launcher, const TokenBuckets& b, std::int64_t tokens, std::int64_t width,
                     const ResidualGain& gain, const std::int32_t* places, const float* weights, const T* e, const T* x,
                     const T* c, T* y) {
  for_rows(launcher, tokens, divide_up(width, Pack<T>::size),
           CombineBuckets<T>{b, width, is_packed<T>(width, e, x, c, y), gain, places, weights, e, x, c, y});
}

template <class T>
void bucket_weights_backward(auto& launcher, const TokenBuckets& b, std::int64_t tokens, std::int64_t width,
                             const ResidualGain& gain, const std::int32_t* places, const T* e, const T* x, const T* c,
                             const T* dy, float* d_weights) {
  if (tokens == 0) return;
  using Kernel = BucketWeightsBackward<T>;
  const bool packed = is_packed<T>(width, e, x, c, dy);
  const auto share =
      share_rows(tokens * b.active, divide_up(width, Kernel::size), packed, Kernel::kept, Kernel::most_threads);
  launcher.launch(share.geometry, Kernel{share.teams, b, width, packed, gain, places, e, x, c, dy, d_weights});
}

template <class T>
void gain_backward(auto& launcher, const TokenBuckets& b, std::int64_t width, const float* weights, const T* x,
                   const T* c, const T* dy, float* d_gains) {
  using Kernel = GainBackward<T>;
  if (b.rows > 0)
    launcher.launch({.blocks = std::min(b.experts, most_blocks), .threads = Kernel::most_threads},
                    Kernel{b, width, is_packed<T>(width, x, c, dy), weights, x, c, dy, d_gains});
}

template <class T>
void combine_buckets_backward(auto& launcher, const TokenBuckets& b, std::int64_t tokens, std::int64_t width,
                              const ResidualGain& gain, const std::int32_t* places, const float* weights, const T* dy,
                              const T* dc, const T* s, T* dx) {
  for_rows(
      launcher, tokens, divide_up(width, Pack<T>::size),
      CombineBucketsBackward<T>{b, width, is_packed<T>(width, dy, dc, s, dx), gain, places, weights, dy, dc, s, dx});
}

}  // namespace galvatron::device::cuda
