// LayerNorm and RMSNorm over rows, and the gradients of biases.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/column_sums.hpp>
#include <galvatron/device/cuda/geometry.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/kernels/norm.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::device::cuda {

namespace detail {

/// Neighbours in a row, read or written at once.
template <class T, int n>
struct alignas(n * sizeof(T)) ElementRun {
  static constexpr int size = n;
  T values[n];
};

/// What a thread has of a row of `count` elements: `kept` packs of neighbours in its registers, where rows are packed,
/// and single elements in memory of what is left.
template <class T, int kept>
struct RowPart {
  ElementRun<T, Pack<T>::size> packs[kept] = {};

  /// Calls work(p, first) for each of the packs, and work(-1, i) for each of the single elements; work is a template of
  /// Elements.
  template <class F>
  GALVATRON_KERNEL static void each(bool packed, int rank, int threads, int count, const F& work) {
    constexpr int size = Pack<T>::size;
    if (packed) {
      GALVATRON_UNROLL
      for (int p = 0; p < kept; ++p)
        if ((p * threads + rank) * size < count) work.template operator()<size>(p, (p * threads + rank) * size);
    }
    GALVATRON_NO_UNROLL
    for (int i = (packed ? kept * threads * size : 0) + rank; i < count; i += threads)
      work.template operator()<1>(-1, i);
  }
  template <int n>
  GALVATRON_KERNEL static ElementRun<T, n> load(const T* row, int i) {
    return *reinterpret_cast<const ElementRun<T, n>*>(row + i);
  }
  template <int n>
  GALVATRON_KERNEL static void store(const ElementRun<T, n>& elements, T* row, int i) {
    *reinterpret_cast<ElementRun<T, n>*>(row + i) = elements;
  }
  /// Keeps the packs of a row.
  template <int n>
  GALVATRON_KERNEL void keep(const T* row, int p, int i) {
    if constexpr (n > 1) packs[p] = load<n>(row, i);
  }
  /// The elements again.
  template <int n>
  GALVATRON_KERNEL ElementRun<T, n> get(const T* row, int p, int i) const {
    if constexpr (n > 1)
      return packs[p];
    else
      return load<n>(row, i);
  }
  /// out = a + b, of which this has kept the packs of a and `more` those of b; keeps those of out.
  template <int n>
  GALVATRON_KERNEL void add(const RowPart& more, const T* a, const T* b, T* out, int p, int i) {
    auto sum = get<n>(a, p, i);
    const auto term = more.get<n>(b, p, i);
    for (int j = 0; j < n; ++j) kernels::put(sum.values[j], kernels::get(sum.values[j]) + kernels::get(term.values[j]));
    store(sum, out, i);
    if constexpr (n > 1) packs[p] = sum;
  }
};

/// y = norm(x) * gamma (+ beta), or norm(x + r). A row is read once, unless it is longer than the registers of its
/// team.
template <class T, bool adds = false>
struct Norm {
  static constexpr int most_threads = adds ? 512 : 640;
  static constexpr int least_blocks = adds ? 1 : 0;
  static constexpr int kept = 4;  ///< packs in a thread's registers
  using Part = RowPart<T, kept>;
  Teams teams;
  int hidden;
  bool packed;
  bool centered;  ///< LayerNorm
  float epsilon;
  const T* x;
  const T* r;  ///< where the kernel adds
  const T* gamma;
  const T* beta;  ///< or null
  T* sum;         ///< x + r
  T* y;
  const float* known;  ///< the rows' statistics; null: they are worked out, for `stats`
  float* stats;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const int rank = teams.rank(block);
    const float inverse = 1.0F / static_cast<float>(hidden);
    for (std::int64_t row = teams.first_row(block); row < teams.rows; row += teams.row_step(block)) {
      const T* in = x + row * hidden;
      T* out = y + row * hidden;
      Part part;
      const auto each = [&](const auto& work) { Part::each(packed, rank, teams.threads, hidden, work); };
      each([&]<int n>(int p, int i) { part.template keep<n>(in, p, i); });
      if constexpr (adds) {
        const T* more = r + row * hidden;
        T* all = sum + row * hidden;
        Part part_of_r;
        each([&]<int n>(int p, int i) { part_of_r.template keep<n>(more, p, i); });
        each([&]<int n>(int p, int i) { part.template add<n>(part_of_r, in, more, all, p, i); });
        in = all;  // a thread reads again what it wrote itself
      }
      kernels::Normalization normalized{0.0F, 0.0F};
      if (known != nullptr) {
        normalized = {known[2 * row], known[2 * row + 1]};
      } else {
        if (centered) {
          float total = 0;
          each([&]<int n>(int p, int i) {
            const auto v = part.template get<n>(in, p, i);
            for (int j = 0; j < n; ++j) total += kernels::get(v.values[j]);
          });
          normalized.mean = inverse * teams.sum(block, total);
        }
        float squares = 0;
        each([&]<int n>(int p, int i) {
          const auto v = part.template get<n>(in, p, i);
          for (int j = 0; j < n; ++j) {
            const float away = kernels::get(v.values[j]) - normalized.mean;
            squares += away * away;
          }
        });
        normalized.scale = 1.0F / std::sqrt(teams.sum(block, squares) * inverse + epsilon);
        if (rank == 0) {
          stats[2 * row] = normalized.mean;
          stats[2 * row + 1] = normalized.scale;
        }
      }
      each([&]<int n>(int p, int i) {
        auto v = part.template get<n>(in, p, i);
        const auto g = Part::template load<n>(gamma, i);
        const auto b = beta != nullptr ? Part::template load<n>(beta, i) : ElementRun<T, n>{};
        for (int j = 0; j < n; ++j)
          kernels::put(v.values[j],
                       normalized(kernels::get(v.values[j])) * kernels::get(g.values[j]) + kernels::get(b.values[j]));
        Part::store(v, out, i);
      });
    }
  }
};

/// dx, and the sums over a block's rows for dgamma and dbeta. Threads have the same columns of all of their rows, and
/// the sums of their packs in registers; those of single elements are in memory.
template <class T>
struct NormBackward {
  static constexpr int most_threads = 512;
  static constexpr int size = Pack<T>::size;
  static constexpr int kept = size == 4 ? 3 : 2;  ///< packs in registers, with the two sums of every element
  using Part = RowPart<T, kept>;
  Teams teams;
  int hidden;
  bool packed;
  bool centered;
  bool shifted;  ///< there is a beta
  const T* dy;
  const T* x;
  const T* gamma;
  const float* stats;
  const T* d_residual;  ///< or null
  T* dx;
  float* partials;  ///< (blocks, hidden), or (blocks, 2, hidden) with a beta

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const int rank = teams.rank(block);
    const float inverse = 1.0F / static_cast<float>(hidden);
    const int width = shifted ? 2 * hidden : hidden;
    float* partial = partials + block.index() * width;
    float gamma_sums[kept][size] = {};
    float beta_sums[kept][size] = {};
    const auto each = [&](const auto& work) { Part::each(packed, rank, teams.threads, hidden, work); };
    each([&]<int n>(int, int i) {
      if (n > 1) return;
      partial[i] = 0;
      if (shifted) partial[hidden + i] = 0;
    });
    for (std::int64_t row = teams.first_row(block); row < teams.rows; row += teams.row_step(block)) {
      const T* in = x + row * hidden;
      const T* gradient = dy + row * hidden;
      const kernels::Normalization normalized{stats[2 * row], stats[2 * row + 1]};
      Part part_of_x;
      Part part_of_dy;
      each([&]<int n>(int p, int i) {
        part_of_x.template keep<n>(in, p, i);
        part_of_dy.template keep<n>(gradient, p, i);
      });
      float g_sum = 0;
      float g_xhat_sum = 0;
      each([&]<int n>(int p, int i) {
        const auto v = part_of_x.template get<n>(in, p, i);
        const auto d = part_of_dy.template get<n>(gradient, p, i);
        const auto weight = Part::template load<n>(gamma, i);
        for (int j = 0; j < n; ++j) {
          const float slope = kernels::get(d.values[j]);
          const float xhat = normalized(kernels::get(v.values[j]));
          const float g = slope * kernels::get(weight.values[j]);
          g_sum += g;
          g_xhat_sum += g * xhat;
          if constexpr (n > 1) {
            gamma_sums[p][j] += slope * xhat;
            beta_sums[p][j] += slope;
          } else {
            partial[i] += slope * xhat;
            if (shifted) partial[hidden + i] += slope;
          }
        }
      });
      teams.sum(block, g_sum, g_xhat_sum);
      const kernels::NormGradient slope{normalized.scale, centered ? g_sum * inverse : 0.0F, g_xhat_sum * inverse};
      each([&]<int n>(int p, int i) {
        const auto v = part_of_x.template get<n>(in, p, i);
        const auto d = part_of_dy.template get<n>(gradient, p, i);
        const auto weight = Part::template load<n>(gamma, i);
        auto out = d_residual != nullptr ? Part::template load<n>(d_residual + row * hidden, i) : ElementRun<T, n>{};
        for (int j = 0; j < n; ++j)
          kernels::put(out.values[j],
                       kernels::get(out.values[j]) + slope(kernels::get(d.values[j]) * kernels::get(weight.values[j]),
                                                           normalized(kernels::get(v.values[j]))));
        Part::store(out, dx + row * hidden, i);
      });
    }
    // The teams of a block add their sums in their order.
    const int count = teams.teams(block);
    float* sums = count > 1 ? reinterpret_cast<float*>(block.shared()) : partial;
    for (int team = 0; team < count; ++team) {
      if (team == teams.team(block))
        each([&]<int n>(int p, int i) {
          if constexpr (n > 1) {
            for (int j = 0; j < n; ++j) {
              sums[i + j] = (team > 0 ? sums[i + j] : 0.0F) + gamma_sums[p][j];
              if (shifted) sums[hidden + i + j] = (team > 0 ? sums[hidden + i + j] : 0.0F) + beta_sums[p][j];
            }
          }
        });
      block.sync();
    }
    if (count > 1)
      for (int i = block.thread(); i < width; i += block.threads()) partial[i] = sums[i];
  }
};

template <bool adds, class L, class T>
void normalize(L& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
               const T* r, const T* gamma, const T* beta, T* sum, T* y, const float* known, float* stats) {
  if (rows == 0 || hidden == 0) return;
  using Kernel = Norm<T, adds>;
  const bool packed = is_packed<T>(hidden, x, r, gamma, beta, sum, y);
  const auto share =
      share_rows(rows, divide_up(hidden, Pack<T>::size), packed, Kernel::kept, Kernel::most_threads, most_blocks * 256);
  launcher.launch(share.geometry, Kernel{share.teams, static_cast<int>(hidden), packed, kind == NormKind::layer_norm,
                                         static_cast<float>(epsilon), x, r, gamma, beta, sum, y, known, stats});
}

}  // namespace detail

/// y (rows, hidden) = norm(x) * gamma (+ beta, or null); stats (rows, 2) = mean, 1/deviation; RMSNorm: 0, 1/rms. y may
/// be x.
template <class L, class T>
void norm_forward(L& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
                  const T* gamma, const T* beta, T* y, float* stats) {
  constexpr T* none = nullptr;
  detail::normalize<false>(launcher, kind, rows, hidden, epsilon, x, none, gamma, beta, none, y, nullptr, stats);
}

/// sum (rows, hidden) = x + r; y and stats as norm_forward has them of the sum. sum may be x or r, y may be r.
template <class L, class T>
void add_norm_forward(L& launcher, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
                      const T* r, const T* gamma, const T* beta, T* sum, T* y, float* stats) {
  detail::normalize<true>(launcher, kind, rows, hidden, epsilon, x, r, gamma, beta, sum, y, nullptr, stats);
}

/// y again, with the same bits, from the statistics kept.
template <class L, class T>
void norm_again(L& launcher, std::int64_t rows, std::int64_t hidden, const T* x, const T* gamma, const T* beta,
                const float* stats, T* y) {
  constexpr T* none = nullptr;
  detail::normalize<false>(launcher, NormKind::layer_norm, rows, hidden, 0.0, x, none, gamma, beta, none, y, stats,
                           nullptr);
}

/// dx = d_residual (null: 0) + the norm's input gradient; dgamma and dbeta (or null) accumulate. dx may be any of the
/// other rows. Throws DeviceFailure when the sums over one block's rows exceed the scratch memory.
template <class L, class T>
void norm_backward(L& launcher, View<std::byte> scratch, NormKind kind, std::int64_t rows, std::int64_t hidden,
                   const T* dy, const T* x, const T* gamma, const float* stats, const T* d_residual, T* dx,
                   float* dgamma, float* dbeta) {
  using Kernel = detail::NormBackward<T>;
  if (rows == 0 || hidden == 0) return;
  constexpr std::int64_t at_once = 132 * 512;  // what registers allow on 132 multiprocessors
  const bool packed = is_packed<T>(hidden, dy, x, gamma, d_residual, dx);
  auto share = share_rows(rows, divide_up(hidden, Pack<T>::size), packed, Kernel::kept, Kernel::most_threads, at_once);
  const std::int64_t width = dbeta != nullptr ? 2 * hidden : hidden;
  const std::int64_t bytes = width * static_cast<std::int64_t>(sizeof(float));
  share.geometry.blocks = partials_within(scratch, bytes, share.geometry.blocks);
  if (share.teams.threads < share.geometry.threads) share.geometry.shared_bytes = bytes;
  auto* partials = reinterpret_cast<float*>(scratch.data);
  launcher.launch(share.geometry, Kernel{share.teams, static_cast<int>(hidden), packed, kind == NormKind::layer_norm,
                                         dbeta != nullptr, dy, x, gamma, stats, d_residual, dx, partials});
  column_sums(launcher, share.geometry.blocks, width, 1, static_cast<const float*>(partials),
              detail::AddSums{hidden, dgamma, dbeta});
}

/// db (n) += column sums of dy (rows, n). Throws DeviceFailure when a row of floats exceeds the scratch memory.
template <class L, class T>
void bias_gradient(L& launcher, View<std::byte> scratch, std::int64_t rows, std::int64_t n, const T* dy, float* db) {
  using Kernel = ColumnSums<T, detail::KeepSums>;
  if (rows == 0 || n == 0) return;
  const std::int64_t wanted = std::clamp<std::int64_t>(most_blocks / divide_up(n, Kernel::tile), 1,
                                                       divide_up(rows, Kernel::groups * Kernel::at_once));
  const std::int64_t runs = partials_within(scratch, n * static_cast<std::int64_t>(sizeof(float)), wanted);
  auto* partials = reinterpret_cast<float*>(scratch.data);
  column_sums(launcher, rows, n, runs, dy, detail::KeepSums{n, partials});
  column_sums(launcher, runs, n, 1, static_cast<const float*>(partials), detail::AddSums{n, db, nullptr});
}

}  // namespace galvatron::device::cuda
