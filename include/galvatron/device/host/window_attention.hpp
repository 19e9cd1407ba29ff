// Attention within the windows of an image on the host (Liu et al. 2021): a window is small, so that all of its scores
// lie in a core's caches at once.
//
//   S = scale Q K^T + bias (+ -infinity where shifting brought tokens together)   P = softmax S   O = P V
//   backward: dP = dO V^T   dS = P (dP - rowsum(P dP))   dV = P^T dO   dK = dS^T Q   dQ = dS K   dbias = sum of dS
//
// One unit of work is a head of a window of a sample. Units are ordered by head, so that a thread spreads a head's
// column of the table over pairs of tokens once, and sums the gradient of such pairs before it goes back to the table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <galvatron/device/device.hpp>
#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/kernels/softmax.hpp>

namespace galvatron::device::host {

/// The tiles of a window, and where its tokens lie.
class WindowTiles {
 public:
  WindowTiles(const WindowShape& shape, View<std::byte> scratch, bool backward)
      : n(shape.span()),
        rows(round_up(n, tile_rows)),
        columns(round_up(n, tile_columns)),
        width(round_up(shape.head_dim, tile_columns)),
        shape_(shape) {
    const std::int64_t pairs = rows * columns;
    const std::int64_t part = round_up(rows * width, tile_columns);
    ScratchFloats floats(scratch);
    places = reinterpret_cast<std::int64_t*>(floats.take(2 * n));
    for (float** tile : {&bias, &s}) *tile = floats.take(pairs);
    for (float** tile : {&q, &k, &v, &o}) *tile = floats.take(part);
    kt = floats.take(width * columns);
    if (backward) {
      for (float** tile : {&d_o, &dk, &dv}) *tile = floats.take(part);
      for (float** tile : {&ds, &d_bias}) *tile = floats.take(pairs);
      vt = floats.take(width * columns);
      d_table = floats.take(entries());
    }
    if (floats.left() < 0)
      throw DeviceFailure("the host's attention has no room for windows of " + std::to_string(shape.window) + " x " +
                          std::to_string(shape.window) + " tokens with heads of " + std::to_string(shape.head_dim) +
                          " elements; choose smaller windows");
  }

  [[nodiscard]] std::int64_t entries() const { return shape_.bias_rows() * shape_.heads; }  ///< of the table

  /// Calls f(sample, head) for each of a thread's windows, with the places of its tokens, and in `s` the biases of all
  /// pairs of tokens, in units of log 2.
  void for_windows(int thread, int threads, const auto* table, const auto& f) {
    if (d_table != nullptr) std::fill_n(d_table, entries(), 0.0F);
    const std::int64_t of_a_head = shape_.batch * shape_.windows();
    const std::int64_t units = of_a_head * shape_.heads;
    const std::int64_t end = units * (thread + 1) / threads;
    std::int64_t head = -1;
    for (std::int64_t unit = units * thread / threads; unit < end; ++unit) {
      if (head != unit / of_a_head) {
        collect(head);
        head = unit / of_a_head;
        spread(head, table);
      }
      go_to(unit % shape_.windows());
      f(unit % of_a_head / shape_.windows(), head);
    }
    collect(head);
  }

  /// to (tokens, width) = factor * a head's columns of the window's rows; the rest of `to` becomes zero.
  GALVATRON_INLINE void pack(const auto* from, std::int64_t sample, std::int64_t stride, float factor,
                             float* to) const {
    for (std::int64_t i = 0; i < n; ++i)
      pack_rows(1, 1, shape_.head_dim, from + row(i, sample) * stride, stride, factor, to + i * width, width);
    for (std::int64_t i = n * width; i < rows * width; ++i) to[i] = 0;
  }
  /// q, scaled by head_dim^-1/2 log2(e), k, its transpose and v.
  template <class T>
  GALVATRON_INLINE void pack_inputs(const T* all_q, const T* all_k, const T* all_v, std::int64_t sample) const {
    pack(all_q, sample, shape_.stride, kernels::log2_e / std::sqrt(static_cast<float>(shape_.head_dim)), q);
    pack(all_k, sample, shape_.stride, 1.0F, k);
    transpose(k, kt);
    pack(all_v, sample, shape_.stride, 1.0F, v);
  }
  /// to (head_dim, columns) = a packed tile transposed.
  GALVATRON_INLINE void transpose(const float* from, float* to) const {
    pack_transposed(n, columns, shape_.head_dim, from, width, to, columns);
  }
  GALVATRON_INLINE void unpack(const float* from, float factor, auto* to, std::int64_t sample,
                               std::int64_t stride) const {
    for (std::int64_t i = 0; i < n; ++i)
      unpack_rows(1, shape_.head_dim, from + i * width, width, factor, false, to + row(i, sample) * stride, stride);
  }

  /// c (rows, `wide`) = [c +] a (rows, depth) b (depth, wide); a transposed in memory where `across`.
  template <Isa isa>
  GALVATRON_INLINE void multiply(std::int64_t wide, std::int64_t depth, const float* a, std::int64_t a_stride,
                                 bool across, const float* b, Start start, float* c) const {
    for (std::int64_t r = 0; r < n; r += tile_rows)
      multiply_rows<isa>(wide, depth, a + (across ? r : r * a_stride), across ? 1 : a_stride, across ? a_stride : 1, b,
                         wide, start, nullptr, c + r * wide, wide);
  }

  std::int64_t n;                     ///< tokens
  std::int64_t rows, columns, width;  ///< tokens and elements of heads, padded to tiles
  std::int64_t* places = nullptr;     ///< of the window's tokens in the image
  float *bias = nullptr, *s = nullptr, *ds = nullptr, *d_bias = nullptr;  // (rows, columns)
  float *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;           // (rows, width)
  float *d_o = nullptr, *dk = nullptr, *dv = nullptr;                     // (rows, width)
  float *kt = nullptr, *vt = nullptr;                                     // (width, columns)
  float* d_table = nullptr;                                               // (bias rows, heads)

 private:
  // A head's biases of all pairs of tokens, in units of log 2.
  void spread(std::int64_t head, const auto* table) {
    std::fill_n(bias, rows * columns, 0.0F);
    for_pairs([&](std::int64_t pair, std::int64_t entry) {
      bias[pair] = kernels::get(table[entry * shape_.heads + head]) * kernels::log2_e;
    });
    if (d_bias != nullptr) std::fill_n(d_bias, rows * columns, 0.0F);
  }
  // The summed gradients of pairs back to the head's column; backward only, and not before the first head.
  void collect(std::int64_t head) const {
    if (d_table == nullptr || head < 0) return;
    for_pairs([&](std::int64_t pair, std::int64_t entry) { d_table[entry * shape_.heads + head] += d_bias[pair]; });
  }
  // Goes to a window: `places`, and biases in `s`, minus infinity where tokens do not see each other.
  void go_to(std::int64_t window) {
    const std::int64_t w = shape_.window;
    const std::int64_t across = shape_.side / w;
    const std::int64_t top = window / across * w + shape_.shift;
    const std::int64_t left = window % across * w + shape_.shift;
    for (std::int64_t r = 0; r < w; ++r)
      for (std::int64_t c = 0; c < w; ++c)
        places[r * w + c] = (top + r) % shape_.side * shape_.side + (left + c) % shape_.side;
    std::copy_n(bias, rows * columns, s);
    // Windows over the image's edge have tokens of opposite sides, which see their own side only.
    const bool over_bottom = top + w > shape_.side;
    const bool over_right = left + w > shape_.side;
    const auto side_of = [&](std::int64_t token) {
      const bool below = over_bottom && top + token / w >= shape_.side;
      const bool beyond = over_right && left + token % w >= shape_.side;
      return (below ? 2 : 0) + (beyond ? 1 : 0);
    };
    for (std::int64_t a = 0; a < n; ++a) {
      float* line = s + a * columns;
      if (over_bottom || over_right)
        for (std::int64_t b = 0; b < n; ++b)
          if (side_of(a) != side_of(b)) line[b] = -std::numeric_limits<float>::infinity();
      for (std::int64_t b = n; b < columns; ++b) line[b] = -std::numeric_limits<float>::infinity();
    }
  }
  [[nodiscard]] std::int64_t row(std::int64_t token, std::int64_t sample) const {
    return places[token] * shape_.batch + sample;
  }
  // f(pair of tokens, row of the table)
  void for_pairs(const auto& f) const {
    const std::int64_t w = shape_.window;
    for (std::int64_t a = 0; a < n; ++a)
      for (std::int64_t b = 0; b < n; ++b)
        f(a * columns + b, (a / w - b / w + w - 1) * (2 * w - 1) + a % w - b % w + w - 1);
  }

  WindowShape shape_;
};

/// Calls `f.operator()<isa>(tiles, sample, head)`, an always-inline lambda, for all windows; returns the threads used.
int for_windows(const Team& team, const WindowShape& shape, bool backward, const auto* table, const auto& f) {
  const std::int64_t units = shape.batch * shape.windows() * shape.heads;
  const bool pays = units * shape.span() * shape.span() * shape.head_dim > parallel_elements;
  const int threads = pays ? static_cast<int>(std::min<std::int64_t>(team.threads, units)) : 1;
  on_threads(threads, [&](int thread) {
    WindowTiles tiles(shape, team.scratch_of(thread), backward);
    tiles.for_windows(thread, threads, table, [&](std::int64_t sample, std::int64_t head) {
      with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA { f.template operator()<isa>(tiles, sample, head); });
    });
  });
  return threads;
}

template <class T>
void window_attention_forward(const Team& team, const WindowShape& shape, const T* q, const T* k, const T* v,
                              const T* table, T* o, float* lse) {
  const auto attend = [&]<Isa isa>(const WindowTiles& tiles, std::int64_t sample,
                                   std::int64_t head) GALVATRON_INLINE_LAMBDA {
    using S = Vectors<isa>;
    using V = typename S::Float;
    const std::int64_t column = head * shape.head_dim;
    float* statistics = lse + (sample * shape.heads + head) * shape.tokens();
    tiles.pack_inputs(q + column, k + column, v + column, sample);
    tiles.template multiply<isa>(tiles.columns, shape.head_dim, tiles.q, tiles.width, false, tiles.kt, Start::keep,
                                 tiles.s);
    for (std::int64_t i = 0; i < tiles.n; ++i) {
      float* line = tiles.s + i * tiles.columns;
      V most = vector_at<S>(line);
      for (std::int64_t j = S::lanes; j < tiles.columns; j += S::lanes) {
        const V x = vector_at<S>(line + j);
        most = x > most ? x : most;
      }
      const float maximum = greatest(most);
      V sums = {};
      for (std::int64_t j = 0; j < tiles.columns; j += S::lanes) {
        V x = vector_at<S>(line + j);
        kernels::attention_probability(x, maximum);
        vector_at<S>(line + j) = x;
        sums += x;
      }
      const float sum = total(sums);
      const V share = V{} + 1.0F / sum;
      for (std::int64_t j = 0; j < tiles.columns; j += S::lanes) vector_at<S>(line + j) *= share;
      statistics[tiles.places[i]] = maximum * kernels::ln_2 + std::log(sum);
    }
    tiles.template multiply<isa>(tiles.width, tiles.n, tiles.s, tiles.columns, false, tiles.v, Start::zero, tiles.o);
    tiles.unpack(tiles.o, 1.0F, o + column, sample, shape.out_stride);
  };
  for_windows(team, shape, false, table, attend);
}

template <class T>
void window_attention_backward(const Team& team, const WindowShape& shape, const T* q, const T* k, const T* v,
                               const T* table, const float* lse, const T* d_o, T* dq, T* dk, T* dv, float* d_table) {
  const float root = std::sqrt(static_cast<float>(shape.head_dim));
  const auto differentiate = [&]<Isa isa>(const WindowTiles& tiles, std::int64_t sample,
                                          std::int64_t head) GALVATRON_INLINE_LAMBDA {
    using S = Vectors<isa>;
    using V = typename S::Float;
    const std::int64_t column = head * shape.head_dim;
    const float* statistics = lse + (sample * shape.heads + head) * shape.tokens();
    tiles.pack_inputs(q + column, k + column, v + column, sample);
    tiles.pack(d_o + column, sample, shape.out_stride, 1.0F, tiles.d_o);
    tiles.transpose(tiles.v, tiles.vt);
    tiles.template multiply<isa>(tiles.columns, shape.head_dim, tiles.q, tiles.width, false, tiles.kt, Start::keep,
                                 tiles.s);
    tiles.template multiply<isa>(tiles.columns, shape.head_dim, tiles.d_o, tiles.width, false, tiles.vt, Start::zero,
                                 tiles.ds);
    for (std::int64_t i = 0; i < tiles.n; ++i) {
      float* p_line = tiles.s + i * tiles.columns;
      float* ds_line = tiles.ds + i * tiles.columns;
      float* sum_line = tiles.d_bias + i * tiles.columns;
      const float reference = statistics[tiles.places[i]] * kernels::log2_e;
      V products = {};
      for (std::int64_t j = 0; j < tiles.columns; j += S::lanes) {
        V p = vector_at<S>(p_line + j);
        const V d_p = vector_at<S>(ds_line + j);
        kernels::attention_probability(p, reference);
        vector_at<S>(p_line + j) = p;
        products += p * d_p;
      }
      const float delta = total(products);
      for (std::int64_t j = 0; j < tiles.columns; j += S::lanes) {
        const V p = vector_at<S>(p_line + j);
        V gradient = vector_at<S>(ds_line + j);
        gradient = p * (gradient - delta);
        vector_at<S>(ds_line + j) = gradient;
        vector_at<S>(sum_line + j) += gradient;
      }
    }
    tiles.template multiply<isa>(tiles.width, tiles.n, tiles.s, tiles.columns, true, tiles.d_o, Start::zero, tiles.dv);
    tiles.template multiply<isa>(tiles.width, tiles.n, tiles.ds, tiles.columns, true, tiles.q, Start::zero, tiles.dk);
    tiles.template multiply<isa>(tiles.width, tiles.n, tiles.ds, tiles.columns, false, tiles.k, Start::zero, tiles.o);
    tiles.unpack(tiles.dv, 1.0F, dv + column, sample, shape.stride);
    // The packed queries carry scale * log2(e): what is left of the scale is ln 2.
    tiles.unpack(tiles.dk, kernels::ln_2, dk + column, sample, shape.stride);
    tiles.unpack(tiles.o, 1.0F / root, dq + column, sample, shape.stride);
  };
  const int threads = for_windows(team, shape, true, table, differentiate);
  // In the order of the threads, whose parts are still in their scratch memory.
  for (int thread = 0; thread < threads; ++thread) {
    const WindowTiles tiles(shape, team.scratch_of(thread), true);
    for (std::int64_t i = 0; i < tiles.entries(); ++i) d_table[i] += tiles.d_table[i];
  }
}

}  // namespace galvatron::device::host
