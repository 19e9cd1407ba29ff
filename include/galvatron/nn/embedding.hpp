// Token and position embedding over a vocabulary cut into runs of rows.
#pragma once

#include <cstdint>

#include <galvatron/nn/context.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

template <class D, class G, class T, SequenceKind kind>
class Embedding {
 public:
  Embedding(Context<D, G>& context, const LayerSpec& layer)
      : c_(context),
        layer_(layer),
        shard_(vocabulary_shard(layer.vocabulary, context.spec.tensor)),
        first_(context.tensor_rank() * shard_) {}

  /// tokens (rows) -> y (rows_local, H). `table` (V/t, H); `positions` (positions, H), empty for rotary models.
  void forward(View<const T> table, View<const T> positions, View<const std::int32_t> tokens, View<T> y) {
    const device::Scope scope(c_.workspace);
    const std::int64_t h = layer_.hidden;
    const bool cut = kind == SequenceKind::megatron;
    const View<T> whole = cut ? c_.workspace.template take<T>(c_.rows() * h) : y;  // (rows, H)
    c_.device.embedding_forward(c_.rows(), h, tokens, first_, shard_, table, whole);
    if constexpr (kind == SequenceKind::megatron)
      c_.tensor.reduce_scatter(whole, y);
    else
      Region<T, kind, D, G>{c_, h}.reduce(whole);
    for_pieces([&](std::int64_t first_row, std::int64_t rows, std::int64_t position) {
      c_.device.position_forward(rows, c_.samples, h, position, positions, y.slice(first_row * h, rows * h));
    });
  }

  /// d (rows_local, H): the gradient of y.
  void backward(View<float> d_table, View<float> d_positions, View<const std::int32_t> tokens, View<const T> d) {
    const device::Scope scope(c_.workspace);
    const std::int64_t h = layer_.hidden;
    for_pieces([&](std::int64_t first_row, std::int64_t rows, std::int64_t position) {
      c_.device.position_backward(rows, c_.samples, h, position, d.slice(first_row * h, rows * h), d_positions);
    });
    View<const T> whole = d;
    if constexpr (kind == SequenceKind::megatron) {
      const View<T> all = c_.workspace.template take<T>(c_.rows() * h);
      c_.tensor.all_gather(d, all);
      whole = all;
    }
    c_.device.embedding_backward(c_.rows(), h, tokens, first_, shard_, whole, d_table);
  }

 private:
  // Calls f(first row, rows, position of the first) for the runs of the sequence that this rank's rows are.
  template <class F>
  void for_pieces(const F& f) const {
    if (layer_.position != PositionKind::learned) return;
    const std::int64_t rows = c_.rows_local() / c_.pieces();
    for (int i = 0; i < c_.pieces(); ++i) {
      const bool cut = kind == SequenceKind::megatron;
      f(i * rows, rows, cut ? c_.tensor_rank() * (c_.sequence / c_.spec.tensor) : c_.first_position(i));
    }
  }

  Context<D, G>& c_;
  LayerSpec layer_;
  std::int64_t shard_;  ///< rows of the table on this rank
  std::int64_t first_;  ///< the token of its first row
};

}  // namespace galvatron::nn
