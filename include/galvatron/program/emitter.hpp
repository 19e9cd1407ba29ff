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

  constexpr Emitter(const forward::Graph& graph, const StrategySpec& kinds, bool splits, const Options& options)
      : program_{.graph = graph, .kinds = kinds, .options = options, .splits = splits} {
    reserved_.fill(-1);
  }
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;
  ~Emitter() = default;

  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] constexpr const forward::Graph& g() const { return program_.graph; }

  // ---- values, buffers, steps

  constexpr Id value(int buffer, Part part = Part::all) {
    return program_.values.push({static_cast<std::int16_t>(buffer), part});
  }
  constexpr int buffer(Storage storage, const Extent& elements, Scalar scalar = Scalar::activation) {
    return program_.buffers.push({.storage = storage, .elements = numbered(elements), .scalar = scalar});
  }
  constexpr Id fresh(const Extent& elements, Storage storage = Storage::frame, Scalar scalar = Scalar::activation) {
    return value(buffer(storage, elements, scalar));
  }
  /// The value that an operation writes in place of another.
  constexpr Id in_place(Id of) { return value(buffer_of(of), program_.value(of).part); }
  [[nodiscard]] constexpr int buffer_of(Id v) const { return program_.value(v).buffer; }
  [[nodiscard]] constexpr const Extent& extent_of(Id v) const {
    return program_.extents[static_cast<int>(program_.buffer_of(v).elements)];
  }
  [[nodiscard]] constexpr Storage storage(Id v) const { return program_.buffer_of(v).storage; }
  /// The number of an extent in the program's table.
  constexpr ExtentId numbered(const Extent& extent) {
    for (int i = 0; i < program_.extents.size; ++i)
      if (program_.extents[i] == extent) return static_cast<ExtentId>(i);
    return static_cast<ExtentId>(program_.extents.push(extent));
  }
  constexpr void push(const Step& step) {
    program_.phase[at(static_cast<int>(phase_))].push(
        step.with_extents([this](const Extent& extent) { return numbered(extent); }));
  }
  /// The operands, or the results, of a step; -1: none.
  using Operands = decltype(Step::in);
  using Results = decltype(Step::out);
  template <class List, class... Ids>
  static constexpr List listed(Ids... values) {
    List out{};
    out.fill(-1);
    std::size_t i = 0;
    ((out[i++] = id(values)), ...);
    return out;
  }
  static constexpr std::int16_t id(Id v) { return static_cast<std::int16_t>(v); }

  // ---- extents

  [[nodiscard]] static constexpr Extent extent(const forward::Width& w) {
    return {w.extent, Letter::one, Letter::one, w.split ? w.units() : 0, w.head_groups > 0};
  }
  /// The width of a tensor on a rank.
  [[nodiscard]] constexpr Extent width(int tensor) const { return extent(g().width(tensor)); }
  /// True where every tensor rank has rows of its own of a tensor.
  [[nodiscard]] constexpr bool has_sharded_rows(int tensor) const {
    return megatron_ && !g().width(tensor).split && g().rows(tensor) != forward::Rows::first_tokens &&
           g().rows(tensor) != forward::Rows::samples;
  }
  /// Rows of a tensor on a rank: those of the region where its width is split.
  [[nodiscard]] constexpr Extent rows(int tensor) const {
    const forward::Rows kind = g().rows(tensor);
    if (kind == forward::Rows::patches) return of(Letter::patch_rows);
    if (kind == forward::Rows::first_tokens) return of(Letter::first_rows);
    const Letter all = region_rows(tensor);
    const Letter local = all == Letter::memory_rows   ? Letter::local_memory_rows
                         : all == Letter::target_rows ? Letter::local_target_rows
                                                      : Letter::local_rows;
    return {kind == forward::Rows::squares ? 4 : 1, has_sharded_rows(tensor) ? local : all};
  }
  /// Rows of a tensor inside the regions.
  [[nodiscard]] constexpr Letter region_rows(int tensor) const {
    switch (g().rows(tensor)) {
      case forward::Rows::memory:
        return Letter::memory_rows;
      case forward::Rows::target:
        return Letter::target_rows;
      case forward::Rows::first_tokens:
      case forward::Rows::samples:
        return Letter::samples;
      default:
        return Letter::rows;
    }
  }
  /// Rows that a buffer holds: first tokens may go to all ranks.
  [[nodiscard]] constexpr Extent capacity(int tensor) const {
    return g().rows(tensor) == forward::Rows::first_tokens ? of(Letter::samples) : rows(tensor);
  }
  [[nodiscard]] constexpr Extent elements(int tensor) const {
    const Extent rows = capacity(tensor);
    return width(tensor).times(rows.factor).times(rows.a);
  }
  [[nodiscard]] constexpr Extent region_elements(int tensor) const { return width(tensor).times(region_rows(tensor)); }
  [[nodiscard]] static constexpr Extent of(Letter letter) { return {1, letter}; }
  /// A number of all heads that tensor ranks share.
  [[nodiscard]] constexpr Extent by_heads(std::int64_t number) const {
    return {number, Letter::one, Letter::one, g().layer.kv_heads, true};
  }
  [[nodiscard]] constexpr Extent heads() const { return by_heads(g().layer.heads); }
  [[nodiscard]] constexpr Extent q() const { return by_heads(g().layer.heads * g().layer.head_dim); }
  [[nodiscard]] constexpr Extent kv() const { return by_heads(g().layer.kv_heads * g().layer.head_dim); }
  [[nodiscard]] constexpr Extent core_q() const { return {g().layer.head_dim, Letter::core_rows, Letter::core_heads}; }

  // ---- where tensors lie

  /// Where what is kept lies. The gradients of a layer with a loss are made in its forward phase.
  [[nodiscard]] constexpr Storage kept_storage() const { return full_ || has_loss_ ? Storage::frame : Storage::slot; }
  [[nodiscard]] constexpr Storage results_storage() const {
    return kept_.drops_results() ? Storage::frame : kept_storage();
  }
  [[nodiscard]] constexpr const Options& options() const { return program_.options; }

  /// Where a tensor of the forward pass lies. What works in place decides for its operand.
  [[nodiscard]] constexpr Storage home(int tensor) const {
    if (phase_ == Phase::forward && tensor == g().outputs[0]) return Storage::output;
    if (phase_ == Phase::forward && tensor == g().outputs[1]) return Storage::pass_through;
    for (int i = 0; i < g().node_count; ++i)
      if (forward::works_in_place(g().node(i).operation) && g().node(i).inputs[0] == tensor)
        return home(g().node(i).output);
    return kept_.keeps(tensor) ? kept_storage() : Storage::frame;
  }
  /// A value for a tensor. One that is not kept lies where the sum that reads it last will be kept, and rows to which
  /// others are prepended lie behind those.
  constexpr Id made(int tensor) {
    const int reader = last_reader(tensor);
    if (reader < 0) return value(buffer_for(tensor));
    const int result = g().node(reader).output;
    const bool prepends = g().node(reader).operation == forward::Kind::prepend;
    const bool in_sum = g().node(reader).operation == forward::Kind::add && g().uses(tensor) > 1 &&
                        home(tensor) == Storage::frame && home(result) == Storage::slot;
    if (!prepends && !in_sum) return value(buffer_for(tensor));
    reserved_[at(result)] = buffer_for(result);
    return value(reserved_[at(result)], prepends ? Part::patches : Part::all);
  }
  [[nodiscard]] constexpr int last_reader(int tensor) const {
    for (int i = g().node_count; i-- > 0;)
      for (const int input : g().node(i).inputs)
        if (input == tensor) return i;
    return -1;
  }
  /// The buffer that is reserved for a tensor, or a new one.
  constexpr int buffer_for(int tensor) {
    const int reserved = reserved_[at(tensor)];
    reserved_[at(tensor)] = -1;
    return reserved >= 0 ? reserved : buffer(home(tensor), elements(tensor));
  }

  // ---- redistributions

  /// All rows of a value of a tensor of a whole width: in place where it lies in a frame.
  constexpr Id replicated(Id v, int tensor) {
    const Extent all = region_elements(tensor);
    if (megatron_ && g().rows(tensor) == forward::Rows::first_tokens) {
      return pushed({.code = Code::broadcast, .m = all, .ranks = Ranks::tp}, v, in_place(v));
    }
    if (!has_sharded_rows(tensor)) return v;
    const Step step{.code = Code::all_gather, .m = all, .ranks = Ranks::tp};
    if (storage(v) != Storage::frame) return pushed(step, v, fresh(all));
    if (ExtentId& held = program_.buffers[buffer_of(v)].elements; held != numbered(all)) {
      held = numbered(all);
      for (Id made = 0; made <= v; ++made)  // in whose place it may have been made
        if (buffer_of(made) == buffer_of(v)) program_.values[made].part = Part::local;
    }
    return pushed(step, v, value(buffer_of(v)));
  }
  /// Where a partial sum of a tensor goes before it is reduced.
  constexpr Id partial(int tensor, Storage target) {
    return fresh(region_elements(tensor), has_sharded_rows(tensor) ? Storage::frame : target);
  }
  /// The sum of what all tensor ranks have, in the tensor's own placement.
  constexpr Id reduced(Id v, int tensor, Storage target = Storage::frame) {
    const bool cut = has_sharded_rows(tensor);
    const Id out = !cut                       ? in_place(v)
                   : target == Storage::frame ? value(buffer_of(v), Part::local)
                                              : fresh(elements(tensor), target);
    const Step step{
        .code = cut ? Code::reduce_scatter : Code::all_reduce, .m = region_elements(tensor), .ranks = Ranks::tp};
    return pushed(step, v, out);
  }
  /// The sum or the product of two values of a tensor.
  constexpr Id combined(Code code, Id a, Id b, Id out, int tensor) {
    Step step{.code = code, .m = elements(tensor)};
    step.in[1] = id(b);
    return pushed(step, a, out);
  }
  constexpr void copy(Id from, Id to, int tensor) { pushed({.code = Code::copy, .m = elements(tensor)}, from, to); }
  constexpr Id copied(Id from, int tensor) {
    const Id to = fresh(elements(tensor));
    copy(from, to, tensor);
    return to;
  }
  /// Pushes a step from one value to another; -1: from or to none.
  constexpr Id pushed(Step step, Id from, Id to) {
    step.in[0] = id(from);
    step.out[0] = id(to);
    push(step);
    return to;
  }

  // ---- parameter groups

  constexpr void push_group(Code code, ParameterPart group) {
    Step step{.code = code, .group = group};
    if (code == Code::acquire || code == Code::close_gradients) step.ranks = Ranks::shards;
    push(step);
  }
  /// The same of every group of the layer; gradients are of those that have some.
  constexpr void push_groups(Code code) {
    for (const ParameterPart part : parameter_parts)
      if (program_.has(part) && (code == Code::acquire || !is_frozen(g(), part))) push_group(code, part);
  }
  /// True for a weight that has a gradient; -1: none.
  [[nodiscard]] constexpr bool trains(int weight) const { return weight >= 0 && !g().weight(weight).frozen; }

  LayerProgram program_;
  KeptTensors kept_{program_.graph, program_.kinds, program_.options};
  bool megatron_ = program_.kinds.cuts_over_tensor();
  bool full_ = program_.kinds.recompute == RecomputeKind::full;
  bool has_loss_ = program_.graph.has_loss();
  Phase phase_ = Phase::forward;
  std::array<int, forward::Graph::most_tensors> reserved_{};  ///< buffers of tensors that are not made yet
};

}  // namespace galvatron::program::detail
