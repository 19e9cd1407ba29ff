// LayerNorm and RMSNorm over rows, and the gradients of biases.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/kernels/norm.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::device::cuda {

/// Which elements of a row of `count` a thread has.
struct RowPlaces {
  bool packed;
  int rank, threads, count;
  int own;  ///< packs in its registers

  template <class T>
  GALVATRON_KERNEL static RowPlaces of(bool packed, int rank, int threads, int count, int kept) {
    const int packs = count / Pack<T>::size;
    const int own = packed && rank < packs ? (packs - rank - 1) / threads + 1 : 0;
    return {packed, rank, threads, count, own < kept ? own : kept};
  }
};

/// What a thread has of a row: where rows are packed `kept` packs in its registers and packs in memory of what is left,
/// else single elements in memory.
template <class T, int kept>
struct RowPart {
  Pack<T> packs[kept] = {};

  /// Calls work(p, i) for each run of elements from i on, which is pack p where it is one of the registers'; work is a
  /// template of a run's elements and of whether it is.
  GALVATRON_KERNEL static void each(const RowPlaces& at, const auto& work) {
    constexpr int size = Pack<T>::size;
    GALVATRON_UNROLL
    for (int p = 0; p < kept; ++p)
      if (p < at.own) work.template operator()<size, true>(p, (p * at.threads + at.rank) * size);
    if (at.packed) {
      GALVATRON_NO_UNROLL
      for (int i = (kept * at.threads + at.rank) * size; i < at.count; i += at.threads * size)
        work.template operator()<size, false>(0, i);
    } else {
      GALVATRON_NO_UNROLL
      for (int i = at.rank; i < at.count; i += at.threads) work.template operator()<1, false>(0, i);
    }
  }
  /// Keeps what the registers take of a row; each(work) is the above with the row's numbers.
  GALVATRON_KERNEL void keep(const auto& each, const T* row) {
    each([&]<int n, bool own>(int p, int i) {
      if constexpr (own) packs[p] = Pack<T>::at(row + i);
    });
  }
  /// The elements again.
  template <int n, bool own>
  GALVATRON_KERNEL Pack<T, n> get(const T* row, int p, int i) const {
    if constexpr (own)
      return packs[p];
    else
      return Pack<T, n>::at(row + i);
  }
  /// The same of a row that may be null, which stands for zeros.
  template <int n, bool own>
  GALVATRON_KERNEL Pack<T, n> get_any(const T* row, int p, int i) const {
    return own || row != nullptr ? get<n, own>(row, p, i) : Pack<T, n>{};
  }
  /// out = a + b, of which this has kept the packs of a and `more` those of b; keeps those of out.
  template <int n, bool own>
  GALVATRON_KERNEL void add(const RowPart& more, const T* a, const T* b, T* out, int p, int i) {
    const auto left = get<n, own>(a, p, i);
    const auto right = more.get<n, own>(b, p, i);
    const auto sum = Pack<T, n>::of([&](int j) { return left.get(j) + right.get(j); });
    sum.store(out + i);
    if constexpr (own) packs[p] = sum;
  }
};

/// sums[j] = values[j], or grows by it.
template <int n>
GALVATRON_KERNEL void put_sums(float* sums, const float (&values)[n], bool grow) {
  float now[n] = {};
  if (grow) get_elements(sums, now);
  for (int j = 0; j < n; ++j) now[j] += values[j];
  put_elements(sums, now);
}

/// y = norm(x [+ r]) * (offset + gamma) (+ beta). A row is read once, unless it is longer than the registers of its
/// team, and x is prefetched during the row before. Gamma and beta are read from caches, which leaves registers for
/// more warps.
/// @tparam packs  in a thread's registers
template <class T, bool adds, int packs>
struct Norm {
  static constexpr int kept = packs;
  static constexpr int most_threads = kept > 4 ? 640 : 1024;  ///< of a multiprocessor too, by their registers
  using Part = RowPart<T, kept>;
  Teams teams;
  int hidden;
  bool packed;
  bool centered;  ///< LayerNorm
  float offset;   ///< of gamma
  float epsilon;
  const T* x;
  const T* r;  ///< where the kernel adds
  const T* gamma;
  const T* beta;  ///< or null
  T* sum;         ///< x + r
  T* y;
  const float* known;  ///< the rows' statistics; null: they are worked out, for `stats`
  float* stats;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const int rank = teams.rank(block);
    const float inverse = 1.0F / static_cast<float>(hidden);
    const auto places = RowPlaces::of<T>(packed, rank, teams.threads, hidden, kept);
    const auto each = [&](const auto& work) { Part::each(places, work); };
    int turn = 0;
    Part next;
    kernels::Normalization next_known{0.0F, 0.0F};
    const auto ask = [&](std::int64_t row) {
      if (row >= teams.rows) return;
      next.keep(each, x + row * hidden);
      if (!adds && known != nullptr) next_known = {known[2 * row], known[2 * row + 1]};
    };
    ask(teams.first_row(block));
    for (std::int64_t row = teams.first_row(block); row < teams.rows; row += teams.row_step(block)) {
      const T* in = x + row * hidden;
      T* out = y + row * hidden;
      Part part = next;
      next = {};
      kernels::Normalization normalized = next_known;
      if constexpr (adds) {
        const T* more = r + row * hidden;
        T* all = sum + row * hidden;
        Part part_of_r;
        part_of_r.keep(each, more);
        each([&]<int n, bool own>(int p, int i) { part.template add<n, own>(part_of_r, in, more, all, p, i); });
        in = all;  // a thread reads again what it wrote itself
      }
      ask(row + teams.row_step(block));
      if (adds || known == nullptr) {
        if (centered) {
          float total[1] = {};
          each([&]<int n, bool own>(int p, int i) {
            const auto v = part.template get<n, own>(in, p, i);
            for (int j = 0; j < n; ++j) total[0] += v.get(j);
          });
          teams.sum(block, total, turn);
          normalized.mean = inverse * total[0];
        }
        float squares[1] = {};
        each([&]<int n, bool own>(int p, int i) {
          const auto v = part.template get<n, own>(in, p, i);
          for (int j = 0; j < n; ++j) {
            const float away = v.get(j) - normalized.mean;
            squares[0] += away * away;
          }
        });
        teams.sum(block, squares, turn);
        normalized.scale = 1.0F / std::sqrt(squares[0] * inverse + epsilon);
        if (rank == 0) {
          stats[2 * row] = normalized.mean;
          stats[2 * row + 1] = normalized.scale;
        }
      }
      each([&]<int n, bool own>(int p, int i) {
        const auto v = part.template get<n, own>(in, p, i);
        const auto g = Pack<T, n>::at(gamma + i);
        const auto b = beta != nullptr ? Pack<T, n>::at(beta + i) : Pack<T, n>{};
        Pack<T, n>::of([&](int j) { return normalized(v.get(j)) * (offset + g.get(j)) + b.get(j); }).store(out + i);
      });
    }
  }
};

/// dx, and the sums over a block's rows for dgamma and dbeta. Threads have the same columns of all of their rows, and
/// the sums of their packs in registers; those of what is left are in shared memory, or where they go at last.
template <class T>
struct NormBackward {
  static constexpr int most_threads = 512;  ///< of a multiprocessor too, by their registers
  static constexpr int size = Pack<T>::size;
  static constexpr int kept = size == 4 ? 3 : 2;  ///< packs in registers, with the two sums of every element
  using Part = RowPart<T, kept>;
  Teams teams;
  int hidden;
  bool packed, centered;
  float offset;  ///< of gamma
  bool shifted;  ///< there is a beta
  bool shares;   ///< shared memory has the sums
  const T* dy;
  const T* x;
  const T* gamma;
  const float* stats;
  const T* d_residual;  ///< or null
  T* dx;
  float* partials;  ///< (blocks, hidden), or (blocks, 2, hidden) with a beta

  GALVATRON_KERNEL void operator()(auto& block) const {
    const int rank = teams.rank(block);
    const float inverse = 1.0F / static_cast<float>(hidden);
    const int width = shifted ? 2 * hidden : hidden;
    float* partial = partials + block.index() * width;
    float* sums = shares ? reinterpret_cast<float*>(block.shared()) : partial;
    float gamma_sums[kept][size] = {}, beta_sums[kept][size] = {};
    const auto places = RowPlaces::of<T>(packed, rank, teams.threads, hidden, kept);
    const auto each = [&](const auto& work) { Part::each(places, work); };
    int turn = 0;
    Part weights;
    weights.keep(each, gamma);
    each([&]<int n, bool own>(int, int i) {
      if constexpr (own) return;
      put_sums<n>(sums + i, {}, false);
      if (shifted) put_sums<n>(sums + hidden + i, {}, false);
    });
    for (std::int64_t row = teams.first_row(block); row < teams.rows; row += teams.row_step(block)) {
      const T* in = x + row * hidden;
      const T* gradient = dy + row * hidden;
      const T* residual = d_residual != nullptr ? d_residual + row * hidden : nullptr;
      const kernels::Normalization normalized{stats[2 * row], stats[2 * row + 1]};
      Part part_of_x, part_of_dy, part_of_residual;
      part_of_x.keep(each, in);
      part_of_dy.keep(each, gradient);
      if (residual != nullptr) part_of_residual.keep(each, residual);
      float totals[2] = {};  // of g and g * xhat
      each([&]<int n, bool own>(int p, int i) {
        const auto v = part_of_x.template get<n, own>(in, p, i);
        const auto d = part_of_dy.template get<n, own>(gradient, p, i);
        const auto weight = weights.template get<n, own>(gamma, p, i);
        float products[n], slopes[n];
        for (int j = 0; j < n; ++j) {
          slopes[j] = d.get(j);
          const float xhat = normalized(v.get(j));
          products[j] = slopes[j] * xhat;
          const float g = slopes[j] * (offset + weight.get(j));
          totals[0] += g;
          totals[1] += g * xhat;
        }
        if constexpr (own) {
          for (int j = 0; j < n; ++j) gamma_sums[p][j] += products[j];
          for (int j = 0; j < n; ++j) beta_sums[p][j] += slopes[j];
        } else {
          put_sums(sums + i, products, true);
          if (shifted) put_sums(sums + hidden + i, slopes, true);
        }
      });
      teams.sum(block, totals, turn);
      const kernels::NormGradient slope{normalized.scale, centered ? totals[0] * inverse : 0.0F, totals[1] * inverse};
      each([&]<int n, bool own>(int p, int i) {
        const auto v = part_of_x.template get<n, own>(in, p, i);
        const auto d = part_of_dy.template get<n, own>(gradient, p, i);
        const auto weight = weights.template get<n, own>(gamma, p, i);
        const auto more = part_of_residual.template get_any<n, own>(residual, p, i);
        Pack<T, n>::of([&](int j) {
          return more.get(j) + slope(d.get(j) * (offset + weight.get(j)), normalized(v.get(j)));
        }).store(dx + row * hidden + i);
      });
    }
    // The teams of a block add their sums in their order.
    for (int team = 0; team < teams.teams(block); ++team) {
      if (team == teams.team(block))
        each([&]<int n, bool own>(int p, int i) {
          if constexpr (own) {
            put_sums(sums + i, gamma_sums[p], team > 0);
            if (shifted) put_sums(sums + hidden + i, beta_sums[p], team > 0);
          }
        });
      block.sync();
    }
    if (shares)
      for (int i = block.thread(); i < width; i += block.threads()) partial[i] = sums[i];
  }
};

template <bool adds, class T>
void normalize(auto& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
               const T* r, const T* gamma, const T* beta, T* sum, T* y, const float* known, float* stats) {
  if (rows == 0 || hidden == 0) return;
  const bool packed = is_packed<T>(hidden, x, r, gamma, beta, sum, y);
  const std::int64_t packs = divide_up(hidden, Pack<T>::size);
  const auto launch = [&]<int kept>() {
    using Kernel = Norm<T, adds, kept>;
    const auto share = share_rows(rows, packs, packed, kept, Kernel::most_threads);
    launcher.launch(share.geometry,
                    Kernel{share.teams, static_cast<int>(hidden), packed, kind == NormKind::layer_norm,
                           gamma_offset(kind), static_cast<float>(epsilon), x, r, gamma, beta, sum, y, known, stats});
  };
  // More packs a thread for long rows: fewer threads execute the work per row.
  if (packed && packs > 4 * warp_threads)
    launch.template operator()<8>();
  else
    launch.template operator()<4>();
}

template <class T>
void norm_forward(auto& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
                  const T* gamma, const T* beta, T* y, float* stats) {
  constexpr T* none = nullptr;
  normalize<false>(launcher, kind, rows, hidden, epsilon, x, none, gamma, beta, none, y, nullptr, stats);
}

template <class T>
void add_norm_forward(auto& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
                      const T* r, const T* gamma, const T* beta, T* sum, T* y, float* stats) {
  normalize<true>(launcher, kind, rows, hidden, epsilon, x, r, gamma, beta, sum, y, nullptr, stats);
}

/// With the same bits.
template <class T>
void norm_recompute(auto& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, const T* x, const T* gamma,
                    const T* beta, const float* stats, T* y) {
  constexpr T* none = nullptr;
  normalize<false>(launcher, kind, rows, hidden, 0.0, x, none, gamma, beta, none, y, stats, nullptr);
}

/// Throws DeviceFailure when the sums over one block's rows exceed the scratch memory.
template <class T>
void norm_backward(auto& launcher, View<std::byte> scratch, NormKind kind, std::int64_t rows, std::int64_t hidden,
                   const T* dy, const T* x, const T* gamma, const float* stats, const T* d_residual, T* dx,
                   float* dgamma, float* dbeta) {
  using Kernel = NormBackward<T>;
  if (rows == 0 || hidden == 0) return;
  constexpr std::int64_t most_shared = 96 << 10;  // bytes; GPUs from Ampere on have them
  auto* partials = reinterpret_cast<float*>(scratch.data);
  const bool packed = is_packed<T>(hidden, dy, x, gamma, d_residual, dx, partials);
  const std::int64_t packs = divide_up(hidden, Pack<T>::size);
  auto share = share_rows(rows, packs, packed, Kernel::kept, Kernel::most_threads);
  const std::int64_t width = dbeta != nullptr ? 2 * hidden : hidden;
  const std::int64_t bytes = width * static_cast<std::int64_t>(sizeof(float));
  const bool several = share.teams.threads < share.geometry.threads;
  const bool all_kept = packed && packs <= Kernel::kept * static_cast<std::int64_t>(share.teams.threads);
  const bool shares = several || (!all_kept && bytes <= most_shared);
  share.geometry.blocks = partials_within(scratch, bytes, share.geometry.blocks);
  if (shares) share.geometry.shared_bytes = bytes;
  launcher.launch(share.geometry,
                  Kernel{share.teams, static_cast<int>(hidden), packed, kind == NormKind::layer_norm,
                         gamma_offset(kind), dbeta != nullptr, shares, dy, x, gamma, stats, d_residual, dx, partials});
  if (dgamma != nullptr)
    column_sums(launcher, share.geometry.blocks, width, 1, static_cast<const float*>(partials),
                AddSums{hidden, dgamma, dbeta});
}

/// db += the sums over the rows of dy. Blocks leave those of runs of rows; the last of a tile's blocks adds them.
template <class T>
struct BiasSums {
  using Tile = TileSums<T>;
  using Partials = TileSums<float, Tile::tile>;
  static constexpr int most_threads = Tile::threads;
  static constexpr int least_blocks = 4;  ///< a multiprocessor
  static constexpr std::int64_t resident_blocks = least_blocks * multiprocessors;
  static_assert(resident_blocks / 2 <= most_tickets);  // of several runs there is no more than half as many tiles
  std::int64_t rows, runs;
  Tile all;
  Partials partials;  ///< (runs, columns)
  float* sums;        ///< the same memory
  std::uint32_t* tickets;
  float* db;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t tiles = divide_up(all.columns, Tile::tile);
    for (std::int64_t work = block.index(); work < tiles * runs; work += block.blocks()) {
      const std::int64_t tile = work % tiles;
      const std::int64_t run = work / tiles;
      const std::int64_t first = tile * Tile::tile;
      all(block, rows * run / runs, rows * (run + 1) / runs, first, [&](std::int64_t column, float sum) {
        if (runs > 1)
          sums[run * all.columns + column] = sum;
        else
          db[column] += sum;
      });
      if (runs == 1 || !is_last_block(block, tickets + tile, runs)) continue;
      const bool has_column = block.thread() < Tile::tile && first + block.thread() < all.columns;
      const float before = has_column ? db[first + block.thread()] : 0.0F;  // loaded early, to hide its latency
      partials(block, 0, runs, first, [&](std::int64_t column, float sum) { db[column] = before + sum; });
    }
  }
};

/// Throws DeviceFailure when a row of floats exceeds the scratch memory.
/// @param tickets  most_tickets, see is_last_block()
template <class T>
void bias_gradient(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, std::int64_t rows, std::int64_t n,
                   const T* dy, float* db) {
  using Kernel = BiasSums<T>;
  using Tile = typename Kernel::Tile;
  if (rows == 0 || n == 0) return;
  const std::int64_t tiles = divide_up(n, Tile::tile);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(Kernel::resident_blocks / tiles, 1, divide_up(rows, Tile::groups * Tile::at_once));
  const std::int64_t runs = partials_within(scratch, n * static_cast<std::int64_t>(sizeof(float)), wanted);
  auto* sums = reinterpret_cast<float*>(scratch.data);
  launcher.launch(
      {.blocks = std::min(tiles * runs, Kernel::resident_blocks),
       .threads = Kernel::most_threads,
       .shared_bytes = std::max(Tile::shared_bytes, Kernel::Partials::shared_bytes)},
      Kernel{rows, runs, {n, is_packed<T>(n, dy), dy}, {n, is_packed<float>(n, sums), sums}, sums, tickets, db});
}

}  // namespace galvatron::device::cuda
