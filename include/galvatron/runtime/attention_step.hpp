// The steps of a program that attend: on whole sequences, within windows of images, with the exchanges of Ulysses, or
// around a ring.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/attention_shape.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/attention.hpp>
#include <galvatron/runtime/heads.hpp>
#include <galvatron/runtime/ring.hpp>
#include <galvatron/runtime/ulysses.hpp>

namespace galvatron::runtime {

/// Attention of the tokens of a pass, projected to `from`, to those before and to themselves. Behind other tokens there
/// is one.
/// @param window  of which a token attends to the last; 0: to all
/// @param cache   (positions * b, 2 kv): their keys and values are added
/// @param biases  (heads, 2 n - 1) of the n tokens up to the last one, by distance from 1 - n on; may be empty
template <class D, class T>
void attend_to_cache(Context<D>& context, const AttentionHeads& heads, const Projections<T>& from,
                     device::AttentionShape shape, std::int64_t window, View<T> cache, View<const float> biases,
                     View<T> out, View<float> statistics) {
  const std::int64_t before = context.batch.first;
  if (before > 0 && shape.queries > 1)
    throw Failure(ErrorKind::internal, "attention: several tokens behind those of a cache");
  const std::int64_t kv = heads.kv();
  const std::int64_t b = shape.batch;
  const device::Runs new_rows{
      .rows = shape.queries * b, .width = kv, .from = {.row = from.kv_stride}, .to = {.row = 2 * kv}};
  const View<T> own = behind(cache, before * b * 2 * kv);
  context.device.copy_runs(new_rows, View<const T>(from.k), own);
  context.device.copy_runs(new_rows, View<const T>(from.v), behind(own, kv));
  // A single query sees the last keys, which needs no mask.
  const std::int64_t unseen =
      before > 0 ? std::max<std::int64_t>(0, before + 1 - (window > 0 ? window : before + 1)) : 0;
  shape.keys = before + shape.queries - unseen;
  shape.kv_stride = 2 * kv;
  const View<const T> seen = behind(cache, unseen * b * 2 * kv);
  // Of one query, which is the last of the tokens.
  const std::int64_t distances = 2 * shape.keys - 1;
  const device::AttentionBias bias = biases.empty()
                                         ? device::AttentionBias{}
                                         : device::AttentionBias{.values = biases.slice(0, shape.heads * distances),
                                                                 .gradient = {},
                                                                 .first = shape.queries - 1,
                                                                 .head = distances,
                                                                 .query = -1};
  context.device.attention_forward(shape, from.q, seen, behind(seen, kv), out, statistics, bias,
                                   device::DocumentRows{});
}

/// @param value       value(id): a value of activations
/// @param statistics  statistics(id): a value in fp32
/// @param queries, keys    tokens of a sequence
/// @param table, d_table  the parameter of the step, and its gradient
/// @param cache, biases  see Inference; may be empty
template <class T, class D, class Value, class Statistics>
void attention_step(Context<D>& context, const LayerSpec& layer, const program::Step& step, std::int64_t queries,
                    std::int64_t keys, const Value& value, const Statistics& statistics, View<const T> table,
                    View<float> d_table, View<T> cache = {}, View<float> biases = {}) {
  using program::Code;
  const AttentionHeads heads(layer, context.shares().heads());
  UlyssesExchange<D, T> ulysses(context, layer);
  const View<T> in = value(step.in[0]);
  const View<T> out = value(step.out[0]);
  const auto scratch = [&](int i) { return value(step.scratch[static_cast<std::size_t>(i)]); };
  const auto sums = [&](int i) { return statistics(step.scratch[static_cast<std::size_t>(i)]); };
  const bool by_heads = context.spec.exchanges_heads();
  // Of whole sequences, from a fused projection.
  const auto fused = [&](View<T> all) { return by_heads ? ulysses.core(all) : heads.fused(all); };
  const auto shape = [&](const Projections<T>& from, bool causal) -> device::AttentionShape {
    const std::int64_t own_heads = by_heads ? ulysses.heads() : heads.heads;
    return {.batch = context.batch.samples,
            .queries = queries,
            .keys = keys,
            .heads = own_heads,
            .kv_heads = by_heads ? ulysses.kv_heads() : heads.kv_heads,
            .head_dim = heads.head_dim,
            .causal = causal,
            .q_stride = from.q_stride,
            .kv_stride = from.kv_stride,
            .out_stride = own_heads * heads.head_dim,
            .score_factor = score_factor(layer),
            .sliding_window = causal ? layer.window_within(keys) : 0,
            .score_cap = static_cast<float>(layer.score_cap)};
  };
  // Tensor ranks have whole images of some heads, and the biases of those heads.
  const auto windows = [&]() -> device::WindowShape {
    return {.batch = context.batch.samples,
            .side = side_of_square(context.batch.sequence),
            .window = layer.window,
            .shift = layer.shift,
            .heads = heads.heads,
            .head_dim = heads.head_dim,
            .stride = heads.qkv(),
            .out_stride = heads.q()};
  };
  const std::vector<std::int32_t> rows = context.batch.cumulative_rows();
  const device::DocumentRows documents{rows, rows};
  const auto forward = [&](const Projections<T>& from, bool causal, const device::AttentionBias& bias) {
    context.device.attention_forward(shape(from, causal), from.q, from.k, from.v, out, statistics(step.out[1]), bias,
                                     documents);
  };
  const auto backward = [&](const Projections<T>& from, const Projections<T>& d, bool causal,
                            const device::AttentionBias& bias) {
    context.device.attention_backward(shape(from, causal), from.q, from.k, from.v, value(step.in[2]),
                                      statistics(step.in[3]), value(step.in[4]), d.q, d.k, d.v, sums(0), bias,
                                      documents);
  };
  device::AttentionBias bias;
  if (!by_heads && step.code != Code::cross_forward && step.code != Code::cross_backward && step.in[1] >= 0)
    bias = {
        .values = statistics(step.in[1]), .gradient = {}, .first = queries - 1, .head = 2 * queries - 1, .query = -1};

  switch (step.code) {
    case Code::attention_forward:
      if (!cache.empty())
        return attend_to_cache(context, heads, fused(in), shape(fused(in), queries > 1), layer.sliding_window, cache,
                               View<const float>(biases), out, statistics(step.out[1]));
      if (layer.window > 0) {
        const Projections<T> from = heads.fused(in);
        context.device.window_attention_forward(windows(), from.q, from.k, from.v, table, out, statistics(step.out[1]));
      } else {
        forward(fused(in), layer.causal, bias);
      }
      break;
    case Code::attention_backward:
      if (layer.window > 0) {
        const Projections<T> from = heads.fused(in);
        const Projections<T> d = heads.fused(out);
        context.device.window_attention_backward(windows(), from.q, from.k, from.v, table, statistics(step.in[3]),
                                                 value(step.in[4]), d.q, d.k, d.v, d_table);
        break;
      }
      if (bias.values.count > 0) {
        bias.gradient = statistics(step.out[1]);
        context.device.zero(raw_bytes(bias.gradient));
      }
      backward(fused(in), fused(out), layer.causal, bias);
      break;
    case Code::cross_forward:
      return forward(heads.separate(in, value(step.in[1])), false, {});
    case Code::cross_backward:
      return backward(heads.separate(in, value(step.in[1])), heads.separate(out, value(step.out[1])), false, {});
    case Code::ring_forward:
      return RingAttention<D, T>(context, layer)
          .attend(in, out, statistics(step.out[1]), {scratch(0), scratch(1), scratch(2), sums(3), sums(4)});
    case Code::ring_backward:
      return RingAttention<D, T>(context, layer)
          .backward(in, value(step.in[2]), statistics(step.in[3]), value(step.in[4]), out,
                    {sums(0), scratch(1), scratch(2), sums(3), sums(4), scratch(5), scratch(6), sums(7)});
    case Code::to_heads:
      return ulysses.to_heads(in, scratch(0), out);
    case Code::projection_to_heads:
      return ulysses.projection_to_heads(in, scratch(0), out);
    case Code::to_tokens:
      return ulysses.to_tokens(in, scratch(0), out);
    default:
      return ulysses.projection_to_tokens(in, scratch(0), out);
  }
}

}  // namespace galvatron::runtime
