// LayerSpec and ModelSpec: a Transformer as numbers, before any rank or device is known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/units.hpp>

namespace galvatron {

namespace forward {
struct Graph;
}
struct LayerSpec;
/// A forward pass: written with forward::Builder (model/forward.hpp).
using ForwardPass = forward::Graph (*)(const LayerSpec&);

enum class LayerKind : std::uint8_t { embedding, block, head };
enum class NormKind : std::uint8_t {
  layer_norm,
  rms_norm,
  rms_norm_from_one,  ///< gamma is stored as its distance from 1, which 16 bits keep finer (Gemma)
};
/// What is added to the stored gamma.
constexpr float gamma_offset(NormKind kind) { return kind == NormKind::rms_norm_from_one ? 1.0F : 0.0F; }
enum class ActivationKind : std::uint8_t {
  gelu,  ///< in its tanh approximation, as in GPT-2
  swiglu,
  relu,
  quick_gelu,    ///< x sigmoid(1.702 x), as in CLIP
  exact_gelu,    ///< x Phi(x)
  squared_relu,  ///< max(x, 0)^2 (So et al., "Primer", 2021), as in Nemotron
  geglu,         ///< gelu(gate) up, as in Gemma and T5 1.1 (Shazeer, arXiv 2002.05202)
};
inline constexpr std::array activation_kinds{
    ActivationKind::gelu,       ActivationKind::swiglu,       ActivationKind::relu, ActivationKind::quick_gelu,
    ActivationKind::exact_gelu, ActivationKind::squared_relu, ActivationKind::geglu};
/// Rows of input weights for each of a hidden unit: gate and up for gated kinds, one for the others.
constexpr std::int64_t inputs_of(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::geglu ? 2 : 1;
}
/// relative: a table (rows, A) of biases of attention scores, by the distance of query and key.
enum class PositionKind : std::uint8_t { learned, rotary, relative };
/// Where the norms of a block are.
enum class NormOrder : std::uint8_t {
  before,  ///< before each part (GPT-2)
  after,   ///< after each residual (BERT)
  around,  ///< before each part, and behind it, before what it made is added (Gemma 2 and 3)
};
enum class HeadKind : std::uint8_t {
  language,         ///< norm, then logits of every token over the vocabulary
  masked_language,  ///< (H, H) projection, activation and norm, then logits of every token, with biases (BERT)
  classifier,       ///< norm, then logits of one vector a sample over the classes, with biases; V counts the classes
  contrastive,      ///< each sample is two rows, of one tower each; the loss wants them alike, and unlike those of the
                    ///< other samples (Radford et al., "Learning transferable visual models", 2021)
};

/// Which RMS norms queries and keys have before positions turn them.
enum class QueryKeyNorm : std::uint8_t {
  none,
  heads,  ///< each head by itself, with one gamma for all of queries and one for all of keys (Qwen3)
  all,    ///< all queries of a token together, and all keys (OLMoE)
};

/// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1): keys and values are
/// products of a normed vector of `rank` numbers a token. Of a head of queries and keys positions turn the first
/// `rotary_dim` elements only, and those of keys are one vector for all heads.
struct LatentAttention {
  std::int64_t rank = 0;        ///< of keys and values; 0: they are products of the block's input
  std::int64_t query_rank = 0;  ///< the same of queries
  std::int64_t rotary_dim = 0;  ///< less than head_dim
  std::int64_t value_dim = 0;   ///< width of a head of values, at most head_dim
  double norm_epsilon = 1e-6;   ///< of the norms of those vectors
  friend constexpr bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

/// Between which pairs scaled rotary positions go from as they were to slower ones.
enum class RotaryRamp : std::uint8_t {
  pairs,  ///< in proportion to a pair's number: YaRN (Peng et al., arXiv 2309.00071)
  turns,  ///< in proportion to how often it turns: Llama 3.1 (Grattafiori et al., arXiv 2407.21783)
  none,   ///< all pairs are slower (Chen et al., arXiv 2306.15595)
};
/// Rotary positions that are scaled for sequences longer than those of the first training.
struct RotaryScaling {
  RotaryRamp ramp = RotaryRamp::pairs;
  double factor = 1;           ///< of the sequences' length; 1: positions are not scaled
  std::int64_t positions = 0;  ///< of the first training; of no ramp 0
  double fast = 32;            ///< pairs that turn so often within those positions are as they were
  double slow = 1;             ///< pairs that turn so often or less are `factor` times slower
  double amplitude = 1;        ///< of queries and keys where positions turn them
  double score_rate = 0;       ///< m: scores are multiplied by (0.1 m ln(factor) + 1)^2 (DeepSeek)
  friend constexpr bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// How a router scores experts for a token, from its logits. Ties go to the lower number.
enum class RouterKind : std::uint8_t {
  softmax,  ///< probabilities; of a group of experts its largest (Mixtral, Qwen, OLMoE, DeepSeek-V2)
  sigmoid,  ///< choice by sigmoid + bias, of a group by the sum of its two largest; weights from the sigmoid alone
            ///< (DeepSeek-V3)
};
/// The tokens among which a balance loss counts the choices of experts.
enum class BalanceScope : std::uint8_t {
  sequence,     ///< those of each sample: no split of the batch changes it
  micro_batch,  ///< of a data rank
  data_ranks,   ///< the micro-batches of all data ranks together
};
/// Which choices an expert drops that gets more than its capacity.
enum class DropOrder : std::uint8_t {
  position,  ///< the last of all first choices in the order of tokens, then of all second ones, and so on
  weight,    ///< those of the smallest weights
};

/// A router of experts: a token goes to the `active_experts` of the largest scores.
struct RouterSpec {
  RouterKind kind = RouterKind::softmax;
  bool renormalise = true;  ///< weights of a token add up to `scale`; softmax: as of its chosen logits alone
  double scale = 1;         ///< of all weights
  std::int64_t groups = 1;  ///< runs of experts that are chosen first, of which a token goes to `top_groups`
  std::int64_t top_groups = 1;
  double balance_loss = 0;  ///< alpha: the loss grows by alpha E sum_e f_e P_e, with f_e = choices of e / (k T) and
                            ///< P_e the mean probability of e (Fedus et al., 2021)
  BalanceScope balance_scope = BalanceScope::sequence;
  double z_loss = 0;     ///< beta: the loss grows by beta mean(logsumexp(logits)^2) (Zoph et al., 2022)
  double bias_rate = 0;  ///< gamma: after a step the bias of an expert moves by gamma towards its fair load
                         ///< (Wang et al., 2024)
  double capacity = 0;   ///< an expert takes ceil(k T / E * capacity) choices of a micro-batch; 0: all
  DropOrder drops = DropOrder::position;
  double jitter = 0;           ///< in training what the router and the experts get is multiplied by noise, uniform in
                               ///< (1 - jitter, 1 + jitter) (Fedus et al., 2021; as Hugging Face's Mixtral has it)
  bool residual_gain = false;  ///< of an expert that gets means of tokens: what it adds of their distances from them is
                               ///< learned, and nothing at first

  friend constexpr bool operator==(const RouterSpec&, const RouterSpec&) = default;
  [[nodiscard]] constexpr bool has_losses() const { return balance_loss > 0 || z_loss > 0; }
};

/// The tokens of a layer as a share of the model's sequence: S * part / whole. A part of 0 is no token at all.
struct TokenRatio {
  std::int64_t part = 1;
  std::int64_t whole = 1;

  friend constexpr bool operator==(const TokenRatio&, const TokenRatio&) = default;
  [[nodiscard]] constexpr bool any() const { return part != 0; }
  [[nodiscard]] constexpr bool divides(std::int64_t sequence) const { return sequence * part % whole == 0; }
  [[nodiscard]] constexpr std::int64_t of(std::int64_t sequence) const { return sequence * part / whole; }
};
inline constexpr TokenRatio all_tokens{1, 1};
inline constexpr TokenRatio no_tokens{0, 1};

/// Of LayerSpec::end_token.
inline constexpr std::int64_t no_token = -1;
inline constexpr std::int64_t largest_token = -2;  ///< that of the largest id in a sample

/// The tokens of a side of a square of `tokens` tokens; 0 where they make no square.
constexpr std::int64_t side_of_square(std::int64_t tokens) {
  if (tokens < 1) return 0;
  std::int64_t side = tokens;  // Newton's iteration from above
  for (std::int64_t next = (side + 1) / 2; next < side; next = (side + tokens / side) / 2) side = next;
  return side * side == tokens ? side : 0;
}

/// One of the values that cross a border between layers; empty without tokens.
struct BundlePart {
  TokenRatio tokens = no_tokens;
  std::int64_t width = 0;
  friend constexpr bool operator==(const BundlePart&, const BundlePart&) = default;
  /// Of a sample.
  [[nodiscard]] constexpr std::int64_t elements(std::int64_t sequence) const { return tokens.of(sequence) * width; }
};
inline constexpr int most_parts = 4;
/// All that crosses a border, part by part: in a chain of layers one.
using Bundle = std::array<BundlePart, most_parts>;

/// Layers of a model that end in a loss.
inline constexpr int most_losses = 4;

/// What a layer reads and makes of the bundles at its borders. It follows from the model's graph (model/graph.hpp); a
/// layer of a chain has the default.
struct BundlePlace {
  Bundle before{};                             ///< from the layer before; of a first layer as `after`
  Bundle after{};                              ///< to the layer after; of a last layer as `before`
  std::array<std::int16_t, 2> inputs{0, -1};   ///< parts of `before` that the layer reads; -1: none
  std::array<std::int16_t, 2> outputs{0, -1};  ///< parts of `after` that it makes
  std::int16_t arrives = 0;  ///< the part that the layer before made: kept with this layer, as others are with theirs
  friend constexpr bool operator==(const BundlePlace&, const BundlePlace&) = default;
};

/// Low-rank adapters of a block's linear layers (LoRA: Hu et al., arXiv 2106.09685): y = W x + alpha / rank * B (A x).
struct AdapterSpec {
  std::int64_t rank = 0;  ///< 0: none
  double alpha = 0;
  // Linear layers that have one. Fused ones have one adapter for all their rows (GPT-2's c_attn).
  bool query = false;
  bool key = false;
  bool value = false;
  bool fused_qkv = false;
  bool attention_out = false;
  bool gate = false;  ///< of gated MLPs
  bool up = false;
  bool down = false;

  friend constexpr bool operator==(const AdapterSpec&, const AdapterSpec&) = default;
  [[nodiscard]] constexpr double scale() const { return rank > 0 ? alpha / static_cast<double>(rank) : 0; }
};

/// One layer. Shape letters: B batch, S sequence, H hidden, A heads, V vocabulary, L layers.
struct LayerSpec {
  LayerKind kind = LayerKind::block;
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A, query heads
  std::int64_t kv_heads = 0;    ///< key/value heads; divides A
  std::int64_t head_dim = 0;    ///< usually H / A
  std::int64_t ffn = 0;         ///< width of the MLP; for gated kinds the width of gate and of up
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< the longest sequence; rows of a learned position table
  NormKind norm = NormKind::layer_norm;
  ActivationKind activation = ActivationKind::gelu;
  PositionKind position = PositionKind::learned;
  bool bias = true;    ///< linear layers have a bias
  bool causal = true;  ///< a token attends to its predecessors only
  bool tied = false;   ///< the head uses the embedding's table
  double rope_theta = 10000.0;
  RotaryScaling rotary_scaling{};
  std::int64_t rotary_dim = 0;   ///< elements of a head that positions turn, as pairs (j, j + head_dim / 2) from j = 0
                                 ///< on; 0: all (Phi turns a part)
  std::int64_t score_width = 0;  ///< scores are divided by its root; 0: head_dim (Gemma 2 and 3 name it, T5 has 1)
  std::int64_t sliding_window = 0;  ///< tokens that one attends to at most: itself and those just before it (Mistral,
                                    ///< Gemma 2 and 3); 0: all before it
  double score_cap = 0;             ///< scores s become score_cap tanh(s / score_cap) (Gemma 2); 0: they stay
  double norm_epsilon = 1e-5;
  int layers = 1;  ///< L, blocks in the whole model; scales the initialisation of residual projections

  // What only some families have.
  TokenRatio tokens = all_tokens;            ///< that the layer works on
  TokenRatio memory = no_tokens;             ///< of the second input, which cross attention reads (T5's decoder)
  TokenRatio target = no_tokens;             ///< of an embedding's second output: what a decoder takes (T5)
  NormOrder norm_order = NormOrder::before;  ///< of a block
  bool closing_norm = false;                 ///< the output goes through one more norm
  std::int64_t window = 0;                   ///< tokens attend within squares of this side (Swin); 0: everywhere
  std::int64_t shift = 0;                    ///< of the windows, in tokens down and to the right
  std::int64_t bias_rows = 0;                ///< of the table of relative positions that this block owns
  bool merges = false;                       ///< the input is 4 tokens of H / 2 for one of H (Swin)
  bool parallel = false;                     ///< attention and the MLP read one norm, and both are added (Phi)
  bool qkv_bias = false;                     ///< queries, keys and values have a bias, others as `bias` says (Qwen2)
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  LatentAttention latent{};
  std::int64_t experts = 0;           ///< MLPs without biases, of which a router chooses; 0: one MLP without it
  std::int64_t active_experts = 0;    ///< k: chosen for a token
  RouterSpec router{};                ///< of the experts
  std::int64_t shared_ffn = 0;        ///< width of an MLP for all tokens beside the experts; 0: none
  bool shared_gate = false;           ///< its result is multiplied by sigmoid(x w) (Qwen2-MoE)
  std::int64_t patch_width = 0;       ///< embedding: numbers of an image patch; 0: tokens of a vocabulary
  bool class_token = false;           ///< embedding: a sample's first token is learned, the others are patches;
                                      ///< classifier: it reads that token instead of the mean of all
  std::int64_t end_token = no_token;  ///< projection: of a sample it reads the first token of this id, or the first of
                                      ///< all of a sample without one (CLIP's text tower)
  std::int64_t token_types = 0;       ///< embedding: rows of a table of segments
  double embedding_scale = 1;         ///< embedding: rows of the table are multiplied by it (Gemma)
  bool logits_bias = false;           ///< language head: logits have biases (Phi); those of other heads always do
  double logits_cap = 0;              ///< language head: as score_cap, of logits
  HeadKind head = HeadKind::language;
  double loss_weight = 1;  ///< of a head's loss in the model's
  bool frozen = false;     ///< its parameters stay as they are, but for adapters
  AdapterSpec adapters{};  ///< of a block
  BundlePlace place{};     ///< in the model's graph
  /// Of a layer that is not of this library; null: that of model/layers.hpp. Numbers of the layer that attention and
  /// positions read are those above.
  ForwardPass forward_pass = nullptr;

  friend constexpr bool operator==(const LayerSpec&, const LayerSpec&) = default;
  /// True when the two take the same time and memory: windows cost as much wherever they lie, and positions however
  /// fast they turn, adapters whatever they are multiplied by, and soft caps as much as none.
  [[nodiscard]] constexpr bool costs_like(const LayerSpec& other) const {
    LayerSpec moved = other;
    moved.shift = shift;
    moved.rope_theta = rope_theta;
    moved.rotary_scaling = rotary_scaling;
    moved.adapters.alpha = adapters.alpha;
    moved.score_cap = score_cap;
    moved.logits_cap = logits_cap;
    return *this == moved;
  }
  /// Of a head.
  [[nodiscard]] constexpr bool has_logits_bias() const { return head != HeadKind::language || logits_bias; }
  /// What experts and their router get is multiplied by noise.
  [[nodiscard]] constexpr bool has_jitter() const { return experts > 0 && router.jitter > 0; }
  /// Rows of MLP input weights.
  [[nodiscard]] constexpr std::int64_t ffn_inputs() const { return inputs_of(activation) * ffn; }
  /// Width of the fused query, key and value projection.
  [[nodiscard]] constexpr std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// A block as GPT and Llama have them, causal or not: self-attention over the sequence and one MLP, each behind a
  /// norm.
  [[nodiscard]] constexpr bool is_plain_block() const {
    return kind == LayerKind::block && forward_pass == nullptr && !memory.any() && norm_order == NormOrder::before &&
           !closing_norm && window == 0 && position != PositionKind::relative && !merges && !parallel && !qkv_bias &&
           query_key_norm == QueryKeyNorm::none && latent.rank == 0 && experts == 0;
  }

  /// Tokens that the last of `keys` attends to at most; 0: all of them.
  [[nodiscard]] constexpr std::int64_t window_within(std::int64_t keys) const {
    return sliding_window < keys ? sliding_window : 0;
  }

  // What crosses the layer's borders.
  [[nodiscard]] constexpr bool is_in_chain() const {
    for (const BundlePart& part : place.before)
      if (part.tokens.any()) return false;
    return true;
  }
  /// The first value that the layer reads.
  [[nodiscard]] constexpr BundlePart input() const {
    return merges ? BundlePart{{4 * tokens.part, tokens.whole}, hidden / 2} : BundlePart{tokens, hidden};
  }
  [[nodiscard]] constexpr BundlePart before(int part) const {
    if (!is_in_chain()) return place.before[static_cast<std::size_t>(part)];
    return part == 0 ? input() : BundlePart{};
  }
  [[nodiscard]] constexpr BundlePart after(int part) const {
    if (!is_in_chain()) return place.after[static_cast<std::size_t>(part)];
    return part == 0 ? BundlePart{tokens, hidden} : BundlePart{};
  }
  /// True for a part that comes in and goes on as it is.
  [[nodiscard]] constexpr bool passes(int part) const {
    return before(part).tokens.any() && after(part).tokens.any() && part != place.outputs[0] &&
           part != place.outputs[1];
  }
  /// True for a part that comes in, is not read and does not go on.
  [[nodiscard]] constexpr bool ends(int part) const {
    return before(part).tokens.any() && !after(part).tokens.any() && part != place.inputs[0] && part != place.inputs[1];
  }
  /// True for a part that a stage keeps once for all its layers of a layout: it is for later layers or for several.
  [[nodiscard]] constexpr bool is_pass_through(int part) const {
    return before(part).tokens.any() && part != place.arrives;
  }
  /// True for a layer that reads nothing of what the layer before made: later ones do, and it keeps it for them.
  [[nodiscard]] constexpr bool keeps_unread() const {
    return !is_in_chain() && place.arrives >= 0 && place.arrives != place.inputs[0] &&
           place.arrives != place.inputs[1] && passes(place.arrives);
  }
  // Elements of a sample of `sequence` tokens: from the layer before, to the layer after, and what of them is kept
  // once.
  [[nodiscard]] constexpr std::int64_t input_elements(std::int64_t sequence) const {
    std::int64_t sum = 0;
    for (int i = 0; i < most_parts; ++i) sum += before(i).elements(sequence);
    return sum;
  }
  [[nodiscard]] constexpr std::int64_t output_elements(std::int64_t sequence) const {
    std::int64_t sum = 0;
    for (int i = 0; i < most_parts; ++i) sum += after(i).elements(sequence);
    return sum;
  }
  [[nodiscard]] constexpr std::int64_t pass_through_elements(std::int64_t sequence) const {
    std::int64_t sum = 0;
    for (int i = 0; i < most_parts; ++i) sum += is_pass_through(i) ? before(i).elements(sequence) : 0;
    return sum;
  }
};

/// A whole model: an embedding, L blocks and a head, in the order of the data.
struct ModelSpec {
  std::string name;
  LayerSpec embedding;
  std::vector<LayerSpec> blocks;
  LayerSpec head;

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
  /// Layers are numbered from the embedding, 0, to the head, layers() - 1.
  [[nodiscard]] constexpr int layers() const { return static_cast<int>(blocks.size()) + 2; }
  [[nodiscard]] constexpr const LayerSpec& layer(int number) const {
    if (number == 0) return embedding;
    return number + 1 == layers() ? head : blocks[static_cast<std::size_t>(number - 1)];
  }
  /// Of the embedding; layers behind may be wider.
  [[nodiscard]] constexpr std::int64_t hidden() const { return embedding.hidden; }
  /// Tokens, or classes of a model of images: the rows of the head's table.
  [[nodiscard]] constexpr std::int64_t vocabulary() const { return head.vocabulary; }
  /// The longest sequence; for a model of images the only one.
  [[nodiscard]] constexpr std::int64_t positions() const { return embedding.positions; }
  [[nodiscard]] constexpr bool takes_images() const { return embedding.patch_width > 0; }
  [[nodiscard]] constexpr bool is_encoder_decoder() const { return !blocks.empty() && blocks.back().memory.any(); }
};

}  // namespace galvatron
