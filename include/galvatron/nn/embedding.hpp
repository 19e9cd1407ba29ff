// Token embedding over a vocabulary cut into runs of rows, with learned positions, segments and a closing norm where
// the model has them.
//
//   tokens -> table -> + positions [+ segment] [-> norm]
//
// All tokens are of the first segment: a sample is one text.
#pragma once

#include <cstdint>

#include <galvatron/nn/closing_norm.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

template <class D, class T, SequenceKind kind>
class Embedding {
  using Closing = ClosingNorm<D, T>;

 public:
  /// What backward needs besides the tokens.
  using Internals = typename Closing::Internals;

  Embedding(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        layer_(layer),
        layout_(parameter_layout(layer, ParameterPart::rest, context.spec.tensor, static_cast<int>(context.shards()))),
        closing_(c_, layer_, layout_),
        shard_(vocabulary_shard(layer.vocabulary, context.spec.tensor)),
        first_(vocabulary_sharding(layer.vocabulary, context.spec.tensor).range(context.tensor_rank()).begin) {}

  /// Of everything but the table.
  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] bool backward_needs_parameters() const { return closing_.exists(); }
  Internals take_internals(device::Region& from) const { return closing_.take_internals(from); }

  /// tokens (rows) -> y (rows_local, H). `table` (V/t, H); `rest` as layout() says.
  void forward(View<const T> table, View<const T> rest, View<const std::int32_t> tokens, const Internals& in,
               View<T> y) {
    const device::Scope scope(c_.workspace);
    const std::int64_t h = layer_.hidden;
    const std::int64_t local = c_.rows_local();
    const View<T> sum = closing_.input(in, y);
    const bool cut = kind == SequenceKind::megatron;
    const View<T> whole = cut ? c_.workspace.template take<T>(c_.rows() * h) : sum;  // (rows, H)
    c_.device.embedding_forward(c_.rows(), h, tokens, first_, shard_, table, whole);
    if constexpr (kind == SequenceKind::megatron)
      c_.tensor.reduce_scatter(whole, sum);
    else
      Region<T, kind, D>{c_, h}.reduce(whole);
    for_pieces([&](std::int64_t first_row, std::int64_t rows, std::int64_t position) {
      c_.device.position_forward(rows, c_.samples, h, position, of(rest, ParameterName::positions),
                                 sum.slice(first_row * h, rows * h));
    });
    if (layer_.token_types > 0)
      c_.device.position_forward(local, local, h, 0, of(rest, ParameterName::token_types), sum);
    closing_.forward(rest, in, y);
  }

  /// d (rows_local, H): the gradient of y; used up. `rest` where backward_needs_parameters().
  void backward(View<const T> rest, View<float> d_table, View<float> d_rest, View<const std::int32_t> tokens,
                const Internals& in, View<T> d) {
    const device::Scope scope(c_.workspace);
    const std::int64_t h = layer_.hidden;
    const std::int64_t local = c_.rows_local();
    closing_.backward(rest, d_rest, in, d);
    if (layer_.token_types > 0)
      c_.device.bias_gradient(local, h, d, of(d_rest, ParameterName::token_types).slice(0, h));
    for_pieces([&](std::int64_t first_row, std::int64_t rows, std::int64_t position) {
      c_.device.position_backward(rows, c_.samples, h, position, d.slice(first_row * h, rows * h),
                                  of(d_rest, ParameterName::positions));
    });
    View<const T> whole = d;
    if constexpr (kind == SequenceKind::megatron) {
      const View<T> all = c_.workspace.template take<T>(c_.rows() * h);
      c_.tensor.all_gather(View<const T>(d), all);
      whole = all;
    }
    c_.device.embedding_backward(c_.rows(), h, tokens, first_, shard_, whole, d_table);
  }

 private:
  template <class U>
  View<U> of(View<U> store, ParameterName name) const {
    return tensor_of(layout_, store, name);
  }
  // Calls f(first row, rows, position of the first) for the runs of the sequence that this rank's rows are.
  template <class F>
  void for_pieces(const F& f) const {
    if (layer_.position != PositionKind::learned) return;
    const std::int64_t rows = c_.rows_local() / c_.pieces();
    for (int i = 0; i < c_.pieces(); ++i) f(i * rows, rows, c_.first_position_local(i));
  }

  Context<D>& c_;
  LayerSpec layer_;
  ParameterLayout layout_;
  Closing closing_;
  std::int64_t shard_;  ///< rows of the table on this rank
  std::int64_t first_;  ///< the token of its first row
};

}  // namespace galvatron::nn
