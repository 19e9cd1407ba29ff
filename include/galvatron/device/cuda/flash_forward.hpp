// Flash attention forward (Dao 2023): a block has a tile of queries of one head and goes over tiles of keys; a warp has
// 16 queries, their softmax so far, and their results in registers.
//
//   keys ->      0    64   128      Tiles right of the diagonal are left out (causal).
//   queries 0  [ \ ]
//          64  [   ][ \ ]
#pragma once

#include <cmath>
#include <limits>

#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/flash_problem.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::cuda::detail {

template <class T, int D>
struct FlashForward {
  using Tiles = ForwardTiles<T, D>;
  static constexpr int most_threads = Tiles::threads;
  FlashProblem<T> problem;
  const T* q;
  const T* k;
  const T* v;
  T* o;
  float* lse;

  [[nodiscard]] Geometry geometry() const {
    return Tiles::geometry(divide_up(problem.queries, Tiles::rows) * problem.heads * problem.units);
  }

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const Tiles tiles(block.shared());
    const int query_tiles = (problem.queries + Tiles::rows - 1) / Tiles::rows;
    const FlashBlock at = problem.block_of(block.index(), problem.heads, query_tiles);
    const int kv_head = at.head / problem.group();
    // The longest rows first.
    const int first_query = (query_tiles - 1 - at.tile) * Tiles::rows;
    const int end =
        problem.causal && first_query + Tiles::rows < problem.keys ? first_query + Tiles::rows : problem.keys;
    const int warp = block.thread() / warp_threads;
    const int first_row = first_query + 16 * warp;

    problem.template load<D>(block, at.unit, at.head, first_query, Tiles::rows, problem.queries, q, problem.q_stride,
                             tiles.keeps(0));
    problem.mark_tile(block, at.unit, first_query, Tiles::rows, tiles.row_marks());
    float results[D / 8][4] = {};
    float maximum[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
    float sum[2] = {};  // of the lane's own columns
    for (int first_key = 0; first_key < end; first_key += Tiles::columns) {
      block.sync();
      problem.template load<D>(block, at.unit, kv_head, first_key, Tiles::columns, problem.keys, k, problem.kv_stride,
                               tiles.passes(0));
      problem.template load<D>(block, at.unit, kv_head, first_key, Tiles::columns, problem.keys, v, problem.kv_stride,
                               tiles.passes(1));
      problem.mark_tile(block, at.unit, first_key, Tiles::columns, tiles.column_marks());
      block.sync();
      if (first_row >= problem.queries || (problem.causal && first_key > first_row + 15)) continue;
      float scores[Tiles::pieces][4] = {};
      multiply_rows<D>(block, tiles.keeps(0) + 16 * warp * Tiles::stride, tiles.passes(0), scores);
      problem.template to_scores<false>(block, at.head, first_row, first_key, tiles.row_marks() + 16 * warp,
                                        tiles.column_marks(), scores);
      GALVATRON_UNROLL
      for (int half = 0; half < 2; ++half) {
        float most = maximum[half];
        GALVATRON_UNROLL
        for (int j = 0; j < Tiles::pieces; ++j)
          for (int i = 0; i < 2; ++i) most = scores[j][2 * half + i] > most ? scores[j][2 * half + i] : most;
        most = over_row(block, most, Maximum<float>{});
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
      const float total = over_row(block, sum[half], Sum<float>{});
      const int query = first_row + block.thread() % warp_threads / 4 + 8 * half;
      if (query >= problem.queries) continue;
      store_row(block, results, half, 1.0F / total, problem.head_dim, problem.packed,
                o + problem.row(at.unit, query) * problem.out_stride + at.head * problem.head_dim);
      if (block.thread() % 4 == 0)
        lse[problem.lse_at(at.unit, at.head, query)] = maximum[half] * kernels::ln_2 + std::log(total);
    }
  }
};

/// o and lse of a problem.
template <class L, class T>
void flash_forward(L& launcher, const FlashProblem<T>& problem, const T* q, const T* k, const T* v, T* o, float* lse) {
  with_head_width(problem.head_dim, [&]<int D>() {
    const FlashForward<T, D> kernel{problem, q, k, v, o, lse};
    launcher.launch(kernel.geometry(), kernel);
  });
}

}  // namespace galvatron::device::cuda::detail
