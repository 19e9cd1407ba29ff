// Flash attention (Dao 2023). Forward, a block has a tile of queries of one head and goes over tiles of keys; a warp
// has 16 queries, their softmax so far, and their results in registers.
//
//   keys ->      0    64   128      Tiles right of the diagonal are left out (causal).
//   queries 0  [ \ ]
//          64  [   ][ \ ]
//
// Backward without atomics: one kernel for the gradient of the queries, one for those of keys and values. Both
// recompute
//   P = exp(S - lse)   dS = P (dO V^T - delta)   with S the scores of Q K^T
// for their tiles, where S has a soft cap times its slope. The first keeps a tile of queries while keys pass by: dQ +=
// dS K. The second keeps a tile of keys while the queries of all heads of its group pass by, in order: dV += P^T dO, dK
// += dS^T Q.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <galvatron/device/cuda/flash_tiles.hpp>

namespace galvatron::device::cuda {

template <class T, int D>
struct FlashForward {
  using Tiles = ForwardTiles<T, D>;
  static constexpr int most_threads = Tiles::threads;
  FlashProblem<T> problem;
  T* o;
  float* lse;

  [[nodiscard]] Geometry geometry() const { return Tiles::geometry(problem.query_tiles(Tiles::rows)); }

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Tiles tiles(block.shared());
    const QueryTile at = problem.query_tile(block.index(), Tiles::rows);
    const int warp = block.thread() / warp_threads;
    const int first_row = at.first + 16 * warp;

    problem.template load_queries<D>(block, at.unit, at.head, at.first, Tiles::rows, tiles.keeps(0), nullptr,
                                     tiles.row_marks(), at.documents);
    float results[D / 8][4] = {};
    float maximum[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
    float sum[2] = {};  // of the lane's own columns
    for (int first_key = at.first_key; first_key < at.end; first_key += Tiles::columns) {
      block.sync();
      problem.template load_keys<D>(block, at.unit, at.kv_head, first_key, Tiles::columns, tiles.passes(0),
                                    tiles.passes(1), tiles.column_marks());
      block.sync();
      if (problem.is_apart(first_row, 16, first_key, Tiles::columns, tiles.row_marks() + 16 * warp)) continue;
      float scores[Tiles::pieces][4] = {};
      multiply_rows<D>(block, tiles.keeps(0) + 16 * warp * Tiles::stride, tiles.passes(0), scores);
      problem.template to_scores<false>(block, tiles, at.head, first_row, first_key, scores);
      GALVATRON_UNROLL
      for (int half = 0; half < 2; ++half) {
        float most = maximum[half];
        GALVATRON_UNROLL
        for (int j = 0; j < Tiles::pieces; ++j)
          for (int i = 0; i < 2; ++i) most = scores[j][2 * half + i] > most ? scores[j][2 * half + i] : most;
        most = over_row(block, most, Maximum{});
        // A row that has seen no key yet has nothing to compare with.
        const float reference = most == -std::numeric_limits<float>::infinity() ? 0.0F : most;
        const float rescale = kernels::exponential2(maximum[half] - reference);
        maximum[half] = most;
        sum[half] *= rescale;
        GALVATRON_UNROLL
        for (int j = 0; j < Tiles::pieces; ++j)
          for (int i = 0; i < 2; ++i) {
            float& score = scores[j][2 * half + i];
            score = kernels::exponential2(score - reference);
            sum[half] += score;
          }
        GALVATRON_UNROLL
        for (int j = 0; j < D / 8; ++j)
          for (int i = 0; i < 2; ++i) results[j][2 * half + i] *= rescale;
      }
      multiply_values<D>(block, scores, tiles.passes(1), tiles.room(warp), results);
    }
    GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = over_row(block, sum[half], Sum{});
      const int query = first_row + block.thread() % warp_threads / 4 + 8 * half;
      if (query >= problem.queries) continue;
      // A query without keys has nothing to divide by.
      store_row(block, results, half, total == 0 ? 0.0F : 1.0F / total, problem.head_dim, problem.packed,
                o + problem.row(at.unit, query) * problem.out_stride + at.head * problem.head_dim);
      if (block.thread() % 4 == 0)
        lse[problem.lse_at(at.unit, at.head, query)] = maximum[half] * kernels::ln_2 + std::log(total);
    }
  }
};

template <class T>
void flash_forward(auto& launcher, const FlashProblem<T>& problem, T* o, float* lse) {
  with_head_width(problem.head_dim, [&]<int D>() {
    const FlashForward<T, D> kernel{problem, o, lse};
    launcher.launch(kernel.geometry(), kernel);
  });
}

/// p, 0 before, becomes the probabilities of the warp's rows and the columns that pass by, and ds, 0 before, the
/// gradients of their natural scores; rows are keys and columns queries where `across`.
template <int D, bool across, class T, class Tiles, int N>
GALVATRON_KERNEL void differentiate(auto& block, const FlashProblem<T>& problem, const Tiles& tiles, int head,
                                    int first_row, int first_column, float (&p)[N][4], float (&ds)[N][4]) {
  const int lane = block.thread() % warp_threads;
  const int own = 16 * (block.thread() / warp_threads);  // the warp's rows of the tile
  multiply_rows<D>(block, tiles.keeps(0) + own * Tiles::stride, tiles.passes(0), p);
  multiply_rows<D>(block, tiles.keeps(1) + own * Tiles::stride, tiles.passes(1), ds);
  problem.template to_scores<across>(block, tiles, head, first_row, first_column, p);
  const QueryStatistics* const queries = tiles.of_queries() + (across ? 0 : own);
  GALVATRON_UNROLL
  for (int j = 0; j < N; ++j)
    for (int i = 0; i < 4; ++i) {
      const QueryStatistics of = queries[across ? 8 * j + lane % 4 * 2 + i % 2 : lane / 4 + i / 2 * 8];
      float slope = 1;
      // Of a key that the query does not see the score is -infinity, and the gradient 0.
      if (p[j][i] >= -problem.cap()) kernels::soft_cap_slope(p[j][i], problem.cap(), slope);
      p[j][i] = kernels::exponential2(p[j][i] - of.lse);
      ds[j][i] = p[j][i] * (ds[j][i] - of.delta) * slope;
    }
}

/// dq and delta. Where `o` is null, delta is the row sum of P * dP, for which the keys pass by once more.
template <class T, int D>
struct FlashQueryGradient {
  using Tiles = BackwardTiles<T, D>;
  static constexpr int most_threads = Tiles::threads;
  static constexpr int least_blocks = 1;
  FlashProblem<T> problem;
  const T* o;
  T* dq;

  [[nodiscard]] Geometry geometry() const { return Tiles::geometry(problem.query_tiles(Tiles::rows)); }

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Tiles tiles(block.shared());
    const QueryTile at = problem.query_tile(block.index(), Tiles::rows);
    const int warp = block.thread() / warp_threads;
    const int lane = block.thread() % warp_threads;
    const int first_row = at.first + 16 * warp;
    QueryStatistics* const statistics = tiles.of_queries() + 16 * warp;

    problem.template load_queries<D>(block, at.unit, at.head, at.first, Tiles::rows, tiles.keeps(0), tiles.keeps(1),
                                     tiles.row_marks(), at.documents);
    if (lane < 16) {
      const bool there = first_row + lane < problem.queries;
      statistics[lane] = {
          there ? problem.lse[problem.lse_at(at.unit, at.head, first_row + lane)] * kernels::log2_e : 0.0F, 0.0F};
    }
    block.sync();
    float sums[2] = {};  // the lane's part of delta
    if (o != nullptr) {
      add_products(block, at, first_row, tiles.keeps(1) + 16 * warp * Tiles::stride, sums);
      write_delta(block, at, first_row, sums, statistics);
    }
    float results[D / 8][4] = {};
    for (int pass = o == nullptr ? 0 : 1; pass < 2; ++pass) {
      for (int first_key = at.first_key; first_key < at.end; first_key += Tiles::columns) {
        block.sync();
        problem.template load_keys<D>(block, at.unit, at.kv_head, first_key, Tiles::columns, tiles.passes(0),
                                      tiles.passes(1), tiles.column_marks());
        block.sync();
        if (problem.is_apart(first_row, 16, first_key, Tiles::columns, tiles.row_marks() + 16 * warp)) continue;
        float p[Tiles::pieces][4] = {}, ds[Tiles::pieces][4] = {};
        differentiate<D, false>(block, problem, tiles, at.head, first_row, first_key, p, ds);
        if (pass == 0) {
          GALVATRON_UNROLL
          for (int j = 0; j < Tiles::pieces; ++j)
            for (int i = 0; i < 4; ++i) sums[i / 2] += ds[j][i];
        } else {
          multiply_values<D>(block, ds, tiles.passes(0), tiles.room(warp), results);
        }
      }
      if (pass == 0) write_delta(block, at, first_row, sums, statistics);
    }
    GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int query = first_row + lane / 4 + 8 * half;
      if (query < problem.queries)
        store_row(block, results, half, problem.scale(), problem.head_dim, problem.packed,
                  dq + problem.row(at.unit, query) * problem.dq_stride + at.head * problem.head_dim);
    }
  }

 private:
  // sums += the lane's part of o * d_o of rows g and g + 8; `gradients` are the warp's rows of d_o.
  GALVATRON_KERNEL void add_products(auto& block, const QueryTile& at, int first_row, const T* gradients,
                                     float (&sums)[2]) const {
    const int lane = block.thread() % warp_threads;
    GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (first_row + row >= problem.queries) continue;
      const T* from = o + problem.row(at.unit, first_row + row) * problem.out_stride + at.head * problem.head_dim;
      for (int first = lane % 4 * 4; first < problem.head_dim; first += 16) {
        const Four<T> four = load_pack<4>(from, first, problem.head_dim, problem.packed);
        for (int e = 0; e < 4; ++e)
          sums[half] += four.get(e) * kernels::get(gradients[row * Tiles::stride + first + e]);
      }
    }
  }
  GALVATRON_KERNEL void write_delta(auto& block, const QueryTile& at, int first_row, const float (&sums)[2],
                                    QueryStatistics* statistics) const {
    const int lane = block.thread() % warp_threads;
    block.sync_warp();
    GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = over_row(block, sums[half], Sum{});
      const int row = lane / 4 + 8 * half;
      if (lane % 4 != 0) continue;
      statistics[row].delta = sum;
      if (first_row + row < problem.queries) problem.delta[problem.delta_at(at.unit, at.head, first_row + row)] = sum;
    }
    block.sync_warp();
  }
};

/// dk and dv, by blocks that have up to 128 elements of their heads each.
template <class T, int D>
struct FlashKeyGradient {
  using Tiles = BackwardTiles<T, D>;
  static constexpr int most_threads = Tiles::threads;
  static constexpr int width = D < 128 ? D : 128;
  static constexpr int slices = D / width;
  FlashProblem<T> problem;
  T* dk;
  T* dv;

  [[nodiscard]] Geometry geometry() const {
    return Tiles::geometry(divide_up(problem.keys, Tiles::rows) * slices * problem.kv_heads * problem.units);
  }

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Tiles tiles(block.shared());
    const int key_tiles = (problem.keys + Tiles::rows - 1) / Tiles::rows;
    const FlashBlock at = problem.block_of(block.index(), problem.kv_heads, key_tiles * slices);
    const int first_key = at.tile / slices * Tiles::rows;
    const int slice = at.tile % slices * width;
    const int warp = block.thread() / warp_threads;
    const int lane = block.thread() % warp_threads;
    const int first_row = first_key + 16 * warp;

    problem.template load_keys<D>(block, at.unit, at.head, first_key, Tiles::rows, tiles.keeps(0), tiles.keeps(1),
                                  tiles.row_marks());
    float of_keys[width / 8][4] = {};
    float of_values[width / 8][4] = {};
    const KeyTile tile = problem.key_tile(first_key, Tiles::rows, Tiles::columns);
    for (int head = at.head * problem.group(); head < (at.head + 1) * problem.group(); ++head)
      for (int first_query = tile.first_query; first_query < tile.end; first_query += Tiles::columns) {
        block.sync();
        problem.template load_queries<D>(block, at.unit, head, first_query, Tiles::columns, tiles.passes(0),
                                         tiles.passes(1), tiles.column_marks(), tile.documents);
        problem.load_statistics(block, at.unit, head, first_query, Tiles::columns, tiles.of_queries());
        block.sync();
        if (problem.is_apart(first_query, Tiles::columns, first_row, 16, tiles.column_marks())) continue;
        float p[Tiles::pieces][4] = {};   // (keys, queries)
        float ds[Tiles::pieces][4] = {};  // (keys, queries)
        differentiate<D, true>(block, problem, tiles, head, first_row, first_query, p, ds);
        multiply_values<D>(block, p, tiles.passes(1) + slice, tiles.room(warp), of_values);
        multiply_values<D>(block, ds, tiles.passes(0) + slice, tiles.room(warp), of_keys);
      }
    GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = first_row + lane / 4 + 8 * half;
      if (key >= problem.keys) continue;
      const std::int64_t to = problem.row(at.unit, key) * problem.dkv_stride + at.head * problem.head_dim + slice;
      const int there = problem.head_dim - slice;
      store_row(block, of_keys, half, problem.scale(), there, problem.packed, dk + to);
      store_row(block, of_values, half, 1.0F, there, problem.packed, dv + to);
    }
  }
};

/// dq, dk, dv and delta of a problem; see FlashQueryGradient for `o`.
template <class T>
void flash_backward(auto& launcher, const FlashProblem<T>& problem, const T* o, T* dq, T* dk, T* dv) {
  with_head_width(problem.head_dim, [&]<int D>() {
    const FlashQueryGradient<T, D> queries{problem, o, dq};
    launcher.launch(queries.geometry(), queries);
    const FlashKeyGradient<T, D> keys{problem, dk, dv};
    if (problem.keys > 0) launcher.launch(keys.geometry(), keys);
  });
}

}  // namespace galvatron::device::cuda
