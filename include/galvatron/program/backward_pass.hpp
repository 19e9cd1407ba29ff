// The backward pass of a program: the graph's nodes in reverse, each with one rule for the gradients of its operands
// and one for those of its weights.
//
// A split backward has the gradients of weights in a phase of their own, later. What this phase reads and the first one
// would destroy is deferred: written to the slot of an activation that backward no longer needs, or copied.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/forward_pass.hpp>

namespace galvatron::program::detail {

class BackwardPass : protected ForwardPass {
 protected:
  using ForwardPass::ForwardPass;

  [[nodiscard]] constexpr Phase weights_phase() const { return program_.splits ? Phase::weights : phase_; }
  constexpr void backward() {
    if (!has_loss_) {
      phase_ = Phase::backward;
      const Id d = border(Storage::gradient, g().output);
      gradients_[at(g().output)] = d;
      const bool block = g().layer.kind == LayerKind::block;
      for (int group = 0; group < groups() && block; ++group) push_group(Code::acquire, group);
      if (program_.splits) push_group(Code::keep_uncut, 0);
      const Phase phase = phase_;
      phase_ = weights_phase();
      for (int group = 0; group < groups(); ++group) push_group(Code::open_gradients, group);
      phase_ = phase;
      if (full_) run(true);
    }
    for (int i = g().node_count; i-- > 0;) back(i);
    finish_input();
    if (program_.splits) {
      phase_ = Phase::weights;
      push_group(Code::add_uncut, 0);
    }
    for (int group = 0; group < groups(); ++group) push_group(Code::close_gradients, group);
    if (has_loss_) {
      phase_ = Phase::backward;
      const Id d = border(Storage::gradient, g().input);
      copy(gradients_[at(g().input)], d, g().width(g().input));
      gradients_[at(g().input)] = d;
    }
    if (g().input >= 0) program_.input_gradient = gradients_[at(g().input)];
  }
  /// The gradient of the layer's input lies in the border, or in place of the input where the layer has a loss.
  constexpr void finish_input() {
    if (g().input < 0) return;
    const Storage wanted = has_loss_ ? Storage::input : Storage::gradient;
    Id& d = gradients_[at(g().input)];
    if (storage(d) == wanted) return;
    const Id there = has_loss_ ? in_place(input_) : value(border_buffer(wanted));
    copy(d, there, g().width(g().input));
    d = there;
  }
  [[nodiscard]] constexpr int border_buffer(Storage storage) const {
    for (int i = 0; i < program_.buffer_count; ++i)
      if (program_.buffer(i).storage == storage) return i;
    return -1;
  }
  constexpr void copy(Id from, Id to, const forward::Width& width) {
    Step step{.code = Code::copy, .m = elements(width)};
    step.in[0] = id(from);
    step.out[0] = id(to);
    push(step);
  }

  constexpr Id copied(Id from, const forward::Width& width) {
    const Id to = fresh(elements(width));
    copy(from, to, width);
    return to;
  }

  /// Gradients of tensors that still wait to be read and are this value.
  [[nodiscard]] constexpr int readers(Id v) const {
    int count = 0;
    for (const Id d : gradients_) count += d == v ? 1 : 0;
    return count;
  }
  /// Adds a gradient to what a tensor has.
  constexpr void give(int tensor, Id d) {
    if (tensor < 0) return;
    Id& have = gradients_[at(tensor)];
    if (have < 0) {
      have = d;
      return;
    }
    const Extent count = elements(g().width(tensor));
    const Id sum = readers(have) == 1 ? in_place(have) : fresh(count);
    Step step{.code = Code::add, .m = count};
    step.in = {id(have), id(d), -1, -1};
    step.out[0] = id(sum);
    push(step);
    have = sum;
  }

  constexpr void back(int i) {
    const forward::Node& node = g().node(i);
    if (node.operation == forward::Kind::cross_entropy) return;  // forward made its gradient
    const Id dy = gradients_[at(node.output)];
    if (dy < 0) return;  // a fused step made what is behind it
    gradients_[at(node.output)] = -1;
    const int x = node.inputs[0];
    const forward::Width& width = g().width(node.output);
    switch (node.operation) {
      case forward::Kind::norm:
        norm_backward(i, dy);
        break;
      case forward::Kind::linear:
        linear_backward(node, dy);
        break;
      case forward::Kind::activation:
        activation_backward(node, dy);
        break;
      case forward::Kind::multiply: {
        const Id a = operand(x);
        const Id b = operand(node.inputs[1]);
        const Id da = fresh(elements(width));
        multiply(dy, b, da, width);
        const Id db = fresh(elements(width));
        multiply(dy, a, db, width);
        give(x, da);
        give(node.inputs[1], db);
        break;
      }
      case forward::Kind::add:
        give(x, dy);
        give(node.inputs[1], dy);
        break;
      case forward::Kind::rotate:
        give(x, rotate(Code::rotate_back, readers(dy) == 0 ? dy : copied(dy, width)));
        break;
      case forward::Kind::attend:
        attend_backward(i, dy);
        break;
      case forward::Kind::add_positions: {
        Step step{.code = Code::positions_gradient, .m = of(Letter::local_piece_rows), .n = extent(width)};
        step.in[0] = id(dy);
        step.weights[0] = wid(node.weights[0]);
        push(step);
        give(x, dy);
        break;
      }
      case forward::Kind::look_up: {
        Step step{.code = Code::look_up_backward, .m = of(Letter::rows), .n = extent(width)};
        step.in[0] = id(replicated(dy, width));
        step.weights[0] = wid(node.weights[0]);
        push(step);
        break;
      }
      case forward::Kind::cross_entropy:
        break;
    }
  }
  constexpr void multiply(Id a, Id b, Id out, const forward::Width& width) {
    Step step{.code = Code::multiply, .m = elements(width)};
    step.in = {id(a), id(b), -1, -1};
    step.out[0] = id(out);
    push(step);
  }

  constexpr void norm_backward(int i, Id dy) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const forward::Width& width = g().width(node.output);
    const Id residual = gradients_[at(x)];
    Step step{.code = Code::norm_backward, .m = of(rows(width)), .n = extent(width)};
    step.in = {id(dy), id(operand(x)), id(statistics_[at(i)]), id(residual)};
    step.weights = {wid(node.weights[0]), wid(node.weights[1])};
    step.deferred_norm = program_.splits;
    Id out = -1;
    if (residual >= 0 && readers(residual) == 1)
      out = in_place(residual);
    else if (has_loss_ && x == g().input)
      out = in_place(input_);
    else
      out = fresh(elements(width));
    step.out[0] = id(out);
    push(step);
    gradients_[at(x)] = out;
  }

  constexpr void activation_backward(const forward::Node& node, Id dg) {
    const int x = node.inputs[0];
    const forward::Width& width = g().width(node.output);
    Step step{.code = Code::activation_backward, .m = of(rows(width)), .n = extent(width)};
    const Id u = operand(x);
    step.activation = node.activation;
    step.in = {id(u), id(dg), -1, -1};
    const Id du = activation_target(node, u, dg);
    step.out[0] = id(du);
    push(step);
    give(x, du);
  }
  /// Where the gradient of an activation's operand u goes: in place of the gradient dg, which has its shape but for
  /// gated kinds, or of u. Where weight gradients come later it stays in the slot of u.
  constexpr Id activation_target(const forward::Node& node, Id u, Id dg) {
    const int x = node.inputs[0];
    const bool last_use = g().uses(x) == 1;
    if (program_.splits && last_use && storage(u) == Storage::slot) return in_place(u);
    if (g().width(x) == g().width(node.output) && readers(dg) == 0) return in_place(dg);
    return last_use && u != input_ ? in_place(u) : fresh(elements(g().width(x)));
  }

  constexpr void linear_backward(const forward::Node& node, Id dy) {
    const int x = node.inputs[0];
    const forward::Width& in = g().width(x);
    const forward::Width& out = g().width(node.output);
    const Extent outputs = extent(out);
    const Extent inputs = extent(in);
    const Letter region = in.split || out.split ? Letter::rows : local_rows();
    const Id all = in.split ? replicated(dy, out) : dy;  // all rows of dy

    // Gradients of the weight and the bias.
    const Id x_value = program_.splits ? later_operand(x) : operand(x);
    const Id later = program_.splits ? later_gradient(dy, out) : dy;
    const Phase phase = phase_;
    phase_ = weights_phase();
    Step step = product(Code::weight_gradient, node, outputs, inputs, of(region));
    step.in[0] = id(program_.splits && in.split ? replicated(later, out) : program_.splits ? later : all);
    step.in[1] = id(out.split ? replicated(program_.splits ? now(x_value, x) : x_value, in)
                              : (program_.splits ? now(x_value, x) : x_value));
    push(step);
    if (node.weights[1] >= 0) {
      Step bias{.code = Code::bias_gradient, .m = of(rows(out)), .n = outputs};
      bias.in[0] = id(later);
      bias.weights = {wid(node.weights[0]), wid(node.weights[1])};
      push(bias);
    }
    phase_ = phase;

    // Gradient of the input.
    const int producer = g().producer(x);
    const bool fused = producer >= 0 && fuses_backward(producer);
    if (fused) {
      const forward::Node& activation = g().node(producer);
      Step input = product(Code::activation_gradient, node, of(region), inputs, outputs);
      const Id dg = gradient_of(x);
      const Id u = operand(activation.inputs[0]);
      input.in = {id(all), id(u), -1, -1};
      input.scratch[0] = id(dg);
      input.activation = activation.activation;
      const Id du = activation_target(activation, u, dg);
      input.out[0] = id(du);
      push(input);
      give(activation.inputs[0], du);
      return;
    }
    Step input = product(Code::input_gradient, node, of(region), inputs, outputs);
    input.in[0] = id(all);
    const Id dx = out.split ? partial(in, Storage::frame) : gradient_of(x);
    input.out[0] = id(dx);
    push(input);
    give(x, out.split ? reduced(dx, in) : dx);
  }
  /// A place for the gradient of a linear layer's operand: that of the operand, if it was kept for the weight's
  /// gradient alone, which is made by now.
  constexpr Id gradient_of(int x) {
    const int producer = g().producer(x);
    const bool unread = producer >= 0 && (g().node(producer).operation == forward::Kind::activation ||
                                          g().node(producer).operation == forward::Kind::multiply);
    if (unread && !program_.splits && kept_.keeps(x) && g().uses(x) == 1) return in_place(own(x));
    return fresh(elements(g().width(x)));
  }
  [[nodiscard]] constexpr bool fuses_backward(int producer) const {
    const forward::Node& node = g().node(producer);
    return node.operation == forward::Kind::activation && g().uses(node.output) == 1;
  }

  // ---- attention

  constexpr void attend_backward(int i, Id d_output) {
    const forward::Node& node = g().node(i);
    const Extent output = ulysses_ ? core_q() : q().times(Letter::rows);
    if (ulysses_) {
      const Id by_tokens = d_output;
      d_output = fresh(core_q());
      exchange(Code::to_heads, by_tokens, d_output);
    }
    const Extent projection = extent(g().width(node.inputs[0])).times(Letter::rows);
    Id d_input = ulysses_ ? core_projection(Storage::frame) : fresh(projection);
    Step step = core_step(ring_ ? Code::ring_backward : Code::attention_backward);
    step.in = {id(core_input_[at(i)]), id(core_output_[at(i)]), id(statistics_[at(i)]), id(d_output)};
    step.out[0] = id(d_input);
    step.scratch[0] = id(fresh(extent_of(statistics_[at(i)]), Storage::frame, Scalar::fp32));
    if (ring_) {
      const Extent block = kv().times(2).times(Letter::rows);
      step.scratch[1] = id(fresh(block));
      step.scratch[2] = id(fresh(block));
      step.scratch[3] = id(fresh(block, Storage::frame, Scalar::fp32));
      step.scratch[4] = id(fresh(block, Storage::frame, Scalar::fp32));
      step.scratch[5] = id(fresh(output));
      step.scratch[6] = id(fresh(block));
      step.scratch[7] = id(fresh(output, Storage::frame, Scalar::sum));
    }
    push(step);
    if (ulysses_) {
      const Id by_heads = d_input;
      d_input = fresh(projection);
      exchange(Code::projection_to_tokens, by_heads, d_input);
    }
    free_slot_ = storage(core_input_[at(i)]) == Storage::slot ? program_.value(core_input_[at(i)]).buffer : -1;
    give(node.inputs[0], d_input);
  }

  // ---- operands of backward

  /// A tensor of the forward pass in backward: kept, or recomputed here.
  constexpr Id operand(int tensor) {
    if (tensor == g().input) return input_;
    if (has_loss_ || kept_.keeps(tensor) || again_[at(tensor)] == phase_mark()) return own(tensor);
    const int i = g().producer(tensor);
    const forward::Node& node = g().node(i);
    if (node.operation == forward::Kind::attend) {
      attend(i, Storage::frame);
      again_[at(tensor)] = phase_mark();
      return own(tensor);
    }
    own_[at(tensor)] = recompute(i, Storage::frame);
    again_[at(tensor)] = phase_mark();
    return own(tensor);
  }
  [[nodiscard]] constexpr int phase_mark() const { return 1 + static_cast<int>(phase_); }
  constexpr Id recompute(int i, Storage where) {
    const forward::Node& node = g().node(i);
    const forward::Width& width = g().width(node.output);
    Step step{};
    const Id x = operand(node.inputs[0]);
    step.in[0] = id(x);
    if (node.operation == forward::Kind::multiply) {
      const Id b = operand(node.inputs[1]);
      const Id out = fresh(elements(width), where);
      multiply(x, b, out, width);
      return out;
    }
    step.code = node.operation == forward::Kind::norm ? Code::norm_recompute : Code::activation_forward;
    step.activation = node.activation;
    step.m = of(rows(width));
    step.n = extent(width);
    if (node.operation == forward::Kind::norm) {
      step.in[1] = id(statistics_[at(i)]);
      step.weights = {wid(node.weights[0]), wid(node.weights[1])};
      step.deferred_norm = program_.splits;
    }
    const Id out = fresh(elements(width), where);
    step.out[0] = id(out);
    push(step);
    return out;
  }
  /// The same for the phase of weight gradients: what a norm gives is recomputed there, as its operands stay; what
  /// other operations give is recomputed in backward, which destroys theirs, and deferred. -1: `now` makes it.
  constexpr Id later_operand(int tensor) {
    if (tensor == g().input || kept_.keeps(tensor)) return operand(tensor);
    const int i = g().producer(tensor);
    if (g().node(i).operation == forward::Kind::norm) return -1;
    return recompute(i, Storage::deferred);
  }
  constexpr Id now(Id v, int tensor) { return v >= 0 ? v : recompute(g().producer(tensor), Storage::frame); }
  /// A gradient that the phase of weight gradients reads: where it lies if it stays there, else a copy, in a slot that
  /// backward no longer needs or deferred.
  constexpr Id later_gradient(Id dy, const forward::Width& width) {
    if (storage(dy) == Storage::slot) return dy;
    Id out = -1;
    if (free_slot_ >= 0) {
      out = value(free_slot_);
      free_slot_ = -1;
    } else {
      out = fresh(elements(width), Storage::deferred);
    }
    copy(dy, out, width);
    return out;
  }

  int free_slot_ = -1;  ///< the buffer of an attention core's input, once backward has read it
  std::array<int, forward::Graph::most_tensors> again_{};  ///< phase in which a tensor was recomputed, from 1
};

}  // namespace galvatron::program::detail
