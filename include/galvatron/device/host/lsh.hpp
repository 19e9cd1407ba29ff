// Tokens in buckets of those that hash alike: codes, buckets, their means, and what goes back from buckets to tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/loops.hpp>
#include <galvatron/device/kernels/lsh.hpp>

namespace galvatron::device::host {

using kernels::CrossPolytope;

/// Several rows at a time lie side by side, element by element, so that every step is one of vectors.
template <class T>
void rotate_by_signs(const Team& team, const CrossPolytope& hashing, std::int64_t rows, std::int64_t width, const T* x,
                     const float* signs, float* v) {
  constexpr std::int64_t side_by_side = 16;
  const std::int64_t padded = CrossPolytope::padded(width);
  if (side_by_side * padded * static_cast<std::int64_t>(sizeof(float)) > team.scratch_of(0).count)
    throw DeviceFailure("rows of " + std::to_string(width) +
                        " elements are too wide for Hadamard transforms here; draw rotations instead");
  for_runs(team, rows, side_by_side, 32 * hashing.hashes * padded,
           [&](std::int64_t begin, std::int64_t end, int thread) {
             float* const y = reinterpret_cast<float*>(team.scratch_of(thread).data);  // (padded, side_by_side)
             vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
               for (std::int64_t row = begin; row < end; row += side_by_side) {
                 const std::int64_t count = std::min(side_by_side, end - row);
                 for (std::int64_t h = 0; h < hashing.hashes; ++h) {
                   std::fill_n(y, padded * side_by_side, 0.0F);
                   for (std::int64_t r = 0; r < count; ++r)
                     for (std::int64_t i = 0; i < width; ++i)
                       y[i * side_by_side + r] = kernels::get(x[(row + r) * width + i]);
                   for (int round = 0; round < CrossPolytope::rounds; ++round) {
                     const float* sign = signs + (h * CrossPolytope::rounds + round) * padded;
                     for (std::int64_t i = 0; i < padded; ++i)
#pragma omp simd
                       for (std::int64_t r = 0; r < side_by_side; ++r) y[i * side_by_side + r] *= sign[i];
                     for (std::int64_t distance = side_by_side; distance < padded * side_by_side; distance *= 2)
                       for (std::int64_t first = 0; first < padded * side_by_side; first += 2 * distance)
#pragma omp simd
                         for (std::int64_t i = first; i < first + distance; ++i)
                           kernels::butterfly(y[i], y[i + distance]);
                   }
                   for (std::int64_t r = 0; r < count; ++r)
                     for (std::int64_t i = 0; i < hashing.width; ++i)
                       v[(row + r) * hashing.columns() + h * hashing.width + i] = y[i * side_by_side + r];
                 }
               }
             });
           });
}

inline void hash_rows(const Team& team, const CrossPolytope& hashing, std::int64_t rows, const float* v,
                      std::int32_t* codes) {
  for_rows(team, rows, hashing.columns(), [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    for (std::int64_t h = 0; h < hashing.hashes; ++h)
      codes[row * hashing.hashes + h] = hashing.code(v + row * hashing.columns() + h * hashing.width);
  });
}

/// On one thread: numbers by first appearance depend on each other. A place of the table has a bucket, or -1.
inline void number_buckets(const Team&, const CrossPolytope& hashing, const TokenBuckets& b, const std::int32_t* codes,
                           std::int32_t* table) {
  const auto codes_of = [&](std::int32_t row) { return codes + b.order[row] / b.active * hashing.hashes; };
  std::int32_t* const first_row = b.members.data;  // of a bucket, until members take their places
  std::int32_t buckets = 0;
  for (std::int64_t e = 0; e < b.experts; ++e) {
    b.bounds[e] = buckets;
    const std::int64_t places = TokenBuckets::table_places(b.offsets[e + 1] - b.offsets[e]);
    std::fill_n(table, places, -1);
    for (std::int32_t row = b.offsets[e]; row < b.offsets[e + 1]; ++row) {
      std::int64_t place = hashing.mixed(codes_of(row)) & (places - 1);
      while (table[place] >= 0 && !hashing.same(codes_of(first_row[table[place]]), codes_of(row)))
        place = (place + 1) & (places - 1);
      if (table[place] < 0) {
        first_row[buckets] = row;
        b.begins[buckets] = 0;
        table[place] = buckets++;
      }
      b.bucket[row] = table[place];
      ++b.begins[table[place]];
    }
  }
  b.bounds[b.experts] = buckets;
  // Numbers of rows become ends, and these beginnings.
  for (std::int32_t j = 1; j < buckets; ++j) b.begins[j] += b.begins[j - 1];
  const std::int32_t rows = b.offsets[b.experts];
  b.begins[buckets] = rows;
  for (std::int32_t row = rows - 1; row >= 0; --row) b.members[--b.begins[b.bucket[row]]] = row;
}

inline void single_buckets(const Team&, const TokenBuckets& b) {
  const std::int32_t rows = b.offsets[b.experts];
  std::iota(b.bucket.data, b.bucket.data + rows, 0);
  std::iota(b.members.data, b.members.data + rows, 0);
  std::iota(b.begins.data, b.begins.data + rows + 1, 0);
  std::copy_n(b.offsets.data, b.experts + 1, b.bounds.data);
}

inline constexpr std::int64_t bucket_columns = 64;  ///< that are summed at a time

template <class T>
void bucket_sums(const Team& team, const TokenBuckets& b, std::int64_t width, bool mean, const float* weights,
                 const T* x, T* sums) {
  const std::int64_t buckets = b.bounds[b.experts];
  const std::int64_t rows = b.offsets[b.experts];
  for_rows(team, buckets, (rows / std::max<std::int64_t>(buckets, 1) + 1) * width,
           [&](std::int64_t j) GALVATRON_INLINE_LAMBDA {
             const std::int32_t begin = b.begins[j];
             const std::int32_t end = b.begins[j + 1];
             const auto count = static_cast<float>(mean ? end - begin : 1);
             for (std::int64_t first = 0; first < width; first += bucket_columns) {
               const std::int64_t n = std::min(bucket_columns, width - first);
               float sum[bucket_columns] = {};
               for (std::int32_t m = begin; m < end; ++m) {
                 const std::int32_t choice = b.order[b.members[m]];
                 const float weight = weights != nullptr ? weights[choice] : 1.0F;
                 const T* from = x + choice / b.active * width + first;
#pragma omp simd
                 for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * kernels::get(from[i]);
               }
               T* to = sums + j * width + first;
#pragma omp simd
               for (std::int64_t i = 0; i < n; ++i) kernels::put(to[i], sum[i] / count);
             }
           });
}

/// In at most 64 runs of rows, which are added in order, so that the number of threads does not matter.
template <class T>
void bucket_distances(const Team& team, const TokenBuckets& b, std::int64_t width, const T* x, const T* c,
                      double* sums) {
  constexpr std::int64_t most_runs = 64;
  const std::int64_t rows = b.offsets[b.experts];
  const std::int64_t run = divide_up(std::max<std::int64_t>(rows, 1), most_runs);
  double squares[most_runs][2] = {};
  for_rows(team, divide_up(rows, run), run * width, [&]<class S>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
    for (std::int64_t row = i * run; row < std::min(rows, (i + 1) * run); ++row) {
      const T* own = x + b.order[row] / b.active * width;
      const T* mean = c + b.bucket[row] * width;
      squares[i][0] += static_cast<double>(
          sum_over<S>(width, [&]<class L>(typename L::Float& sum, std::int64_t at) GALVATRON_INLINE_LAMBDA {
            typename L::Float a, m;
            get_lanes<L>(own + at, a);
            get_lanes<L>(mean + at, m);
            sum += (a - m) * (a - m);
          }));
      squares[i][1] += static_cast<double>(
          sum_over<S>(width, [&]<class L>(typename L::Float& sum, std::int64_t at) GALVATRON_INLINE_LAMBDA {
            typename L::Float a;
            get_lanes<L>(own + at, a);
            sum += a * a;
          }));
    }
  });
  for (const auto& [distance, square] : squares) {
    sums[0] += distance;
    sums[1] += square;
  }
  sums[2] += static_cast<double>(rows);
  sums[3] += static_cast<double>(b.bounds[b.experts]);
}

/// The gain of a bucket's expert.
GALVATRON_INLINE float gain_of(const TokenBuckets& b, const ResidualGain& gain, std::int32_t bucket) {
  if (gain.of_expert.empty()) return gain.of_all;
  const std::int32_t* const above = std::upper_bound(b.bounds.begin(), b.bounds.end(), bucket);
  return gain.of_expert[above - b.bounds.begin() - 1];
}

/// Calls f(choice, bucket, gain) for the choices of a token that are not dropped, in order.
template <class F>
GALVATRON_INLINE void for_buckets(const TokenBuckets& b, const ResidualGain& gain, const std::int32_t* places,
                                  std::int64_t token, const F& f) {
  for (std::int64_t choice = token * b.active; choice < (token + 1) * b.active; ++choice) {
    if (places[choice] < 0) continue;
    const std::int32_t bucket = b.bucket[places[choice]];
    f(choice, bucket, gain_of(b, gain, bucket));
  }
}

template <class T>
void combine_buckets(const Team& team, const TokenBuckets& b, std::int64_t tokens, std::int64_t width,
                     const ResidualGain& gain, const std::int32_t* places, const float* weights, const T* e, const T* x,
                     const T* c, T* y) {
  for_rows(team, tokens, b.active * width, [&](std::int64_t token) GALVATRON_INLINE_LAMBDA {
    for (std::int64_t first = 0; first < width; first += bucket_columns) {
      const std::int64_t n = std::min(bucket_columns, width - first);
      float sum[bucket_columns] = {};
      for_buckets(b, gain, places, token,
                  [&](std::int64_t choice, std::int64_t bucket, float g) GALVATRON_INLINE_LAMBDA {
                    const float weight = weights != nullptr ? weights[choice] : 1.0F;
                    const T* made = e + bucket * width + first;
                    if (g == 0) {
#pragma omp simd
                      for (std::int64_t i = 0; i < n; ++i) sum[i] += weight * kernels::get(made[i]);
                      return;
                    }
                    const T* own = x + token * width + first;
                    const T* mean = c + bucket * width + first;
#pragma omp simd
                    for (std::int64_t i = 0; i < n; ++i)
                      sum[i] += weight * (kernels::get(made[i]) + g * (kernels::get(own[i]) - kernels::get(mean[i])));
                  });
      T* to = y + token * width + first;
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) kernels::put(to[i], sum[i]);
    }
  });
}

template <class T>
void bucket_weights_backward(const Team& team, const TokenBuckets& b, std::int64_t tokens, std::int64_t width,
                             const ResidualGain& gain, const std::int32_t* places, const T* e, const T* x, const T* c,
                             const T* dy, float* d_weights) {
  std::fill_n(d_weights, tokens * b.active, 0.0F);
  for_rows(team, tokens, b.active * width, [&]<class S>(std::int64_t token) GALVATRON_INLINE_LAMBDA {
    for_buckets(b, gain, places, token, [&](std::int64_t choice, std::int64_t bucket, float g) GALVATRON_INLINE_LAMBDA {
      d_weights[choice] =
          sum_over<S>(width, [&]<class L>(typename L::Float& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
            typename L::Float gradient, made;
            get_lanes<L>(dy + token * width + i, gradient);
            get_lanes<L>(e + bucket * width + i, made);
            if (g != 0) {
              typename L::Float own, mean;
              get_lanes<L>(x + token * width + i, own);
              get_lanes<L>(c + bucket * width + i, mean);
              made += g * (own - mean);
            }
            sum += gradient * made;
          });
    });
  });
}

/// A thread an expert, which adds its rows in order, in double.
template <class T>
void gain_backward(const Team& team, const TokenBuckets& b, std::int64_t width, const float* weights, const T* x,
                   const T* c, const T* dy, float* d_gains) {
  for_rows(team, b.experts, divide_up(b.rows, b.experts) * width,
           [&]<class S>(std::int64_t expert) GALVATRON_INLINE_LAMBDA {
             double sum = 0;
             for (std::int32_t row = b.offsets[expert]; row < b.offsets[expert + 1]; ++row) {
               const std::int32_t choice = b.order[row];
               const std::int64_t token = choice / b.active * width;
               const std::int64_t bucket = b.bucket[row] * width;
               const float dot =
                   sum_over<S>(width, [&]<class L>(typename L::Float& out, std::int64_t i) GALVATRON_INLINE_LAMBDA {
                     typename L::Float gradient, own, mean;
                     get_lanes<L>(dy + token + i, gradient);
                     get_lanes<L>(x + token + i, own);
                     get_lanes<L>(c + bucket + i, mean);
                     out += gradient * (own - mean);
                   });
               sum += static_cast<double>(weights != nullptr ? weights[choice] : 1.0F) * static_cast<double>(dot);
             }
             d_gains[expert] += static_cast<float>(sum);
           });
}

template <class T>
void combine_buckets_backward(const Team& team, const TokenBuckets& b, std::int64_t tokens, std::int64_t width,
                              const ResidualGain& gain, const std::int32_t* places, const float* weights, const T* dy,
                              const T* dc, const T* s, T* dx) {
  for_rows(team, tokens, b.active * width, [&](std::int64_t token) GALVATRON_INLINE_LAMBDA {
    for (std::int64_t first = 0; first < width; first += bucket_columns) {
      const std::int64_t n = std::min(bucket_columns, width - first);
      float sum[bucket_columns] = {};
      for_buckets(b, gain, places, token,
                  [&](std::int64_t choice, std::int64_t bucket, float of_bucket) GALVATRON_INLINE_LAMBDA {
                    const auto count = static_cast<float>(b.begins[bucket + 1] - b.begins[bucket]);
                    const float g = count > 1 ? of_bucket : 0;  // a row alone is its mean: both terms are the same
                    const float weight = g * (weights != nullptr ? weights[choice] : 1.0F);
                    const T* own = dy + token * width + first;
                    const T* of_mean = dc + bucket * width + first;
                    const T* all = s + bucket * width + first;
#pragma omp simd
                    for (std::int64_t i = 0; i < n; ++i)
                      sum[i] +=
                          weight * kernels::get(own[i]) + (kernels::get(of_mean[i]) - g * kernels::get(all[i])) / count;
                  });
      T* to = dx + token * width + first;
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) kernels::put(to[i], sum[i]);
    }
  });
}

}  // namespace galvatron::device::host
