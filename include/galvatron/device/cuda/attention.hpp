// Attention, also within the windows of images, and two results of attention as one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <galvatron/device/cuda/attention_bias.hpp>
#include <galvatron/device/cuda/flash_attention.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// `lanes` threads, a power of two up to a warp, have a head of a row.
template <class T>
struct MergeAttention {
  static constexpr int most_threads = 256;
  static constexpr int size = 4;  ///< elements that a thread takes at once
  AttentionShape shape;
  std::int64_t pairs;  ///< of rows and heads
  int lanes;
  bool packed;
  const T* o_part;
  const float* lse_part;
  float* o;
  float* lse;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const int groups = block.threads() / lanes;
    const std::int64_t step = block.blocks() * groups;
    // All lanes of a warp go round equally often.
    for (std::int64_t first = block.index() * groups; first < pairs; first += step) {
      const std::int64_t pair = first + block.thread() / lanes;
      const bool there = pair < pairs;
      const std::int64_t row = pair / shape.heads;
      const std::int64_t head = pair % shape.heads;
      const std::int64_t at = (row % shape.batch * shape.heads + head) * shape.lse_row() + row / shape.batch;
      kernels::MergeWeights weights{};
      if (there) weights = kernels::merge_weights(lse[at], lse_part[at]);
      block.sync_warp();  // before lse changes
      if (!there) continue;
      const int lane = block.thread() % lanes;
      if (lane == 0) lse[at] = weights.lse;
      const std::int64_t from = row * shape.out_stride + head * shape.head_dim;
      for (std::int64_t i = lane * size; i < shape.head_dim; i += lanes * size) {
        const auto other = load_pack<size>(o_part + from, i, shape.head_dim, packed);
        const auto own = load_pack<size>(o + from, i, shape.head_dim, packed);
        const auto sums =
            Four<float>::of([&](int e) { return own[e] * weights.first + other.get(e) * weights.second; });
        store_pack(sums, o + from, i, shape.head_dim, packed);
      }
    }
  }
};

/// As floats, from a boundary of 16 bytes on.
inline View<float> floats_of(View<std::byte> scratch) {
  return {reinterpret_cast<float*>(scratch.data), scratch.count / static_cast<std::int64_t>(sizeof(float))};
}

/// DocumentRows in memory of the device.
struct DocumentTable {
  int documents = 0;
  const std::int32_t *queries = nullptr, *keys = nullptr;

  template <class T>
  void give(FlashProblem<T>& problem) const {
    problem.documents = documents;
    problem.document_queries = queries;
    problem.document_keys = keys;
  }
};

/// Writes the lengths of documents to the beginning of `scratch`, where they stay until it serves another operation.
/// Throws DeviceFailure where there are more of them than it holds.
DocumentTable write_documents(auto& machine, View<std::byte> scratch, const DocumentRows& documents) {
  if (documents.empty()) return {};
  const std::int64_t lengths = documents.count() + 1;
  const std::int64_t bytes = 2 * lengths * static_cast<std::int64_t>(sizeof(std::int32_t));
  if (bytes > scratch.count)
    throw DeviceFailure("the scratch memory of the GPU's attention holds " + std::to_string(scratch.count / 8 - 1) +
                        " documents at a time, not " + std::to_string(documents.count()));
  machine.upload(scratch.data, bytes, [&](std::byte* to) {
    std::memcpy(to, documents.queries.data(), static_cast<std::size_t>(bytes / 2));
    std::memcpy(to + bytes / 2, documents.keys.data(), static_cast<std::size_t>(bytes / 2));
  });
  const auto* const table = reinterpret_cast<const std::int32_t*>(scratch.data);
  return {static_cast<int>(documents.count()), table, table + lengths};
}

/// Throws DeviceFailure for heads of more than 256 elements, as all of attention.
template <class T>
void attention_forward(auto& launcher, const AttentionShape& shape, const T* q, const T* k, const T* v, T* o,
                       float* lse, const AttentionBias& bias, const DocumentTable& documents = {}) {
  FlashProblem<T> problem = flash_problem(shape, bias, q, k, v, o);
  documents.give(problem);
  flash_forward(launcher, problem, o, lse);
}

/// Throws DeviceFailure for gradients of biases that are neither by distance nor of pairs.
template <class T>
void attention_backward(auto& launcher, View<std::byte> scratch, const AttentionShape& shape, const T* q, const T* k,
                        const T* v, const T* o, const float* lse, const T* d_o, T* dq, T* dk, T* dv, float* delta,
                        const AttentionBias& bias, const DocumentTable& documents = {}) {
  const bool by_distance = bias.query == -1;
  if (!bias.gradient.empty() && !by_distance && shape.queries > 1 && bias.query < shape.keys)
    throw DeviceFailure("biases of attention have a gradient of every pair of query and key, or by their distance");
  FlashProblem<T> problem = flash_problem(shape, bias, q, k, v, o, d_o, dq, dk, dv);
  problem.d_o = d_o;
  problem.lse = lse;
  problem.delta = delta;
  documents.give(problem);
  flash_backward(launcher, problem, o, dq, dk, dv);
  if (bias.gradient.empty()) return;
  float* const gradient = bias.gradient.data + bias.first;
  flash_bias(launcher, floats_of(scratch), problem, [&](const BiasPart& part) {
    const auto give = [&](const auto& add) { for_each(launcher, add.count(), add); };
    if (by_distance)
      give(AddDistances{part, problem.queries, problem.keys, gradient, bias.head});
    else
      give(AddPairs{part, problem.keys, gradient, bias.head, bias.query});
  });
}

template <class T>
void attention_merge(auto& launcher, const AttentionShape& shape, const T* o_part, const float* lse_part, float* o,
                     float* lse) {
  using Merge = MergeAttention<T>;
  const std::int64_t pairs = shape.queries * shape.batch * shape.heads;
  if (pairs == 0) return;
  int lanes = 1;
  while (lanes < warp_threads && lanes * Merge::size < shape.head_dim) lanes *= 2;
  const bool packed = is_packed<float>(shape.head_dim, o) && shape.out_stride % Merge::size == 0 &&
                      reinterpret_cast<std::uintptr_t>(o_part) % (Merge::size * sizeof(T)) == 0;
  launcher.launch(over_items(pairs * lanes), Merge{shape, pairs, lanes, packed, o_part, lse_part, o, lse});
}

/// `addresses` are those of the other tensors of T with rows of heads.
template <class T>
FlashProblem<T> window_problem(const WindowShape& s, const T* table, const T* q, const T* k, const T* v,
                               const auto*... addresses) {
  const AttentionShape shape{.batch = s.batch,
                             .queries = s.span(),
                             .keys = s.span(),
                             .heads = s.heads,
                             .kv_heads = s.heads,
                             .head_dim = s.head_dim,
                             .causal = false,
                             .q_stride = s.stride,
                             .kv_stride = s.stride,
                             .out_stride = s.out_stride,
                             .lse_stride = s.tokens()};
  FlashProblem<T> problem = flash_problem(shape, {}, q, k, v, addresses...);
  problem.units = static_cast<int>(s.batch * s.windows());
  problem.delta_stride = s.span();
  problem.window = static_cast<int>(s.window);
  problem.side = static_cast<int>(s.side);
  problem.shift = static_cast<int>(s.shift);
  problem.table = table;
  return problem;
}

template <class T>
void window_attention_forward(auto& launcher, const WindowShape& shape, const T* q, const T* k, const T* v,
                              const T* table, T* o, float* lse) {
  const auto problem = window_problem(shape, table, q, k, v, o);
  if (problem.units > 0) flash_forward(launcher, problem, o, lse);
}

/// Throws DeviceFailure for windows that `scratch` is too small for.
template <class T>
void window_attention_backward(auto& launcher, View<std::byte> scratch, const WindowShape& shape, const T* q,
                               const T* k, const T* v, const T* table, const float* lse, const T* d_o, T* dq, T* dk,
                               T* dv, float* d_table) {
  FlashProblem<T> problem = window_problem(shape, table, q, k, v, d_o, dq, dk, dv);
  problem.d_o = d_o;
  problem.lse = lse;
  // Half of the scratch memory is for delta, of as many windows as fit, and the rest for sums of the table's gradient.
  const View<float> floats = floats_of(scratch);
  const std::int64_t half = floats.count / 2;
  const std::int64_t fit = half / (shape.heads * shape.span());
  if (fit == 0)
    throw DeviceFailure("the GPU's attention has no room for windows of " + std::to_string(shape.window) + " x " +
                        std::to_string(shape.window) + " tokens with " + std::to_string(shape.heads) +
                        " heads; choose smaller windows");
  problem.delta = floats.data;
  const int all = problem.units;
  for (; problem.first_unit < all; problem.first_unit += problem.units) {
    problem.units = static_cast<int>(std::min<std::int64_t>(fit, all - problem.first_unit));
    flash_backward<T>(launcher, problem, nullptr, dq, dk, dv);
    flash_bias(launcher, floats.slice(half, floats.count - half), problem, [&](const BiasPart& part) {
      const AddWindowPairs add{part, problem.window, problem.heads, d_table};
      for_each(launcher, add.count(), add);
    });
  }
}

}  // namespace galvatron::device::cuda
