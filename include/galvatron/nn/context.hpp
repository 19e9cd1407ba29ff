// What a layer needs to know of the rank that it runs on.
#pragma once

#include <cstdint>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::nn {

/// One rank's place in a layer: its device, its transient memory and its groups. D models device::Device, G models
/// comm::Group. Tensor ranks are consecutive; data ranks are `spec.tensor` apart.
template <class D, class G>
struct Context {
  D& device;
  device::Region& workspace;
  G& tensor;  ///< the ranks that share this rank's samples
  G& data;    ///< the ranks that hold the same parameters
  StrategySpec spec;
  std::int64_t samples = 0;   ///< b: samples of this rank in a micro-batch
  std::int64_t sequence = 0;  ///< S
  bool overlap = true;        ///< traffic of the data ranks runs beside computation

  [[nodiscard]] std::int64_t rows() const { return samples * sequence; }  ///< tokens inside tensor-parallel regions
  /// Tokens between the regions.
  [[nodiscard]] std::int64_t rows_local() const {
    return spec.sequence == SequenceKind::megatron ? rows() / spec.tensor : rows();
  }
  [[nodiscard]] int tensor_rank() const { return tensor.rank(); }
};

/// The way into and out of a region in which weights are cut over tensor ranks (Megatron-LM; with `kind` megatron the
/// sequence-parallel form of Korthikanti et al. 2022). `whole` is (rows, H), a local part is (rows_local, H).
template <class T, SequenceKind kind, class D, class G>
struct Region {
  Context<D, G>& context;
  std::int64_t hidden;

  /// The rows of `whole` that are this rank's own between the regions.
  [[nodiscard]] View<T> own(View<T> whole) const {
    if constexpr (kind == SequenceKind::megatron) {
      const std::int64_t n = context.rows_local() * hidden;
      return whole.slice(context.tensor_rank() * n, n);
    } else {
      return whole;
    }
  }
  /// After this rank's own rows are in place, all rows are.
  void gather(View<T> whole) const {
    if constexpr (kind == SequenceKind::megatron)
      context.tensor.all_gather(View<const T>(own(whole)), whole);
    else
      (void)whole;
  }
  /// Adds the partial sums of all tensor ranks; returns this rank's own rows of the sum.
  View<T> reduce(View<T> whole) const {
    if constexpr (kind == SequenceKind::megatron)
      context.tensor.reduce_scatter(whole, own(whole));
    else if (context.spec.tensor > 1)
      context.tensor.all_reduce(whole, comm::ReduceOp::sum);
    return own(whole);
  }
};

}  // namespace galvatron::nn
