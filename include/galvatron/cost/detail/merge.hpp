// The counts of merging 2 x 2 tokens of an image into one of twice the width, before a block: a norm of the four side
// by side, and a linear layer from 2 H to H.
//
// The weight is whole on every tensor rank: a rank merges what tokens it holds, without a message. Under Megatron
// sequence parallelism that is its part of the image; else all tensor ranks do the same, which takes less than moving
// the parts of a cut product, as there are few such layers and they are narrow where there are many tokens.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::cost::detail {

class MergeCounts {
 public:
  explicit constexpr MergeCounts(const LayerShape& shape) : s_(shape), merges_(shape.layer.merges) {}

  constexpr void forward(op::WorkList& out) const {
    if (!merges_) return;
    side_by_side(out);
    out.push(compute(op::Kind::norm_forward, s_.rows_local, 2 * s_.h));
    out.push(compute(op::Kind::gemm_nt, s_.rows_local, s_.h, 2 * s_.h));
  }
  constexpr void backward(op::WorkList& out) const {
    if (!merges_) return;
    side_by_side(out);
    out.push(compute(op::Kind::norm_forward, s_.rows_local, 2 * s_.h));
    out.push(compute(op::Kind::gemm_tn, s_.h, 2 * s_.h, s_.rows_local));
    out.push(compute(op::Kind::gemm_nn, s_.rows_local, 2 * s_.h, s_.h));
    out.push(compute(op::Kind::norm_backward, s_.rows_local, 2 * s_.h));
    side_by_side(out);
  }

  /// Kept for backward beside the layer's input: the block's, and the norm's statistics.
  [[nodiscard]] constexpr std::int64_t kept_bytes() const {
    return merges_ ? s_.activation() + aligned_bytes(s_.rows_local * 2 * 4) : 0;
  }
  /// The layer's input.
  [[nodiscard]] constexpr std::int64_t input_bytes() const { return merges_ ? side_by_side_bytes() : s_.activation(); }
  /// By how much the gradient grows in backward.
  [[nodiscard]] constexpr std::int64_t growth_bytes() const { return input_bytes() - s_.activation(); }
  [[nodiscard]] constexpr std::int64_t forward_workspace() const { return merges_ ? side_by_side_bytes() : 0; }
  [[nodiscard]] constexpr std::int64_t backward_workspace() const { return merges_ ? 2 * side_by_side_bytes() : 0; }

 private:
  // The four tokens of every square, one after the other, or back.
  constexpr void side_by_side(op::WorkList& out) const {
    op::Work work = compute(op::Kind::copy, s_.rows_local * (s_.h / 2) * s_.e);
    work.times = 4;
    out.push(work);
  }
  [[nodiscard]] constexpr std::int64_t side_by_side_bytes() const {
    return aligned_bytes(s_.rows_local * 2 * s_.h * s_.e);
  }

  const LayerShape& s_;
  bool merges_;
};

}  // namespace galvatron::cost::detail
