// Lowering: from a layer's forward pass and the kinds of a strategy to the program of one rank.
//
//   forward graph -- differentiate, place, recompute, fuse --> steps on values -- allocate --> buffers with offsets
//
// Placements over tensor-parallel ranks. A tensor of a split width is shard(columns). Others are replicate, or under
// Megatron's sequence parallelism shard(rows). A product over a split extent is partial. Where a step needs another
// placement than a value has, a redistribution goes between them, by one rule for activations and gradients:
//
//   shard(rows) -> replicate    all_gather          partial -> replicate     all_reduce
//                                                   partial -> shard(rows)   reduce_scatter
//
// Gradients have the placement of their tensors. Redistributed values are never kept for backward: it gathers them
// anew.
//
// What is kept for backward: the operands that a gradient needs. Of them the outputs of norms and of element-wise
// operations are recomputed unless recomputation is `never`; results of attention too under `selective`; under `full`
// everything but the layer's input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron::program {

namespace detail {

class Lowering {
 public:
  constexpr Lowering(const forward::Graph& graph, const StrategySpec& kinds, bool splits)
      : megatron_(kinds.sequence == SequenceKind::megatron),
        ulysses_(kinds.sequence == SequenceKind::ulysses),
        ring_(kinds.uses_ring()),
        full_(kinds.recompute == RecomputeKind::full),
        has_loss_(graph.output < 0) {
    p_.graph = graph;
    p_.kinds = kinds;
    p_.splits = splits;
    own_.fill(-1);
    gradients_.fill(-1);
    statistics_.fill(-1);
    core_input_.fill(-1);
    core_output_.fill(-1);
    find_needs();
    input_ = graph.input < 0 ? -1 : border(Storage::input, graph.input);
    forward();
    backward();
    allocate_frames(p_);
  }

  [[nodiscard]] constexpr const LayerProgram& program() const { return p_; }

 private:
  using Id = int;
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] constexpr const forward::Graph& g() const { return p_.graph; }
  [[nodiscard]] constexpr const forward::WeightSpec& weight(int id) const { return g().weight(id); }

  // ---- values, buffers, steps

  constexpr Id value(int buffer, bool local = false) {
    p_.values[at(p_.value_count)] = {static_cast<std::int16_t>(buffer), local};
    return p_.value_count++;
  }
  constexpr int buffer(Storage storage, const Extent& elements, Scalar scalar = Scalar::activation) {
    Buffer made;
    made.storage = storage;
    made.elements = elements;
    made.scalar = scalar;
    p_.buffers[at(p_.buffer_count)] = made;
    return p_.buffer_count++;
  }
  constexpr Id fresh(const Extent& elements, Storage storage = Storage::frame, Scalar scalar = Scalar::activation) {
    return value(buffer(storage, elements, scalar));
  }
  /// The value that an operation writes in place of another.
  constexpr Id in_place(Id of) { return value(p_.value(of).buffer, p_.value(of).local); }
  [[nodiscard]] constexpr Storage storage(Id v) const { return p_.buffer_of(v).storage; }
  constexpr void push(const Step& step) {
    auto& list = p_.phase[at(static_cast<int>(phase_))];
    list.steps[at(list.size++)] = step;
  }
  static constexpr std::int16_t id(Id v) { return static_cast<std::int16_t>(v); }
  static constexpr std::int8_t wid(int w) { return static_cast<std::int8_t>(w); }

  // ---- extents

  [[nodiscard]] static constexpr Extent extent(const forward::Width& w) {
    return {w.extent, Letter::one, Letter::one, w.split};
  }
  /// Rows of a tensor on a rank: those of the region where its width is split.
  [[nodiscard]] constexpr Letter rows(const forward::Width& w) const { return w.split ? Letter::rows : local_rows(); }
  [[nodiscard]] constexpr Letter local_rows() const { return megatron_ ? Letter::local_rows : Letter::rows; }
  [[nodiscard]] constexpr Extent elements(const forward::Width& w) const { return extent(w).times(rows(w)); }
  [[nodiscard]] static constexpr Extent of(Letter letter) { return {1, letter}; }
  [[nodiscard]] constexpr Extent heads() const { return {g().layer.heads, Letter::one, Letter::one, true}; }
  [[nodiscard]] constexpr Extent q() const {
    return {g().layer.heads * g().layer.head_dim, Letter::one, Letter::one, true};
  }
  [[nodiscard]] constexpr Extent kv() const {
    return {g().layer.kv_heads * g().layer.head_dim, Letter::one, Letter::one, true};
  }
  [[nodiscard]] constexpr Extent core_q() const { return {g().layer.head_dim, Letter::core_rows, Letter::core_heads}; }

  // ---- what backward needs

  constexpr void need(int tensor) {
    if (tensor < 0 || needs_[at(tensor)]) return;
    needs_[at(tensor)] = true;
    // What is recomputed needs its own operands.
    const int producer = g().producer(tensor);
    if (producer < 0 || !is_recomputed(tensor)) return;
    for (const int input : g().node(producer).inputs) need(input);
  }
  /// True for outputs that backward computes again from what is kept. Results of attention are told apart in keeps().
  [[nodiscard]] constexpr bool is_recomputed(int tensor) const {
    if (p_.kinds.recompute == RecomputeKind::never) return false;
    const int producer = g().producer(tensor);
    if (producer < 0) return false;
    const forward::Kind operation = g().node(producer).operation;
    return operation == forward::Kind::norm || operation == forward::Kind::activation ||
           operation == forward::Kind::multiply;
  }
  constexpr void find_needs() {
    for (int i = 0; i < g().node_count; ++i) {
      const forward::Node& node = g().node(i);
      switch (node.operation) {
        case forward::Kind::norm:
        case forward::Kind::linear:
        case forward::Kind::activation:
          need(node.inputs[0]);
          break;
        case forward::Kind::multiply:
          need(node.inputs[0]);
          need(node.inputs[1]);
          break;
        case forward::Kind::attend:
          if (!ulysses_) need(node.inputs[0]);  // Ulysses keeps what its exchange gives
          break;
        case forward::Kind::add:
        case forward::Kind::rotate:
        case forward::Kind::look_up:
        case forward::Kind::add_positions:
        case forward::Kind::cross_entropy:
          break;
      }
    }
  }
  [[nodiscard]] constexpr bool is_attention_result(int tensor) const {
    const int producer = g().producer(tensor);
    return producer >= 0 && g().node(producer).operation == forward::Kind::attend;
  }
  [[nodiscard]] constexpr bool recomputes_core() const { return p_.kinds.recompute == RecomputeKind::selective; }
  /// True for tensors that forward leaves to backward, or that full recomputation makes for it.
  [[nodiscard]] constexpr bool keeps(int tensor) const {
    if (!needs_[at(tensor)] || tensor == g().input || is_recomputed(tensor)) return false;
    return !(recomputes_core() && is_attention_result(tensor));
  }
  /// Where what is kept lies. The gradients of a layer with a loss are made in its forward phase.
  [[nodiscard]] constexpr Storage kept() const { return full_ || has_loss_ ? Storage::frame : Storage::slot; }
  [[nodiscard]] constexpr Storage kept_results() const { return recomputes_core() ? Storage::frame : kept(); }

  /// Where a tensor of the forward pass lies. What works in place decides for its operand.
  [[nodiscard]] constexpr Storage home(int tensor) const {
    if (tensor == g().output && phase_ == Phase::forward) return Storage::output;
    for (int i = 0; i < g().node_count; ++i) {
      const forward::Node& node = g().node(i);
      const bool works_in_place =
          node.operation == forward::Kind::rotate || node.operation == forward::Kind::add_positions;
      if (works_in_place && node.inputs[0] == tensor) return home(node.output);
    }
    return keeps(tensor) ? kept() : Storage::frame;
  }
  constexpr Id border(Storage storage, int tensor) { return value(buffer(storage, elements(g().width(tensor)))); }

  // ---- redistributions

  /// All rows of a value of a whole width: in place where it lies in a frame.
  constexpr Id replicated(Id v, const forward::Width& width) {
    if (!megatron_ || width.split) return v;
    const Extent all = extent(width).times(Letter::rows);
    Id out = -1;
    if (storage(v) == Storage::frame) {
      p_.buffers[at(p_.value(v).buffer)].elements = all;
      p_.values[at(v)].local = true;
      out = value(p_.value(v).buffer);
    } else {
      out = fresh(all);
    }
    Step step{.code = Code::all_gather, .m = all, .ranks = Ranks::tp};
    step.in[0] = id(v);
    step.out[0] = id(out);
    push(step);
    return out;
  }
  /// Where a partial sum of a tensor goes before it is reduced.
  constexpr Id partial(const forward::Width& width, Storage target) {
    return fresh(extent(width).times(Letter::rows), megatron_ ? Storage::frame : target);
  }
  /// The sum of what all tensor ranks have, in the tensor's own placement.
  constexpr Id reduced(Id v, const forward::Width& width, Storage target = Storage::frame) {
    Id out = -1;
    if (!megatron_)
      out = in_place(v);
    else if (target == Storage::frame)
      out = value(p_.value(v).buffer, true);
    else
      out = fresh(elements(width), target);
    Step step{.code = megatron_ ? Code::reduce_scatter : Code::all_reduce,
              .m = extent(width).times(Letter::rows),
              .ranks = Ranks::tp};
    step.in[0] = id(v);
    step.out[0] = id(out);
    push(step);
    return out;
  }

  // ---- forward

  constexpr void forward() {
    phase_ = Phase::forward;
    for (int group = 0; group < groups(); ++group) push_group(Code::acquire, group);
    if (has_loss_)
      for (int group = 0; group < groups(); ++group) push_group(Code::open_gradients, group);
    run(false);
    if (g().output >= 0) p_.output = own(g().output);
  }
  /// The forward pass; where `again`, only what leads to what is kept.
  constexpr void run(bool again) {
    std::array<bool, forward::Graph::most_nodes> wanted{};
    for (int i = g().node_count; i-- > 0;) wanted[at(i)] = !again || is_wanted(i, wanted);
    if (g().input >= 0) own_[at(g().input)] = input_;
    for (int i = 0; i < g().node_count; ++i) {
      if (!wanted[at(i)]) continue;
      const int next = i + 1 < g().node_count && wanted[at(i + 1)] ? i + 1 : -1;
      if (fuses(i, next)) {
        run_fused(i, next);
        ++i;
      } else {
        run(i);
      }
    }
  }
  [[nodiscard]] constexpr bool is_wanted(int i, const std::array<bool, forward::Graph::most_nodes>& wanted) const {
    const forward::Node& node = g().node(i);
    if (node.operation == forward::Kind::norm || node.operation == forward::Kind::attend)
      return true;  // statistics, results
    if (node.output >= 0 && keeps(node.output)) return true;
    for (int j = i + 1; j < g().node_count; ++j)
      for (const int input : g().node(j).inputs)
        if (wanted[at(j)] && input == node.output) return true;
    return false;
  }
  /// A sum with the norm behind it, a product with the activation behind it.
  [[nodiscard]] constexpr bool fuses(int i, int next) const {
    if (next < 0 || g().node(next).inputs[0] != g().node(i).output) return false;
    const forward::Kind first = g().node(i).operation;
    const forward::Kind second = g().node(next).operation;
    if (first == forward::Kind::add) return second == forward::Kind::norm;
    return first == forward::Kind::linear && second == forward::Kind::activation && g().uses(g().node(i).output) == 1;
  }
  constexpr void run_fused(int i, int next) {
    const forward::Node& first = g().node(i);
    const forward::Node& second = g().node(next);
    const forward::Width& width = g().width(second.output);
    if (first.operation == forward::Kind::add) {
      Step step{.code = Code::add_norm_forward, .m = of(rows(width)), .n = extent(width)};
      step.in = {id(own(first.inputs[0])), id(own(first.inputs[1])), -1, -1};
      own_[at(first.output)] = fresh(elements(width), home(first.output));
      own_[at(second.output)] = fresh(elements(width), home(second.output));
      statistics_[at(next)] = fresh({2, rows(width)}, kept(), Scalar::fp32);
      step.out = {id(own(first.output)), id(own(second.output)), id(statistics_[at(next)])};
      step.weights = {wid(second.weights[0]), wid(second.weights[1])};
      push(step);
      return;
    }
    Step step = product(Code::linear_activation, first, of(rows(width)), extent(width), input_width(first));
    step.in[0] = id(replicated(own(first.inputs[0]), g().width(first.inputs[0])));
    own_[at(first.output)] = fresh(elements(g().width(first.output)), home(first.output));
    own_[at(second.output)] = fresh(elements(width), home(second.output));
    step.out = {id(own(first.output)), id(own(second.output)), -1};
    step.activation = second.activation;
    push(step);
  }
  constexpr void run(int i) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const forward::Width width = node.output >= 0 ? g().width(node.output) : forward::Width{};
    Step step{};
    step.weights = {wid(node.weights[0]), wid(node.weights[1])};
    switch (node.operation) {
      case forward::Kind::norm:
        step.code = Code::norm_forward;
        step.m = of(rows(width));
        step.n = extent(width);
        step.in[0] = id(own(x));
        own_[at(node.output)] = fresh(elements(width), home(node.output));
        statistics_[at(i)] = fresh({2, rows(width)}, kept(), Scalar::fp32);
        step.out = {id(own(node.output)), id(statistics_[at(i)]), -1};
        push(step);
        break;
      case forward::Kind::linear:
        run_linear(node);
        break;
      case forward::Kind::activation:
        step.code = Code::activation_forward;
        step.activation = node.activation;
        step.m = of(rows(width));
        step.n = extent(width);
        step.in[0] = id(own(x));
        own_[at(node.output)] = fresh(elements(width), home(node.output));
        step.out[0] = id(own(node.output));
        push(step);
        break;
      case forward::Kind::multiply:
      case forward::Kind::add:
        step.code = node.operation == forward::Kind::add ? Code::add : Code::multiply;
        step.m = elements(width);
        step.in = {id(own(x)), id(own(node.inputs[1])), -1, -1};
        own_[at(node.output)] = fresh(elements(width), home(node.output));
        step.out[0] = id(own(node.output));
        push(step);
        break;
      case forward::Kind::rotate:
        own_[at(node.output)] = rotate(Code::rotate, own(x));
        break;
      case forward::Kind::attend:
        attend_forward(i);
        break;
      case forward::Kind::look_up: {
        const Id sum = partial(width, home(node.output));
        step.code = Code::look_up;
        step.m = of(Letter::rows);
        step.n = extent(width);
        step.out[0] = id(sum);
        push(step);
        own_[at(node.output)] = reduced(sum, width, home(node.output));
        break;
      }
      case forward::Kind::add_positions:
        step.code = Code::add_positions;
        step.m = of(Letter::local_piece_rows);
        step.n = extent(width);
        step.in[0] = id(own(x));
        own_[at(node.output)] = in_place(own(x));
        step.out[0] = id(own(node.output));
        push(step);
        break;
      case forward::Kind::cross_entropy: {
        const forward::Width& h = g().width(x);
        const Id n = replicated(own(x), h);
        step.code = Code::cross_entropy;
        step.m = of(Letter::rows);
        step.n = of(Letter::vocabulary);
        step.k = extent(h);
        step.in[0] = id(n);
        const Id d = in_place(n);
        step.out[0] = id(d);
        step.scratch[0] = id(fresh({1, Letter::chunk, Letter::vocabulary}));
        step.scratch[1] = id(fresh({3, Letter::chunk, Letter::tp}, Storage::frame, Scalar::fp32));
        step.scratch[2] = id(fresh({1, Letter::chunk}, Storage::frame, Scalar::fp32));
        push(step);
        gradients_[at(x)] = reduced(d, h);
        break;
      }
    }
  }
  constexpr void run_linear(const forward::Node& node) {
    const forward::Width& in = g().width(node.inputs[0]);
    const forward::Width& out = g().width(node.output);
    const bool sums = in.split;  // over a split extent
    Step step =
        product(Code::linear, node, of(out.split || sums ? Letter::rows : local_rows()), extent(out), extent(in));
    step.in[0] = id(out.split ? replicated(own(node.inputs[0]), in) : own(node.inputs[0]));
    step.bias_once = sums;
    const Storage target = home(node.output);
    const Id y = sums ? partial(out, target) : fresh(elements(out), target);
    step.out[0] = id(y);
    push(step);
    own_[at(node.output)] = sums ? reduced(y, out, target) : y;
  }
  [[nodiscard]] constexpr Extent input_width(const forward::Node& node) const {
    return extent(g().width(node.inputs[0]));
  }
  constexpr Step product(Code code, const forward::Node& node, const Extent& m, const Extent& n,
                         const Extent& k) const {
    Step step{.code = code, .m = m, .n = n, .k = k};
    step.weights = {wid(node.weights[0]), wid(node.weights[1])};
    step.eight_bit = g().layer.kind == LayerKind::block;
    return step;
  }
  constexpr Id rotate(Code code, Id x) {
    const LayerSpec& l = g().layer;
    Step step{.code = code,
              .m = of(Letter::piece_rows),
              .n = {(l.heads + l.kv_heads) * l.head_dim, Letter::one, Letter::one, true}};
    const Id out = in_place(x);
    step.in[0] = id(x);
    step.out[0] = id(out);
    push(step);
    return out;
  }
  /// The value of a tensor in this phase.
  [[nodiscard]] constexpr Id own(int tensor) const { return own_[at(tensor)]; }

  // ---- attention

  constexpr void attend_forward(int i) {
    const forward::Node& node = g().node(i);
    const Id projection = own(node.inputs[0]);
    if (!ulysses_) {
      core_input_[at(i)] = projection;
    } else {
      core_input_[at(i)] = core_projection(kept());
      exchange(Code::projection_to_heads, projection, core_input_[at(i)]);
    }
    attend(i, kept_results());
  }
  /// Queries, then keys, then values of the heads that a rank has in the core of Ulysses.
  constexpr Id core_projection(Storage where) {
    return fresh({g().layer.head_dim, Letter::core_rows, Letter::core_projection_heads}, where);
  }
  constexpr void exchange(Code code, Id from, Id to) {
    Step step{.code = code, .ranks = Ranks::cp};
    step.in[0] = id(from);
    step.out[0] = id(to);
    const bool projection = code == Code::projection_to_heads || code == Code::projection_to_tokens;
    step.scratch[0] = id(projection ? fresh({g().layer.head_dim, Letter::rows, Letter::exchanged_heads})
                                    : fresh(q().times(Letter::rows)));
    push(step);
  }
  /// The results of the core from its input: output and statistics, for Ulysses the output by tokens too.
  constexpr void attend(int i, Storage where) {
    const forward::Node& node = g().node(i);
    const Extent output = ulysses_ ? core_q() : q().times(Letter::rows);
    const Extent statistics = ulysses_ ? Extent{1, Letter::core_rows, Letter::core_heads} : heads().times(Letter::rows);
    core_output_[at(i)] = fresh(output, where);
    statistics_[at(i)] = fresh(statistics, where, Scalar::fp32);
    Step step = core_step(ring_ ? Code::ring_forward : Code::attention_forward);
    step.in[0] = id(core_input_[at(i)]);
    step.out = {id(core_output_[at(i)]), id(statistics_[at(i)]), -1};
    if (ring_) {
      const Extent block = kv().times(2).times(Letter::rows);
      step.scratch[0] = id(fresh(block));
      step.scratch[1] = id(fresh(block));
      step.scratch[2] = id(fresh(output));
      step.scratch[3] = id(fresh(statistics, Storage::frame, Scalar::fp32));
      step.scratch[4] = id(fresh(output, Storage::frame, Scalar::sum));
    }
    push(step);
    own_[at(node.output)] = core_output_[at(i)];
    if (!ulysses_) return;
    own_[at(node.output)] = fresh(q().times(Letter::rows), where);
    exchange(Code::to_tokens, core_output_[at(i)], own(node.output));
  }
  [[nodiscard]] constexpr Step core_step(Code code) const {
    Step step{.code = code};
    step.m = ulysses_ ? Extent{1, Letter::samples, Letter::core_heads} : heads().times(Letter::samples);
    step.n = of(ulysses_ ? Letter::core_tokens : Letter::tokens);
    step.k = step.n;
    step.l = {g().layer.head_dim};
    if (ring_) step.ranks = Ranks::cp;
    return step;
  }
  constexpr void attend_backward(int i) {
    const forward::Node& node = g().node(i);
    const Extent output = ulysses_ ? core_q() : q().times(Letter::rows);
    Id d_output = gradients_[at(node.output)];
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
    step.scratch[0] = id(fresh(p_.buffer_of(statistics_[at(i)]).elements, Storage::frame, Scalar::fp32));
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
    free_slot_ = storage(core_input_[at(i)]) == Storage::slot ? p_.value(core_input_[at(i)]).buffer : -1;
    give(node.inputs[0], d_input);
  }

  // ---- backward

  [[nodiscard]] constexpr Phase weights_phase() const { return p_.splits ? Phase::weights : phase_; }
  constexpr void backward() {
    if (!has_loss_) {
      phase_ = Phase::backward;
      const Id d = border(Storage::gradient, g().output);
      gradients_[at(g().output)] = d;
      const bool block = g().layer.kind == LayerKind::block;
      for (int group = 0; group < groups() && block; ++group) push_group(Code::acquire, group);
      if (p_.splits) push_group(Code::keep_uncut, 0);
      const Phase phase = phase_;
      phase_ = weights_phase();
      for (int group = 0; group < groups(); ++group) push_group(Code::open_gradients, group);
      phase_ = phase;
      if (full_) run(true);
    }
    for (int i = g().node_count; i-- > 0;) back(i);
    finish_input();
    if (p_.splits) {
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
    if (g().input >= 0) p_.input_gradient = gradients_[at(g().input)];
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
    for (int i = 0; i < p_.buffer_count; ++i)
      if (p_.buffer(i).storage == storage) return i;
    return -1;
  }
  constexpr void copy(Id from, Id to, const forward::Width& width) { copy(from, to, elements(width)); }
  constexpr void copy(Id from, Id to, const Extent& count) {
    Step step{.code = Code::copy, .m = count};
    step.in[0] = id(from);
    step.out[0] = id(to);
    push(step);
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
        gradients_[at(node.output)] = -1;
        give(x, da);
        give(node.inputs[1], db);
        return;
      }
      case forward::Kind::add:
        gradients_[at(node.output)] = -1;
        give(x, dy);
        give(node.inputs[1], dy);
        return;
      case forward::Kind::rotate:
        gradients_[at(node.output)] = -1;
        give(x, rotate(Code::rotate_back, dy));
        return;
      case forward::Kind::attend:
        attend_backward(i);
        break;
      case forward::Kind::add_positions: {
        Step step{.code = Code::positions_gradient, .m = of(Letter::local_piece_rows), .n = extent(width)};
        step.in[0] = id(dy);
        step.weights[0] = wid(node.weights[0]);
        push(step);
        gradients_[at(node.output)] = -1;
        give(x, dy);
        return;
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
    gradients_[at(node.output)] = -1;
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
    step.deferred_norm = p_.splits;
    gradients_[at(node.output)] = -1;
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
    if (p_.splits && last_use && storage(u) == Storage::slot) return in_place(u);
    if (g().width(x) == g().width(node.output)) return in_place(dg);
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
    const Id x_value = p_.splits ? later_operand(x) : operand(x);
    const Id later = p_.splits ? later_gradient(dy, out) : dy;
    const Phase phase = phase_;
    phase_ = weights_phase();
    Step step = product(Code::weight_gradient, node, outputs, inputs, of(region));
    step.in[0] = id(p_.splits && in.split ? replicated(later, out) : p_.splits ? later : all);
    step.in[1] =
        id(out.split ? replicated(p_.splits ? now(x_value, x) : x_value, in) : (p_.splits ? now(x_value, x) : x_value));
    push(step);
    if (node.weights[1] >= 0) {
      Step bias{.code = Code::bias_gradient, .m = of(rows(out)), .n = outputs};
      bias.in[0] = id(later);
      bias.weights = {wid(node.weights[0]), wid(node.weights[1])};
      push(bias);
    }
    phase_ = phase;

    // Gradient of the input.
    gradients_[at(node.output)] = -1;
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
    if (unread && !p_.splits && keeps(x) && g().uses(x) == 1) return in_place(own(x));
    return fresh(elements(g().width(x)));
  }
  [[nodiscard]] constexpr bool fuses_backward(int producer) const {
    const forward::Node& node = g().node(producer);
    return node.operation == forward::Kind::activation && g().uses(node.output) == 1;
  }

  // ---- operands of backward

  /// A tensor of the forward pass in backward: kept, or recomputed here.
  constexpr Id operand(int tensor) {
    if (tensor == g().input) return input_;
    if (has_loss_ || keeps(tensor) || again_[at(tensor)] == phase_mark()) return own(tensor);
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
      step.deferred_norm = p_.splits;
    }
    const Id out = fresh(elements(width), where);
    step.out[0] = id(out);
    push(step);
    return out;
  }
  /// The same for the phase of weight gradients: what a norm gives is recomputed there, as its operands stay; what
  /// other operations give is recomputed in backward, which destroys theirs, and deferred. -1: `now` makes it.
  constexpr Id later_operand(int tensor) {
    if (tensor == g().input || keeps(tensor)) return operand(tensor);
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

  // ---- parameter groups

  /// A layer with a vocabulary table has it in a group of its own, before that of its other parameters.
  [[nodiscard]] constexpr int groups() const {
    for (int i = 0; i < g().weight_count; ++i)
      if (g().weight(i).is_table) return 2;
    return 1;
  }
  constexpr void push_group(Code code, int group) {
    Step step{.code = code};
    step.group = static_cast<std::int8_t>(group);
    if (code == Code::acquire || code == Code::close_gradients) step.ranks = Ranks::shards;
    push(step);
  }

  LayerProgram p_;
  bool megatron_;
  bool ulysses_;
  bool ring_;
  bool full_;
  bool has_loss_;
  Phase phase_ = Phase::forward;
  Id input_ = -1;
  int free_slot_ = -1;  ///< the buffer of an attention core's input, once backward has read it
  std::array<bool, forward::Graph::most_tensors> needs_{};
  std::array<Id, forward::Graph::most_tensors> own_{};        ///< forward values of tensors
  std::array<int, forward::Graph::most_tensors> again_{};     ///< phase in which a tensor was recomputed, from 1
  std::array<Id, forward::Graph::most_tensors> gradients_{};  ///< of tensors, as far as they are made and not yet read
  std::array<Id, forward::Graph::most_nodes> statistics_{};   ///< of norms and attention
  std::array<Id, forward::Graph::most_nodes> core_input_{};
  std::array<Id, forward::Graph::most_nodes> core_output_{};
};

}  // namespace detail

/// True when backward can come in two phases: everything that it needs is kept, and gradients that its first phase
/// makes are those of parameters that no tensor rank shares. A layer with a loss, or without an input, has none to
/// defer.
constexpr bool can_split(const forward::Graph& graph, const StrategySpec& kinds) {
  return splits_backward(kinds.recompute) && graph.input >= 0 && graph.output >= 0;
}

/// The program of a layer under a strategy of these kinds; its degrees do not matter.
/// @param splits  the schedule defers weight gradients
constexpr LayerProgram lower(const forward::Graph& graph, const StrategySpec& kinds, bool splits = false) {
  return detail::Lowering(graph, kinds, splits && can_split(graph, kinds)).program();
}

}  // namespace galvatron::program
