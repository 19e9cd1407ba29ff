// A block of a Swin Transformer (Liu et al. 2021): a block as GPT's whose attention is in windows; the first of a stage
// of the model merges 2 x 2 tokens of half the width before it.
//
//   x -> [side by side -> norm -> linear] -> block -> y         [where tokens are merged]
//
//   image rows     2Y    a c         the four of (Y, X) side by side: a b c d
//                2Y+1    b d
//
// Shapes as in nn/block.hpp; the input of a block that merges is (4 rows_local, H / 2). Its merging needs no other
// rank: under Megatron sequence parallelism a rank holds whole pairs of rows of the image.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/model/image_grid.hpp>
#include <galvatron/nn/block.hpp>
#include <galvatron/nn/window_attention.hpp>

namespace galvatron::nn {

template <class D, class T, SequenceKind kind>
class WindowBlock : BlockAround<D, T, kind, WindowAttention<D, T, kind>> {
  using Base = BlockAround<D, T, kind, WindowAttention<D, T, kind>>;
  using Base::c_, Base::layer_, Base::core_, Base::h_;

 public:
  /// What backward needs besides the input.
  struct Internals : Base::Internals {
    View<T> merged;           // (rows_local, H): the block's input, where that is not the layer's
    View<float> merge_stats;  // (rows_local, 2)
  };

  using typename Base::Deferred;
  static constexpr bool splits = false;

  WindowBlock(Context<D>& context, const LayerSpec& layer)
      : Base(context, layer), side_(side_of_square(context.sequence)) {}

  using Base::layout, Base::carries;
  [[nodiscard]] std::int64_t input_elements() const { return (layer_.merges ? 2 : 1) * Base::input_elements(); }

  Internals take_internals(device::Region& from) const {
    Internals in{Base::take_internals(from), {}, {}};
    if (!layer_.merges) return in;
    in.merged = from.take<T>(c_.rows_local() * h_);
    in.merge_stats = from.take<float>(c_.rows_local() * 2);
    return in;
  }

  /// x -> y (rows_local, H).
  void forward(View<const T> parameters, View<const T> x, const Internals& in, View<T> y) {
    core_.use(table(parameters), {});
    Base::forward(parameters, merge(parameters, x, in), in, y);
  }

  /// The internals again from the input, as forward left them.
  void recompute(View<const T> parameters, View<const T> x, const Internals& in) {
    core_.use(table(parameters), {});
    Base::recompute(parameters, merge(parameters, x, in), in);
  }

  /// d, whose beginning (rows_local, H) is the gradient of the output, becomes that of the input. Uses up the
  /// internals.
  void backward(View<const T> parameters, View<float> gradients, View<const T> x, const Internals& in, View<T> d) {
    core_.use(table(parameters), table(gradients));
    Base::backward(parameters, gradients, layer_.merges ? View<const T>(in.merged) : x, in,
                   d.slice(0, c_.rows_local() * h_));
    if (layer_.merges) merge_backward(parameters, gradients, x, in, d);
  }

 private:
  template <class U>
  View<U> table(View<U> store) const {
    return this->weight(store, ParameterName::relative_positions);
  }

  // The block's input (rows_local, H).
  View<const T> merge(View<const T> parameters, View<const T> x, const Internals& in) {
    if (!layer_.merges) return x;
    const device::Scope scope(c_.workspace);
    const std::int64_t rows = c_.rows_local();
    const View<T> four = c_.workspace.template take<T>(rows * 2 * h_);  // (rows_local, 2H)
    side_by_side(x, four);
    c_.device.norm_forward(layer_.norm, rows, 2 * h_, layer_.norm_epsilon, four,
                           this->weight(parameters, ParameterName::merge_gamma),
                           this->weight(parameters, ParameterName::merge_beta), four, in.merge_stats);
    c_.device.gemm(op::Kind::gemm_nt, rows, h_, 2 * h_, four, this->weight(parameters, ParameterName::merge_weight),
                   in.merged, false, {});
    return in.merged;
  }
  void merge_backward(View<const T> parameters, View<float> gradients, View<const T> x, const Internals& in,
                      View<T> d) {
    const device::Scope scope(c_.workspace);
    const std::int64_t rows = c_.rows_local();
    const View<T> four = c_.workspace.template take<T>(rows * 2 * h_);  // (rows_local, 2H)
    const View<T> n = c_.workspace.template take<T>(rows * 2 * h_);     // (rows_local, 2H)
    const View<T> d_merged = d.slice(0, rows * h_);
    const View<const T> gamma = this->weight(parameters, ParameterName::merge_gamma);
    const View<const T> weight = this->weight(parameters, ParameterName::merge_weight);
    side_by_side(x, four);
    c_.device.norm_recompute(layer_.norm, rows, 2 * h_, four, gamma,
                             this->weight(parameters, ParameterName::merge_beta), in.merge_stats, n);
    c_.device.gemm(op::Kind::gemm_tn, h_, 2 * h_, rows, d_merged, n,
                   this->weight(gradients, ParameterName::merge_weight), true, {});
    c_.device.gemm(op::Kind::gemm_nn, rows, 2 * h_, h_, d_merged, weight, n, false, {});
    c_.device.norm_backward(layer_.norm, rows, 2 * h_, n, four, gamma, in.merge_stats, {}, n,
                            this->weight(gradients, ParameterName::merge_gamma),
                            this->weight(gradients, ParameterName::merge_beta));
    each_of_four(
        [&](const device::Runs::Distances& narrow, std::int64_t first, const device::Runs::Distances& wide,
            std::int64_t column) { c_.device.copy_runs(runs(wide, narrow), behind(n, column), behind(d, first)); });
  }

  // x (4 rows_local, H / 2) -> four (rows_local, 2H).
  void side_by_side(View<const T> x, View<T> four) {
    each_of_four(
        [&](const device::Runs::Distances& narrow, std::int64_t first, const device::Runs::Distances& wide,
            std::int64_t column) { c_.device.copy_runs(runs(narrow, wide), behind(x, first), behind(four, column)); });
  }
  // f(distances of the tokens of one corner of all squares, the first, the same of their places, the first)
  template <class F>
  void each_of_four(const F& f) const {
    const std::int64_t b = c_.samples;
    const std::int64_t width = h_ / 2;
    for (std::int64_t corner = 0; corner < 4; ++corner) {
      const std::int64_t first = corner % 2 * 2 * side_ + corner / 2;  // down, then to the right
      f({.block = 2 * b * width, .repeat = width, .row = 4 * side_ * b * width}, first * b * width,
        {.block = b * 4 * width, .repeat = 4 * width, .row = side_ * b * 4 * width}, corner * width);
    }
  }
  // Blocks are columns of the merged image, repeats samples.
  [[nodiscard]] device::Runs runs(const device::Runs::Distances& from, const device::Runs::Distances& to) const {
    return {.blocks = side_,
            .repeats = c_.samples,
            .rows = c_.rows_local() / (c_.samples * side_),
            .width = h_ / 2,
            .from = from,
            .to = to};
  }
  template <class U>
  static View<U> behind(View<U> all, std::int64_t first) {
    return all.slice(first, all.count - first);
  }

  std::int64_t side_;  ///< tokens of the (merged) image
};

}  // namespace galvatron::nn
