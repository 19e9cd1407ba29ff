// The forward pass of a program: each node of a layer's graph as steps, placed over ranks, with what belongs together
// fused. Also run again, in part, where backward recomputes a layer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/emitter.hpp>

namespace galvatron::program::detail {

class ForwardPass : protected Emitter {
 protected:
  using Emitter::Emitter;

  constexpr void forward() {
    for (auto* of_tensors : {&own_, &gradients_}) of_tensors->fill(-1);
    for (auto* of_nodes : {&statistics_, &core_input_, &core_output_, &biases_, &heads_, &low_rank_})
      of_nodes->fill(-1);
    const BundlePlace& place = g().layer.place;
    for (std::size_t k = 0; k < 2; ++k) {
      const int tensor = g().inputs[k];
      const bool arrives = place.inputs[k] == place.arrives || g().takes_data;
      if (tensor >= 0) own_[at(tensor)] = fresh(elements(tensor), arrives ? Storage::input : Storage::pass_through);
      program_.inputs[k] = border_value(tensor, place.inputs[k]);
    }
    phase_ = Phase::forward;
    push_groups(Code::acquire);
    if (has_loss_) push_groups(Code::open_gradients);
    run(false);
    for (std::size_t k = 0; k < 2; ++k) program_.outputs[k] = border_value(g().outputs[k], place.outputs[k]);
  }
  /// The value of an input or output, which is a part of the bundle at the layer's border.
  constexpr std::int16_t border_value(int tensor, std::int16_t part) {
    if (tensor < 0) return -1;
    program_.buffers[buffer_of(own(tensor))].part = part;
    return id(own(tensor));
  }
  /// The forward pass; where `again`, only what leads to what is kept.
  constexpr void run(bool again) {
    Nodes wanted{};
    for (int i = g().node_count; i-- > 0;) wanted[at(i)] = !again || options().keeps_outputs || is_wanted(i, wanted);
    int routed = -1;  // experts whose counts are under way, beside what does not read their result
    const auto finish = [&] {
      if (routed >= 0) experts_forward(std::exchange(routed, -1), true);
    };
    for (int i = 0; i < g().node_count; ++i) {
      if (!wanted[at(i)]) continue;
      const forward::Node& node = g().node(i);
      if (routed >= 0 && std::ranges::count(node.inputs, g().node(routed).output) > 0) finish();
      if (phase_ == Phase::forward && node.operation == forward::Kind::experts) {
        route(i);
        if (exchanges_ && !compresses_) {
          routed = i;
          continue;
        }
      }
      const int next = i + 1 < g().node_count && wanted[at(i + 1)] ? i + 1 : -1;
      if (fuses(i, next)) {
        run_fused(i, next);
        ++i;
      } else {
        run(i, !again || options().keeps_outputs || is_read(i, wanted));
      }
    }
    finish();
    biases_.fill(-1);
  }
  using Nodes = std::array<bool, forward::Graph::most_nodes>;
  [[nodiscard]] constexpr bool is_wanted(int i, const Nodes& wanted) const {
    const forward::Node& node = g().node(i);
    if (node.operation == forward::Kind::norm || node.operation == forward::Kind::norm_heads ||
        node.operation == forward::Kind::experts || forward::is_attention(node.operation) || node.has_adapter())
      return true;  // statistics, results
    return (node.output >= 0 && kept_.keeps(node.output)) || is_read(i, wanted);
  }
  [[nodiscard]] constexpr bool is_read(int i, const Nodes& wanted) const {
    for (int j = i + 1; j < g().node_count; ++j)
      for (const int input : g().node(j).inputs)
        if (wanted[at(j)] && input == g().node(i).output) return true;
    return false;
  }
  /// A sum with the norm behind it, a product with the activation behind it.
  [[nodiscard]] constexpr bool fuses(int i, int next) const {
    if (!options().fuses || next < 0 || g().node(next).inputs[0] != g().node(i).output) return false;
    const forward::Kind first = g().node(i).operation;
    const forward::Kind second = g().node(next).operation;
    if (first == forward::Kind::add) return second == forward::Kind::norm;
    return first == forward::Kind::linear && second == forward::Kind::activation && is_block() &&
           !g().node(i).has_adapter() && g().uses(g().node(i).output) == 1;
  }
  [[nodiscard]] constexpr bool is_block() const { return g().layer.kind == LayerKind::block; }
  constexpr void run_fused(int i, int next) {
    const forward::Node& first = g().node(i);
    const forward::Node& second = g().node(next);
    const int y = second.output;
    if (first.operation == forward::Kind::add) {
      Step step{.code = Code::add_norm_forward, .m = rows(y), .n = width(y)};
      step.in = listed<Operands>(own(first.inputs[0]), own(first.inputs[1]));
      own_[at(first.output)] = made(first.output);
      own_[at(y)] = made(y);
      statistics_[at(next)] = norm_statistics(y);
      step.out = listed<Results>(own(first.output), own(y), statistics_[at(next)]);
      step.weights = weights_of(second);
      push(step);
      return;
    }
    Step step = product(Code::linear_activation, first, rows(y), width(y), width(first.inputs[0]));
    step.in[0] = id(product_operand(first));
    own_[at(first.output)] = made(first.output);
    own_[at(y)] = made(y);
    step.out = listed<Results>(own(first.output), own(y));
    step.activation = second.activation;
    push(step);
  }
  /// @param whole  its result is read; else only what it keeps
  constexpr void run(int i, bool whole) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const int y = node.output;
    Step step{};
    step.weights = weights_of(node);
    step.activation = node.activation;
    if (y >= 0) {
      step.m = rows(y);
      step.n = width(y);
    }
    switch (node.operation) {
      case forward::Kind::norm:
        step.code = Code::norm_forward;
        own_[at(y)] = made(y);
        statistics_[at(i)] = norm_statistics(y);
        step.out[1] = id(statistics_[at(i)]);
        pushed(step, own(x), own(y));
        break;
      case forward::Kind::linear:
        return run_linear(i, whole);
      case forward::Kind::activation:
      case forward::Kind::merge:
      case forward::Kind::jitter:
        step.code = node.operation == forward::Kind::merge    ? Code::merge
                    : node.operation == forward::Kind::jitter ? Code::jitter
                                                              : Code::activation_forward;
        own_[at(y)] = pushed(step, own(x), made(y));
        break;
      case forward::Kind::multiply:
      case forward::Kind::add:
        if (drops_out(node)) drop_out(i);
        own_[at(y)] = combined(node.operation == forward::Kind::add ? Code::add : Code::multiply, own(x),
                               own(node.inputs[1]), made(y), y);
        break;
      case forward::Kind::rotate:
        own_[at(y)] = rotate(Code::rotate, node, own(x));
        break;
      case forward::Kind::norm_heads:
        return norm_heads_forward(i);
      case forward::Kind::assemble:
        step = heads_step(Code::assemble);
        step.in[1] = id(own(node.inputs[1]));
        step.in[2] = id(replicated(own(node.inputs[2]), node.inputs[2]));
        own_[at(y)] = pushed(step, own(x), made(y));
        break;
      case forward::Kind::narrow:
        own_[at(y)] = pushed(heads_step(Code::narrow), own(x), made(y));
        break;
      case forward::Kind::attend:
        return attend_forward(i);
      case forward::Kind::cross_attend:
        return attend(i, results_storage());
      case forward::Kind::experts:
        return experts_forward(i, whole);
      case forward::Kind::gate:
        step.code = Code::gate;
        step.in[1] = id(own(node.inputs[1]));
        own_[at(y)] = pushed(step, own(x), made(y));
        break;
      case forward::Kind::look_up:
        step.code = Code::look_up;
        step.m = of(region_rows(y));
        step.rows = g().rows(y);
        own_[at(y)] = reduced(pushed(step, -1, partial(y, home(y))), y, home(y));
        break;
      case forward::Kind::add_positions:
      case forward::Kind::add_segment:
        step.code = node.operation == forward::Kind::add_segment ? Code::add_segment : Code::add_positions;
        own_[at(y)] = pushed(step, own(x), in_place(own(x)));
        break;
      case forward::Kind::prepend:
        step.code = Code::prepend;
        step.m = of(Letter::first_rows);
        own_[at(y)] = pushed(step, own(x), made(y));
        break;
      case forward::Kind::first_token:
        step.code = Code::view;
        own_[at(y)] = pushed(step, own(x), value(buffer_of(own(x)), Part::first_tokens));
        break;
      case forward::Kind::mean:
      case forward::Kind::end_of_text: {
        step.code = node.operation == forward::Kind::mean ? Code::mean : Code::end_of_text;
        step.m = rows(x);
        const Id sum = pushed(step, own(x), made(y));
        own_[at(y)] = megatron_ ? reduced(sum, y) : sum;
        break;
      }
      case forward::Kind::cross_entropy: {
        Id n = replicated(own(x), x);
        if (g().is_input(x) && !replaces_input()) n = copied(n, x);
        step.code = Code::cross_entropy;
        step.m = of(region_rows(x));
        step.n = of(Letter::vocabulary);
        step.k = width(x);
        step.scratch[0] = id(fresh({1, Letter::chunk, Letter::vocabulary}));
        step.scratch[1] = id(fresh({3, Letter::chunk, Letter::tp}, Storage::frame, Scalar::fp32));
        step.scratch[2] = id(fresh({1, Letter::chunk}, Storage::frame, Scalar::fp32));
        if (options().whole_logits) {
          step.scratch[3] = id(fresh({1, Letter::chunk, Letter::vocabulary}));
          step.scratch[4] = id(fresh({1, Letter::chunk, Letter::vocabulary}, Storage::frame, Scalar::fp32));
        }
        gradients_[at(x)] = reduced(pushed(step, n, in_place(n)), x);
        break;
      }
      case forward::Kind::contrast:
        return contrast(node, step);
    }
  }
  /// Rows of unit length, those of all data ranks and their gradients, and logits of a chunk of samples.
  constexpr void contrast(const forward::Node& node, Step step) {
    const int x = node.inputs[0];
    const Id n = replaces_input() ? own(x) : copied(own(x), x);
    const Extent e = width(x);
    step.code = Code::contrast;
    step.m = rows(x);
    step.n = e;
    step.scratch[0] = id(fresh(elements(x)));
    step.scratch[1] = id(fresh(rows(x).times(2), Storage::frame, Scalar::fp32));
    step.scratch[2] = id(fresh(e.times(2).times(Letter::all_samples)));
    step.scratch[3] = id(fresh(e.times(2).times(Letter::all_samples), Storage::frame, Scalar::fp32));
    step.scratch[4] = id(fresh({1, Letter::chunk, Letter::all_samples}));
    step.scratch[5] = id(fresh({4, Letter::chunk}, Storage::frame, Scalar::fp32));
    step.scratch[6] = id(fresh(e.times(2)));
    step.scratch[7] = id(fresh(e.times(2), Storage::frame, Scalar::fp32));
    gradients_[at(x)] = pushed(step, n, in_place(n));
  }
  [[nodiscard]] static constexpr std::array<std::int8_t, 5> weights_of(const forward::Node& node) {
    std::array<std::int8_t, 5> out{};
    std::ranges::transform(node.weights, out.begin(), [](int weight) { return static_cast<std::int8_t>(weight); });
    return out;
  }
  constexpr Id norm_statistics(int y) {
    return fresh(capacity(y).times(std::int64_t{2}), kept_storage(), Scalar::fp32);
  }
  constexpr void run_linear(int i, bool whole) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const int y = node.output;
    const bool sums = g().width(x).split;  // over a split extent
    Step step = product(Code::linear, node, sums ? of(region_rows(y)) : rows(y), width(y), width(x));
    step.bias_once = sums;
    const Id n = product_operand(node);
    whole = whole || kept_.keeps(y);
    Id out = whole ? pushed(step, n, sums ? partial(y, home(y)) : made(y)) : -1;
    if (node.has_adapter()) {
      const Id low = low_rank_[at(i)] = fresh(step.m.times(adapter_width(node).factor), kept_storage());
      pushed({.code = Code::linear, .m = step.m, .n = adapter_width(node), .k = width(x), .weights = only(node, 2)}, n,
             low);
      if (!whole) return;
      Step up = adapter_step(Code::adapter_forward, node, step.m);
      up.in[1] = id(out);
      out = pushed(up, low, in_place(out));
    }
    own_[at(y)] = sums ? reduced(out, y, home(y)) : out;
  }
  /// The ranks of all adapters of a linear layer together.
  [[nodiscard]] constexpr Extent adapter_width(const forward::Node& node) const {
    return extent(g().weight(node.weights[2]).rows);
  }
  constexpr Step adapter_step(Code code, const forward::Node& node, const Extent& m) const {
    return {.code = code, .m = m, .n = width(node.output), .k = adapter_width(node), .weights = only(node, 3)};
  }
  /// One weight of a node.
  [[nodiscard]] static constexpr std::array<std::int8_t, 5> only(const forward::Node& node, std::size_t weight) {
    return {static_cast<std::int8_t>(node.weights[weight]), -1, -1, -1, -1};
  }
  /// All rows of a linear layer's operand where its result is divided over tensor ranks.
  constexpr Id product_operand(const forward::Node& node) {
    const int x = node.inputs[0];
    return g().width(node.output).split ? replicated(own(x), x) : own(x);
  }
  /// Products with weights that are divided over tensor ranks may have 8-bit operands.
  constexpr Step product(Code code, const forward::Node& node, const Extent& m, const Extent& n,
                         const Extent& k) const {
    Step step{.code = code, .m = m, .n = n, .k = k};
    step.weights = weights_of(node);
    step.eight_bit = is_block() && g().weight(node.weights[0]).is_split();
    return step;
  }
  constexpr Id rotate(Code code, const forward::Node& node, Id x) {
    const int y = node.output;
    Step step{.code = code, .m = rows(y), .n = width(y), .k = width(y), .l = {node.head_width}};
    step.n.factor = node.heads * node.head_width;
    step.local = !g().width(y).split;
    return pushed(step, x, in_place(x));
  }
  /// Queries and keys of all rows.
  constexpr Step norm_heads_step(Code code, const forward::Node& node) const {
    return {.code = code,
            .m = of(Letter::rows),
            .n = q(),
            .k = kv(),
            .l = {g().weight(node.weights[0]).rows.extent},
            .weights = weights_of(node)};
  }
  [[nodiscard]] constexpr Extent heads_elements() const {
    return by_heads((g().layer.heads + g().layer.kv_heads) * g().layer.head_dim).times(Letter::rows);
  }
  constexpr void norm_heads_forward(int i) {
    const forward::Node& node = g().node(i);
    const LayerSpec& l = g().layer;
    const Id x = own(node.inputs[0]);
    Step step = norm_heads_step(Code::norm_heads, node);
    const bool of_heads = l.query_key_norm == QueryKeyNorm::heads;
    const Extent norms = of_heads ? by_heads(2 * (l.heads + l.kv_heads)) : Extent{4};
    heads_[at(i)] = fresh(heads_elements(), kept_storage());
    statistics_[at(i)] = fresh(norms.times(Letter::rows), kept_storage(), Scalar::fp32);
    Id& y = own_[at(node.output)];
    y = in_place(x);
    step.in[0] = id(x);
    step.out = listed<Results>(y, heads_[at(i)], statistics_[at(i)]);
    step.scratch[0] = id(fresh(heads_elements()));
    push(step);
  }
  /// A change of the order of heads, of all rows.
  [[nodiscard]] constexpr Step heads_step(Code code) const {
    const LayerSpec& l = g().layer;
    const bool narrows = code == Code::narrow || code == Code::narrow_back;
    return {.code = code,
            .m = of(Letter::rows),
            .n = heads(),
            .k = {narrows ? l.latent.value_dim : l.head_dim},
            .l = {l.head_dim}};
  }
  /// True where the gradient of a loss may lie where the layer's input was: nothing else reads that.
  [[nodiscard]] constexpr bool replaces_input() const {
    return has_loss_ && storage(own(g().inputs[0])) == Storage::input && !goes_on(0);
  }
  /// True for an input that other layers read too.
  [[nodiscard]] constexpr bool goes_on(std::size_t input) const {
    return g().inputs[input] >= 0 && !g().takes_data && g().layer.passes(g().layer.place.inputs[input]);
  }
  /// The value of a tensor in this phase.
  [[nodiscard]] constexpr Id own(int tensor) const { return own_[at(tensor)]; }

  // ---- dropout, where a trainer has it: of what a residual is added to

  [[nodiscard]] constexpr bool drops_out(const forward::Node& node) const {
    return options().dropout && is_block() && node.operation == forward::Kind::add;
  }
  constexpr void drop_out(int i) {
    Id& part = own_[at(g().node(i).inputs[1])];
    const Extent count = elements(g().node(i).output);
    statistics_[at(i)] = fresh(count, kept_storage(), Scalar::mask);
    Step step{.code = Code::dropout, .m = count};
    step.out[1] = id(statistics_[at(i)]);
    part = pushed(step, part, in_place(part));
  }

  // ---- experts

  /// What experts keep: see Code::route.
  struct Routed {
    Id logits = -1;
    Id weights = -1;
    Id chosen = -1;
    Id balance = -1;
    Id order = -1;
    Id places = -1;
    Id offsets = -1;
    Id nodes = -1;   ///< where tokens are exchanged: numbers of nodes
    Id counts = -1;  ///< the same: offsets of all ranks
    Id rows = -1;    ///< the same: that the experts here have
    Id u = -1;
    // Of compressed dispatch.
    Id means = -1;  ///< in the phase that made them
    Id indices = -1;
    Id bounds = -1;
    Id outputs = -1;  ///< what experts made of the means
  };
  /// Routing is kept whatever is recomputed: what is computed again goes to the same experts.
  constexpr void route(int i) {
    const forward::Node& node = g().node(i);
    const LayerSpec& l = g().layer;
    const int x = node.inputs[0];
    const Storage where = has_loss_ ? Storage::frame : Storage::slot;
    Routed& routed = routed_[at(i)];
    routed.logits = fresh({l.experts, rows(x).a}, where, Scalar::fp32);
    routed.weights = fresh(of(Letter::choices), where, Scalar::fp32);
    routed.chosen = fresh(of(Letter::choices), where, Scalar::tokens);
    routed.balance = fresh({l.experts, Letter::samples}, where, Scalar::fp32);
    routed.order = fresh(of(Letter::routed_rows), where, Scalar::tokens);
    routed.places = fresh(of(Letter::routed_rows), where, Scalar::tokens);
    routed.offsets = fresh(of(Letter::expert_bounds), where, Scalar::tokens);
    routed.nodes = exchanges_ && !compresses_ ? fresh(of(Letter::node_numbers), where, Scalar::tokens) : -1;
    Step step{.code = Code::route, .m = rows(x), .n = width(x), .k = {l.active_experts}, .weights = weights_of(node)};
    step.in[0] = id(own(x));
    step.out = listed<Results>(routed.logits, routed.weights, routed.chosen, routed.balance, routed.order,
                               routed.places, routed.offsets, routed.nodes);
    if (routed.nodes >= 0) step.scratch[0] = id(fresh(of(Letter::node_choices), Storage::frame, Scalar::tokens));
    push(step);
    if (!exchanges_) return;
    if (compresses_) return compress(x, routed, where);
    routed.counts = fresh({1, Letter::expert_bounds, Letter::exchange_ranks}, where, Scalar::tokens);
    pushed({.code = Code::exchange_counts, .m = of(Letter::expert_bounds), .ranks = Ranks::experts}, routed.offsets,
           routed.counts);
  }
  constexpr void experts_forward(int i, bool whole) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    const int y = node.output;
    if (compresses_) return compressed_forward(i, whole);
    Routed& routed = routed_[at(i)];
    routed.u = fresh({1, Letter::expert_rows, Letter::expert_inputs}, kept_storage());
    Step step = experts_step(exchanges_ ? Code::exchange_forward : Code::experts_forward, node);
    if (exchanges_) {
      routed.rows = fresh(width(x).times(Letter::expert_rows), kept_storage());
      step.in = listed<Operands>(own(x), routed.weights, routed.order, routed.places, routed.nodes, routed.counts);
      const Id local = whole ? exchanged(made(y)) : -1;
      step.out = listed<Results>(local, routed.u, routed.rows);
      experts_scratch(step, x, whole);
      push(step);
      if (whole) own_[at(y)] = gathered(local, y);
      return;
    }
    step.in = listed<Operands>(replicated(own(x), x), routed.weights, routed.order, routed.places, routed.offsets);
    const Id sum = whole ? partial(y, home(y)) : -1;
    step.out = listed<Results>(sum, routed.u);
    step.scratch[0] = id(fresh(width(x).times(Letter::expert_rows)));
    if (whole) step.scratch[1] = id(fresh({1, Letter::expert_rows, Letter::expert_width}));
    push(step);
    if (whole) own_[at(y)] = reduced(sum, y, home(y));
  }
  // ---- compressed dispatch

  /// Buckets are kept as routing is.
  constexpr void compress(int x, Routed& routed, Storage where) {
    const LayerSpec& l = g().layer;
    routed.means = fresh(width(x).times(Letter::routed_rows));
    routed.indices = fresh(of(Letter::bucket_indices), where, Scalar::tokens);
    routed.bounds = fresh({l.experts + 1}, where, Scalar::tokens);
    routed.counts = fresh({l.experts + 1, Letter::exchange_ranks}, where, Scalar::tokens);
    Step find = buckets_step(Code::compress, x);
    find.in = listed<Operands>(own(x), routed.order, routed.offsets);
    find.out = listed<Results>(routed.means, routed.indices, routed.bounds);
    find.scratch[0] = id(fresh(of(Letter::rotated), Storage::frame, Scalar::fp32));
    find.scratch[1] = id(fresh(of(Letter::codes), Storage::frame, Scalar::tokens));
    find.scratch[2] = id(fresh(of(Letter::bucket_places), Storage::frame, Scalar::tokens));
    push(find);
    Step bounds = buckets_step(Code::exchange_bounds, x);
    bounds.ranks = Ranks::experts;
    bounds.in = listed<Operands>(routed.bounds, own(x), routed.order, routed.offsets, routed.indices, routed.means);
    routed.means = in_place(routed.means);
    routed.indices = in_place(routed.indices);
    routed.bounds = in_place(routed.bounds);
    bounds.out = listed<Results>(routed.counts, routed.means, routed.indices, routed.bounds);
    push(bounds);
  }
  /// Means of an operand in the buckets that were found.
  constexpr Id means_of(int x, Id n, const Routed& routed) {
    Step step = buckets_step(Code::bucket_means, x);
    step.in = listed<Operands>(n, routed.order, routed.offsets, routed.indices, routed.bounds);
    const Id means = fresh(width(x).times(Letter::routed_rows));
    step.out[0] = id(means);
    push(step);
    return means;
  }
  constexpr void compressed_forward(int i, bool whole) {
    const forward::Node& node = g().node(i);
    const int x = node.inputs[0];
    Routed& routed = routed_[at(i)];
    if (phase_ != Phase::forward) routed.means = means_of(x, own(x), routed);
    routed.outputs = fresh(width(x).times(Letter::routed_rows), kept_storage());
    routed.u = fresh({1, Letter::expert_rows, Letter::expert_inputs}, kept_storage());
    routed.rows = fresh(width(x).times(Letter::expert_rows), kept_storage());
    Step step = experts_step(Code::compressed_forward, node);
    step.in = listed<Operands>(routed.means, routed.counts);
    step.out = listed<Results>(routed.outputs, routed.u, routed.rows);
    compressed_scratch(step, x);
    push(step);
    if (!whole) return;
    const Id local = exchanged(made(node.output));
    Step back = gains_step(Code::decompress, node);
    back.in = listed<Operands>(routed.outputs, own(x), routed.means, routed.weights, routed.places, routed.order,
                               routed.offsets, routed.indices, routed.bounds);
    back.out[0] = id(local);
    push(back);
    own_[at(node.output)] = gathered(local, node.output);
  }
  [[nodiscard]] constexpr Step buckets_step(Code code, int x) const {
    return {.code = code, .m = of(Letter::own_rows), .n = width(x), .k = {g().layer.active_experts}};
  }
  /// One that reads the gains, which are rounded in memory.
  constexpr Step gains_step(Code code, const forward::Node& node) {
    Step step = buckets_step(code, node.inputs[0]);
    step.weights = weights_of(node);
    if (node.weights[4] >= 0) step.scratch[0] = id(fresh({g().layer.experts}, Storage::frame, Scalar::sum));
    return step;
  }
  /// As experts_scratch; what a rank sends is an operand, and where parts of an expert are not added it comes back to
  /// the result.
  constexpr void compressed_scratch(Step& step, int x) {
    step.scratch[0] = id(fresh(width(x).times(Letter::expert_rows)));
    step.scratch[1] = id(fresh({1, Letter::expert_rows, Letter::expert_scratch}));
    step.scratch[3] = id(fresh({g().width(x).extent, Letter::routed_rows, Letter::summed_parts}));
    step.scratch[4] = id(fresh({g().layer.experts + 1}, Storage::frame, Scalar::tokens));
  }

  [[nodiscard]] constexpr Step experts_step(Code code, const forward::Node& node) const {
    Step step{.code = code, .m = of(Letter::own_rows), .n = width(node.inputs[0]), .k = {g().layer.active_experts}};
    step.weights = weights_of(node);
    step.activation = node.activation;
    if (exchanges_) step.ranks = Ranks::experts;
    return step;
  }
  /// Of an exchange: rows of experts, their hidden units, rows that a rank sends, and gets back from every part of an
  /// expert, and offsets of its own experts; where tokens go by nodes, what a relay has, too.
  constexpr void experts_scratch(Step& step, int x, bool whole) {
    if (whole) {
      step.scratch[0] = id(fresh(width(x).times(Letter::expert_rows)));
      step.scratch[1] = id(fresh({1, Letter::expert_rows, Letter::expert_scratch}));
    }
    step.scratch[2] = id(fresh(width(x).times(Letter::packed_rows)));
    step.scratch[3] = id(fresh(width(x).times(whole ? Letter::returned_rows : Letter::relayed_rows)));
    step.scratch[4] = id(fresh({g().layer.experts + 1}, Storage::frame, Scalar::tokens));
    step.scratch[9] = id(fresh(of(Letter::relay_numbers), Storage::frame, Scalar::tokens));
    step.scratch[10] = id(fresh(of(Letter::relay_weights), Storage::frame, Scalar::fp32));
  }
  /// This rank's rows of a value that an exchange makes: where tensor ranks have the same rows, a part of them.
  constexpr Id exchanged(Id v) { return megatron_ ? v : value(buffer_of(v), Part::local); }
  /// All rows of it.
  constexpr Id gathered(Id local, int tensor) {
    if (megatron_) return local;
    return pushed({.code = Code::all_gather, .m = region_elements(tensor), .ranks = Ranks::tp}, local,
                  value(buffer_of(local)));
  }

  // ---- attention

  constexpr void attend_forward(int i) {
    const forward::Node& node = g().node(i);
    const Id projection = own(node.inputs[0]);
    core_input_[at(i)] = ulysses_ ? core_projection(kept_storage()) : projection;
    if (ulysses_) exchange(Code::projection_to_heads, projection, core_input_[at(i)]);
    attend(i, results_storage());
  }
  /// Queries, then keys, then values of the heads that a rank has in the core of Ulysses.
  constexpr Id core_projection(Storage where) {
    // Backward in two parts keeps the gradient of the projection where this was.
    if (program_.splits && where == Storage::slot) return fresh({g().layer.head_dim, Letter::core_slot}, where);
    return fresh({g().layer.head_dim, Letter::core_rows, Letter::core_projection_heads}, where);
  }
  constexpr void exchange(Code code, Id from, Id to) {
    Step step{.code = code, .ranks = Ranks::cp};
    const bool projection = code == Code::projection_to_heads || code == Code::projection_to_tokens;
    step.scratch[0] = id(projection ? fresh({g().layer.head_dim, Letter::rows, Letter::exchanged_heads})
                                    : fresh(q().times(Letter::rows)));
    pushed(step, from, to);
  }
  /// The results of the core from its input: output and statistics, for Ulysses the output by tokens too.
  constexpr void attend(int i, Storage where) {
    const forward::Node& node = g().node(i);
    const Extent output = ulysses_ ? core_q() : q().times(Letter::rows);
    const Extent statistics = ulysses_ ? Extent{1, Letter::core_rows, Letter::core_heads} : heads().times(Letter::rows);
    const bool crosses = node.operation == forward::Kind::cross_attend;
    if (crosses) core_input_[at(i)] = own(node.inputs[0]);
    if (has_biases(node)) biases_[at(i)] = spread_biases(node);
    const bool again = phase_ == Phase::backward && kept_.recomputes_core() && !kept_.drops_results();
    core_output_[at(i)] = again ? in_place(core_output_[at(i)]) : fresh(output, where);
    statistics_[at(i)] = again ? in_place(statistics_[at(i)]) : fresh(statistics, where, Scalar::fp32);
    Step step = core_step(ring_ ? Code::ring_forward : crosses ? Code::cross_forward : Code::attention_forward, node);
    step.in[0] = id(core_input_[at(i)]);
    step.in[1] = id(crosses ? own(node.inputs[1]) : biases_[at(i)]);
    step.out = listed<Results>(core_output_[at(i)], statistics_[at(i)]);
    if (!options().fused_attention && !ring_) step.scratch[5] = id(fresh(of(Letter::scores)));
    if (!options().fused_attention && (!full_ || phase_ != Phase::forward)) {
      const Storage scores = kept_.recomputes_core() ? Storage::frame : kept_storage();
      scores_[at(i)] = {fresh(of(Letter::scores), scores), -1, -1};
      if (options().dropout)
        scores_[at(i)] = {scores_[at(i)][0], fresh(of(Letter::scores), scores),
                          fresh(of(Letter::scores), scores, Scalar::mask)};
      for (std::size_t k = 0; k < 3; ++k) step.out[2 + k] = id(scores_[at(i)][k]);
    }
    if (ring_) {
      const Extent block = kv().times(2).times(Letter::ring_rows);
      step.scratch[0] = id(fresh(block));
      step.scratch[1] = id(fresh(block));
      step.scratch[2] = id(fresh(output));
      step.scratch[3] = id(fresh(statistics, Storage::frame, Scalar::fp32));
      step.scratch[4] = id(fresh(output, Storage::frame, Scalar::sum));
    }
    push(step);
    Id& y = own_[at(node.output)];
    y = !ulysses_ ? core_output_[at(i)] : again ? in_place(y) : fresh(q().times(Letter::rows), where);
    if (ulysses_) exchange(Code::to_tokens, core_output_[at(i)], y);
  }
  [[nodiscard]] constexpr Step core_step(Code code, const forward::Node& node) const {
    const LayerSpec& l = g().layer;
    Step step{.code = code};
    step.m = ulysses_            ? Extent{1, Letter::samples, Letter::core_heads}
             : has_windows(node) ? heads().times(Letter::windows)
                                 : heads().times(Letter::samples);
    step.n = has_windows(node) ? Extent{l.window * l.window} : of(ulysses_ ? Letter::core_tokens : Letter::tokens);
    step.k = node.operation == forward::Kind::cross_attend ? of(Letter::memory_tokens) : step.n;
    step.l = {l.head_dim};
    step.weights = weights_of(node);
    if (ring_) step.ranks = Ranks::cp;
    return step;
  }

  /// Attention within windows reads its biases from the table; over a sequence it has them by distance.
  [[nodiscard]] constexpr bool has_windows(const forward::Node& node) const {
    return node.operation == forward::Kind::attend && g().layer.window > 0;
  }
  [[nodiscard]] constexpr bool has_biases(const forward::Node& node) const {
    return node.weights[0] >= 0 && !has_windows(node);
  }
  [[nodiscard]] constexpr Extent bias_elements() const { return heads().times(Letter::distances); }
  constexpr Id spread_biases(const forward::Node& node) {
    return pushed({.code = Code::spread_biases, .m = heads(), .n = of(Letter::distances), .weights = weights_of(node)},
                  -1, fresh(bias_elements(), Storage::frame, Scalar::fp32));
  }

  bool ulysses_ = program_.kinds.exchanges_heads();
  bool ring_ = program_.kinds.uses_ring();
  bool exchanges_ = program_.kinds.exchanges_tokens();
  bool compresses_ = program_.kinds.compresses_tokens();
  std::array<Id, forward::Graph::most_tensors> own_{};        ///< values of tensors, in their own placement
  std::array<Id, forward::Graph::most_tensors> gradients_{};  ///< of tensors, as far as they are made and not yet read
  std::array<Id, forward::Graph::most_nodes> statistics_{};   ///< of norms and attention; masks of dropout
  std::array<Id, forward::Graph::most_nodes> core_input_{};
  std::array<Id, forward::Graph::most_nodes> core_output_{};
  std::array<Id, forward::Graph::most_nodes> biases_{};    ///< of attention, by distance
  std::array<Id, forward::Graph::most_nodes> heads_{};     ///< queries, and then keys, before their norms
  std::array<Id, forward::Graph::most_nodes> low_rank_{};  ///< of linear layers with adapters: A x
  std::array<Routed, forward::Graph::most_nodes> routed_{};
  std::array<std::array<Id, 3>, forward::Graph::most_nodes> scores_{};  ///< of attention that is not fused
};

}  // namespace galvatron::program::detail
