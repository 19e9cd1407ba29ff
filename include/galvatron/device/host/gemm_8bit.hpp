// Matrix products of 8-bit operands on the host: an emulation, for processors have none.
//
// Operands are rounded as a GPU rounds them. Tiles of their codes become floats, which are multiplied and summed as
// floats. An element of the result is the same sum for any number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/host/team.hpp>
#include <galvatron/device/host/tile.hpp>
#include <galvatron/device/kernels/float8.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/device/product_8bit.hpp>

namespace galvatron::device::host {

/// codes (n) = x, scaled and rounded to F; returns what they are multiplied with to be x again.
template <class F>
float round_to_8bit(const Team& team, std::int64_t n, const bfloat16* x, std::uint8_t* codes) {
  std::atomic<std::uint32_t> greatest{0};
  for_runs(team, n, 64, 1, [&](std::int64_t first, std::int64_t last, int) {
    std::uint32_t here = 0;
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
#pragma omp simd reduction(max : here)
      for (std::int64_t i = first; i < last; ++i) {
        const std::uint32_t bits = kernels::magnitude_bits(x[i]);
        here = here < bits ? bits : here;
      }
    });
    std::uint32_t seen = greatest.load();
    while (seen < here && !greatest.compare_exchange_weak(seen, here)) {
    }
  });
  const kernels::Scaling scaling = kernels::scaling_of<F>(greatest.load());
  for_runs(team, n, 64, 1, [&](std::int64_t first, std::int64_t last, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
#pragma omp simd
      for (std::int64_t i = first; i < last; ++i) codes[i] = kernels::code_of<F>(x[i], scaling.scale);
    });
  });
  return scaling.unscale;
}

namespace detail {

/// The values of all codes.
template <class F>
inline constexpr std::array<float, 256> values_8bit = [] {
  std::array<float, 256> out{};
  for (std::size_t code = 0; code < out.size(); ++code) {
    F x;
    x.bits = static_cast<std::uint8_t>(code);
    out[code] = x;
  }
  return out;
}();

inline constexpr std::int64_t rows_8bit = 96;      ///< of a tile of the result
inline constexpr std::int64_t columns_8bit = 128;  ///< of the same
inline constexpr std::int64_t depth_8bit = 256;    ///< multiplied at a time

}  // namespace detail

/// c (m, n) = a * b [+ bias (n)], or c += a * b: Device::gemm_8bit. `room` as in Room8bit.
template <class C>
void gemm_8bit(const Team& team, op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, const bfloat16* a,
               const bfloat16* b, C* c, bool accumulate, const bfloat16* bias, View<std::byte> room) {
  constexpr std::int64_t depth_step = detail::depth_8bit;
  const Room8bit rounded(room, m, n, k);
  const float* values_of_a = nullptr;
  with_format_of_a(kind, [&]<class F>() {
    rounded.unscale[0] = round_to_8bit<F>(team, m * k, a, rounded.a.data);
    values_of_a = detail::values_8bit<F>.data();
  });
  rounded.unscale[1] = round_to_8bit<float8_e4m3>(team, n * k, b, rounded.b.data);
  const float* values_of_b = detail::values_8bit<float8_e4m3>.data();
  const float unscale_a = rounded.unscale[0];
  const float unscale_b = rounded.unscale[1];
  // Element (row, p) of a, and (p, column) of b.
  const std::int64_t a_row = kind == op::Kind::gemm_tn ? 1 : k;
  const std::int64_t a_depth = kind == op::Kind::gemm_tn ? m : 1;
  const std::int64_t b_depth = kind == op::Kind::gemm_nt ? 1 : n;
  const std::int64_t b_column = kind == op::Kind::gemm_nt ? k : 1;
  const std::int64_t across = divide_up(n, detail::columns_8bit);
  const std::int64_t tiles = divide_up(m, detail::rows_8bit) * across;
  const int threads = m * n * k < parallel_elements ? 1 : team.threads;
  on_threads(threads, [&](int thread) {
    detail::ScratchFloats scratch(team.scratch_of(thread));
    float* const tile_a = scratch.take(detail::rows_8bit * depth_step);          // (depth, rows)
    float* const tile_b = scratch.take(depth_step * detail::columns_8bit);       // (depth, columns)
    float* const sums = scratch.take(detail::rows_8bit * detail::columns_8bit);  // (rows, columns)
    for (std::int64_t tile = thread; tile < tiles; tile += threads) {
      const std::int64_t row = tile / across * detail::rows_8bit;
      const std::int64_t column = tile % across * detail::columns_8bit;
      const std::int64_t rows = std::min(detail::rows_8bit, m - row);
      const std::int64_t columns = std::min(detail::columns_8bit, n - column);
      for (std::int64_t first = 0; first < k; first += depth_step) {
        const std::int64_t depth = std::min(depth_step, k - first);
        for (std::int64_t p = 0; p < depth; ++p) {
          const std::uint8_t* from_a = rounded.a.data + row * a_row + (first + p) * a_depth;
          for (std::int64_t r = 0; r < detail::rows_8bit; ++r)
            tile_a[p * detail::rows_8bit + r] = r < rows ? values_of_a[from_a[r * a_row]] : 0.0F;
          const std::uint8_t* from_b = rounded.b.data + column * b_column + (first + p) * b_depth;
          for (std::int64_t j = 0; j < columns; ++j)
            tile_b[p * detail::columns_8bit + j] = values_of_b[from_b[j * b_column]];
        }
        with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
          for (std::int64_t r = 0; r < rows; r += tile_rows)
            multiply_rows<isa>(columns, depth, tile_a + r, 1, detail::rows_8bit, tile_b, detail::columns_8bit,
                               first == 0 ? Start::zero : Start::keep, nullptr, sums + r * detail::columns_8bit,
                               detail::columns_8bit);
        });
      }
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t j = 0; j < columns; ++j) {
          C& out = c[(row + r) * n + column + j];
          float value = sums[r * detail::columns_8bit + j] * unscale_a * unscale_b;
          if (bias != nullptr) value += kernels::get(bias[column + j]);
          kernels::put(out, accumulate ? kernels::get(out) + value : value);
        }
    }
  });
}

}  // namespace galvatron::device::host
