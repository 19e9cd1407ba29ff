// LSH-MoE's compression of what goes to experts (Nie et al., "LSH-MoE: Communication-efficient MoE Training via
// Locality-Sensitive Hashing", NeurIPS 2024): of the tokens of a rank that go to one expert, those that hash alike are
// a bucket, and the expert gets the mean of each bucket.
//
//   x (T, H) -> codes -> buckets of each expert -> c (buckets, H) = means -> [all-to-all] -> expert -> e = E(c)
//     `-> residual x - c, which stays here ------------------------------.      .---------- [all-to-all]
//                            y (T, H) = sum over k of weight (e + gain (x - c)) <
//
// Backward of fixed buckets is exact, with G = dL/dy of a token times its weight and n the tokens of a bucket:
//
//   s (buckets, H) = sums of G -> [all-to-all] -> expert -> dc -> [all-to-all] -> dx = gain G + (dc - gain s) / n
//
// The rotations are the same on all ranks and have no gradient. Routing does not know of any of this. What crosses the
// ranks, and when, is not said here: the functions are those of one rank before and behind it.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/rng.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/lsh.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/strategy/lsh_options.hpp>

namespace galvatron::runtime {

/// How rows are rotated before they are hashed.
enum class Rotation : std::uint8_t {
  drawn,     ///< by normal numbers (H p, width): 2 H p width operations for a row
  hadamard,  ///< by rounds of random signs and Hadamard transforms: some 3 H width log2(width)
};

/// The rotations of a layer: those that are not empty.
template <class T>
struct Rotations {
  View<const T> drawn{};      ///< (H p, width)
  View<const float> signs{};  ///< (H, rounds, padded width) of 1 and -1
};

/// Elements of a layer's rotations.
constexpr std::int64_t rotation_elements(Rotation kind, const device::kernels::CrossPolytope& hashing,
                                         std::int64_t width) {
  using device::kernels::CrossPolytope;
  return kind == Rotation::drawn ? hashing.columns() * width
                                 : hashing.hashes * CrossPolytope::rounds * CrossPolytope::padded(width);
}

/// Draws them, as a function of the seed and the layer's number alone.
inline void draw_rotations(Rotation kind, std::uint64_t seed, int layer, View<float> to) {
  const std::uint64_t stream = 0x6861736800000000U + static_cast<std::uint64_t>(layer);  // apart from those of weights
  if (kind == Rotation::drawn) return fill_normal(to, seed, stream, 0, 1);
  for (std::int64_t i = 0; i < to.count; ++i)
    to[i] = (bits_at(seed, stream, static_cast<std::uint64_t>(i / 32)) >> (i % 32) & 1U) != 0 ? 1.0F : -1.0F;
}

/// Memory that hashing takes for a while.
struct HashingScratch {
  /// Tokens whose rotated rows are there at a time.
  static constexpr std::int64_t most_rotated = LshOptions::most_rotated;

  View<float> rotated;       ///< (at most most_rotated, H p)
  View<std::int32_t> codes;  ///< (tokens, H)
  View<std::int32_t> table;  ///< see TokenBuckets::table_places

  HashingScratch(View<float> of_rotated, View<std::int32_t> of_codes, View<std::int32_t> of_table)
      : rotated(of_rotated), codes(of_codes), table(of_table) {}
  /// @param rows  choices of all tokens together
  HashingScratch(device::Region& region, const device::kernels::CrossPolytope& hashing, std::int64_t tokens,
                 std::int64_t rows)
      : rotated(region.take<float>(std::min(tokens, most_rotated) * hashing.columns())),
        codes(region.take<std::int32_t>(tokens * hashing.hashes)),
        table(region.take<std::int32_t>(device::TokenBuckets::table_places(rows))) {}
};

/// The buckets of a micro-batch, which live from forward to backward.
/// @param rows  choices of all tokens together  @param order, offsets  as Device::order_choices makes them
inline device::TokenBuckets take_buckets(device::Region& region, std::int64_t experts, std::int64_t active,
                                         std::int64_t rows, View<const std::int32_t> order,
                                         View<const std::int32_t> offsets) {
  return {.experts = experts,
          .active = active,
          .rows = rows,
          .order = order,
          .offsets = offsets,
          .bucket = region.take<std::int32_t>(rows),
          .members = region.take<std::int32_t>(rows),
          .begins = region.take<std::int32_t>(rows + 1),
          .bounds = region.take<std::int32_t>(experts + 1)};
}

/// Compression on a rank. Allocates nothing.
/// @tparam T  element type of activations
template <class D, class T>
class Compression {
 public:
  /// The device and the rotations must outlive it. Without rotations it cannot compress(). @param width  H of the layer
  Compression(D& device, const device::kernels::CrossPolytope& hashing, const Rotations<T>& rotations,
              std::int64_t width, const device::ResidualGain& gain)
      : device_(device), hashing_(hashing), rotations_(rotations), width_(width), gain_(gain) {}

  /// Finds the buckets of x (tokens, width), and their means. The buckets of expert e are [bounds[e], bounds[e + 1]).
  /// @param means  (buckets, width), with places for as many as there are choices
  void compress(std::int64_t tokens, View<const T> x, const HashingScratch& scratch,
                const device::TokenBuckets& buckets, View<T> means) {
    for (std::int64_t first = 0; first < tokens; first += HashingScratch::most_rotated) {
      const std::int64_t rows = std::min(HashingScratch::most_rotated, tokens - first);
      const View<const T> part = x.slice(first * width_, rows * width_);
      const View<float> rotated = scratch.rotated.slice(0, rows * hashing_.columns());
      if (rotations_.drawn.empty())
        device_.rotate_by_signs(hashing_, rows, width_, part, rotations_.signs, rotated);
      else
        device_.gemm(op::Kind::gemm_nt, rows, hashing_.columns(), width_, part, rotations_.drawn, rotated, false);
      device_.hash_rows(hashing_, rows, View<const float>(rotated),
                        scratch.codes.slice(first * hashing_.hashes, rows * hashing_.hashes));
    }
    device_.number_buckets(hashing_, buckets, View<const std::int32_t>(scratch.codes), scratch.table);
    device_.bucket_sums(buckets, width_, true, View<const float>{}, x, means);
  }

  /// The same without hashing and with a bucket for each choice: what plain dispatch sends, for what follows here.
  void pass(View<const T> x, const device::TokenBuckets& buckets, View<T> means) {
    device_.single_buckets(buckets);
    device_.bucket_sums(buckets, width_, true, View<const float>{}, x, means);
  }

  /// y (tokens, width) from what experts made of the means, outputs (buckets, width), the means, and x.
  /// @param places   of the choices in the order of the experts, (tokens, k)
  /// @param weights  of the choices, (tokens, k); empty: 1
  void decompress(std::int64_t tokens, const device::TokenBuckets& buckets, View<const std::int32_t> places,
                  View<const float> weights, View<const T> outputs, View<const T> x, View<const T> means, View<T> y) {
    device_.combine_buckets(buckets, tokens, width_, gain_, places, weights, outputs, x, means, y);
  }

  /// What backward sends to the experts: the sums of dy (tokens, width) times the weights, (buckets, width).
  void compress_gradient(const device::TokenBuckets& buckets, View<const float> weights, View<const T> dy,
                         View<T> sums) {
    device_.bucket_sums(buckets, width_, false, weights, dy, sums);
  }
  /// d_weights (tokens, k) from what decompress() read.
  void weights_backward(std::int64_t tokens, const device::TokenBuckets& buckets, View<const std::int32_t> places,
                        View<const T> outputs, View<const T> x, View<const T> means, View<const T> dy,
                        View<float> d_weights) {
    device_.bucket_weights_backward(buckets, tokens, width_, gain_, places, outputs, x, means, dy, d_weights);
  }
  /// d_gains (E) grow by the gradient of the experts' gains.
  void gain_backward(const device::TokenBuckets& buckets, View<const float> weights, View<const T> x,
                     View<const T> means, View<const T> dy, View<float> d_gains) {
    device_.gain_backward(buckets, width_, weights, x, means, dy, d_gains);
  }
  /// dx (tokens, width) from dy, the experts' gradients of the means (buckets, width) and the sums sent to them.
  void decompress_gradient(std::int64_t tokens, const device::TokenBuckets& buckets, View<const std::int32_t> places,
                           View<const float> weights, View<const T> dy, View<const T> d_means, View<const T> sums,
                           View<T> dx) {
    device_.combine_buckets_backward(buckets, tokens, width_, gain_, places, weights, dy, d_means, sums, dx);
  }

 private:
  D& device_;
  device::kernels::CrossPolytope hashing_;
  Rotations<T> rotations_;
  std::int64_t width_;
  device::ResidualGain gain_;
};

}  // namespace galvatron::runtime
