// Products of tiles in shared memory by a warp: bfloat16 on tensor cores, float on the others.
//
// A warp has 16 rows. Its part (16, 8 N) of a matrix lies in the registers of its lanes as PTX's mma.m16n8 has it:
//
//   piece j (16, 8):   lane 4 g + t has   row g:      columns 8 j + 2 t, 8 j + 2 t + 1   in [j][0], [j][1]
//                                         row g + 8:  the same columns                   in [j][2], [j][3]
//
// Where columns are elements of a head, pieces 2 i and 2 i + 1 share 16 of them, the even and the odd ones, so that a
// lane has adjacent elements 16 i + 4 t + {0, 1, 2, 3}: those of row g are [2 i][0], [2 i + 1][0], [2 i][1],
// [2 i + 1][1].
//
// Rows of tiles are 16 bytes longer than a power of two, so that the eight rows, or the four pairs of rows, that a warp
// reads at once lie in different banks.
#pragma once

#include <cstdint>

#include <galvatron/device/cuda/pack.hpp>

namespace galvatron::device::cuda {

/// Elements between rows of a tile of heads of up to D elements.
template <class T, int D>
inline constexpr int tile_stride = D + Pack<T>::size;

/// Two neighbours, as one register of a product has them.
GALVATRON_KERNEL std::uint32_t two(const bfloat16* at) { return Pack<bfloat16, 2>::at(at).words[0]; }

/// Four neighbours, as a lane has them of a row of results.
template <class T>
using Four = Pack<T, 4>;

/// c (16, 8 N) += a (16, D) b (8 N, D)^T, with a and b row by row in shared memory.
template <int D, int N>
GALVATRON_KERNEL void multiply_rows(auto& block, const bfloat16* a, const bfloat16* b, float (&c)[N][4]) {
  constexpr int stride = tile_stride<bfloat16, D>;
  const int lane = block.thread() % warp_threads;
  const int from = lane / 4 * stride + lane % 4 * 2;
  GALVATRON_UNROLL
  for (int k = 0; k < D; k += 16) {
    const bfloat16* left = a + from + k;
    const std::uint32_t rows[4] = {two(left), two(left + 8 * stride), two(left + 8), two(left + 8 * stride + 8)};
    GALVATRON_UNROLL
    for (int j = 0; j < N; ++j) {
      const bfloat16* right = b + from + 8 * j * stride + k;
      const std::uint32_t columns[2] = {two(right), two(right + 8)};
      block.multiply(c[j], rows, columns);
    }
  }
}

template <int D, int N>
GALVATRON_KERNEL void multiply_rows(auto& block, const float* a, const float* b, float (&c)[N][4]) {
  constexpr int stride = tile_stride<float, D>;
  const int lane = block.thread() % warp_threads;
  const float* left = a + lane / 4 * stride;
  const float* right = b + lane % 4 * 2 * stride;
  GALVATRON_NO_UNROLL
  for (int k = 0; k < D; k += 4) {
    Four<float> rows[2];
    rows[0] = Four<float>::at(left + k);
    rows[1] = Four<float>::at(left + 8 * stride + k);
    GALVATRON_UNROLL
    for (int j = 0; j < N; ++j)
      for (int column = 0; column < 2; ++column) {
        const auto x = Four<float>::at(right + (8 * j + column) * stride + k);
        GALVATRON_UNROLL
        for (int half = 0; half < 2; ++half)
          for (int i = 0; i < 4; ++i) c[j][2 * half + column] += rows[half][i] * x[i];
      }
  }
}

/// Floats of shared memory that the next product needs for itself, of every warp, for float.
template <int M>
inline constexpr int room_stride = 8 * M + 4;

/// c (16, 8 N) += p (16, 8 M) v (8 M, 8 N): p rounded to v's type, v row by row in shared memory with rows for heads of
/// D elements; columns of c are elements of heads. `room` (16, room_stride) is not used here.
template <int D, int M, int N>
GALVATRON_KERNEL void multiply_values(auto& block, const float (&p)[M][4], const bfloat16* v, float* /*room*/,
                                      float (&c)[N][4]) {
  static_assert(M % 2 == 0 && N % 2 == 0, "galvatron: products of bfloat16 take 16 rows at a time");
  constexpr int stride = tile_stride<bfloat16, D>;
  const int lane = block.thread() % warp_threads;
  GALVATRON_UNROLL
  for (int k = 0; k < M; k += 2) {
    const std::uint32_t rows[4] = {kernels::two_rounded(p[k][0], p[k][1]), kernels::two_rounded(p[k][2], p[k][3]),
                                   kernels::two_rounded(p[k + 1][0], p[k + 1][1]),
                                   kernels::two_rounded(p[k + 1][2], p[k + 1][3])};
    const bfloat16* from = v + (8 * k + lane % 4 * 2) * stride + lane / 4 * 2;
    GALVATRON_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      const bfloat16* at = from + 16 * i;
      const std::uint32_t x[4] = {two(at), two(at + stride), two(at + 8 * stride), two(at + 9 * stride)};
      const std::uint32_t even[2] = {(x[0] & 0xffffU) | x[1] << 16, (x[2] & 0xffffU) | x[3] << 16};
      const std::uint32_t odd[2] = {x[0] >> 16 | (x[1] & 0xffff0000U), x[2] >> 16 | (x[3] & 0xffff0000U)};
      block.multiply(c[2 * i], rows, even);
      block.multiply(c[2 * i + 1], rows, odd);
    }
  }
}

/// Lanes give each other p through `room`.
template <int D, int M, int N>
GALVATRON_KERNEL void multiply_values(auto& block, const float (&p)[M][4], const float* v, float* room,
                                      float (&c)[N][4]) {
  constexpr int stride = tile_stride<float, D>;
  const int lane = block.thread() % warp_threads;
  block.sync_warp();
  GALVATRON_UNROLL
  for (int j = 0; j < M; ++j)
    for (int i = 0; i < 4; ++i) room[(lane / 4 + i / 2 * 8) * room_stride<M> + 8 * j + lane % 4 * 2 + i % 2] = p[j][i];
  block.sync_warp();
  const float* left = room + lane / 4 * room_stride<M>;
  const float* right = v + lane % 4 * 4;
  GALVATRON_NO_UNROLL
  for (int k = 0; k < 8 * M; k += 4) {
    Four<float> rows[2];
    rows[0] = Four<float>::at(left + k);
    rows[1] = Four<float>::at(left + 8 * room_stride<M> + k);
    GALVATRON_UNROLL
    for (int row = 0; row < 4; ++row)
      for (int i = 0; i < N / 2; ++i) {
        const auto x = Four<float>::at(right + (k + row) * stride + 16 * i);
        GALVATRON_UNROLL
        for (int half = 0; half < 2; ++half)
          for (int e = 0; e < 4; ++e) c[2 * i + e % 2][2 * half + e / 2] += rows[half][row] * x[e];
      }
  }
}

/// The lane's part of row g (half 0) or g + 8 (half 1), times `factor`, to the first `width` elements of a head, four
/// at a time where `packed`.
template <int N, class T>
GALVATRON_KERNEL void store_row(auto& block, const float (&c)[N][4], int half, float factor, int width, bool packed,
                                T* to) {
  const int first = block.thread() % 4 * 4;
  GALVATRON_UNROLL
  for (int i = 0; i < N / 2; ++i) {
    const int at = 16 * i + first;
    const auto four = Four<T>::of([&](int e) { return factor * c[2 * i + e % 2][2 * half + e / 2]; });
    if (at < width) store_pack(four, to, at, width, packed);
  }
}

/// The sum, or another join, over the four lanes that share rows.
GALVATRON_KERNEL float over_row(auto& block, float value, auto join) {
  value = join(value, block.shuffle_xor(value, 1));
  return join(value, block.shuffle_xor(value, 2));
}

}  // namespace galvatron::device::cuda
