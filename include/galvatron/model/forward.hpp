// Forward: the forward pass of a layer as operations on named tensors, before any rank, device or strategy is known.
//
// A layer's author writes this and nothing else (model/layers.hpp has those of the library). Its backward pass, its
// shards, its bytes and its price are derived in program/.
//
// Activations are rows of tokens; a width is their other extent. A width is split where it is divided over
// tensor-parallel ranks: heads, hidden units of an MLP, the vocabulary. All widths are those of the whole model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>

#include <galvatron/model/parameter.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::forward {

/// Operations of a forward pass. Each can be differentiated and placed.
enum class Kind : std::uint8_t {
  norm,           ///< y = norm(x) * gamma (+ beta), as the kind of norm says
  linear,         ///< y = x W^T (+ bias)
  activation,     ///< y = act(x); for gated kinds x is gate | up
  multiply,       ///< y = a * b, element by element
  add,            ///< y = a + b
  rotate,         ///< the first heads of a row turned by their positions (RoPE)
  norm_heads,     ///< queries and keys of a fused projection, in runs of gamma's width, each with its RMS norm
  assemble,       ///< queries, keys and values of latent attention as a fused projection; values are padded with zeros
  narrow,         ///< the first elements of every head
  attend,         ///< self-attention of a fused projection: queries | keys | values; with a table, biases by distance
  cross_attend,   ///< attention of queries to keys | values of other tokens, without a mask
  experts,        ///< a router chooses some of several MLPs for a token; y is the sum of theirs by its weights
  jitter,         ///< y = x * noise (RouterSpec::jitter)
  gate,           ///< y = a * sigmoid(b), row by row: b (T, 1)
  merge,          ///< the four tokens of a square of an image side by side: (4 T, H / 2) -> (T, 2 H)
  look_up,        ///< rows of a table by token, times LayerSpec::embedding_scale
  add_positions,  ///< y = x + the table's row of a token's position
  add_segment,    ///< y = x + the table's first row: all tokens are of the first segment
  prepend,        ///< a learned token before the others of a sample
  first_token,    ///< the first token of every sample: (T, H) -> (samples, H)
  mean,           ///< over the tokens of a sample: (T, H) -> (samples, H)
  end_of_text,    ///< the token of every sample with which its text ends: (T, H) -> (samples, H)
  cross_entropy,  ///< the loss of a row, from logits over a table; its gradient is made in forward
  contrast,       ///< the loss of pairs of rows, from logits of all rows of one tower over those of the other; the same
};

constexpr bool is_attention(Kind kind) { return kind == Kind::attend || kind == Kind::cross_attend; }
/// True for operations that write their result over their first operand.
constexpr bool works_in_place(Kind kind) {
  return kind == Kind::rotate || kind == Kind::norm_heads || kind == Kind::add_positions || kind == Kind::add_segment ||
         kind == Kind::prepend;
}

/// What the rows of a tensor are.
enum class Rows : std::uint8_t {
  tokens,        ///< the layer's own
  squares,       ///< four for each token: before they are merged
  memory,        ///< tokens of the encoder's output
  target,        ///< tokens of the target, in an embedding of both sides
  patches,       ///< the tokens but for the learned one of each sample
  first_tokens,  ///< one a sample, where the first token of its sequence is
  samples,       ///< one a sample, on every tensor-parallel rank
};

/// The extent of a tensor beside its rows.
struct Width {
  std::int64_t extent = 0;
  bool split = false;                      ///< divided over tensor-parallel ranks
  std::array<std::int64_t, 3> sections{};  ///< parts that are split each for itself: queries, keys, values; gate, up
  std::int64_t head_groups = 0;            ///< of attention: key/value heads, by which it is split; else by columns
  friend constexpr bool operator==(const Width&, const Width&) = default;

  /// The parts of one size that no rank cuts, of a run of so many columns: all of them, or a section.
  [[nodiscard]] constexpr std::int64_t units(std::int64_t columns) const {
    if (head_groups > 0) return head_groups;
    std::int64_t out = columns;
    for (const std::int64_t section : sections) out = std::gcd(out, section);
    return out;
  }
  [[nodiscard]] constexpr std::int64_t units() const { return units(extent); }
};

/// A tensor of a forward pass: (rows, width).
struct Tensor {
  int id = -1;
};
struct TensorSpec {
  Width width;
  Rows rows{};
};

/// A parameter of a forward pass.
struct Weight {
  int id = -1;
};

/// One parameter: (outputs, inputs) of a linear layer, (rows, width) of a table, (width) of a norm or a bias.
struct WeightSpec {
  ParameterName name{};
  Width rows;
  Width columns{1};
  bool decays = false;
  ParameterInit init = ParameterInit::zero;
  double deviation = 0;
  bool is_table = false;         ///< the vocabulary's: a parameter group of its own, which tied ends share
  bool over_vocabulary = false;  ///< rows are padded on each rank
  int products = 0;              ///< linear layers and experts that it is a factor of
  std::int64_t copies = 1;       ///< rows are of so many matrices, each with the sections: of experts
  bool of_experts = false;       ///< a parameter group of its own: experts have ranks of their own
  double epsilon = 0;            ///< of the norm that it scales
  bool balances = false;         ///< no gradient steps it, but the load of experts (RouterSpec::bias_rate)
  bool frozen = false;           ///< it stays as it is: no gradient, no states of the optimizer
  bool of_adapter = false;       ///< one of the two factors of an adapter

  /// True where it is divided over tensor-parallel ranks.
  [[nodiscard]] constexpr bool is_split() const { return rows.split || columns.split; }
};

struct Node {
  Kind operation{};
  std::array<int, 3> inputs{-1, -1, -1};  ///< tensors
  int output = -1;                        ///< tensor; -1 of a loss
  /// Weight and bias, gamma and beta (gammas of queries and keys), a table (and a bias); of experts router, inputs,
  /// outputs, bias of the choice, gain of residuals; of a linear layer behind its bias the factors A and B of its
  /// adapter.
  std::array<int, 5> weights{-1, -1, -1, -1, -1};
  NormKind norm{};
  ActivationKind activation{};
  std::int64_t heads = 0;         ///< that are turned
  std::int64_t head_width = 0;    ///< of them
  std::array<bool, 3> adapted{};  ///< sections of the result of a linear layer that have an adapter each; none: one
                                  ///< adapter of all

  [[nodiscard]] constexpr bool has_adapter() const { return operation == Kind::linear && weights[2] >= 0; }
};

/// The adapter of one section of a linear layer's result, or of all of it.
struct AdapterPart {
  Width width;             ///< of the section
  Width before;            ///< columns of the result before it
  Width rows_before;       ///< rows of B before it
  std::int64_t index = 0;  ///< of the adapter among those of the layer
};

/// A layer's forward pass. The first input is -1 where tokens come in, the first output where a loss comes out. A
/// decoder has the encoder's output as second input, an embedding may have the target's rows as second output.
struct Graph {
  static constexpr int most_tensors = 32;
  static constexpr int most_nodes = 32;
  static constexpr int most_weights = 28;

  std::array<TensorSpec, most_tensors> tensors{};
  std::array<Node, most_nodes> nodes{};
  std::array<WeightSpec, most_weights> weights{};
  int tensor_count = 0;
  int node_count = 0;
  int weight_count = 0;
  std::array<int, 2> inputs{-1, -1};   ///< tensors
  std::array<int, 2> outputs{-1, -1};  ///< tensors
  bool takes_data = false;             ///< the input is of the data and has no gradient
  LayerSpec layer;                     ///< heads, epsilon, theta, causality

  [[nodiscard]] constexpr const Node& node(int i) const { return nodes[static_cast<std::size_t>(i)]; }
  [[nodiscard]] constexpr const Width& width(int tensor) const {
    return tensors[static_cast<std::size_t>(tensor)].width;
  }
  [[nodiscard]] constexpr Rows rows(int tensor) const { return tensors[static_cast<std::size_t>(tensor)].rows; }
  [[nodiscard]] constexpr const WeightSpec& weight(int i) const { return weights[static_cast<std::size_t>(i)]; }
  [[nodiscard]] constexpr bool is_input(int tensor) const {
    return tensor >= 0 && (tensor == inputs[0] || tensor == inputs[1]);
  }
  [[nodiscard]] constexpr bool is_output(int tensor) const {
    return tensor >= 0 && (tensor == outputs[0] || tensor == outputs[1]);
  }
  /// True for a layer that ends in a loss.
  [[nodiscard]] constexpr bool has_loss() const { return outputs[0] < 0; }
  [[nodiscard]] constexpr bool has_norm() const {
    for (int i = 0; i < node_count; ++i)
      if (node(i).operation == Kind::norm) return true;
    return false;
  }
  /// The node that makes a tensor; -1 for an input.
  [[nodiscard]] constexpr int producer(int tensor) const {
    for (int i = 0; i < node_count; ++i)
      if (node(i).output == tensor) return i;
    return -1;
  }
  /// Calls f(part) for the adapters of a linear layer.
  template <class F>
  constexpr void for_each_adapter(const Node& linear, const F& f) const {
    const Width all = width(linear.output);
    const auto run = [&all](std::int64_t columns) { return Width{columns, all.split, all.sections, all.head_groups}; };
    if (linear.adapted == std::array<bool, 3>{}) return f(AdapterPart{all, run(0), run(0), 0});
    AdapterPart part{.width = all, .before = run(0), .rows_before = run(0)};
    for (std::size_t k = 0; k < all.sections.size(); ++k) {
      part.width = run(all.sections[k]);
      if (linear.adapted[k]) {
        f(part);
        part.rows_before.extent += all.sections[k];
        ++part.index;
      }
      part.before.extent += all.sections[k];
    }
  }
  /// The linear layer that has an adapter with this factor B.
  [[nodiscard]] constexpr const Node& adapted_by(int b) const {
    for (int i = 0; i < node_count; ++i)
      if (node(i).has_adapter() && node(i).weights[3] == b) return node(i);
    throw std::logic_error("a factor of no adapter");
  }
  /// Nodes that read a tensor; an output of the layer counts as one more.
  [[nodiscard]] constexpr int uses(int tensor) const {
    int count = is_output(tensor) ? 1 : 0;
    for (int i = 0; i < node_count; ++i)
      for (const int read : node(i).inputs) count += read == tensor ? 1 : 0;
    return count;
  }
};

namespace detail {
/// 1 / sqrt(x) of x >= 1, by Newton's iteration: std::sqrt is not constexpr.
constexpr double inverse_root(double x) {
  double root = x;
  for (int i = 0; i < 200; ++i) {
    const double next = 0.5 * (root + x / root);
    if (next == root) break;
    root = next;
  }
  return 1 / root;
}
}  // namespace detail

/// Writes a forward pass down. Throws std::invalid_argument where shapes do not fit, std::length_error beyond the
/// largest graph.
class Builder {
 public:
  explicit constexpr Builder(const LayerSpec& layer) { graph_.layer = layer; }

  // Widths.
  static constexpr Width whole(std::int64_t extent) { return {extent}; }
  static constexpr Width split(std::int64_t extent, std::array<std::int64_t, 3> sections = {}) {
    return {extent, true, sections};
  }
  /// Of queries, keys or values of all heads: split by key/value heads, with the query heads that read them.
  [[nodiscard]] constexpr Width heads(std::int64_t extent, std::array<std::int64_t, 3> sections = {}) const {
    return {extent, true, sections, graph_.layer.kv_heads};
  }

  // Parameters.
  /// A matrix (outputs, inputs) that is initialised from normal(0, deviation) and decays.
  constexpr Weight weight(ParameterName name, Width outputs, Width inputs, double deviation = 0.02) {
    return parameter({.name = name,
                      .rows = outputs,
                      .columns = inputs,
                      .decays = true,
                      .init = ParameterInit::normal,
                      .deviation = deviation});
  }
  /// The vocabulary's table (V, H).
  constexpr Weight table(std::int64_t vocabulary, Width width) {
    return parameter({.name = ParameterName::table,
                      .rows = split(vocabulary),
                      .columns = width,
                      .decays = true,
                      .init = ParameterInit::normal,
                      .deviation = 0.02,
                      .is_table = true,
                      .over_vocabulary = true});
  }
  /// A vector that begins with zeros or ones and does not decay.
  constexpr Weight vector(ParameterName name, Width width, ParameterInit init = ParameterInit::zero) {
    return parameter({.name = name, .rows = width, .init = init});
  }

  /// The gamma of a norm of the layer's kind.
  constexpr Weight norm_scale(ParameterName name, Width width) {
    return vector(name, width, gamma_offset(graph_.layer.norm) == 1 ? ParameterInit::zero : ParameterInit::one);
  }

  /// A matrix for each expert, one behind the other; `outputs` and `inputs` are those of one.
  constexpr Weight expert_weight(ParameterName name, std::int64_t experts, Width outputs, Width inputs,
                                 double deviation = 0.02) {
    outputs.extent *= experts;
    const Weight out = weight(name, outputs, inputs, deviation);
    graph_.weights[static_cast<std::size_t>(out.id)].copies = experts;
    graph_.weights[static_cast<std::size_t>(out.id)].of_experts = true;
    return out;
  }
  /// What is added to the scores of experts when they are chosen: (E).
  constexpr Weight choice_bias(ParameterName name, std::int64_t experts) {
    return parameter({.name = name, .rows = whole(experts), .balances = true});
  }

  /// A bias of logits: (V).
  constexpr Weight logits_bias(std::int64_t vocabulary) {
    return parameter({.name = ParameterName::logits_bias, .rows = split(vocabulary), .over_vocabulary = true});
  }

  // Tensors.
  /// What the layer reads of others, (rows, H): the first of its inputs, then the second.
  constexpr Tensor input(Width width, Rows rows = Rows::tokens) {
    int& own = graph_.inputs[graph_.inputs[0] < 0 ? 0 : 1];
    check(own < 0, "a layer has at most two inputs");
    own = tensor({width, rows});
    return {own};
  }
  /// Numbers of the data, which have no gradient.
  constexpr Tensor data(Width width, Rows rows) {
    graph_.takes_data = true;
    return input(width, rows);
  }
  /// With the epsilon of the layer's norms.
  constexpr Tensor norm(Tensor x, Weight gamma, Weight beta = {}) {
    return norm(x, gamma, beta, graph_.layer.norm_epsilon);
  }
  constexpr Tensor norm(Tensor x, Weight gamma, Weight beta, double epsilon) {
    check(!width_of(x).split, "a norm needs whole rows: its operand is split over tensor-parallel ranks");
    check(is_vector(gamma, width_of(x)) && (beta.id < 0 || is_vector(beta, width_of(x))),
          "a norm's parameters have its operand's width");
    Node node = unary(Kind::norm, x, shape_of(x), {gamma, beta});
    node.norm = graph_.layer.norm;
    graph_.weights[static_cast<std::size_t>(gamma.id)].epsilon = epsilon;
    return push(node);
  }
  /// The same with parameters of these names; RMS norms have no beta.
  constexpr Tensor norm(Tensor x, ParameterName gamma, ParameterName beta) {
    const Weight scale = norm_scale(gamma, width_of(x));
    return norm(x, scale, graph_.layer.norm == NormKind::layer_norm ? vector(beta, width_of(x)) : Weight{});
  }
  constexpr Tensor linear(Tensor x, Weight w, Weight bias = {}) {
    const WeightSpec& spec = graph_.weight(w.id);
    check(matches(spec.columns, width_of(x)), "a linear layer's weight has as many columns as its operand");
    check(!spec.columns.split || !spec.rows.split,
          "a weight is split over tensor-parallel ranks in one extent at most");
    check(bias.id < 0 || is_vector(bias, spec.rows), "a linear layer's bias has as many elements as its result");
    factor_of_product(w);
    return push(unary(Kind::linear, x, {spec.rows, rows_of(x)}, {w, bias}));
  }
  /// The same with parameters of these names; a bias where the layer has some.
  constexpr Tensor linear(Tensor x, ParameterName weight_name, ParameterName bias_name, Width outputs,
                          double deviation = 0.02) {
    const Weight w = weight(weight_name, outputs, width_of(x), deviation);
    return linear(x, w, graph_.layer.bias ? vector(bias_name, outputs) : Weight{});
  }
  /// The last linear layer gets a low-rank adapter: y += scale * B (A x) (Hu et al., arXiv 2106.09685). A (rank,
  /// inputs) begins as torch.nn.Linear does, but normal: deviation 1 / sqrt(3 inputs); B (outputs, rank) begins with
  /// zeros. Where the weight is split in its rows B is too; where in its columns A is.
  /// @param sections  of the result that have an adapter each, whose factors lie behind each other; none: one of all
  constexpr void adapt(std::int64_t rank, const std::array<bool, 3>& sections, ParameterName a, ParameterName b) {
    check(graph_.node_count > 0, "an adapter is of a linear layer");
    Node& node = graph_.nodes[static_cast<std::size_t>(graph_.node_count - 1)];
    check(node.operation == Kind::linear && node.weights[2] < 0, "an adapter is of a linear layer");
    const Width inputs = graph_.width(node.inputs[0]);
    Width outputs = graph_.width(node.output);
    node.adapted = sections;
    std::int64_t adapters = 1;
    if (sections != std::array<bool, 3>{}) {
      const std::array<std::int64_t, 3> all = outputs.sections;
      outputs.sections = {};
      outputs.extent = adapters = 0;
      for (std::size_t k = 0; k < all.size(); ++k) {
        if (!sections[k]) continue;
        check(all[k] > 0, "an adapter is of a section that its layer has");
        outputs.sections[static_cast<std::size_t>(adapters++)] = all[k];
        outputs.extent += all[k];
      }
    }
    const double deviation = detail::inverse_root(3 * static_cast<double>(inputs.extent));
    node.weights[2] = factor(a, whole(adapters * rank), inputs, ParameterInit::normal, deviation).id;
    node.weights[3] = factor(b, outputs, whole(rank), ParameterInit::zero, 0).id;
  }
  /// @param width  of the result, which differs from that of x for gated kinds
  constexpr Tensor activation(ActivationKind kind, Tensor x, Width width) {
    check(matches({inputs_of(kind) * width.extent, width.split, {}, width.head_groups}, width_of(x)),
          "an activation's operand is as wide as its result, twice as wide for gated kinds");
    check(inputs_of(kind) == 1 || has_sections(x, {width.extent, width.extent, 0}),
          "a gated activation's operand has the sections gate and up");
    Node node = unary(Kind::activation, x, {width, rows_of(x)});
    node.activation = kind;
    return push(node);
  }
  constexpr Tensor multiply(Tensor a, Tensor b) { return elementwise(Kind::multiply, a, b); }
  constexpr Tensor add(Tensor a, Tensor b) { return elementwise(Kind::add, a, b); }
  constexpr Tensor jitter(Tensor x) {
    check(!width_of(x).split && rows_of(x) == Rows::tokens, "noise is of whole rows of tokens");
    return push(unary(Kind::jitter, x, shape_of(x)));
  }
  /// @param b  (T, 1)
  constexpr Tensor gate(Tensor a, Tensor b) {
    check(!width_of(a).split && width_of(b).extent == 1 && rows_of(a) == rows_of(b),
          "a gate multiplies whole rows by one number each");
    return binary(Kind::gate, a, b, width_of(a));
  }
  /// Queries and keys of a fused projection.
  constexpr Tensor rotate(Tensor qkv) {
    return rotate(qkv, graph_.layer.heads + graph_.layer.kv_heads, graph_.layer.head_dim);
  }
  constexpr Tensor rotate(Tensor x, std::int64_t heads, std::int64_t head_width) {
    check(head_width % 2 == 0 && heads * head_width <= width_of(x).extent,
          "positions turn pairs of elements of the first heads of a row");
    Node node = unary(Kind::rotate, x, shape_of(x));
    node.heads = heads;
    node.head_width = head_width;
    return push(node);
  }
  /// @param query_gamma, key_gamma  of one width, that of a head, or of all queries and of all keys
  constexpr Tensor norm_heads(Tensor qkv, Weight query_gamma, Weight key_gamma) {
    const std::int64_t q = graph_.weight(query_gamma.id).rows.extent;
    const std::int64_t k = graph_.weight(key_gamma.id).rows.extent;
    check(has_sections(qkv, {queries(), keys(), keys()}) &&
              ((q == graph_.layer.head_dim && k == q) || (q == queries() && k == keys())) &&
              !graph_.weight(query_gamma.id).is_split() && !graph_.weight(key_gamma.id).is_split(),
          "queries and keys of a fused projection have norms of their heads, or of all of them");
    for (const Weight gamma : {query_gamma, key_gamma})
      graph_.weights[static_cast<std::size_t>(gamma.id)].epsilon = graph_.layer.norm_epsilon;
    return push(unary(Kind::norm_heads, qkv, shape_of(qkv), {query_gamma, key_gamma}));
  }
  /// @param q           of all heads what positions turn, then the rest
  /// @param kv          of all heads what positions do not turn of keys, then values
  /// @param rotary_key  what they turn, of all heads
  constexpr Tensor assemble(Tensor q, Tensor kv, Tensor rotary_key) {
    const LayerSpec& l = graph_.layer;
    const std::int64_t turned = l.heads * l.latent.rotary_dim;
    check(has_sections(q, {turned, queries() - turned, 0}) &&
              has_sections(kv, {queries() - turned, l.heads * l.latent.value_dim, 0}) &&
              width_of(rotary_key) == whole(l.latent.rotary_dim),
          "latent attention has operands of its layer's heads and widths");
    Width all = split(3 * queries(), {queries(), queries(), queries()});
    all.head_groups = width_of(q).head_groups;
    Node node = unary(Kind::assemble, q, {all, rows_of(q)});
    node.inputs = {q.id, kv.id, rotary_key.id};
    return push(node);
  }
  /// @param width  of the result
  constexpr Tensor narrow(Tensor x, Width width) {
    check(width_of(x).extent == queries() && width.extent <= queries() && width.split == width_of(x).split,
          "the first elements of every head are no wider than the heads");
    return push(unary(Kind::narrow, x, {width, rows_of(x)}));
  }
  /// @param out     width of the result
  /// @param biases  a table of biases of scores by distance
  constexpr Tensor attend(Tensor qkv, Width out, Weight biases = {}) {
    check(has_sections(qkv, {queries(), keys(), keys()}) && out.extent == queries(),
          "attention's operand has the sections queries, keys and values of the layer's heads");
    return push(unary(Kind::attend, qkv, {out, rows_of(qkv)}, {biases}));
  }
  constexpr Tensor cross_attend(Tensor q, Tensor keys_and_values) {
    check(has_sections(keys_and_values, {keys(), keys(), 0}) && width_of(q).extent == queries(),
          "attention's operands have queries, and the sections keys and values, of the layer's heads");
    return binary(Kind::cross_attend, q, keys_and_values, width_of(q));
  }
  /// @param bias  of the choice  @param gain  of residuals
  constexpr Tensor experts(Tensor x, Weight router, Weight in, Weight out, Weight bias = {}, Weight gain = {}) {
    Node node = unary(Kind::experts, x, shape_of(x), {router, in, out, bias});
    node.weights[4] = gain.id;
    node.activation = graph_.layer.activation;
    for (const Weight w : {router, in, out}) factor_of_product(w);
    return push(node);
  }
  constexpr Tensor merge(Tensor x) {
    return push(unary(Kind::merge, x, {whole(4 * width_of(x).extent), Rows::tokens}));
  }
  /// Tokens to rows of the table.
  constexpr Tensor look_up(Weight table, Rows rows = Rows::tokens) {
    return push(unary(Kind::look_up, {}, {graph_.weight(table.id).columns, rows}, {table}));
  }
  constexpr Tensor add_positions(Tensor x, Weight table) {
    return push(unary(Kind::add_positions, x, shape_of(x), {table}));
  }
  constexpr Tensor add_segment(Tensor x, Weight table) {
    return push(unary(Kind::add_segment, x, shape_of(x), {table}));
  }
  constexpr Tensor prepend(Weight token, Tensor patches) {
    return push(unary(Kind::prepend, patches, {width_of(patches), Rows::tokens}, {token}));
  }
  constexpr Tensor first_token(Tensor x) {
    return push(unary(Kind::first_token, x, {width_of(x), Rows::first_tokens}));
  }
  constexpr Tensor mean(Tensor x) { return push(unary(Kind::mean, x, {width_of(x), Rows::samples})); }
  constexpr Tensor end_of_text(Tensor x) { return push(unary(Kind::end_of_text, x, {width_of(x), Rows::samples})); }
  constexpr void cross_entropy(Tensor x, Weight table, Weight bias = {}) {
    push({.operation = Kind::cross_entropy, .inputs = {x.id, -1, -1}, .weights = {table.id, bias.id, -1, -1, -1}});
  }
  /// @param x      (T, E): of two tokens of every sample, one of each tower
  /// @param scale  (1)
  constexpr void contrast(Tensor x, Weight scale) {
    check(!width_of(x).split, "a contrastive loss needs whole rows");
    push({.operation = Kind::contrast, .inputs = {x.id, -1, -1}, .weights = {scale.id, -1, -1, -1, -1}});
  }
  /// What goes to other layers: the first output, then the second.
  constexpr void output(Tensor y) {
    check(!width_of(y).split, "a layer's output is whole: it is split over tensor-parallel ranks");
    int& own = graph_.outputs[graph_.outputs[0] < 0 ? 0 : 1];
    check(own < 0, "a layer has at most two outputs");
    own = y.id;
  }

  [[nodiscard]] constexpr const Graph& graph() const {
    for (int i = 0; i < graph_.node_count; ++i) {
      const int y = graph_.node(i).output;
      check(y < 0 || graph_.uses(y) > 0, "an operation's result is not read: it would have no gradient");
    }
    return graph_;
  }

 private:
  [[nodiscard]] constexpr TensorSpec shape_of(Tensor x) const { return graph_.tensors[static_cast<std::size_t>(x.id)]; }
  [[nodiscard]] constexpr Width width_of(Tensor x) const { return graph_.width(x.id); }
  [[nodiscard]] constexpr Rows rows_of(Tensor x) const { return graph_.rows(x.id); }
  constexpr int tensor(const TensorSpec& shape) {
    check_count(graph_.tensor_count, Graph::most_tensors);
    graph_.tensors[static_cast<std::size_t>(graph_.tensor_count)] = shape;
    return graph_.tensor_count++;
  }
  constexpr Weight parameter(const WeightSpec& spec) {
    check_count(graph_.weight_count, Graph::most_weights);
    WeightSpec& own = graph_.weights[static_cast<std::size_t>(graph_.weight_count)];
    own = spec;
    own.frozen = graph_.layer.frozen && !spec.of_adapter;
    return {graph_.weight_count++};
  }
  /// A matrix of an adapter. Its gradients are added up, whatever products make them.
  constexpr Weight factor(ParameterName name, const Width& rows, const Width& columns, ParameterInit init,
                          double deviation) {
    return parameter({.name = name,
                      .rows = rows,
                      .columns = columns,
                      .decays = true,
                      .init = init,
                      .deviation = deviation,
                      .of_adapter = true});
  }
  constexpr void factor_of_product(Weight w) { ++graph_.weights[static_cast<std::size_t>(w.id)].products; }
  /// Throws std::invalid_argument.
  static constexpr void check(bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
  }
  /// True for extents that are shared alike. Sections are of the tensor that has them.
  static constexpr bool matches(const Width& a, const Width& b) {
    return a.extent == b.extent && a.split == b.split && a.head_groups == b.head_groups;
  }
  /// True where every rank has its part of each section.
  [[nodiscard]] constexpr bool has_sections(Tensor x, const std::array<std::int64_t, 3>& sections) const {
    const Width& width = graph_.width(x.id);
    return width.extent == sections[0] + sections[1] + sections[2] && (!width.split || width.sections == sections);
  }
  [[nodiscard]] constexpr std::int64_t queries() const { return graph_.layer.heads * graph_.layer.head_dim; }
  [[nodiscard]] constexpr std::int64_t keys() const { return graph_.layer.kv_heads * graph_.layer.head_dim; }
  [[nodiscard]] constexpr bool is_vector(Weight w, const Width& width) const {
    return matches(graph_.weight(w.id).rows, width) && graph_.weight(w.id).columns.extent == 1;
  }
  constexpr Node unary(Kind operation, Tensor x, const TensorSpec& result, const std::array<Weight, 4>& weights = {}) {
    return {.operation = operation,
            .inputs = {x.id, -1, -1},
            .output = tensor(result),
            .weights = {weights[0].id, weights[1].id, weights[2].id, weights[3].id, -1}};
  }
  constexpr Tensor binary(Kind operation, Tensor a, Tensor b, const Width& width) {
    Node node = unary(operation, a, {width, rows_of(a)});
    node.inputs[1] = b.id;
    return push(node);
  }
  constexpr Tensor elementwise(Kind operation, Tensor a, Tensor b) {
    check(matches(width_of(a), width_of(b)) && rows_of(a) == rows_of(b), "a sum or product has operands of one shape");
    return binary(operation, a, b, width_of(a));
  }
  /// Throws std::length_error.
  static constexpr void check_count(int count, int most) {
    if (count >= most)
      throw std::length_error("a forward pass has at most 32 operations and tensors and 28 parameters");
  }
  constexpr Tensor push(const Node& node) {
    check_count(graph_.node_count, Graph::most_nodes);
    graph_.nodes[static_cast<std::size_t>(graph_.node_count++)] = node;
    return {node.output};
  }

  Graph graph_;
};

}  // namespace galvatron::forward
