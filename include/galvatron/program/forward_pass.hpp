// The forward pass of a program: each node of a layer's graph as steps, placed over ranks, with what belongs together
// fused. Also run again, in part, where backward recomputes a layer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/emitter.hpp>

namespace galvatron::program::detail {

class ForwardPass : protected Emitter {
 protected:
  constexpr ForwardPass(const forward::Graph& graph, const StrategySpec& kinds, bool splits)
      : Emitter(graph, kinds, splits), ulysses_(kinds.sequence == SequenceKind::ulysses), ring_(kinds.uses_ring()) {
    own_.fill(-1);
    gradients_.fill(-1);
    statistics_.fill(-1);
    core_input_.fill(-1);
    core_output_.fill(-1);
    if (graph.input >= 0) input_ = border(Storage::input, graph.input);
  }

  constexpr void forward() {
    phase_ = Phase::forward;
    for (int group = 0; group < groups(); ++group) push_group(Code::acquire, group);
    if (has_loss_)
      for (int group = 0; group < groups(); ++group) push_group(Code::open_gradients, group);
    run(false);
    if (g().output >= 0) program_.output = own(g().output);
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
    if (node.output >= 0 && kept_.keeps(node.output)) return true;
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
      statistics_[at(next)] = fresh({2, rows(width)}, kept_storage(), Scalar::fp32);
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
        statistics_[at(i)] = fresh({2, rows(width)}, kept_storage(), Scalar::fp32);
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
      core_input_[at(i)] = core_projection(kept_storage());
      exchange(Code::projection_to_heads, projection, core_input_[at(i)]);
    }
    attend(i, results_storage());
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

  bool ulysses_;
  bool ring_;
  Id input_ = -1;
  std::array<Id, forward::Graph::most_tensors> own_{};        ///< values of tensors, in their own placement
  std::array<Id, forward::Graph::most_tensors> gradients_{};  ///< of tensors, as far as they are made and not yet read
  std::array<Id, forward::Graph::most_nodes> statistics_{};   ///< of norms and attention
  std::array<Id, forward::Graph::most_nodes> core_input_{};
  std::array<Id, forward::Graph::most_nodes> core_output_{};
};

}  // namespace galvatron::program::detail
