// Attention, and two results of attention as one.
#pragma once

#include <cstddef>
#include <cstdint>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/flash_backward.hpp>
#include <galvatron/device/cuda/flash_bias.hpp>
#include <galvatron/device/cuda/flash_forward.hpp>
#include <galvatron/device/cuda/flash_problem.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/attention.hpp>

namespace galvatron::device::cuda {

namespace detail {

/// `lanes` threads, a power of two up to a warp, have a head of a row.
template <class T>
struct MergeAttention {
  static constexpr int most_threads = 256;
  static constexpr int size = 4;  ///< elements that a thread takes at once
  std::int64_t pairs;             ///< of rows and heads
  int heads;
  int head_dim;
  int batch;
  int lanes;
  bool packed;
  std::int64_t out_stride;
  std::int64_t lse_stride;
  const T* o_part;
  const float* lse_part;
  float* o;
  float* lse;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const int groups = block.threads() / lanes;
    const std::int64_t step = block.blocks() * groups;
    // All lanes of a warp go round equally often.
    for (std::int64_t first = block.index() * groups; first < pairs; first += step) {
      const std::int64_t pair = first + block.thread() / lanes;
      const bool there = pair < pairs;
      const std::int64_t row = pair / heads;
      const auto head = static_cast<int>(pair % heads);
      const std::int64_t at = (row % batch * heads + head) * lse_stride + row / batch;
      kernels::MergeWeights weights{};
      if (there) weights = kernels::merge_weights(lse[at], lse_part[at]);
      block.sync_warp();  // before lse changes
      if (!there) continue;
      const int lane = block.thread() % lanes;
      if (lane == 0) lse[at] = weights.lse;
      const std::int64_t from = row * out_stride + head * head_dim;
      for (int i = lane * size; i < head_dim; i += lanes * size)
        merge(weights, o_part + from + i, o + from + i, head_dim - i);
    }
  }

 private:
  GALVATRON_KERNEL void merge(const kernels::MergeWeights& weights, const T* part, float* out, int left) const {
    if (packed) {
      const auto other = Four<T>::at(part);
      const auto own = Four<float>::at(out);
      float sums[size];
      for (int e = 0; e < size; ++e) sums[e] = own[e] * weights.first + other.get(e) * weights.second;
      return Four<float>::of(sums).store(out);
    }
    for (int e = 0; e < size && e < left; ++e) out[e] = out[e] * weights.first + kernels::get(part[e]) * weights.second;
  }
};

/// As floats, from a boundary of 16 bytes on.
inline View<float> floats_of(View<std::byte> scratch) {
  return {reinterpret_cast<float*>(scratch.data), scratch.count / static_cast<std::int64_t>(sizeof(float))};
}

}  // namespace detail

/// o and lse from q, k and v; see Device::attention_forward. Throws DeviceFailure for heads of more than 256 elements.
template <class L, class T>
void attention_forward(L& launcher, const AttentionShape& shape, const T* q, const T* k, const T* v, T* o, float* lse,
                       const AttentionBias& bias) {
  detail::flash_forward(launcher, detail::flash_problem<T>(shape, bias, q, k, v, o), q, k, v, o, lse);
}

/// dq, dk, dv and the biases' gradient, which grows. Throws DeviceFailure for heads of more than 256 elements, and for
/// gradients of biases that are neither by distance nor of pairs.
template <class L, class T>
void attention_backward(L& launcher, View<std::byte> scratch, const AttentionShape& shape, const T* q, const T* k,
                        const T* v, const T* o, const float* lse, const T* d_o, T* dq, T* dk, T* dv, float* delta,
                        const AttentionBias& bias) {
  using namespace detail;
  const bool by_distance = bias.query == -1;
  if (!bias.gradient.empty() && !by_distance && shape.queries > 1 && bias.query < shape.keys)
    throw DeviceFailure("biases of attention have a gradient of every pair of query and key, or by their distance");
  const FlashProblem<T> problem = flash_problem<T>(shape, bias, q, k, v, o, d_o, dq, dk, dv);
  flash_backward(launcher, problem, q, k, v, o, lse, d_o, dq, dk, dv, delta);
  if (bias.gradient.empty()) return;
  float* const gradient = bias.gradient.data + bias.first;
  flash_bias(launcher, floats_of(scratch), problem, q, k, v, lse, d_o, delta, [&](const BiasPart& part) {
    if (by_distance) {
      const AddDistances add{part, problem.queries, problem.keys, gradient, bias.head};
      for_each(launcher, add.count(), add);
    } else {
      const AddPairs add{part, problem.keys, gradient, bias.head, bias.query};
      for_each(launcher, add.count(), add);
    }
  });
}

/// o and lse take in the results of another part of the keys; see Device::attention_merge.
template <class L, class T>
void attention_merge(L& launcher, const AttentionShape& shape, const T* o_part, const float* lse_part, float* o,
                     float* lse) {
  using Merge = detail::MergeAttention<T>;
  const std::int64_t pairs = shape.queries * shape.batch * shape.heads;
  if (pairs == 0) return;
  int lanes = 1;
  while (lanes < warp_threads && lanes * Merge::size < shape.head_dim) lanes *= 2;
  const bool packed = is_packed<float>(shape.head_dim, o) && shape.out_stride % Merge::size == 0 &&
                      reinterpret_cast<std::uintptr_t>(o_part) % (Merge::size * sizeof(T)) == 0;
  const Merge kernel{.pairs = pairs,
                     .heads = static_cast<int>(shape.heads),
                     .head_dim = static_cast<int>(shape.head_dim),
                     .batch = static_cast<int>(shape.batch),
                     .lanes = lanes,
                     .packed = packed,
                     .out_stride = shape.out_stride,
                     .lse_stride = shape.lse_row(),
                     .o_part = o_part,
                     .lse_part = lse_part,
                     .o = o,
                     .lse = lse};
  launcher.launch(over_items(pairs * lanes), kernel);
}

}  // namespace galvatron::device::cuda
