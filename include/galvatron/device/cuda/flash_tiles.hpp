// What flash attention is to compute, for samples or windows of images; and products of tiles in shared memory by a
// warp: bfloat16 on tensor cores, float on the others.
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

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/softmax.hpp>

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

/// Where a token of a window is: biases go by differences of `code`, and only tokens of one side see each other.
struct WindowMark {
  int code, side;
};

/// Of a query: its log-sum in log 2, and the row sum of o * d_o.
struct QueryStatistics {
  float lse, delta;
};

/// What a block of a kernel works on.
struct FlashBlock {
  int unit, head, tile;
};

/// A tile of a head's queries.
struct QueryTile {
  int unit, head, kv_head, first;
  int end;  ///< of the keys that they see
};

/// Rows of tensors are tokens of the whole problem; see AttentionShape, WindowShape and AttentionBias.
template <class T>
struct FlashProblem {
  int first_unit = 0, units = 0;  ///< that the kernels work on
  int batch = 0;
  int queries = 0, keys = 0;  ///< of a unit
  int heads = 0, kv_heads = 0, head_dim = 0;
  float score_factor = 1;
  bool causal = false;
  bool packed = false;  ///< rows of heads are whole packs, in memory too
  std::int64_t q_stride = 0, kv_stride = 0, out_stride = 0, dq_stride = 0, dkv_stride = 0;
  std::int64_t lse_stride = 0, delta_stride = 0;
  const float* bias = nullptr;  ///< null: none
  std::int64_t bias_head = 0, bias_query = 0;
  int window = 0;  ///< 0: a unit is a sample, else a window
  int side = 0, shift = 0;
  const T* table = nullptr;  ///< of a window's biases
  // The tensors that forward reads, and those that backward needs beside them.
  const T *q = nullptr, *k = nullptr, *v = nullptr, *d_o = nullptr;
  const float* lse = nullptr;
  float* delta = nullptr;

  [[nodiscard]] GALVATRON_KERNEL float scale() const { return score_factor / std::sqrt(static_cast<float>(head_dim)); }
  [[nodiscard]] GALVATRON_KERNEL int group() const { return heads / kv_heads; }

  /// The work of a block, with `tiles` tiles of every head of every unit.
  [[nodiscard]] GALVATRON_KERNEL FlashBlock block_of(std::int64_t index, int heads_of_unit, int tiles) const {
    const auto pair = static_cast<int>(index / tiles);
    return {first_unit + pair / heads_of_unit, pair % heads_of_unit, static_cast<int>(index % tiles)};
  }

  /// The tile of a block that has `rows` queries, those that see the most keys first; and the number of such blocks.
  [[nodiscard]] GALVATRON_KERNEL QueryTile query_tile(std::int64_t index, int rows) const {
    const int tiles = (queries + rows - 1) / rows;
    const FlashBlock at = block_of(index, heads, tiles);
    const int first = (tiles - 1 - at.tile) * rows;
    return {at.unit, at.head, at.head / group(), first, causal && first + rows < keys ? first + rows : keys};
  }
  [[nodiscard]] std::int64_t query_tiles(int rows) const { return divide_up(queries, rows) * heads * units; }

  /// The sample of a unit.
  [[nodiscard]] GALVATRON_KERNEL int sample_of(int unit) const {
    return window == 0 ? unit : unit / (side / window * (side / window));
  }
  /// The place of a unit's token among those of its sample.
  [[nodiscard]] GALVATRON_KERNEL int token_of(int unit, int token) const {
    if (window == 0) return token;
    const int across = side / window;
    const int at = unit % (across * across);
    const int y = (at / across * window + shift + token / window) % side;
    const int x = (at % across * window + shift + token % window) % side;
    return y * side + x;
  }
  /// Its row in tensors.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t row(int unit, int token) const {
    return static_cast<std::int64_t>(token_of(unit, token)) * batch + sample_of(unit);
  }
  /// Its place in lse.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t lse_at(int unit, int head, int token) const {
    return (static_cast<std::int64_t>(sample_of(unit)) * heads + head) * lse_stride + token_of(unit, token);
  }
  /// Its place in delta, which begins at the first unit.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t delta_at(int unit, int head, int token) const {
    return (static_cast<std::int64_t>(unit - first_unit) * heads + head) * delta_stride + token;
  }

  [[nodiscard]] GALVATRON_KERNEL WindowMark mark(int unit, int token) const {
    const int across = side / window;
    const int at = unit % (across * across);
    const int y = token / window;
    const int x = token % window;
    const int below = at / across * window + shift + y >= side ? 2 : 0;
    const int beyond = at % across * window + shift + x >= side ? 1 : 0;
    return {y * (2 * window - 1) + x, below + beyond};
  }
  /// Marks `count` tokens of a tile; nothing where units are samples.
  GALVATRON_KERNEL void mark_tile(auto& block, int unit, int first, int count, WindowMark* marks) const {
    if (window == 0) return;
    for (int i = block.thread(); i < count; i += block.threads()) marks[i] = mark(unit, first + i);
  }

  /// True when all these queries see all these keys, and without biases.
  [[nodiscard]] GALVATRON_KERNEL bool is_plain(int first_query, int query_count, int first_key, int key_count) const {
    return bias == nullptr && window == 0 && first_query + query_count <= queries && first_key + key_count <= keys &&
           (!causal || first_key + key_count <= first_query + 1);
  }
  /// What is added to a score, in log 2; -infinity where the query does not see the key or one of them does not exist.
  [[nodiscard]] GALVATRON_KERNEL float added(int head, int query, int key, const WindowMark* at_query,
                                             const WindowMark* at_key) const {
    if (query >= queries || key >= keys || (causal && key > query)) return -std::numeric_limits<float>::infinity();
    if (window > 0) {
      if (at_query->side != at_key->side) return -std::numeric_limits<float>::infinity();
      const int entry = at_query->code - at_key->code + 2 * window * (window - 1);
      return kernels::get(table[static_cast<std::int64_t>(entry) * heads + head]) * kernels::log2_e;
    }
    return bias == nullptr ? 0.0F : bias[head * bias_head + query * bias_query + key] * kernels::log2_e;
  }

  /// Products of a warp's rows and a tile's columns become scores in log 2; rows are keys and columns queries where
  /// `across`.
  template <bool across, int N>
  GALVATRON_KERNEL void to_scores(auto& block, const auto& tiles, int head, int first_row, int first_column,
                                  float (&s)[N][4]) const {
    const WindowMark* const rows = tiles.row_marks() + 16 * (block.thread() / warp_threads);
    const WindowMark* const columns = tiles.column_marks();
    const float factor = scale() * kernels::log2_e;
    const bool plain =
        across ? is_plain(first_column, 8 * N, first_row, 16) : is_plain(first_row, 16, first_column, 8 * N);
    const int lane = block.thread() % warp_threads;
    GALVATRON_UNROLL
    for (int j = 0; j < N; ++j)
      for (int i = 0; i < 4; ++i) {
        s[j][i] *= factor;
        if (plain) continue;
        const int row = lane / 4 + i / 2 * 8;
        const int column = 8 * j + lane % 4 * 2 + i % 2;
        s[j][i] += across ? added(head, first_column + column, first_row + row, columns + column, rows + row)
                          : added(head, first_row + row, first_column + column, rows + row, columns + column);
      }
  }

  /// Tiles (rows, D) of a head's queries from `first` on, of their d_o unless that is null, and their marks.
  template <int D>
  GALVATRON_KERNEL void load_queries(auto& block, int unit, int head, int first, int rows, T* to, T* to_d_o,
                                     WindowMark* marks) const {
    load<D>(block, unit, head, first, rows, queries, q, q_stride, to);
    if (to_d_o != nullptr) load<D>(block, unit, head, first, rows, queries, d_o, out_stride, to_d_o);
    mark_tile(block, unit, first, rows, marks);
  }
  /// The same of keys and of their values.
  template <int D>
  GALVATRON_KERNEL void load_keys(auto& block, int unit, int kv_head, int first, int rows, T* to, T* to_values,
                                  WindowMark* marks) const {
    load<D>(block, unit, kv_head, first, rows, keys, k, kv_stride, to);
    load<D>(block, unit, kv_head, first, rows, keys, v, kv_stride, to_values);
    mark_tile(block, unit, first, rows, marks);
  }
  /// Of queries from `first` on; 0 for those that do not exist.
  GALVATRON_KERNEL void load_statistics(auto& block, int unit, int head, int first, int rows,
                                        QueryStatistics* to) const {
    for (int i = block.thread(); i < rows; i += block.threads()) {
      to[i] = {0.0F, 0.0F};
      if (first + i < queries)
        to[i] = {lse[lse_at(unit, head, first + i)] * kernels::log2_e, delta[delta_at(unit, head, first + i)]};
    }
  }

  // to (rows, D) = a head's columns of tokens `first` on of a unit; 0 beyond `tokens` and beyond head_dim.
  template <int D>
  GALVATRON_KERNEL void load(auto& block, int unit, int head, int first, int rows, int tokens, const T* from,
                             std::int64_t stride, T* to) const {
    constexpr int size = Pack<T>::size;
    for (int i = block.thread(); i < rows * (D / size); i += block.threads()) {
      const int r = i / (D / size);
      const int c = i % (D / size) * size;
      Pack<T> pack{};
      if (first + r < tokens && c < head_dim)
        pack = load_pack(from + row(unit, first + r) * stride + head * head_dim, c, head_dim, packed);
      pack.store(to + r * tile_stride<T, D> + c);
    }
  }
};

/// The tiles of a block: `own` tensors of rows that it keeps, 16 a warp, and two of columns that pass by.
template <class T, int D, int warps_, int columns_, int own>
struct FlashTiles {
  static constexpr int warps = warps_;
  static constexpr int threads = warps * warp_threads;
  static constexpr int rows = 16 * warps;
  static constexpr int columns = columns_;
  static constexpr int pieces = columns / 8;
  static constexpr int stride = tile_stride<T, D>;
  static constexpr int warp_room = sizeof(T) == 4 ? 16 * room_stride<pieces> : 0;
  static constexpr int statistics = rows > columns ? rows : columns;
  static constexpr std::int64_t bytes = (own * rows + 2 * columns) * stride * static_cast<std::int64_t>(sizeof(T)) +
                                        warps * warp_room * static_cast<std::int64_t>(sizeof(float)) +
                                        (rows + columns) * static_cast<std::int64_t>(sizeof(WindowMark)) +
                                        statistics * static_cast<std::int64_t>(sizeof(QueryStatistics));
  static_assert(bytes <= (99 << 10) - 512, "galvatron: a block of every GPU since Ampere has 99 KiB of shared memory");

  static constexpr Geometry geometry(std::int64_t blocks) {
    return {.blocks = blocks, .threads = threads, .shared_bytes = bytes};
  }

  GALVATRON_KERNEL explicit FlashTiles(std::byte* shared) : kept(reinterpret_cast<T*>(shared)) {}
  [[nodiscard]] GALVATRON_KERNEL T* keeps(int tensor) const { return kept + tensor * rows * stride; }
  [[nodiscard]] GALVATRON_KERNEL T* passes(int tensor) const { return kept + (own * rows + tensor * columns) * stride; }
  [[nodiscard]] GALVATRON_KERNEL float* room(int warp) const {
    return reinterpret_cast<float*>(passes(2)) + warp * warp_room;
  }
  [[nodiscard]] GALVATRON_KERNEL WindowMark* row_marks() const { return reinterpret_cast<WindowMark*>(room(warps)); }
  [[nodiscard]] GALVATRON_KERNEL WindowMark* column_marks() const { return row_marks() + rows; }
  [[nodiscard]] GALVATRON_KERNEL QueryStatistics* of_queries() const {
    return reinterpret_cast<QueryStatistics*>(column_marks() + columns);
  }

  T* kept;
};

/// Tiles that fit into shared memory and registers, by the bytes of a head.
constexpr int forward_columns(int head_bytes) { return head_bytes <= 256 ? 64 : head_bytes <= 512 ? 32 : 16; }
template <class T, int D, int bytes = D * static_cast<int>(sizeof(T))>
using ForwardTiles = FlashTiles<T, D, bytes <= 512 ? 4 : 2, forward_columns(bytes), 1>;

constexpr int backward_columns(int head_dim, int head_bytes) {
  return head_bytes == 128 && head_dim == 64 ? 64 : head_bytes <= 512 ? 32 : 8;
}
template <class T, int D, int bytes = D * static_cast<int>(sizeof(T))>
using BackwardTiles = FlashTiles<T, D, bytes <= 256 ? 4 : 2, backward_columns(D, bytes), 2>;

/// The problem of ordinary attention, without gradients of biases; `addresses` are those of the other tensors of T.
template <class T>
FlashProblem<T> flash_problem(const AttentionShape& s, const AttentionBias& bias, const T* q, const T* k, const T* v,
                              const auto*... addresses) {
  FlashProblem<T> problem{
      .units = static_cast<int>(s.batch),
      .batch = static_cast<int>(s.batch),
      .queries = static_cast<int>(s.queries),
      .keys = static_cast<int>(s.keys),
      .heads = static_cast<int>(s.heads),
      .kv_heads = static_cast<int>(s.kv_heads),
      .head_dim = static_cast<int>(s.head_dim),
      .score_factor = s.score_factor,
      .causal = s.causal,
      // All are multiples of a power of two when their bits together are.
      .packed = is_packed<T>(s.head_dim | s.q_stride | s.kv_stride | s.out_stride | s.dq_row() | s.dkv_row(), q, k, v,
                             addresses...),
      .q_stride = s.q_stride,
      .kv_stride = s.kv_stride,
      .out_stride = s.out_stride,
      .dq_stride = s.dq_row(),
      .dkv_stride = s.dkv_row(),
      .lse_stride = s.lse_row(),
      .delta_stride = s.lse_row(),
      .q = q,
      .k = k,
      .v = v};
  if (!bias.values.empty()) {
    problem.bias = bias.values.data + bias.first;
    problem.bias_head = bias.head;
    problem.bias_query = bias.query;
  }
  return problem;
}

/// Calls the template f with the width of tiles for heads of head_dim elements. Throws DeviceFailure.
void with_head_width(std::int64_t head_dim, const auto& f) {
  if (head_dim > 256)
    throw DeviceFailure("the GPU's attention has heads of at most 256 elements, not " + std::to_string(head_dim));
  if (head_dim > 128) return f.template operator()<256>();
  if (head_dim > 64) return f.template operator()<128>();
  if (head_dim > 32) return f.template operator()<64>();
  return f.template operator()<32>();
}

}  // namespace galvatron::device::cuda
