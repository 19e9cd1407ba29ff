// The backward pass of a program: the graph's nodes in reverse, each with one rule for the gradients of its operands
// and one for those of its weights.
//
// A split backward has the gradients of weights in a phase of their own, later. What this phase reads and the first one
// would destroy is deferred: written to the slot of an activation that backward no longer needs, or copied.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/forward_pass.hpp>

namespace galvatron::program::detail {

class BackwardPass : ForwardPass {
 public:
  /// Makes both passes.
  constexpr BackwardPass(const forward::Graph& graph, const StrategySpec& kinds, bool splits, const Options& options)
      : ForwardPass(graph, kinds, splits, options) {
    forward();
    backward();
  }
  [[nodiscard]] constexpr const LayerProgram& program() const { return program_; }

 private:
  [[nodiscard]] constexpr Phase weights_phase() const { return program_.splits ? Phase::weights : phase_; }
  constexpr void backward() {
    if (!has_loss_) {
      phase_ = Phase::backward;
      enter_gradients();
      if (is_block()) push_groups(Code::acquire);
      if (program_.splits) push_group(Code::keep_replicated, ParameterPart::rest);
      phase_ = weights_phase();
      push_groups(Code::open_gradients);
      phase_ = Phase::backward;
      if (!is_block() && g().has_norm())
        push_group(Code::acquire, program_.has(ParameterPart::frozen) ? ParameterPart::frozen : ParameterPart::rest);
      if (full_) run(true);
    }
    for (int i = g().node_count; i-- > 0;) back(i);
    for (const int input : inputs_with_gradients()) leave_gradient(input);
    if (program_.splits) {
      phase_ = Phase::weights;
      push_group(Code::add_replicated, ParameterPart::rest);
    }
    push_groups(Code::close_gradients);
    if (has_loss_) {
      phase_ = Phase::backward;
      const int x = g().inputs[0];
      const Id d = gradient_border(x);
      if (goes_on(0)) {
        program_.output_gradients[0] = id(d);
        gradients_[at(x)] = combined(Code::add, d, gradients_[at(x)], in_place(d), x);
      } else {
        copy(gradients_[at(x)], d, x);
        gradients_[at(x)] = d;
      }
    }
    int count = 0;
    for (const int input : inputs_with_gradients())
      if (input >= 0) program_.input_gradients[at(count++)] = id(gradients_[at(input)]);
  }
  [[nodiscard]] constexpr std::array<int, 2> inputs_with_gradients() const {
    return {g().takes_data ? -1 : g().inputs[0], g().inputs[1]};
  }
  /// Gradients of what the layer gives, and of inputs that go on to later layers, which have given them one.
  constexpr void enter_gradients() {
    int count = 0;
    const auto enter = [&](int tensor) {
      if (tensor < 0) return;
      gradients_[at(tensor)] = gradient_border(tensor);
      program_.output_gradients[at(count++)] = id(gradients_[at(tensor)]);
    };
    for (const int output : g().outputs) enter(output);
    for (std::size_t k = 0; k < 2; ++k)
      if (goes_on(k)) enter(g().inputs[k]);
  }
  /// A value in the border.
  constexpr Id gradient_border(int tensor) {
    const BundlePlace& place = g().layer.place;
    std::int16_t part = tensor == g().inputs[0] ? place.inputs[0] : place.inputs[1];
    for (std::size_t k = 0; k < 2; ++k)
      if (tensor == g().outputs[k]) part = place.outputs[k];
    const ExtentId count = numbered(elements(tensor));
    for (int b = 0; b < program_.buffers.size; ++b)
      if (const Buffer& made = program_.buffer(b);
          made.storage == Storage::gradient && made.part == part && made.elements == count)
        return value(b);
    const int b = buffer(Storage::gradient, elements(tensor));
    program_.buffers[b].part = part;
    return value(b);
  }
  /// The gradient of an input lies in the border; where the layer has a loss in place of the input or, where others
  /// read that, in a slot.
  constexpr void leave_gradient(int input) {
    if (input < 0) return;
    Id& d = gradients_[at(input)];
    if (storage(d) == (replaces_input() ? Storage::input : Storage::gradient)) return;
    const Id there = !has_loss_         ? gradient_border(input)
                     : replaces_input() ? in_place(own(input))
                                        : fresh(elements(input), Storage::slot);
    copy(d, there, input);
    d = there;
  }

  /// Gradients of tensors that still wait to be read and are this value.
  [[nodiscard]] constexpr int readers(Id v) const { return static_cast<int>(std::ranges::count(gradients_, v)); }
  /// Adds a gradient to what a tensor has.
  constexpr void give(int tensor, Id d) {
    if (tensor < 0) return;
    Id& have = gradients_[at(tensor)];
    if (have < 0) {
      have = d;
      return;
    }
    have = combined(Code::add, have, d, readers(have) == 1 ? in_place(have) : fresh(elements(tensor)), tensor);
  }

  constexpr void back(int i) {
    const forward::Node& node = g().node(i);
    if (node.output < 0) return;  // of a loss: forward made its gradient
    const Id dy = gradients_[at(node.output)];
    if (dy < 0) return;  // a fused step made what is behind it
    gradients_[at(node.output)] = -1;
    const int x = node.inputs[0];
    const int y = node.output;
    Step step{.m = rows(y), .n = width(y)};
    step.weights = weights_of(node);
    switch (node.operation) {
      case forward::Kind::norm:
        return norm_backward(i, dy);
      case forward::Kind::linear:
        return linear_backward(i, dy);
      case forward::Kind::activation:
        return activation_backward(node, dy);
      case forward::Kind::multiply: {
        const Id a = operand(x);
        const Id b = operand(node.inputs[1]);
        const Id da = combined(Code::multiply, dy, b, fresh(elements(y)), y);
        const Id db = combined(Code::multiply, dy, a, fresh(elements(y)), y);
        give(x, da);
        give(node.inputs[1], db);
        break;
      }
      case forward::Kind::add:
        give(x, dy);
        if (drops_out(node)) {
          Step back{.code = Code::dropout_backward, .m = elements(y)};
          back.in[1] = id(statistics_[at(i)]);
          give(node.inputs[1], pushed(back, dy, fresh(elements(y))));
        } else {
          give(node.inputs[1], dy);
        }
        break;
      case forward::Kind::rotate:
        return give(x, rotate(Code::rotate_back, node, readers(dy) == 0 ? dy : copied(dy, y)));
      case forward::Kind::jitter:
        step.code = Code::jitter;
        return give(x, pushed(step, dy, readers(dy) == 0 ? in_place(dy) : fresh(elements(x))));
      case forward::Kind::norm_heads:
        return norm_heads_backward(i, readers(dy) == 0 ? dy : copied(dy, y));
      case forward::Kind::assemble:
        return assemble_backward(node, dy);
      case forward::Kind::narrow:
        return give(x, pushed(heads_step(Code::narrow_back), dy, fresh(elements(x))));
      case forward::Kind::attend:
      case forward::Kind::cross_attend:
        return attend_backward(i, dy);
      case forward::Kind::experts:
        return experts_backward(i, dy);
      case forward::Kind::gate: {
        step.code = Code::gate_backward;
        step.in = listed<Operands>(operand(x), operand(node.inputs[1]), dy);
        const Id da = fresh(elements(x));
        const Id db = fresh(elements(node.inputs[1]));
        step.out = listed<Results>(da, db);
        push(step);
        give(x, da);
        give(node.inputs[1], db);
        break;
      }
      case forward::Kind::merge: {
        step.code = Code::merge_back;
        const bool to_border = x == g().inputs[0] && g().uses(x) == 1 && !has_loss_;
        give(x, pushed(step, dy, to_border ? gradient_border(x) : fresh(elements(x))));
        break;
      }
      case forward::Kind::add_positions:
      case forward::Kind::add_segment:
        step.code = node.operation == forward::Kind::add_segment ? Code::segment_gradient : Code::positions_gradient;
        if (trains(node.weights[0])) pushed(step, dy, -1);
        give(x, dy);
        break;
      case forward::Kind::prepend:
        step.code = Code::prepend_backward;
        step.m = of(Letter::first_rows);
        give(x, trains(node.weights[0]) ? pushed(step, dy, value(buffer_of(dy), Part::patches))
                                        : pushed({.code = Code::view}, dy, value(buffer_of(dy), Part::patches)));
        break;
      case forward::Kind::first_token: {
        const bool in_input = x == g().inputs[0] && replaces_input();
        step.code = Code::first_token_gradient;
        step.m = elements(x);
        step.k = of(Letter::patch_rows);
        if (in_input) return give(x, pushed(step, dy, in_place(own(x))));
        const Id d = fresh(elements(x));
        const Id first = value(buffer_of(d), Part::first_tokens);
        copy(dy, first, y);
        give(x, pushed(step, first, d));
        break;
      }
      case forward::Kind::mean:
      case forward::Kind::end_of_text:
        step.code = node.operation == forward::Kind::mean ? Code::mean_backward : Code::end_of_text_backward;
        step.m = rows(x);
        give(x, pushed(step, dy, fresh(elements(x))));
        break;
      case forward::Kind::look_up:
        step.code = Code::look_up_backward;
        step.m = of(region_rows(y));
        step.rows = g().rows(y);
        if (trains(node.weights[0])) pushed(step, replicated(dy, y), -1);
        break;
      case forward::Kind::cross_entropy:
      case forward::Kind::contrast:
        break;
    }
  }

  constexpr void norm_backward(int i, Id dy) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const Id residual = gradients_[at(x)];
    Step step{.code = Code::norm_backward, .m = rows(node.output), .n = width(node.output)};
    step.in = listed<Operands>(dy, operand(x), statistics_[at(i)], residual);
    step.weights = weights_of(node);
    step.deferred_norm = program_.splits;
    Id out = -1;
    if (residual >= 0)
      out = readers(residual) == 1 ? in_place(residual) : fresh(elements(x));
    else if (storage(own(x)) == Storage::input && replaces_input())  // the input, or a view of it
      out = in_place(own(x));
    else
      out = readers(dy) == 0 ? in_place(dy) : fresh(elements(x));
    step.out[0] = id(out);
    push(step);
    gradients_[at(x)] = out;
  }

  constexpr void norm_heads_backward(int i, Id d) {
    const forward::Node& node = g().node(i);
    Step step = norm_heads_step(Code::norm_heads_back, node);
    const Id out = in_place(d);
    step.in = listed<Operands>(d, heads_[at(i)], statistics_[at(i)]);
    step.out[0] = id(out);
    step.scratch[0] = id(fresh(heads_elements()));
    step.scratch[1] = id(fresh(step.l.times(2), Storage::frame, Scalar::fp32));
    push(step);
    give(node.inputs[0], out);
  }
  /// Tensor ranks have parts of the gradient of what all heads of keys share.
  constexpr void assemble_backward(const forward::Node& node, Id d) {
    const int key = node.inputs[2];
    Step step = heads_step(Code::assemble_back);
    const Id dq = fresh(elements(node.inputs[0]));
    const Id dkv = fresh(elements(node.inputs[1]));
    const Id dk = partial(key, Storage::frame);
    step.in[0] = id(d);
    step.out = listed<Results>(dq, dkv, dk);
    step.scratch[0] = id(fresh(region_elements(key), Storage::frame, Scalar::sum));
    push(step);
    give(node.inputs[0], dq);
    give(node.inputs[1], dkv);
    give(key, reduced(dk, key));
  }

  constexpr void activation_backward(const forward::Node& node, Id dg) {
    const int x = node.inputs[0];
    Step step{.code = Code::activation_backward, .m = rows(node.output), .n = width(node.output)};
    const Id u = operand(x);
    step.activation = node.activation;
    step.in[1] = id(dg);
    give(x, pushed(step, u, activation_target(node, u, dg)));
  }
  /// Where the gradient of an activation's operand u goes: in place of the gradient dg, which has its shape but for
  /// gated kinds, or of u. Where weight gradients come later it stays in the slot of u.
  constexpr Id activation_target(const forward::Node& node, Id u, Id dg) {
    const int x = node.inputs[0];
    const bool last_use = g().uses(x) == 1;
    if (program_.splits && last_use && storage(u) == Storage::slot) return in_place(u);
    if (g().width(x) == g().width(node.output) && readers(dg) == 0) return in_place(dg);
    return last_use && !g().is_input(x) ? in_place(u) : fresh(elements(x));
  }

  constexpr void linear_backward(int i, Id dy) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const int y = node.output;
    const bool splits_in = g().width(x).split;
    const bool splits_out = g().width(y).split;
    const Extent region = splits_in || splits_out ? of(region_rows(y)) : rows(y);
    const Id all = splits_in ? replicated(dy, y) : dy;  // all rows of dy

    // Gradients of the weight and the bias.
    const bool of_weight = trains(node.weights[0]);
    if (of_weight || trains(node.weights[1])) {
      const Id x_value = !of_weight ? -1 : program_.splits ? later_operand(x) : operand(x);
      const Id later = program_.splits ? later_gradient(dy, y) : dy;
      const Phase phase = phase_;
      phase_ = weights_phase();
      if (of_weight) {
        Step step = product(Code::weight_gradient, node, width(y), width(x), region);
        step.in[0] = id(program_.splits && splits_in ? replicated(later, y) : program_.splits ? later : all);
        const Id x_now = program_.splits ? now(x_value, x) : x_value;
        step.in[1] = id(splits_out ? replicated(x_now, x) : x_now);
        push(step);
      }
      if (trains(node.weights[1]))
        pushed({.code = Code::bias_gradient, .m = rows(y), .n = width(y), .weights = weights_of(node)}, later, -1);
      phase_ = phase;
    }
    const Id d_low = node.has_adapter() ? adapter_backward(i, all, region) : -1;
    if (g().takes_data && x == g().inputs[0]) return;

    // Gradient of the input.
    const int producer = g().producer(x);
    if (options().fuses && is_block() && producer >= 0 && g().uses(x) == 1 && d_low < 0 &&
        g().node(producer).operation == forward::Kind::activation) {
      const forward::Node& activation = g().node(producer);
      Step input = product(Code::activation_gradient, node, region, width(x), width(y));
      const Id dg = gradient_of(x);
      const Id u = operand(activation.inputs[0]);
      input.in[1] = id(u);
      input.scratch[0] = id(dg);
      input.activation = activation.activation;
      give(activation.inputs[0], pushed(input, all, activation_target(activation, u, dg)));
      return;
    }
    const Step input = product(Code::input_gradient, node, region, width(x), width(y));
    Id dx = pushed(input, all, splits_out ? partial(x, Storage::frame) : gradient_of(x));
    if (d_low >= 0) {
      Step more{.code = Code::input_gradient, .m = region, .n = width(x), .k = adapter_width(node), .adds = true};
      more.weights = only(node, 2);
      more.in[1] = id(dx);
      dx = pushed(more, d_low, in_place(dx));
    }
    give(x, splits_out ? reduced(dx, x) : dx);
  }
  /// Gradients of an adapter's factors, and of what is between them, (region, rank): where B is split a part of it, as
  /// the gradient of A then is.
  /// @param dy  all rows
  constexpr Id adapter_backward(int i, Id dy, const Extent& region) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    Step of_b = adapter_step(Code::adapter_gradient, node, region);
    of_b.in = listed<Operands>(dy, low_rank_[at(i)]);
    push(of_b);
    const Extent low = adapter_width(node);
    const Id d_low =
        pushed(adapter_step(Code::adapter_input_gradient, node, region), dy, fresh(region.times(low.factor)));
    Step of_a{.code = Code::weight_gradient, .m = low, .n = width(x), .k = region, .weights = only(node, 2)};
    const Id n = operand(x);
    of_a.in = listed<Operands>(d_low, g().width(node.output).split ? replicated(n, x) : n);
    push(of_a);
    return d_low;
  }
  /// A place for the gradient of a linear layer's operand: that of the operand, if it was kept for the weight's
  /// gradient alone, which is made by now.
  constexpr Id gradient_of(int x) {
    if (x == g().inputs[0] && g().uses(x) == 1 && replaces_input()) return in_place(own(x));
    const int producer = g().producer(x);
    const bool unread = producer >= 0 && (g().node(producer).operation == forward::Kind::activation ||
                                          g().node(producer).operation == forward::Kind::multiply);
    if (unread && !program_.splits && kept_.keeps(x) && g().uses(x) == 1) return in_place(own(x));
    return fresh(elements(x));
  }

  // ---- experts

  constexpr void experts_backward(int i, Id dy) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const Routed& routed = routed_[at(i)];
    const Id n = operand(x);
    const Id d_weights = fresh(of(Letter::choices), Storage::frame, Scalar::fp32);
    if (compresses_) return route_backward(i, n, d_weights, compressed_backward(i, n, dy, d_weights));
    Step step = experts_step(exchanges_ ? Code::exchange_backward : Code::experts_backward, node);
    Id dx = -1;
    if (exchanges_) {
      step.in = listed<Operands>(n, routed.weights, routed.order, routed.places, routed.nodes, routed.counts, routed.u,
                                 routed.rows, dy);
      const Id local = exchanged(fresh(elements(x)));
      step.out = listed<Results>(local, d_weights, in_place(routed.u), in_place(routed.rows));
      experts_scratch(step, x, true);
      step.scratch[5] = id(fresh(of(Letter::expert_rows), Storage::frame, Scalar::fp32));
      step.scratch[6] = id(fresh(of(Letter::expert_rows), Storage::frame, Scalar::fp32));
      step.scratch[7] = id(fresh(of(Letter::routed_rows), Storage::frame, Scalar::fp32));
      step.scratch[8] = id(fresh({1, Letter::routed_rows, Letter::expert_parts}, Storage::frame, Scalar::fp32));
      push(step);
      dx = gathered(local, x);
    } else {
      step.in = listed<Operands>(replicated(n, x), routed.weights, routed.order, routed.places, routed.offsets,
                                 routed.u, replicated(dy, node.output));
      const Id sum = partial(x, Storage::frame);
      step.out = listed<Results>(sum, d_weights, in_place(routed.u));
      step.scratch[0] = id(fresh(width(x).times(Letter::expert_rows)));
      step.scratch[1] = id(fresh({1, Letter::expert_rows, Letter::expert_scratch}));
      push(step);
      dx = reduced(sum, x);
    }
    route_backward(i, n, d_weights, dx);
  }
  constexpr Id compressed_backward(int i, Id n, Id dy, Id d_weights) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const Routed& routed = routed_[at(i)];
    const bool has_means = full_ || has_loss_;  // this phase made them
    const Id means = has_means ? routed.means : means_of(x, n, routed);
    const Extent elements_of_rows = width(x).times(Letter::routed_rows);
    Step weights = gains_step(Code::bucket_weights_back, node);
    weights.in = listed<Operands>(dy, routed.outputs, n, means, routed.places, routed.order, routed.offsets,
                                  routed.indices, routed.bounds);
    weights.out[0] = id(d_weights);
    push(weights);
    if (node.weights[4] >= 0) {
      Step gains = buckets_step(Code::residual_gradient, x);
      gains.weights = weights_of(node);
      gains.in =
          listed<Operands>(dy, routed.weights, n, means, routed.order, routed.offsets, routed.indices, routed.bounds);
      gains.scratch[0] = id(fresh({g().layer.experts}, Storage::frame, Scalar::fp32));
      push(gains);
    }
    Step sum = buckets_step(Code::compress_gradient, x);
    sum.in = listed<Operands>(dy, routed.weights, routed.order, routed.offsets, routed.indices, routed.bounds);
    const Id sums = fresh(elements_of_rows);
    sum.out[0] = id(sums);
    push(sum);
    Step step = experts_step(Code::compressed_backward, node);
    step.in = listed<Operands>(means, routed.counts, routed.u, routed.rows, sums);
    const Id d_means = fresh(elements_of_rows);
    step.out = listed<Results>(d_means, in_place(routed.u), in_place(routed.rows));
    compressed_scratch(step, x);
    push(step);
    Step back = gains_step(Code::decompress_gradient, node);
    back.in = listed<Operands>(dy, d_means, sums, routed.weights, routed.places, routed.order, routed.offsets,
                               routed.indices, routed.bounds);
    const Id local = exchanged(fresh(elements(x)));
    back.out[0] = id(local);
    push(back);
    return gathered(local, x);
  }
  constexpr void route_backward(int i, Id n, Id d_weights, Id dx) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const Routed& routed = routed_[at(i)];
    Step route{.code = Code::route_backward, .m = rows(x), .n = width(x), .k = {g().layer.active_experts}};
    route.weights = weights_of(node);
    route.in = listed<Operands>(n, routed.logits, routed.chosen, d_weights, routed.balance, dx);
    route.scratch[0] = id(fresh({g().layer.experts, rows(x).a}));
    const Id whole = in_place(dx);
    route.out[0] = id(whole);
    push(route);
    give(x, whole);
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
    const bool crosses = node.operation == forward::Kind::cross_attend;
    // Where its result is an operand of a weight's gradient, it was computed for that.
    const bool is_there = kept_.drops_results() && again_[at(node.output)] == phase_mark();
    if (kept_.recomputes_core() && !is_there) attend(i, Storage::frame);
    if (has_biases(node) && biases_[at(i)] < 0) biases_[at(i)] = spread_biases(node);
    const Extent projection = region_elements(node.inputs[0]);
    Id d_input = ulysses_ ? core_projection(Storage::frame) : fresh(projection);
    const Id d_more = crosses            ? fresh(region_elements(node.inputs[1]))
                      : has_biases(node) ? fresh(bias_elements(), Storage::frame, Scalar::fp32)
                                         : -1;
    Step step = core_step(ring_     ? Code::ring_backward
                          : crosses ? Code::cross_backward
                                    : Code::attention_backward,
                          node);
    step.in = listed<Operands>(core_input_[at(i)], crosses ? own(node.inputs[1]) : biases_[at(i)], core_output_[at(i)],
                               statistics_[at(i)], d_output);
    step.out = listed<Results>(d_input, d_more);
    if (!options().fused_attention) {
      for (std::size_t k = 0; k < 3; ++k) step.in[5 + k] = id(scores_[at(i)][k]);
      step.out[2] = id(fresh(of(Letter::scores)));
      step.out[3] = id(fresh(of(Letter::scores)));
    }
    if (!has_windows(node)) step.scratch[0] = id(fresh(extent_of(statistics_[at(i)]), Storage::frame, Scalar::fp32));
    if (ring_) {
      const Extent block = kv().times(2).times(Letter::ring_rows);
      for (const std::size_t k : {1U, 2U}) step.scratch[k] = id(fresh(block));
      for (const std::size_t k : {3U, 4U}) step.scratch[k] = id(fresh(block, Storage::frame, Scalar::fp32));
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
    free_slot_ = storage(core_input_[at(i)]) == Storage::slot ? buffer_of(core_input_[at(i)]) : -1;
    give(node.inputs[0], d_input);
    if (crosses) give(node.inputs[1], d_more);
    if (!has_biases(node) || !trains(node.weights[0])) return;
    pushed({.code = Code::gather_biases, .m = heads(), .n = of(Letter::distances), .weights = weights_of(node)}, d_more,
           -1);
  }

  // ---- operands of backward

  /// A tensor of the forward pass in backward: kept, or recomputed here.
  constexpr Id operand(int tensor) {
    if (g().is_input(tensor) || has_loss_ || kept_.keeps(tensor) || again_[at(tensor)] == phase_mark())
      return own(tensor);
    const int i = g().producer(tensor);
    if (forward::is_attention(g().node(i).operation))
      attend(i, Storage::frame);
    else
      own_[at(tensor)] = recompute(i, Storage::frame);
    again_[at(tensor)] = phase_mark();
    return own(tensor);
  }
  [[nodiscard]] constexpr int phase_mark() const { return 1 + static_cast<int>(phase_); }
  constexpr Id recompute(int i, Storage where) {
    const forward::Node& node = g().node(i);
    const int y = node.output;
    const Id x = operand(node.inputs[0]);
    if (node.operation == forward::Kind::multiply) {
      const Id b = operand(node.inputs[1]);
      return combined(Code::multiply, x, b, fresh(elements(y), where), y);
    }
    Step step{.code = Code::activation_forward, .m = rows(y), .n = width(y)};
    step.activation = node.activation;
    if (node.operation == forward::Kind::merge || node.operation == forward::Kind::jitter) {
      step.code = node.operation == forward::Kind::merge ? Code::merge : Code::jitter;
    } else if (node.operation == forward::Kind::narrow) {
      step = heads_step(Code::narrow);
    } else if (node.operation == forward::Kind::norm) {
      step.code = Code::norm_recompute;
      step.in[1] = id(statistics_[at(i)]);
      step.weights = weights_of(node);
      step.deferred_norm = program_.splits;
    } else if (node.operation != forward::Kind::activation) {
      throw std::logic_error("an operation is not kept, nor recomputed");
    }
    return pushed(step, x, fresh(elements(y), where));
  }
  /// The same for the phase of weight gradients: what a norm gives is recomputed there, as its operands stay; what
  /// other operations give is recomputed in backward, which destroys theirs, and deferred. -1: `now` makes it.
  constexpr Id later_operand(int tensor) {
    if (g().is_input(tensor) || kept_.keeps(tensor)) return operand(tensor);
    const int i = g().producer(tensor);
    if (g().node(i).operation == forward::Kind::norm) return -1;
    return recompute(i, Storage::deferred);
  }
  constexpr Id now(Id v, int tensor) { return v >= 0 ? v : recompute(g().producer(tensor), Storage::frame); }
  /// A gradient that the phase of weight gradients reads: where it lies if it stays there, else a copy, in a slot that
  /// backward no longer needs or deferred.
  constexpr Id later_gradient(Id dy, int tensor) {
    if (storage(dy) == Storage::slot) return dy;
    const Id out = free_slot_ >= 0 ? value(free_slot_) : fresh(elements(tensor), Storage::deferred);
    free_slot_ = -1;
    copy(dy, out, tensor);
    return out;
  }

  int free_slot_ = -1;  ///< the buffer of an attention core's input, once backward has read it
  std::array<int, forward::Graph::most_tensors> again_{};  ///< phase in which a tensor was recomputed, from 1
};

}  // namespace galvatron::program::detail
