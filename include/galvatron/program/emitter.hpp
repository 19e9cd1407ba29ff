// Emitter: values, buffers and steps of a program while it is made, and redistributions between placements.
//
// Placements over tensor-parallel ranks. A tensor of a split width is shard(columns). Others are replicate, or under
// Megatron's sequence parallelism shard(rows). A product over a split extent is partial. Where a step needs another
// placement than a value has, a redistribution goes between them, by one rule for activations and gradients:
//
//   shard(rows) -> replicate    all_gather          partial -> replicate     all_reduce
//                                                   partial -> shard(rows)   reduce_scatter
//
// Gradients have the placement of their tensors. Redistributed values are never kept: backward gathers them anew.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/kept_tensors.hpp>
#include <galvatron/program/program.hpp>

namespace galvatron::program::detail {

class Emitter {
 protected:
  using Id = int;
  /// A step before its extents are numbered.
  using Step = BasicStep<Extent>;

  constexpr Emitter(const forward::Graph& graph, const StrategySpec& kinds, bool splits)
      : program_{.graph = graph, .kinds = kinds, .splits = splits},
        kept_(program_.graph, program_.kinds),
        megatron_(kinds.sequence == SequenceKind::megatron),
        full_(kinds.recompute == RecomputeKind::full),
        has_loss_(graph.output < 0) {}
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;
  ~Emitter() = default;

  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] constexpr const forward::Graph& g() const { return program_.graph; }

  // ---- values, buffers, steps

  constexpr Id value(int buffer, bool local = false) {
    program_.values[at(program_.value_count)] = {static_cast<std::int16_t>(buffer), local};
    return program_.value_count++;
  }
  constexpr int buffer(Storage storage, const Extent& elements, Scalar scalar = Scalar::activation) {
    Buffer made;
    made.storage = storage;
    made.elements = numbered(elements);
    made.scalar = scalar;
    program_.buffers[at(program_.buffer_count)] = made;
    return program_.buffer_count++;
  }
  constexpr Id fresh(const Extent& elements, Storage storage = Storage::frame, Scalar scalar = Scalar::activation) {
    return value(buffer(storage, elements, scalar));
  }
  /// The value that an operation writes in place of another.
  constexpr Id in_place(Id of) { return value(program_.value(of).buffer, program_.value(of).local); }
  [[nodiscard]] constexpr const Extent& extent_of(Id v) const {
    return program_.extents[static_cast<std::size_t>(program_.buffer_of(v).elements)];
  }
  [[nodiscard]] constexpr Storage storage(Id v) const { return program_.buffer_of(v).storage; }
  /// The number of an extent in the program's table.
  constexpr ExtentId numbered(const Extent& extent) {
    for (int i = 0; i < program_.extent_count; ++i)
      if (program_.extents[at(i)] == extent) return static_cast<ExtentId>(i);
    program_.extents[at(program_.extent_count)] = extent;
    return static_cast<ExtentId>(program_.extent_count++);
  }
  constexpr void push(const Step& step) {
    auto& list = program_.phase[at(static_cast<int>(phase_))];
    list.steps[at(list.size++)] = {.code = step.code,
                                   .m = numbered(step.m),
                                   .n = numbered(step.n),
                                   .k = numbered(step.k),
                                   .l = numbered(step.l),
                                   .in = step.in,
                                   .out = step.out,
                                   .scratch = step.scratch,
                                   .weights = step.weights,
                                   .ranks = step.ranks,
                                   .activation = step.activation,
                                   .group = step.group,
                                   .eight_bit = step.eight_bit,
                                   .bias_once = step.bias_once,
                                   .deferred_norm = step.deferred_norm};
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

  // ---- where tensors lie

  /// Where what is kept lies. The gradients of a layer with a loss are made in its forward phase.
  [[nodiscard]] constexpr Storage kept_storage() const { return full_ || has_loss_ ? Storage::frame : Storage::slot; }
  [[nodiscard]] constexpr Storage results_storage() const {
    return kept_.recomputes_core() ? Storage::frame : kept_storage();
  }

  /// Where a tensor of the forward pass lies. What works in place decides for its operand.
  [[nodiscard]] constexpr Storage home(int tensor) const {
    if (tensor == g().output && phase_ == Phase::forward) return Storage::output;
    for (int i = 0; i < g().node_count; ++i) {
      const forward::Node& node = g().node(i);
      const bool works_in_place =
          node.operation == forward::Kind::rotate || node.operation == forward::Kind::add_positions;
      if (works_in_place && node.inputs[0] == tensor) return home(node.output);
    }
    return kept_.keeps(tensor) ? kept_storage() : Storage::frame;
  }
  constexpr Id border(Storage storage, int tensor) { return value(buffer(storage, elements(g().width(tensor)))); }

  // ---- redistributions

  /// All rows of a value of a whole width: in place where it lies in a frame.
  constexpr Id replicated(Id v, const forward::Width& width) {
    if (!megatron_ || width.split) return v;
    const Extent all = extent(width).times(Letter::rows);
    Id out = -1;
    if (storage(v) == Storage::frame) {
      program_.buffers[at(program_.value(v).buffer)].elements = numbered(all);
      program_.values[at(v)].local = true;
      out = value(program_.value(v).buffer);
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
      out = value(program_.value(v).buffer, true);
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

  LayerProgram program_;
  KeptTensors kept_;
  bool megatron_;
  bool full_;
  bool has_loss_;
  Phase phase_ = Phase::forward;
};

}  // namespace galvatron::program::detail
