// LayerProgram: what one rank does for one layer, as data.
//
// A program holds the phases of a layer (forward; backward; weight gradients of a split backward), each a list of
// steps. A step is one call of a device or of a group of ranks and has one price. Steps read and write values, and
// every value lies in a buffer. Cost folds programs, and the runtime executes them.
//
// Buffers, by lifetime:
//   input, output, gradient   borders of the layer; `gradient` is that of the output on entry of backward and that of
//                             the input on its end
//   pass_through              kept once by a stage for several layers
//   slot                      from forward to backward of a micro-batch
//   deferred                  from backward to the weight gradients of a micro-batch
//   frame                     inside one phase: a stack from both ends (program/allocate.hpp)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/extent.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::program {

/// What differs between trainers in how a layer is executed. It changes the passes of lowering. The defaults are those
/// of this library; the executor executes no others.
struct Options {
  bool keeps_outputs = false;   ///< of norms and activations, for backward; else they are recomputed. `full` still
                                ///< recomputes the layer; results of attention are kept even under `selective`
  bool fuses = true;            ///< residual and norm, product and activation are one operation
  bool fused_attention = true;  ///< else (S, S) scores go through memory, and are kept
  bool dropout = false;         ///< after attention, the MLP and scores that are not fused; masks of a byte are kept
  bool whole_logits = false;    ///< of all rows at once, in fp32 too; else a chunk of rows at a time

  friend constexpr bool operator==(const Options&, const Options&) = default;
};

/// What a step does. Operands as values in `in` and `out`; extents as the device operation has them.
enum class Code : std::uint8_t {
  // Matrix products. m, n, k.
  linear,               ///< out0 (m, n) = in0 (m, k) * weight^T [+ bias]
  linear_activation,    ///< the same to out0 (m, inputs * n), and out1 (m, n) = activation
  input_gradient,       ///< out0 (m, n) = in0 (m, k) * weight
  activation_gradient,  ///< the same through an activation: in1 is u, out0 is du; scratch0 (m, n)
  weight_gradient,      ///< weight's gradient (m, n) from in0 (k, m) and in1 (k, n)
  bias_gradient,        ///< bias's gradient from in0 (m, n)
  // Adapters of a linear layer, whose factor B is the weight: m rows, n outputs, k = rank of all of them together.
  adapter_forward,         ///< in place of in1 (m, n): + scale * in0 (m, k) * B^T, section by section
  adapter_input_gradient,  ///< out0 (m, k) = scale * in0 (m, n) * B
  adapter_gradient,        ///< B's gradient from in0 (m, n) and in1 (m, k)
  // Rows. m rows of n.
  norm_forward,         ///< out0 = norm(in0), out1 statistics
  add_norm_forward,     ///< out0 = in0 + in1, out1 = norm(out0), out2 statistics
  norm_recompute,       ///< out0 = norm(in0) from the statistics in1
  norm_backward,        ///< out0 = in3 + gradient of norm; in0 dy, in1 x, in2 statistics
  activation_forward,   ///< out0 (m, n) from in0
  activation_backward,  ///< out0 = du from in0 (u) and in1 (dg)
  add,                  ///< out0 = in0 + in1, m elements
  dropout,              ///< in place, m elements; out1 its mask
  dropout_backward,     ///< out0 from in0 and the mask in1
  view,                 ///< out0 is a part of in0
  merge,                ///< out0 (m, n) = the four rows of n / 4 of a square of in0 side by side
  merge_back,           ///< the reverse
  multiply,             ///< out0 = in0 * in1, m elements
  jitter,               ///< out0 (m, n) = in0 * the noise of the micro-batch
  rotate,               ///< in place: the first n elements of m rows of k, in heads of l
  rotate_back,
  norm_heads,       ///< in place of in0: the n queries and k keys of m rows in runs of l; out1 what they were, out2
                    ///< statistics; scratch0
  norm_heads_back,  ///< in place of in0, their gradient; in1 what they were, in2 statistics; scratch0, scratch1
  assemble,         ///< out0 (m, 3 n heads of k): queries in0, keys and values in1, what positions turn of keys in2
  assemble_back,    ///< out0, out1, out2 = gradients of those from in0; scratch0
  narrow,           ///< out0 (m, n heads of k) = the first elements of heads of l of in0
  narrow_back,      ///< the reverse, with zeros
  // Attention. m sequences times heads, n queries, k keys, l head dim.
  attention_forward,   ///< out0 and statistics out1 from in0; in1 biases by distance (heads, distances)
  attention_backward,  ///< out0, out1 = gradients of in0 and in1; in2 output, in3 statistics, in4 gradient of the
                       ///< output
  ring_forward,        ///< the same over a ring of context ranks
  ring_backward,
  // Where scores are not fused: out2 scores, with dropout out3 what it left and out4 its mask; in backward in5 to in7.
  cross_forward,   ///< out0 and statistics out1 from queries in0 and keys | values in1
  cross_backward,  ///< as attention_backward
  spread_biases,   ///< out0 (m heads, n distances) from the table
  gather_biases,   ///< the table's gradient from in0
  // The exchanges of Ulysses: all tokens of some heads for some tokens of all heads. out0 from in0; scratch0.
  to_heads,              ///< queries, or the gradient of the output
  projection_to_heads,   ///< queries, keys and values of a fused projection
  to_tokens,             ///< the output
  projection_to_tokens,  ///< the gradients of queries, keys and values
  // Experts (runtime/experts.hpp). m rows, n wide, of k experts each.
  route,             ///< from in0: logits out0, weights out1 and choices out2 of experts, factors of the balance loss
                     ///< out3; the order of rows by experts out4, their places out5, offsets of experts out6. Where
                     ///< tokens go by nodes, offsets of nodes behind these, and numbers out7; scratch0
  experts_forward,   ///< out0 and u out1 from in0; in1 weights, in2 order, in3 places, in4 offsets; scratch0, scratch1
  experts_backward,  ///< out0 = gradient of in0, out1 of the weights, out2 of u in place; in1 to in4 as above, in5 u,
                     ///< in6
                     ///< gradient of the output; scratch0, scratch1
  route_backward,    ///< out0 = in5 + the router's part of the gradient of in0, in place; in1 logits, in2 choices, in3
                     ///< gradient of the weights, in4 factors; scratch0
  // The same where tokens go to the ranks of their experts (runtime/expert_exchange.hpp); m rows of this rank.
  exchange_counts,   ///< out0 = in0, offsets of experts, of all ranks: begun, and complete in exchange_forward
  exchange_forward,  ///< out0, u out1 and rows of experts out2 from in0; in1 to in3 as above, in4 numbers of nodes, in5
                     ///< the counts; scratch0 to scratch4, of nodes scratch9 and scratch10
  exchange_backward,  ///< out0, out1 gradients as above, out2 and out3 those of u and rows, in place; in1 to in5 as in
                      ///< exchange_forward, in6 u, in7 rows, in8 gradient of the output; scratch0 to scratch10
  // The same with compressed dispatch (runtime/compressed_experts.hpp): means of tokens instead of tokens. Buckets are
  // the
  // order and the offsets of choices, indices, and bounds of experts.
  compress,         ///< means out0 of rows in0, indices out1, bounds out2; in1 order, in2 offsets; scratch0 to scratch2
  exchange_bounds,  ///< out0 = in0, bounds of experts, of all ranks; where compression does not pay, one bucket for
                    ///< each choice first, in place: means out1, indices out2, bounds out3; in1 rows, in2 order, in3
                    ///< offsets, in4 indices, in5 means
  bucket_means,     ///< out0 = means of rows in0; in1 order, in2 offsets, in3 indices, in4 bounds
  compressed_forward,   ///< out0, u out1 and rows of experts out2 from means in0; in1 the counts; scratch0, scratch1,
                        ///< scratch3, scratch4 as of exchange_forward
  decompress,           ///< out0 from what experts gave in0; in1 rows, in2 means, in3 weights, in4 places, in5 to in8
                        ///< buckets
  compress_gradient,    ///< sums out0 of the output's gradient in0; in1 weights, in2 to in5 buckets
  bucket_weights_back,  ///< out0 = gradient of the weights; in0 the output's, in1 what experts gave, in2 rows, in3
                        ///< means,
                        ///< in4 places, in5 to in8 buckets
  residual_gradient,    ///< gradient of the gains; in0 the output's, in1 weights, in2 rows, in3 means, in4 to in7
                        ///< buckets;
                        ///< scratch0
  compressed_backward,  ///< out0 = gradient of the means in0, out1 and out2 those of u and rows, in place; in1 the
                        ///< counts,
                        ///< in2 u, in3 rows, in4 sums; scratch as of exchange_backward
  decompress_gradient,  ///< out0 = gradient of rows; in0 the output's, in1 that of the means, in2 sums, in3 weights,
                        ///< in4
                        ///< places, in5 to in8 buckets
  gate,                 ///< out0 (m, n) = in0 * sigmoid(in1), by rows
  gate_backward,        ///< out0, out1 = gradients of in0 and in1; in2 that of the output
  // Ends.
  look_up,           ///< out0 = rows of the table by token
  look_up_backward,  ///< the table's gradient from in0
  add_positions,     ///< in place
  positions_gradient,
  add_segment,  ///< in place: the table's first row
  segment_gradient,
  prepend,               ///< in place of in0: its rows with the learned token before them
  prepend_backward,      ///< out0 = the gradient of those rows, in place; the token's gradient
  first_token_gradient,  ///< in place of in0, the gradient of the first rows: zeros for all others
  mean,                  ///< out0 (samples, n) = over the m rows of in0
  mean_backward,
  end_of_text,  ///< out0 (samples, n) = those of the m rows of in0 with which texts end, zeros where no row is here
  end_of_text_backward,  ///< the reverse
  cross_entropy,         ///< in0 becomes its gradient; a loop over chunks of rows
  contrast,              ///< the same of pairs of m rows of n, over those of all data ranks: runtime/contrast.hpp
  // Memory.
  copy,  ///< out0 = in0
  // Groups of ranks.
  all_gather,      ///< out0 = the parts in0 of all ranks
  all_reduce,      ///< in place
  broadcast,       ///< in place, from the first rank
  reduce_scatter,  ///< out0 = this rank's part of the sum of in0
  // Parameters of a group.
  acquire,  ///< parameters are whole from here on
  open_gradients,
  close_gradients,
  keep_replicated,  ///< replicated parameters and zeros for their gradients go to deferred buffers
  add_replicated,   ///< those gradients are added to the group's
};

/// Is done without rows too: experts compute those of other ranks, and their gradients are zeros where there are none.
constexpr bool concerns_experts(Code code) {
  switch (code) {
    case Code::route:
    case Code::experts_backward:
    case Code::exchange_counts:
    case Code::exchange_forward:
    case Code::exchange_backward:
    case Code::compress:
    case Code::exchange_bounds:
    case Code::compressed_forward:
    case Code::compressed_backward:
      return true;
    default:
      return false;
  }
}

/// Does nothing where it has no columns.
constexpr bool works_on_columns(Code code) {
  switch (code) {
    case Code::linear:
    case Code::linear_activation:
    case Code::input_gradient:
    case Code::activation_gradient:
    case Code::weight_gradient:
    case Code::bias_gradient:
    case Code::activation_forward:
    case Code::activation_backward:
    case Code::rotate:
    case Code::rotate_back:
      return true;
    default:
      return false;
  }
}

/// The ranks that a step communicates with.
enum class Ranks : std::uint8_t { none, tp, cp, shards, experts };

/// The element type of a buffer.
enum class Scalar : std::uint8_t {
  activation,  ///< the precision of the plan
  fp32,
  sum,     ///< fp32; empty where activations are fp32 and hold their sums themselves
  tokens,  ///< int32
  mask,    ///< one byte
};

enum class Storage : std::uint8_t { input, output, pass_through, gradient, slot, deferred, frame };

/// An extent of LayerProgram::extents, by number. The first is 0.
enum class ExtentId : std::uint8_t { none };

struct Buffer {
  Storage storage = Storage::frame;
  ExtentId elements{};
  std::int16_t part = 0;  ///< of a gradient and of a pass-through value: in the bundle at the border
  Scalar scalar = Scalar::activation;
  // A frame: its phase, the steps from the first to the last that need it, and the end of the stack that it is on.
  std::int8_t phase = -1;
  std::int16_t first = -1;
  std::int16_t last = -1;
  bool high = false;
  std::int16_t below = -1;  ///< the buffer before it at that end of the stack; -1: none
};

inline constexpr int most_buffers = 192;

/// Buffers of a frame that live at one step, as bits by number.
struct FramePeak {
  std::int8_t phase = -1;
  std::array<std::uint64_t, most_buffers / 64> buffers{};

  [[nodiscard]] constexpr bool is_within(const FramePeak& other) const {
    for (std::size_t word = 0; word < buffers.size(); ++word)
      if ((buffers[word] & ~other.buffers[word]) != 0) return false;
    return true;
  }
};

/// The rows of a buffer that a value has.
enum class Part : std::uint8_t {
  all,
  local,         ///< this rank's rows under sequence parallelism
  first_tokens,  ///< of samples
  patches,       ///< the others
};

/// A value is written once, by one step.
struct Value {
  std::int16_t buffer = -1;
  Part part{};
};

/// @tparam E  an extent: of a program ExtentId
template <class E>
struct BasicStep {
  Code code{};
  E m{}, n{}, k{}, l{};
  std::array<std::int16_t, 9> in{-1, -1, -1, -1, -1, -1, -1, -1, -1};
  std::array<std::int16_t, 8> out{-1, -1, -1, -1, -1, -1, -1, -1};
  std::array<std::int16_t, 11> scratch{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  std::array<std::int8_t, 5> weights{-1, -1, -1, -1, -1};  ///< of forward::Graph::weights
  forward::Rows rows{};                                    ///< of tokens that are looked up
  Ranks ranks = Ranks::none;
  ActivationKind activation{};
  ParameterPart group{};       ///< parameter group
  bool eight_bit = false;      ///< a product that may have 8-bit operands
  bool bias_once = false;      ///< the bias enters a sum over tensor ranks: the first of them adds it
  bool deferred_norm = false;  ///< parameters are read from the deferred copy
  bool local = false;          ///< rows are those of this rank between tensor-parallel regions
  bool adds = false;           ///< an input_gradient is added to in1, which it lies in place of

  /// The same with the extents that f makes of these.
  template <class F>
  constexpr auto with_extents(const F& f) const -> BasicStep<decltype(f(m))> {
    return {code, f(m),  f(n),       f(k),  f(l),      in,        out,           scratch, weights,
            rows, ranks, activation, group, eight_bit, bias_once, deferred_norm, local,   adds};
  }
};

using Step = BasicStep<ExtentId>;

/// The phases of a layer.
enum class Phase : std::uint8_t { forward, backward, weights };
inline constexpr int phases = 3;

/// A list with a capacity of N items; no allocation, so that it also lives at compile time.
template <class T, int N>
struct FixedList {
  std::array<T, N> items{};
  int size = 0;

  /// The number of the new item. Throws std::length_error: the layer needs more than a program holds.
  constexpr int push(const T& item) {
    if (size >= N) throw std::length_error("a layer of so many operations does not fit a program");
    (*this)[size] = item;
    return size++;
  }
  constexpr T& operator[](int i) { return items[static_cast<std::size_t>(i)]; }
  constexpr const T& operator[](int i) const { return items[static_cast<std::size_t>(i)]; }
  [[nodiscard]] constexpr const T* begin() const { return items.data(); }
  [[nodiscard]] constexpr const T* end() const { return items.data() + size; }
};

struct LayerProgram {
  static constexpr int most_steps = 128;  ///< of a phase
  static constexpr int most_buffers = program::most_buffers;
  static constexpr int most_extents = 64;
  using Steps = FixedList<Step, most_steps>;

  forward::Graph graph;
  StrategySpec kinds;  ///< of which kinds the program is: degrees are 1 or above, not their numbers
  Options options;
  bool splits = false;  ///< backward comes in two phases
  std::array<Steps, phases> phase{};
  FixedList<Value, 256> values{};
  FixedList<Buffer, most_buffers> buffers{};
  FixedList<Extent, most_extents> extents{.size = 1};
  FixedList<FramePeak, 64> peaks{};  ///< where frames may be largest; others are within these
  // Values at the borders; -1: none.
  std::array<std::int16_t, 2> inputs{-1, -1};                ///< from the layer before, and pass-through
  std::array<std::int16_t, 2> outputs{-1, -1};               ///< to the layer after, and pass-through
  std::array<std::int16_t, 3> output_gradients{-1, -1, -1};  ///< from the layer after: of outputs, of pass-through
  std::array<std::int16_t, 3> input_gradients{-1, -1, -1};   ///< to the layer before

  /// True for a part of the parameters that the layer has: a parameter group. The rest may be empty.
  [[nodiscard]] constexpr bool has(ParameterPart part) const {
    for (int i = 0; i < graph.weight_count; ++i)
      if (part_of(graph.weight(i)) == part) return true;
    return part == ParameterPart::rest;
  }
  [[nodiscard]] constexpr const Steps& steps(Phase p) const { return phase[static_cast<std::size_t>(p)]; }
  [[nodiscard]] constexpr const Value& value(int id) const { return values[id]; }
  [[nodiscard]] constexpr const Buffer& buffer(int id) const { return buffers[id]; }
  /// The buffer that a value lies in.
  [[nodiscard]] constexpr const Buffer& buffer_of(int value_id) const { return buffer(value(value_id).buffer); }
};

/// The extents of a program on one rank.
class ExtentValues {
 public:
  constexpr ExtentValues(const LayerProgram& program, const Numbers& numbers) {
    for (int i = 0; i < program.extents.size; ++i) values_[static_cast<std::size_t>(i)] = numbers(program.extents[i]);
  }
  [[nodiscard]] constexpr std::int64_t operator()(ExtentId id) const { return values_[static_cast<std::size_t>(id)]; }

 private:
  std::array<std::int64_t, LayerProgram::most_extents> values_{};
};

/// The adapter of one section of a linear layer's result, on one rank.
struct LocalAdapter {
  std::int64_t columns = 0;       ///< of the section
  std::int64_t first = 0;         ///< its first column in the result
  std::int64_t first_row = 0;     ///< its first row of B
  std::int64_t first_column = 0;  ///< in what the factors A give
};
/// Calls f(adapter) for those of the linear layer with this factor B.
template <class F>
constexpr void for_each_adapter(const forward::Graph& graph, int b, const Numbers& numbers, const F& f) {
  const auto local = [&numbers](const forward::Width& w) {
    return numbers(Extent{w.extent, Letter::one, Letter::one, w.split ? w.units() : 0, w.head_groups > 0});
  };
  graph.for_each_adapter(graph.adapted_by(b), [&](const forward::AdapterPart& part) {
    f(LocalAdapter{local(part.width), local(part.before), local(part.rows_before),
                   part.index * graph.weight(b).columns.extent});
  });
}

/// Bytes that a buffer takes on a rank.
/// @param e  bytes of an element of activations
constexpr std::int64_t bytes_of(const Buffer& buffer, const ExtentValues& values, std::int64_t e) {
  const std::int64_t elements = values(buffer.elements);
  if (buffer.scalar == Scalar::activation) return aligned_bytes(elements * e);
  if (buffer.scalar == Scalar::mask) return aligned_bytes(elements);
  return buffer.scalar == Scalar::sum && e == 4 ? 0 : aligned_bytes(elements * 4);
}

}  // namespace galvatron::program
