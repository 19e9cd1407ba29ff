// Token and position tables, biases by distance, rotary position embedding, and means over the tokens of a sample.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <galvatron/device/device.hpp>
#include <galvatron/device/host/loops.hpp>
#include <galvatron/device/kernels/embedding.hpp>

namespace galvatron::device::host {

template <class T>
void embedding_forward(const Team& team, std::int64_t rows, std::int64_t hidden, const std::int32_t* tokens,
                       std::int64_t first, std::int64_t count, float scale, const T* table, T* out) {
  const auto bytes = static_cast<std::size_t>(hidden) * sizeof(T);
  for_rows(team, rows, hidden, [=](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const std::int64_t entry = kernels::shard_row(tokens[row], first, count);
    T* to = out + row * hidden;
    if (entry < 0) {
      std::memset(static_cast<void*>(to), 0, bytes);
      return;
    }
    const T* from = table + entry * hidden;
    if (scale == 1) {
      std::memcpy(static_cast<void*>(to), from, bytes);
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < hidden; ++i) kernels::put(to[i], scale * kernels::get(from[i]));
    }
  });
}

/// Each thread has its own columns, so that equal tokens add up in order.
template <class T>
void embedding_backward(const Team& team, std::int64_t rows, std::int64_t hidden, const std::int32_t* tokens,
                        std::int64_t first, std::int64_t count, float scale, const T* dout, float* dtable) {
  for_runs(team, hidden, 16, rows, [&](std::int64_t begin, std::int64_t end, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t entry = kernels::shard_row(tokens[row], first, count);
        if (entry < 0) continue;
        const T* from = dout + row * hidden;
        float* to = dtable + entry * hidden;
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) to[i] += scale * kernels::get(from[i]);
      }
    });
  });
}

template <class T>
void position_forward(const Team& team, std::int64_t rows, std::int64_t b, std::int64_t hidden,
                      std::int64_t first_position, const T* table, T* out) {
  for_rows(team, rows, hidden, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const T* from = table + (first_position + row / b) * hidden;
    T* to = out + row * hidden;
#pragma omp simd
    for (std::int64_t i = 0; i < hidden; ++i) kernels::put(to[i], kernels::get(to[i]) + kernels::get(from[i]));
  });
}

/// A position belongs to one thread.
template <class T>
void position_backward(const Team& team, std::int64_t rows, std::int64_t b, std::int64_t hidden,
                       std::int64_t first_position, const T* dout, float* dtable) {
  for_rows(team, divide_up(rows, b), b * hidden, [&](std::int64_t position) GALVATRON_INLINE_LAMBDA {
    float* to = dtable + (first_position + position) * hidden;
    for (std::int64_t row = position * b; row < std::min(rows, (position + 1) * b); ++row) {
      const T* from = dout + row * hidden;
#pragma omp simd
      for (std::int64_t i = 0; i < hidden; ++i) to[i] += kernels::get(from[i]);
    }
  });
}

/// Cosines and sines of up to 128 pairs for successive positions. Every 64th position is worked out; from one to the
/// next the angles turn by their frequency, in double, so that the results do not depend on where a thread begins.
class RotaryAngles {
 public:
  static constexpr std::int64_t capacity = 128;

  RotaryAngles(const kernels::RotaryFrequencies& frequencies, std::int64_t first_pair, std::int64_t pairs,
               std::int64_t head_dim, bool inverse)
      : pairs_(pairs), amplitude_(frequencies.amplitude) {
    for (std::int64_t j = 0; j < pairs; ++j) {
      const auto at = static_cast<std::size_t>(j);
      frequency_[at] = kernels::rotary_frequency(frequencies, first_pair + j, head_dim) * (inverse ? -1.0 : 1.0);
      step_cosine_[at] = std::cos(frequency_[at]);
      step_sine_[at] = std::sin(frequency_[at]);
    }
  }
  /// Goes to a position: the first one, or any behind the present one.
  void go_to(std::int64_t position) {
    if (position_ < 0 || position / 64 != position_ / 64) {
      position_ = position / 64 * 64;
      for (std::size_t j = 0; j < static_cast<std::size_t>(pairs_); ++j) {
        cosine_[j] = std::cos(frequency_[j] * static_cast<double>(position_));
        sine_[j] = std::sin(frequency_[j] * static_cast<double>(position_));
      }
    }
    for (; position_ < position; ++position_) {
      for (std::size_t j = 0; j < static_cast<std::size_t>(pairs_); ++j) {
        const double c = cosine_[j] * step_cosine_[j] - sine_[j] * step_sine_[j];
        sine_[j] = sine_[j] * step_cosine_[j] + cosine_[j] * step_sine_[j];
        cosine_[j] = c;
      }
    }
    for (std::size_t j = 0; j < static_cast<std::size_t>(pairs_); ++j) {
      cosines[j] = static_cast<float>(cosine_[j] * amplitude_);
      sines[j] = static_cast<float>(sine_[j] * amplitude_);
    }
  }

  std::array<float, capacity> cosines, sines;

 private:
  std::int64_t pairs_;
  double amplitude_;
  std::int64_t position_ = -1;
  std::array<double, capacity> frequency_, step_cosine_, step_sine_, cosine_;
  std::array<double, capacity> sine_;
};

template <class T>
void rotary_run(const Team& team, std::int64_t rows, std::int64_t b, std::int64_t first_position, std::int64_t heads,
                std::int64_t head_dim, std::int64_t stride, const kernels::RotaryFrequencies& frequencies, bool inverse,
                T* x) {
  const std::int64_t half = head_dim / 2;
  for_runs(team, divide_up(rows, b), 1, b * heads * head_dim, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t first_pair = 0; first_pair < half; first_pair += RotaryAngles::capacity) {
      const std::int64_t pairs = std::min(half - first_pair, RotaryAngles::capacity);
      RotaryAngles angles(frequencies, first_pair, pairs, head_dim, inverse);
      for (std::int64_t s = begin; s < end; ++s) {
        angles.go_to(first_position + s);
        vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
          const float* cosines = angles.cosines.data();
          const float* sines = angles.sines.data();
          for (std::int64_t row = s * b; row < std::min(rows, (s + 1) * b); ++row) {
            for (std::int64_t head = 0; head < heads; ++head) {
              T* first = x + row * stride + head * head_dim + first_pair;
              T* second = first + half;
#pragma omp simd
              for (std::int64_t j = 0; j < pairs; ++j) {
                float left = kernels::get(first[j]);
                float right = kernels::get(second[j]);
                kernels::rotate(left, right, cosines[j], sines[j]);
                kernels::put(first[j], left);
                kernels::put(second[j], right);
              }
            }
          }
        });
      }
    }
  });
}

/// Run by run of positions.
template <class T>
void rotary(const Team& team, std::int64_t rows, std::int64_t b, const TokenPositions& positions, std::int64_t heads,
            std::int64_t head_dim, std::int64_t stride, const kernels::RotaryFrequencies& frequencies, bool inverse,
            T* x) {
  if (positions.tokens.empty())
    return rotary_run(team, rows, b, positions.first, heads, head_dim, stride, frequencies, inverse, x);
  for (std::size_t i = 0; i < positions.tokens.size(); ++i) {
    const std::int64_t first = positions.tokens[i] * b;
    const std::int64_t end = i + 1 < positions.tokens.size() ? positions.tokens[i + 1] * b : rows;
    rotary_run(team, end - first, b, positions.positions[i], heads, head_dim, stride, frequencies, inverse,
               x + first * stride);
  }
}

/// Sums are float, in the order of the tokens.
template <class T>
void pool_forward(const Team& team, std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, const T* x,
                  T* out) {
  constexpr std::int64_t run = 64;
  for_runs(team, b * hidden, run, tokens, [&](std::int64_t begin, std::int64_t end, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t first = begin; first < end; first += run) {
        const std::int64_t n = std::min(run, end - first);
        std::array<float, run> sums{};
        for (std::int64_t s = 0; s < tokens; ++s) {
          const T* from = x + s * b * hidden + first;
#pragma omp simd
          for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] += kernels::get(from[i]);
        }
        for (std::int64_t i = 0; i < n; ++i) kernels::put(out[first + i], scale * sums[static_cast<std::size_t>(i)]);
      }
    });
  });
}

template <class T>
void pool_backward(const Team& team, std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale,
                   const T* dout, T* dx) {
  for_rows(team, tokens, b * hidden, [&](std::int64_t s) GALVATRON_INLINE_LAMBDA {
    T* to = dx + s * b * hidden;
#pragma omp simd
    for (std::int64_t i = 0; i < b * hidden; ++i) kernels::put(to[i], scale * kernels::get(dout[i]));
  });
}

/// Calls f(place among the distances, row of the table).
void for_each_distance(const RelativePositions& relative, const auto& f) {
  for (std::int64_t i = 0; i < relative.distances(); ++i)
    f(i, kernels::relative_bucket(i + 1 - relative.tokens, relative.buckets, RelativePositions::far, relative.causal));
}

void relative_bias_forward(const Team&, const RelativePositions& relative, std::int64_t heads, const auto* table,
                           float* bias) {
  for_each_distance(relative, [&](std::int64_t i, std::int64_t bucket) {
    for (std::int64_t a = 0; a < heads; ++a)
      bias[a * relative.distances() + i] = kernels::get(table[bucket * heads + a]);
  });
}

inline void relative_bias_backward(const Team&, const RelativePositions& relative, std::int64_t heads,
                                   const float* dbias, float* dtable) {
  for_each_distance(relative, [&](std::int64_t i, std::int64_t bucket) {
    for (std::int64_t a = 0; a < heads; ++a) dtable[bucket * heads + a] += dbias[a * relative.distances() + i];
  });
}

}  // namespace galvatron::device::host
