// How the parameters of a layer are cut over tensor-parallel ranks and laid out in one flat run of memory.
//
// A rank keeps the parameters of a layer in flat "stores", so that ZeRO shards, reduces and updates a layer in single
// operations whatever tensors it has. Blocks have one store; embedding and head have two: the vocabulary table, which
// tied models share, and the rest. Inside a store the tensors are ordered
//
//     | decays, cut over tensor ranks | decays, whole | does not decay, whole | does not decay, cut | padding |
//                                     ^ whole_begin                           ^ whole_end
//
// "Whole" tensors are the same on every tensor-parallel rank; under Megatron sequence parallelism every rank sees only
// its own tokens, so their gradients are summed over the tensor-parallel group: one all-reduce of one run.
#pragma once

#include <array>
#include <cstdint>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/parameter.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Tensors start on multiples of this many elements: one cache line of bfloat16.
inline constexpr std::int64_t parameter_alignment = 32;
/// The vocabulary shards are padded to multiples of this many rows.
inline constexpr std::int64_t vocabulary_alignment = 64;

/// What of the whole tensor a tensor-parallel rank holds.
enum class ParameterCut : std::uint8_t {
  whole,    ///< all of it
  rows,     ///< a run of rows in each of `sections` sections (queries, keys, values; gate, up)
  columns,  ///< a run of columns
};

struct ParameterTensor {
  ParameterName name{};
  std::int64_t rows = 0;     ///< local
  std::int64_t columns = 0;  ///< local
  std::int64_t offset = 0;   ///< elements from the start of the store
  ParameterCut cut = ParameterCut::whole;
  bool decays = false;
  ParameterInit init = ParameterInit::zero;
  double deviation = 0;  ///< of the normal initialisation
  /// For ParameterCut::rows: local rows of each section; sections of the whole tensor are `degree` times as long.
  std::array<std::int64_t, 3> sections{};

  [[nodiscard]] constexpr std::int64_t count() const { return rows * columns; }
};

struct ParameterLayout {
  static constexpr int capacity = 28;
  std::array<ParameterTensor, capacity> tensors{};
  int size = 0;
  std::int64_t whole_begin = 0;
  std::int64_t whole_end = 0;
  std::int64_t decay_end = 0;  ///< elements [0, decay_end) decay
  /// Elements [0, written_end) are weights of a block whose gradients are products, without gaps: a micro-batch can
  /// write them, where it adds all others to zeros. See writes_gradients.
  std::int64_t written_end = 0;
  std::int64_t elements = 0;  ///< with padding; a multiple of parameter_alignment * data

  [[nodiscard]] constexpr const ParameterTensor* begin() const { return tensors.data(); }
  [[nodiscard]] constexpr const ParameterTensor* end() const { return tensors.data() + size; }
  [[nodiscard]] constexpr const ParameterTensor* find(ParameterName name) const {
    for (const ParameterTensor& tensor : *this)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
};

/// The parts of a layer's parameters: each is one store.
enum class ParameterPart : std::uint8_t { table, rest };

/// The tokens of the vocabulary that each of `tensor` ranks has.
constexpr Sharding vocabulary_sharding(std::int64_t vocabulary, int tensor) {
  return Sharding::even(vocabulary, tensor, vocabulary_alignment);
}
/// Rows of the vocabulary that each of `tensor` ranks holds, padding included.
constexpr std::int64_t vocabulary_shard(std::int64_t vocabulary, int tensor) {
  return vocabulary_sharding(vocabulary, tensor).largest();
}

/// True when the products of a block can write the gradients of its weights. Each of these has H rows or columns, so
/// that nothing but they is between them when H is aligned.
constexpr bool writes_gradients(const LayerSpec& layer) { return layer.hidden % parameter_alignment == 0; }

/// The local layout of one store of a layer under `tensor` tensor-parallel ranks; `data` ranks (data x context) hold
/// the same and may shard it.
/// Initialisation follows GPT-2: normal(0, 0.02), residual projections divided by sqrt(2 L), norms 1, biases 0.
constexpr ParameterLayout parameter_layout(const LayerSpec& layer, ParameterPart part, int tensor, int data) {
  ParameterLayout out;
  const std::int64_t h = layer.hidden;
  std::int64_t end = 0;
  const auto add = [&](ParameterName name, std::int64_t rows, std::int64_t columns, ParameterCut cut, bool decays,
                       ParameterInit init, double deviation, std::array<std::int64_t, 3> sections) {
    if (cut == ParameterCut::rows && sections[0] == 0) sections[0] = rows;
    ParameterTensor& t = out.tensors[out.size++];
    t = {name, rows, columns, end, cut, decays, init, deviation, sections};
    end = round_up(end + rows * columns, parameter_alignment);
  };
  const auto weight = [&](ParameterName name, std::int64_t rows, std::int64_t columns, ParameterCut cut,
                          double deviation = 0.02, std::array<std::int64_t, 3> sections = {}) {
    add(name, rows, columns, cut, true, ParameterInit::normal, deviation, sections);
  };
  const auto vector = [&](ParameterName name, std::int64_t n, ParameterCut cut, ParameterInit init,
                          std::array<std::int64_t, 3> sections = {}) {
    add(name, n, 1, cut, false, init, 0, sections);
  };
  // 1 / sqrt(2 L) by Newton's iteration: std::sqrt is not constexpr.
  double residual = 1;
  for (int i = 0; i < 64; ++i) {
    const double next = 0.5 * (residual + 1.0 / (2.0 * layer.layers * residual));
    if (next == residual) break;
    residual = next;
  }
  const double residual_deviation = 0.02 * residual;

  const std::int64_t q = layer.heads / tensor * layer.head_dim;
  const std::int64_t kv = layer.kv_heads / tensor * layer.head_dim;
  const std::int64_t f = layer.ffn / tensor;
  const bool gated = layer.activation == ActivationKind::swiglu;
  const std::array<std::int64_t, 3> qkv_sections{q, kv, kv};
  const std::array<std::int64_t, 3> memory_sections{kv, kv, 0};
  const std::array<std::int64_t, 3> mlp_sections{f, gated ? f : 0, 0};  // of each expert

  const bool rest = part == ParameterPart::rest;
  const bool block = rest && layer.kind == LayerKind::block;
  const bool embedding = rest && layer.kind == LayerKind::embedding;
  const bool head = rest && layer.kind == LayerKind::head;
  const bool cross = block && layer.memory.any();
  const std::int64_t mlps = layer.experts > 0 ? layer.experts : 1;
  const auto norm = [&](ParameterName gamma, ParameterName beta, std::int64_t width) {
    vector(gamma, width, ParameterCut::whole, ParameterInit::one);
    if (layer.norm == NormKind::layer_norm) vector(beta, width, ParameterCut::whole, ParameterInit::zero);
  };

  // Decays, cut.
  if (part == ParameterPart::table && layer.patch_width == 0)
    weight(ParameterName::table, vocabulary_shard(layer.vocabulary, tensor), h, ParameterCut::rows);
  if (block) {
    weight(ParameterName::qkv_weight, q + 2 * kv, h, ParameterCut::rows, 0.02, qkv_sections);
    weight(ParameterName::attention_out_weight, h, q, ParameterCut::columns, residual_deviation);
    if (cross) {
      weight(ParameterName::cross_query_weight, q, h, ParameterCut::rows);
      weight(ParameterName::cross_memory_weight, 2 * kv, h, ParameterCut::rows, 0.02, memory_sections);
      weight(ParameterName::cross_out_weight, h, q, ParameterCut::columns, residual_deviation);
    }
    weight(ParameterName::mlp_in_weight, mlps * (gated ? 2 * f : f), h, ParameterCut::rows, 0.02, mlp_sections);
    weight(ParameterName::mlp_out_weight, mlps * h, f, ParameterCut::columns, residual_deviation);
  }
  if (block && writes_gradients(layer)) out.written_end = end;
  if (block && layer.bias_rows > 0)
    weight(ParameterName::relative_positions, layer.bias_rows, layer.heads / tensor, ParameterCut::columns);
  out.whole_begin = end;
  // Decays, whole.
  if (embedding) {
    if (layer.position == PositionKind::learned)
      weight(ParameterName::positions, layer.positions, h, ParameterCut::whole);
    if (layer.token_types > 0) weight(ParameterName::token_types, layer.token_types, h, ParameterCut::whole);
    if (layer.class_token) weight(ParameterName::class_token, 1, h, ParameterCut::whole);
    if (layer.patch_width > 0) weight(ParameterName::patch_weight, h, layer.patch_width, ParameterCut::whole);
  }
  if (block && layer.merges) weight(ParameterName::merge_weight, h, 2 * h, ParameterCut::whole);
  if (block && layer.experts > 0) weight(ParameterName::router, layer.experts, h, ParameterCut::whole);
  if (head && layer.head == HeadKind::masked_language)
    weight(ParameterName::transform_weight, h, h, ParameterCut::whole);
  out.decay_end = end;
  // Does not decay, whole.
  if (embedding && layer.patch_width > 0)
    vector(ParameterName::patch_bias, h, ParameterCut::whole, ParameterInit::zero);
  if (head && layer.head == HeadKind::masked_language)
    vector(ParameterName::transform_bias, h, ParameterCut::whole, ParameterInit::zero);
  if (block || head) norm(ParameterName::norm1_gamma, ParameterName::norm1_beta, h);
  if (block) {
    norm(ParameterName::norm2_gamma, ParameterName::norm2_beta, h);
    if (cross) norm(ParameterName::norm3_gamma, ParameterName::norm3_beta, h);
    if (layer.merges) norm(ParameterName::merge_gamma, ParameterName::merge_beta, 2 * h);
    if (layer.bias) {
      vector(ParameterName::attention_out_bias, h, ParameterCut::whole, ParameterInit::zero);
      if (cross) vector(ParameterName::cross_out_bias, h, ParameterCut::whole, ParameterInit::zero);
      vector(ParameterName::mlp_out_bias, h, ParameterCut::whole, ParameterInit::zero);
    }
  }
  if (rest && layer.closing_norm) norm(ParameterName::closing_gamma, ParameterName::closing_beta, h);
  out.whole_end = end;
  // Does not decay, cut.
  if (block && layer.bias) {
    vector(ParameterName::qkv_bias, q + 2 * kv, ParameterCut::rows, ParameterInit::zero, qkv_sections);
    if (cross) {
      vector(ParameterName::cross_query_bias, q, ParameterCut::rows, ParameterInit::zero);
      vector(ParameterName::cross_memory_bias, 2 * kv, ParameterCut::rows, ParameterInit::zero, memory_sections);
    }
    vector(ParameterName::mlp_in_bias, gated ? 2 * f : f, ParameterCut::rows, ParameterInit::zero, mlp_sections);
  }
  if (head && layer.head != HeadKind::language)
    vector(ParameterName::logits_bias, vocabulary_shard(layer.vocabulary, tensor), ParameterCut::rows,
           ParameterInit::zero);
  out.elements = round_up(end, parameter_alignment * data);
  return out;
}

}  // namespace galvatron
