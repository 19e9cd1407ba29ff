// The steps of a program that attend: on whole sequences, with the exchanges of Ulysses, or around a ring.
#pragma once

#include <cstddef>

#include <galvatron/nn/attention.hpp>
#include <galvatron/nn/ring.hpp>
#include <galvatron/nn/ulysses.hpp>
#include <galvatron/program/program.hpp>

namespace galvatron::nn {

/// @param value       value(id): a value of activations
/// @param statistics  statistics(id): a value in fp32
template <class T, class D, class Value, class Statistics>
void attention_step(Context<D>& context, const LayerSpec& layer, const program::Step& step, const Value& value,
                    const Statistics& statistics) {
  const View<T> in = value(step.in[0]);
  const View<T> out = value(step.out[0]);
  const bool forward = step.code == program::Code::attention_forward || step.code == program::Code::ring_forward;
  const bool backward = step.code == program::Code::attention_backward || step.code == program::Code::ring_backward;
  AttentionResults<T> results;
  if (forward) results = {out, statistics(step.out[1]), out};
  if (backward) results = {value(step.in[1]), statistics(step.in[2]), value(step.in[1])};
  const View<T> d_out = backward ? value(step.in[3]) : View<T>{};
  const auto scratch = [&](int i) { return value(step.scratch[static_cast<std::size_t>(i)]); };
  const auto sums = [&](int i) { return statistics(step.scratch[static_cast<std::size_t>(i)]); };
  if (step.code == program::Code::ring_forward || step.code == program::Code::ring_backward) {
    Attention<D, T, SequenceKind::ring> ring(context, layer);
    if (forward)
      ring.attend(in, results, {scratch(0), scratch(1), scratch(2), sums(3), sums(4)});
    else
      ring.backward(in, results, d_out, out,
                    {sums(0), scratch(1), scratch(2), sums(3), sums(4), scratch(5), scratch(6), sums(7)});
    return;
  }
  if (context.spec.sequence != SequenceKind::ulysses) {
    Attention<D, T, SequenceKind::none> whole(context, layer);
    if (forward)
      whole.attend(in, results);
    else
      whole.backward(in, results, d_out, sums(0), out);
    return;
  }
  Attention<D, T, SequenceKind::ulysses> ulysses(context, layer);
  switch (step.code) {
    case program::Code::attention_forward:
      ulysses.core_forward(in, results);
      break;
    case program::Code::attention_backward:
      ulysses.core_backward(in, results, d_out, sums(0), out);
      break;
    case program::Code::to_heads:
      ulysses.to_heads(in, scratch(0), out);
      break;
    case program::Code::projection_to_heads:
      ulysses.projection_to_heads(in, scratch(0), out);
      break;
    case program::Code::to_tokens:
      ulysses.to_tokens(in, scratch(0), out);
      break;
    default:
      ulysses.projection_to_tokens(in, scratch(0), out);
      break;
  }
}

}  // namespace galvatron::nn
