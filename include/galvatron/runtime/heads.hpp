// Steps on the heads of projections, in front of attention and behind it: RMS norms of queries and keys, and the heads
// of latent attention.
//
//   fused projection (rows, q | k | v)
//   latent attention, r of the d elements of a head turned by positions, v the width of a head of values:
//     queries (rows, A r | A (d - r)), keys and values (rows, A (d - r) | A v), turned key (rows, r)
//       -> (rows, q | k | v), each A heads of d: turned | not turned, of values v | zeros
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/attention.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

/// The angles of a layer's rotary positions in heads of `width` elements.
inline device::kernels::RotaryFrequencies rotary_frequencies(const LayerSpec& layer, std::int64_t width) {
  const RotaryScaling& scaling = layer.rotary_scaling;
  device::kernels::RotaryFrequencies out(layer.rope_theta);
  out.amplitude = static_cast<float>(scaling.amplitude);
  out.factor = scaling.factor;
  if (layer.rotary_dim > 0) {
    out.turned = layer.rotary_dim / 2;
    width = layer.rotary_dim;
  }
  if (scaling.factor == 1) return out;
  if (scaling.ramp == RotaryRamp::none) {
    out.low = -1;
    out.high = 0;
    return out;
  }
  if (scaling.ramp == RotaryRamp::turns) {
    out.turns = static_cast<double>(scaling.positions) / (2 * std::numbers::pi);
    out.low = scaling.fast;
    out.high = scaling.slow == scaling.fast ? scaling.slow * (1 - 1e-9) : scaling.slow;  // a step
    return out;
  }
  // The pair that turns so often within the positions of the first training.
  const auto pair = [&](double turns) {
    return static_cast<double>(width) *
           std::log(static_cast<double>(scaling.positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(layer.rope_theta));
  };
  out.low = std::max(std::floor(pair(scaling.fast)), 0.0);
  out.high = std::min(std::ceil(pair(scaling.slow)), static_cast<double>(width - 1));
  if (out.low == out.high) out.high += 0.001;  // a step
  return out;
}
/// What scores of a layer are multiplied by, beside head_dim^-1/2.
inline float score_factor(const LayerSpec& layer) {
  const double root = 0.1 * layer.rotary_scaling.score_rate * std::log(layer.rotary_scaling.factor) + 1;
  const auto share =
      layer.score_width == 0 ? 1.0 : static_cast<double>(layer.head_dim) / static_cast<double>(layer.score_width);
  return static_cast<float>(root * root * std::sqrt(share));
}

/// Norms of the queries and keys of a fused projection, in runs of `width` elements.
struct HeadNorms {
  std::int64_t rows = 0;
  std::int64_t queries = 0;  ///< elements of a row
  std::int64_t keys = 0;     ///< the same
  std::int64_t width = 0;    ///< 0: all queries, and all keys
  NormKind kind = NormKind::rms_norm;

  /// Calls f(first element of rows, elements of a row, width of a norm, 0 or 1) for queries and for keys.
  template <class F>
  void for_each(const F& f) const {
    const bool all = width == queries;  // one norm of all of them, also where there are fewer keys
    f(std::int64_t{0}, queries, width, 0);
    f(queries, keys, all ? keys : width, 1);
  }
  [[nodiscard]] std::int64_t stride() const { return queries + 2 * keys; }
  /// Columns of the fused projection to dense rows, or back.
  [[nodiscard]] device::Runs columns(std::int64_t count, bool back) const {
    device::Runs runs{.rows = rows, .width = count, .from = {.row = stride()}, .to = {.row = count}};
    if (back) runs = {.rows = rows, .width = count, .from = {.row = count}, .to = {.row = stride()}};
    return runs;
  }
};

/// @param before      becomes queries (rows, q), then keys (rows, k), as they were
/// @param statistics  2 for each norm of queries, then of keys
/// @param after       scratch as `before`
template <class D, class T>
void norm_heads(Context<D>& context, const HeadNorms& norms, double epsilon, View<T> qkv, View<T> before,
                View<float> statistics, View<T> after, View<const T> query_gamma, View<const T> key_gamma) {
  std::int64_t first_norm = 0;
  norms.for_each([&](std::int64_t first, std::int64_t count, std::int64_t width, int which) {
    const View<T> x = before.slice(norms.rows * first, norms.rows * count);
    const View<T> y = after.slice(norms.rows * first, norms.rows * count);
    const std::int64_t all = norms.rows * count / width;
    context.device.copy_runs(norms.columns(count, false), behind(qkv, first), x);
    context.device.norm_forward(norms.kind, all, width, epsilon, x, which == 0 ? query_gamma : key_gamma,
                                View<const T>{}, y, statistics.slice(2 * first_norm, 2 * all));
    context.device.copy_runs(norms.columns(count, true), y, behind(qkv, first));
    first_norm += all;
  });
}

/// The gradient of qkv in place. Tensor ranks have other heads of the same rows: where gradients of whole parameters
/// are not summed over them at the end of a step, those of gammas are here. Frozen gammas have none.
/// @param d       scratch as `before`
/// @param gammas  scratch of 2 widths
template <class D, class T>
void norm_heads_backward(Context<D>& context, const HeadNorms& norms, View<T> d_qkv, View<T> before,
                         View<float> statistics, View<T> d, View<float> gammas, View<const T> query_gamma,
                         View<const T> key_gamma, View<float> d_query_gamma, View<float> d_key_gamma) {
  const bool sums = context.spec.tensor > 1 && !context.spec.cuts_over_tensor() && d_query_gamma.count > 0;
  if (sums) context.device.zero(raw_bytes(gammas));
  std::int64_t first_norm = 0;
  norms.for_each([&](std::int64_t first, std::int64_t count, std::int64_t width, int which) {
    const View<T> x = before.slice(norms.rows * first, norms.rows * count);
    const View<T> dy = d.slice(norms.rows * first, norms.rows * count);
    const View<float> d_gamma = sums ? gammas.slice(which * width, width) : which == 0 ? d_query_gamma : d_key_gamma;
    const std::int64_t all = norms.rows * count / width;
    context.device.copy_runs(norms.columns(count, false), behind(d_qkv, first), dy);
    context.device.norm_backward(norms.kind, all, width, dy, x, which == 0 ? query_gamma : key_gamma,
                                 statistics.slice(2 * first_norm, 2 * all), View<const T>{}, dy, d_gamma,
                                 View<float>{});
    context.device.copy_runs(norms.columns(count, true), dy, behind(d_qkv, first));
    first_norm += all;
  });
  if (!sums) return;
  context.tensor.all_reduce(gammas, comm::ReduceOp::sum);
  context.device.accumulate(norms.width, View<const float>(gammas.slice(0, norms.width)), d_query_gamma);
  context.device.accumulate(norms.width, View<const float>(gammas.slice(norms.width, norms.width)), d_key_gamma);
}

template <class D, class T>
class LatentHeads {
 public:
  /// @param heads  of this rank
  LatentHeads(Context<D>& context, const LayerSpec& layer, std::int64_t rows, std::int64_t heads)
      : c_(context),
        rows_(rows),
        heads_(heads),
        head_(layer.head_dim),
        turned_(layer.latent.rotary_dim),
        value_(layer.latent.value_dim) {}

  void assemble(View<T> q, View<T> kv, View<T> key, View<T> qkv) {
    if (value_ < head_) c_.device.zero(raw_bytes(qkv));
    for (const Move& move : moves(q, kv, qkv)) c_.device.copy_runs(move.runs, move.part, move.fused);
    c_.device.copy_runs(of_key(false), key, behind(qkv, heads_ * head_));
  }
  /// @param sum  (rows, r), where T is rounded
  void assemble_backward(View<T> d_qkv, View<T> dq, View<T> dkv, View<T> d_key, View<float> sum) {
    for (const Move& move : moves(dq, dkv, d_qkv))
      c_.device.copy_runs(device::Runs{.blocks = move.runs.blocks,
                                       .rows = move.runs.rows,
                                       .width = move.runs.width,
                                       .from = move.runs.to,
                                       .to = move.runs.from},
                          move.fused, move.part);
    if constexpr (std::is_same_v<T, float>) sum = d_key;
    c_.device.zero(raw_bytes(sum));
    c_.device.add_runs(of_key(true), behind(d_qkv, heads_ * head_), sum);
    if constexpr (!std::is_same_v<T, float>) c_.device.copy_runs(device::Runs{.width = d_key.count}, sum, d_key);
  }
  /// (rows, A d) -> (rows, A v), and back.
  void narrow(View<T> x, View<T> y) { c_.device.copy_runs(heads(value_, value_, head_, false), x, y); }
  void widen(View<T> y, View<T> x) {
    c_.device.zero(raw_bytes(x));
    c_.device.copy_runs(heads(value_, value_, head_, true), y, x);
  }

 private:
  struct Move {
    device::Runs runs;  ///< from `part` to `fused`
    View<T> part, fused;
  };
  /// The first `width` elements of heads of `wide` elements to heads of `narrow` elements, or back.
  [[nodiscard]] device::Runs heads(std::int64_t width, std::int64_t narrow, std::int64_t wide, bool back) const {
    const device::Runs::Distances one{.block = wide, .row = heads_ * wide};
    const device::Runs::Distances other{.block = narrow, .row = heads_ * narrow};
    return {.blocks = heads_, .rows = rows_, .width = width, .from = back ? other : one, .to = back ? one : other};
  }
  [[nodiscard]] std::array<Move, 4> moves(View<T> q, View<T> kv, View<T> qkv) const {
    const std::int64_t rest = head_ - turned_;
    const std::int64_t all = heads_ * head_;
    // Heads of `width` elements, from column `column` of rows of `stride`, to column `to` of the fused projection.
    const auto move = [&](View<T> part, std::int64_t column, std::int64_t width, std::int64_t stride, std::int64_t to) {
      return Move{{.blocks = heads_,
                   .rows = rows_,
                   .width = width,
                   .from = {.block = width, .row = stride},
                   .to = {.block = head_, .row = 3 * all}},
                  behind(part, column),
                  behind(qkv, to)};
    };
    const std::int64_t of_kv = heads_ * (rest + value_);
    return {move(q, 0, turned_, all, 0), move(q, heads_ * turned_, rest, all, turned_),
            move(kv, 0, rest, of_kv, all + turned_), move(kv, heads_ * rest, value_, of_kv, 2 * all)};
  }
  /// The turned key to all heads, or from them.
  [[nodiscard]] device::Runs of_key(bool back) const {
    const device::Runs::Distances one{.row = turned_};
    const device::Runs::Distances all{.block = head_, .row = 3 * heads_ * head_};
    return {.blocks = heads_, .rows = rows_, .width = turned_, .from = back ? all : one, .to = back ? one : all};
  }

  Context<D>& c_;
  std::int64_t rows_;
  std::int64_t heads_;
  std::int64_t head_;    ///< d
  std::int64_t turned_;  ///< r
  std::int64_t value_;   ///< v
};

}  // namespace galvatron::runtime
